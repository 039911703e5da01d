package rpc

import (
	"context"
	"fmt"
	"slices"
	"time"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
)

// DescribeCluster implements runnelv1.AdminServiceServer.
func (s *AdminService) DescribeCluster(ctx context.Context, _ *runnelv1.DescribeClusterRequest) (*runnelv1.DescribeClusterResponse, error) {
	controller := s.presentController(ctx)
	img, err := s.deps.Finder.Image(ctx)
	if err != nil {
		return nil, err
	}
	leaders, replicas := map[metadata.BrokerID]int32{}, map[metadata.BrokerID]int32{}
	var topics, partitions int32
	for _, t := range img.Topics() {
		if !t.Internal {
			topics++
		}
		partitions += int32(len(t.Partitions)) //nolint:gosec // bounded by the image
		for i := range t.Partitions {
			leaders[t.Partitions[i].Leader]++
			for _, id := range t.Partitions[i].Replicas {
				replicas[id]++
			}
		}
	}
	resp := &runnelv1.DescribeClusterResponse{
		ClusterId: img.ClusterID, Version: s.deps.Version, BrokerId: new(int32(img.Self)),
		Controller: controller, ControllerEpoch: new(img.ControllerEpoch),
		Topics: new(topics), Partitions: new(partitions),
	}
	for _, c := range s.deps.Session.AskControllers(ctx) {
		resp.Controllers = append(resp.Controllers, describeController(c))
	}
	for _, b := range img.Brokers() {
		resp.Brokers = append(resp.Brokers, &runnelv1.BrokerDescription{
			BrokerId: new(int32(b.ID)), Address: b.ClientAddress, Rack: b.Rack, State: brokerState(b.Phase),
			BrokerEpoch: new(b.Epoch), Version: b.Version,
			Leaders: new(leaders[b.ID]), Replicas: new(replicas[b.ID]),
		})
	}
	return resp, nil
}

// failoverWait is how long after it lost its controller a broker expects to be
// registered with the next one.
const failoverWait = 3 * time.Second

// presentController returns the address of the active controller, "" when there
// is none. Shortly after the last one was lost it waits for the next.
func (s *AdminService) presentController(ctx context.Context) string {
	ctx, cancel := context.WithDeadline(ctx, s.deps.Session.LostController().Add(failoverWait))
	defer cancel()
	_, addr, _ := s.deps.Session.AwaitController(ctx) // empty when there is none, which the field says
	return addr
}

func describeController(c metadata.ControllerState) *runnelv1.ControllerDescription {
	d := &runnelv1.ControllerDescription{Address: c.Address, State: runnelv1.ControllerState_CONTROLLER_STATE_STANDBY}
	switch {
	case c.Refused:
		d.State, d.Problem = runnelv1.ControllerState_CONTROLLER_STATE_DOWN, "it refuses this broker: "+c.Err.Error()
	case c.Err != nil:
		d.State, d.Problem = runnelv1.ControllerState_CONTROLLER_STATE_DOWN, c.Err.Error()
	case c.Active:
		d.State = runnelv1.ControllerState_CONTROLLER_STATE_ACTIVE
	}
	return d
}

func brokerState(p metadata.BrokerPhase) runnelv1.BrokerState {
	switch p {
	case metadata.BrokerActive:
		return runnelv1.BrokerState_BROKER_STATE_ACTIVE
	case metadata.BrokerShuttingDown:
		return runnelv1.BrokerState_BROKER_STATE_SHUTTING_DOWN
	case metadata.BrokerFenced:
	}
	return runnelv1.BrokerState_BROKER_STATE_FENCED
}

// CheckHealth implements runnelv1.AdminServiceServer.
func (s *AdminService) CheckHealth(ctx context.Context, _ *runnelv1.CheckHealthRequest) (*runnelv1.CheckHealthResponse, error) {
	f := newFindings()
	img := s.deps.Store.Load()
	s.checkControllers(ctx, f, img)
	checkBrokers(f, img)
	for _, t := range img.Topics() {
		checkTopic(f, t)
	}
	s.checkSelf(f, img)
	s.checkOthers(ctx, f, img)
	return f.answer(), nil
}

func (s *AdminService) checkControllers(ctx context.Context, f *findings, img *metadata.Image) {
	if _, _, err := s.deps.Session.Controller(); err != nil {
		flows := "records flow, but no leader can be elected and no topic changed"
		if img.ClusterID == "" {
			flows = "it has not been let in since it was started, and serves nobody"
		}
		f.add(warning, "no_controller", fmt.Sprintf("broker %d", img.Self),
			"this broker has no session with a controller: %s; check that the controllers run and can be reached, and take it", flows)
	}
	for _, c := range s.deps.Session.AskControllers(ctx) {
		if c.Refused {
			f.add(critical, "controller_refuses", "controller "+c.Address, "it refuses broker %d: %v", img.Self, c.Err)
		} else if c.Err != nil {
			f.add(warning, "controller_down", "controller "+c.Address,
				"broker %d gets no service of it: %v; records flow, and a cluster of three goes on with two and stands still without a second: "+
					"start it again, or replace it (controller members, remove, join)", img.Self, c.Err)
		}
	}
}

func checkBrokers(f *findings, img *metadata.Image) {
	for _, b := range img.Brokers() {
		subject := fmt.Sprintf("broker %d", b.ID)
		switch b.Phase {
		case metadata.BrokerFenced:
			if b.Held {
				f.add(warning, "broker_fenced", subject, "an operator took the broker at %s out of service: it comes back when its process is started anew", b.InternalAddress)
				continue
			}
			f.add(warning, "broker_fenced", subject, "the broker at %s is not in service: it is starting, cut off, or down", b.InternalAddress)
		case metadata.BrokerShuttingDown:
			f.add(info, "broker_shutting_down", subject, "the broker is leaving in an orderly way")
		case metadata.BrokerActive:
		}
	}
}

func checkTopic(f *findings, t *metadata.Topic) {
	if t.ConfigErr != nil {
		f.add(warning, "config_not_understood", t.Name, "this version does not understand the topic's configuration, and uses its defaults instead: %v", t.ConfigErr)
	}
	if t.RF < t.TargetRF {
		f.add(warning, "internal_topic_growing", t.Name,
			"%d of the %d replicas it is to have: the loss of few brokers can lose it; start more brokers, and it is given replicas on them by itself", t.RF, t.TargetRF)
	}
	for n := range t.Partitions {
		p := &t.Partitions[n]
		subject := fmt.Sprintf("%s/%d", t.Name, n)
		if slices.Contains(p.LossyEpochs, p.LeaderEpoch) {
			f.add(warning, "records_may_be_missing", subject,
				"records that were acknowledged may be missing since leader epoch %d: no replica known to have them all was left, so broker %d was chosen with what it has; "+
					"see what the log of the topic holds now, and produce again or restore what is gone; this is told until the next change of leader",
				p.LeaderEpoch, p.Leader)
		}
		switch {
		case len(p.LastKnown) > 0:
			f.add(critical, "recovery_pending", subject,
				"every replica that was in sync (%v) may have lost records: the partition waits until all of them are back, or the first of them for cluster.recovery_wait (5 minutes), and then takes the best: start them all", p.LastKnown)
		case p.Leader == metadata.NoBroker:
			f.add(critical, "offline_partition", subject, "no replica in sync (%v) is in service: nothing can be written or read; bring one of them back", p.ISR)
		case len(p.ISR) < p.MinISR:
			f.add(critical, "under_min_isr", subject, "%d replicas are in sync, writes with acks ALL need %d: they are refused until more are", len(p.ISR), p.MinISR)
		case len(p.ISR) < len(p.Replicas):
			f.add(warning, "under_replicated", subject, "%d of %d replicas are in sync", len(p.ISR), len(p.Replicas))
		}
	}
}
