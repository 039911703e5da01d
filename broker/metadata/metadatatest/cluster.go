package metadatatest

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// TopicObjects returns a topic of one replica on a broker, with its partitions,
// led by it in the given epoch; -1 as the broker is nobody.
func TopicObjects(id uuid.UUID, topic string, partitions int32, broker int32, epoch int64) []*controllerv1.MetadataObject {
	out := []*controllerv1.MetadataObject{{Object: &controllerv1.MetadataObject_Topic{Topic: &controllerv1.TopicRecord{
		TopicId: id.String(), Name: topic, Phase: controllerv1.TopicPhase_TOPIC_PHASE_ACTIVE, Partitions: partitions, ReplicationFactor: 1,
	}}}}
	for n := range partitions {
		out = append(out, PartitionObject(id, n, broker, epoch))
	}
	return out
}

// PartitionObject returns a partition of one replica, led by it.
func PartitionObject(id uuid.UUID, n int32, broker int32, epoch int64) *controllerv1.MetadataObject {
	return &controllerv1.MetadataObject{Object: &controllerv1.MetadataObject_Partition{Partition: &controllerv1.PartitionRecord{
		TopicId: id.String(), Partition: n, Leader: broker, LeaderEpoch: epoch, PartitionEpoch: epoch,
		Replicas: []int32{broker}, Isr: []int32{broker}, MinIsr: 1, Flush: controllerv1.FlushMode_FLUSH_MODE_SYNC,
	}}}
}

// Admit puts a broker in service, and lets it lead again what it alone holds.
func (c *Controller) Admit(id int32) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()

	var out []*controllerv1.MetadataObject
	for _, o := range c.objects {
		o, _ := proto.Clone(o).(*controllerv1.MetadataObject)
		if b := o.GetBroker(); b != nil && b.GetBrokerId() == id {
			b.Phase, b.Judged = controllerv1.BrokerPhase_BROKER_PHASE_ACTIVE, true
			out = append(out, o)
		}
		if p := o.GetPartition(); p != nil && len(p.GetIsr()) == 1 && p.GetIsr()[0] == id {
			p.Leader = id
			p.LeaderEpoch++
			p.PartitionEpoch++
			out = append(out, o)
		}
	}
	return c.putLocked(out...)
}

// Serve admits every broker that has reported, and lets those drain that want
// to leave, until ctx is done.
func (c *Controller) Serve(ctx context.Context) error {
	reported, leaving := 0, 0
	admitted := map[string]bool{}
	for {
		err := c.Await(ctx, func(h Heard) bool { return h.Reported > reported || h.Leaving > leaving })
		if err != nil {
			return nil //nolint:nilerr // the end of ctx is the orderly end
		}
		h := c.Heard()
		if h.Reported > reported && len(h.Registers) > 0 {
			if b := h.Registers[len(h.Registers)-1].GetBroker(); !admitted[b.GetIncarnation()] {
				admitted[b.GetIncarnation()] = true
				c.Admit(b.GetBrokerId())
			}
		}
		if h.Leaving > leaving {
			c.MayDrain()
		}
		reported, leaving = h.Reported, h.Leaving
	}
}

// CreateTopics implements controllerv1.ControllerServiceServer, for topics of
// one replica on the broker that registered last.
func (c *Controller) CreateTopics(ctx context.Context, req *controllerv1.CreateTopicsRequest) (*controllerv1.CreateTopicsResponse, error) {
	h := c.Heard()
	broker := h.Registers[len(h.Registers)-1].GetBroker().GetBrokerId()
	resp := &runnelv1.CreateTopicsResponse{}
	for _, t := range req.GetRequest().GetTopics() {
		id := uuid.New()
		objects := TopicObjects(id, t.GetName(), max(t.GetPartitions(), 1), broker, 1)
		objects[0].GetTopic().Configs = t.GetConfigs()
		rev := c.Put(objects...)
		if err := c.Await(ctx, func(h Heard) bool { return h.Applied >= rev }); err != nil {
			return nil, fmt.Errorf("create %s: %w", t.GetName(), err)
		}
		resp.Results = append(resp.Results, &runnelv1.CreateTopicResult{Name: t.GetName(), TopicId: id.String(), Created: new(true), Applied: new(true)})
	}
	return &controllerv1.CreateTopicsResponse{Response: resp}, nil
}

// AllocateProducerIds implements controllerv1.ControllerServiceServer.
func (c *Controller) AllocateProducerIds(
	context.Context, *controllerv1.AllocateProducerIdsRequest,
) (*controllerv1.AllocateProducerIdsResponse, error) {
	const block = 1000
	c.mu.Lock()
	defer c.mu.Unlock()

	c.producer += block
	return &controllerv1.AllocateProducerIdsResponse{FirstProducerId: c.producer - block + 1, Count: block}, nil
}

// EnsureInternalTopic implements controllerv1.ControllerServiceServer, with one
// replica on the broker that registered last. It waits for no broker.
func (c *Controller) EnsureInternalTopic(
	_ context.Context, req *controllerv1.EnsureInternalTopicRequest,
) (*controllerv1.EnsureInternalTopicResponse, error) {
	c.ensuring <- struct{}{}
	defer func() { <-c.ensuring }()
	t := c.named(req.GetName())
	created := t == nil
	if created {
		h := c.Heard()
		objects := TopicObjects(uuid.New(), req.GetName(), max(req.GetPartitions(), 1), h.Registers[len(h.Registers)-1].GetBroker().GetBrokerId(), 1)
		t = objects[0].GetTopic()
		t.Configs, t.Internal = req.GetConfigs(), true
		c.Put(objects...)
	}
	return &controllerv1.EnsureInternalTopicResponse{
		TopicId: t.GetTopicId(), Partitions: t.GetPartitions(), ReplicationFactor: 1, Created: created,
	}, nil
}

// named returns the topic in service of that name, nil when there is none.
func (c *Controller) named(name string) *controllerv1.TopicRecord {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range c.objects {
		if t := o.GetTopic(); t.GetName() == name && t.GetPhase() == controllerv1.TopicPhase_TOPIC_PHASE_ACTIVE {
			return t
		}
	}
	return nil
}

// DeleteTopic deletes a topic: the brokers' confirmation is awaited, then the
// record goes.
func (c *Controller) DeleteTopic(ctx context.Context, id uuid.UUID, broker int32) error {
	c.mu.Lock()
	o, _ := proto.Clone(c.objects["topic "+id.String()]).(*controllerv1.MetadataObject)
	c.mu.Unlock()
	o.GetTopic().Phase = controllerv1.TopicPhase_TOPIC_PHASE_DELETING
	o.GetTopic().AwaitingRemoval = []int32{broker}
	before := len(c.Heard().Removed)
	c.Put(o)
	if err := c.Await(ctx, func(h Heard) bool { return len(h.Removed) > before }); err != nil {
		return err
	}
	c.Put(&controllerv1.MetadataObject{Object: &controllerv1.MetadataObject_DeletedTopicId{DeletedTopicId: id.String()}})
	return nil
}
