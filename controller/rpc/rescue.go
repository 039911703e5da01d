package rpc

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/controller/active"
	"github.com/runnelmq/runnel/controller/state"
)

// RecoverPartition implements controllerv1.ControllerServiceServer.
func (s *Service) RecoverPartition(ctx context.Context, in *controllerv1.RecoverPartitionRequest) (*controllerv1.RecoverPartitionResponse, error) {
	req := in.GetRequest()
	wait, err := checkForm(1, req.GetTimeout())
	if err != nil {
		return nil, err
	}
	ref, err := toRef(req.GetTopic(), req.TopicId) //nolint:protogetter // absent is not empty
	if err != nil {
		return nil, err
	}
	if req.Partition == nil {
		return nil, invalid("partition is missing")
	}
	from := state.NoLeader
	if req.FromBrokerId != nil {
		if from = state.BrokerID(req.GetFromBrokerId()); from < 0 {
			return nil, invalid("from_broker_id %d: it must be 0 or more", from)
		}
	}
	act, err := s.office.Active()
	if err != nil {
		return nil, err
	}
	r, err := act.Rescue(ctx, ref, req.GetPartition(), from, req.GetDryRun(), wait, in.GetPrincipal())
	// A dry run shows the copies even if at present none can be elected.
	if err != nil && (!req.GetDryRun() || len(r.Copies) == 0) {
		return nil, err
	}
	resp := &runnelv1.RecoverPartitionResponse{}
	for _, c := range r.Copies {
		resp.Copies = append(resp.Copies, partitionCopy(&c, &r))
	}
	if r.Leader != state.NoLeader {
		resp.Leader = new(int32(r.Leader))
	}
	if !req.GetDryRun() {
		resp.LeaderEpoch, resp.Applied = &r.Epoch, &r.Applied
	}
	return &controllerv1.RecoverPartitionResponse{Response: resp}, nil
}

func partitionCopy(c *state.Copy, r *active.Rescue) *runnelv1.PartitionCopy {
	out := &runnelv1.PartitionCopy{
		BrokerId: new(int32(c.Broker)), State: runnelv1.BrokerState(c.Phase), Role: runnelv1.CopyRole(c.Role),
	}
	if c.Silent {
		out.Silent = &c.Silent
	}
	if c.Report != nil {
		out.ReportedAt = timestamppb.New(r.Reported[c.Broker])
		out.Intact = new(c.Report.Shape == state.ShapeIntact)
		out.LastEpoch, out.LogEndOffset, out.HighWatermark = &c.Report.LastEpoch, &c.Report.LogEndOffset, &c.Report.HighWatermark
		out.MissingCommitted, out.MissingRecords = &c.MissingCommitted, &c.MissingRecords
	}
	return out
}

// FenceBroker implements controllerv1.ControllerServiceServer.
func (s *Service) FenceBroker(ctx context.Context, in *controllerv1.FenceBrokerRequest) (*controllerv1.FenceBrokerResponse, error) {
	req := in.GetRequest()
	wait, err := checkForm(1, req.GetTimeout())
	if err != nil {
		return nil, err
	}
	if req.BrokerId == nil {
		return nil, invalid("broker_id is missing")
	}
	act, err := s.office.Active()
	if err != nil {
		return nil, err
	}
	epoch, applied, err := act.Hold(ctx, state.BrokerID(req.GetBrokerId()), wait, in.GetPrincipal())
	if err != nil {
		return nil, err
	}
	return &controllerv1.FenceBrokerResponse{Response: &runnelv1.FenceBrokerResponse{BrokerEpoch: &epoch, Applied: &applied}}, nil
}
