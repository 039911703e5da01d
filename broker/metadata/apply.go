package metadata

import (
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/topicconfig"
)

// Next returns the image that follows i: the same with objects laid over it.
// An object that is not newer than what the image has of it is dropped. An
// object that can't be understood is an error: going on without it would show
// a picture of the cluster that never was.
func (i *Image) Next(controllerEpoch, revision int64, objects []*controllerv1.MetadataObject) (*Image, error) {
	next := &Image{
		Revision: revision, ControllerEpoch: controllerEpoch, ClusterID: i.ClusterID, Self: i.Self, Session: i.Session,
		brokers: maps.Clone(i.brokers), topics: i.topics, names: i.names,
	}
	b := builder{
		image: next, topics: editOf(&next.topics, hashUUID), names: editOf(&next.names, hashString),
		draft: map[uuid.UUID]*Topic{},
	}
	if next.brokers == nil {
		next.brokers = map[BrokerID]*Broker{}
	}
	for _, o := range objects {
		if err := b.apply(o); err != nil {
			return nil, fmt.Errorf("metadata object of revision %d: %w", o.GetRevision(), err)
		}
	}
	b.finish()
	return next, nil
}

// A builder collects changes to topics, so that each is put together once.
type builder struct {
	image  *Image
	topics *edit[uuid.UUID, *Topic]
	names  *edit[string, *Topic]
	draft  map[uuid.UUID]*Topic
}

func (b *builder) apply(o *controllerv1.MetadataObject) error {
	switch {
	case o.GetBroker() != nil:
		b.broker(o.GetRevision(), o.GetBroker())
		return nil
	case o.GetTopic() != nil:
		return b.topic(o.GetRevision(), o.GetTopic())
	case o.GetPartition() != nil:
		return b.partition(o.GetRevision(), o.GetPartition())
	case o.GetDeletedTopicId() != "":
		id, err := uuid.Parse(o.GetDeletedTopicId())
		if err != nil {
			return fmt.Errorf("deleted topic %q: %w", o.GetDeletedTopicId(), err)
		}
		b.forget(id, o.GetRevision())
		return nil
	}
	return nil // a kind of object of a later version
}

func (b *builder) broker(revision int64, r *controllerv1.BrokerRecord) {
	id := BrokerID(r.GetBrokerId())
	if old, ok := b.image.brokers[id]; ok && old.revision >= revision {
		return
	}
	phase := BrokerFenced // the least permission, also for a phase of a later version
	switch r.GetPhase() {
	case controllerv1.BrokerPhase_BROKER_PHASE_ACTIVE:
		phase = BrokerActive
	case controllerv1.BrokerPhase_BROKER_PHASE_SHUTTING_DOWN:
		phase = BrokerShuttingDown
	default:
	}
	b.image.brokers[id] = &Broker{
		ID: id, Incarnation: r.GetIncarnation(), Epoch: r.GetBrokerEpoch(), Phase: phase,
		ClientAddress: r.GetClientAddress(), InternalAddress: r.GetInternalAddress(),
		Rack: r.GetRack(), Version: r.GetVersion(), Judged: r.GetJudged(), Held: r.GetHeld(), revision: revision,
	}
}

// edit returns a copy of the topic that may be changed; an unknown topic
// begins as one that is invisible, because a partition may come before it.
func (b *builder) edit(id uuid.UUID) *Topic {
	if t, ok := b.draft[id]; ok {
		return t
	}
	t := &Topic{ID: id}
	if old, ok := b.topics.get(id, hashUUID); ok {
		c := *old
		c.all = slices.Clone(old.all)
		t = &c
	}
	b.draft[id] = t
	return t
}

func (b *builder) topic(revision int64, r *controllerv1.TopicRecord) error {
	id, err := uuid.Parse(r.GetTopicId())
	if err != nil {
		return fmt.Errorf("topic %q: id %q: %w", r.GetName(), r.GetTopicId(), err)
	}
	t := b.edit(id)
	if t.known && t.revision >= revision {
		return nil
	}
	if r.GetPartitions() < 0 || r.GetPartitions() > maxPartitions {
		return fmt.Errorf("topic %q: %d partitions are out of range", r.GetName(), r.GetPartitions())
	}
	t.Name, t.Internal = r.GetName(), r.GetInternal()
	t.Config, t.ConfigErr = resolve(r.GetClusterConfigs(), r.GetConfigs())
	t.Set, t.Cluster = r.GetConfigs(), r.GetClusterConfigs()
	t.RF, t.TargetRF, t.CreatedMs = int(r.GetReplicationFactor()), int(r.GetTargetReplicationFactor()), r.GetCreatedMs()
	t.AwaitingRemoval = brokerIDs(r.GetAwaitingRemoval())
	t.Phase = TopicCreating
	switch r.GetPhase() {
	case controllerv1.TopicPhase_TOPIC_PHASE_ACTIVE:
		t.Phase = TopicActive
	case controllerv1.TopicPhase_TOPIC_PHASE_DELETING:
		t.Phase = TopicDeleting
	default:
	}
	t.revision, t.known = revision, true
	t.grow(int(r.GetPartitions()))
	t.Partitions = t.all[:r.GetPartitions():r.GetPartitions()]
	return nil
}

// resolve returns the values in force. Values this version does not understand,
// as a newer controller may have set, are left at their defaults and told of in
// the error: a broker that refused its whole picture for one of them would
// serve nothing.
func resolve(cluster, topic map[string]string) (topicconfig.Config, error) {
	cfg, err := topicconfig.Resolve(cluster, topic)
	if err == nil {
		return cfg, nil
	}
	understood := func(in map[string]string) map[string]string {
		out := map[string]string{}
		for k, v := range in {
			if _, err := topicconfig.Parse(map[string]string{k: v}); err == nil {
				out[k] = v
			}
		}
		return out
	}
	cfg, again := topicconfig.Resolve(understood(cluster), understood(topic))
	if again != nil {
		return topicconfig.Default(), err
	}
	return cfg, err
}

// grow makes room for partitions below n.
func (t *Topic) grow(n int) {
	for len(t.all) < n {
		t.all = append(t.all, Partition{Leader: NoBroker})
	}
	t.Partitions = t.all[:len(t.Partitions):len(t.Partitions)]
}

// maxPartitions bounds the memory that one wrong number can claim.
const maxPartitions = 1 << 20

func (b *builder) partition(revision int64, r *controllerv1.PartitionRecord) error {
	id, err := uuid.Parse(r.GetTopicId())
	if err != nil {
		return fmt.Errorf("partition of topic %q: %w", r.GetTopicId(), err)
	}
	n := r.GetPartition()
	if n < 0 || n >= maxPartitions {
		return fmt.Errorf("partition number %d of topic %s is out of range", n, id)
	}
	t := b.edit(id)
	t.grow(int(n) + 1)
	p := &t.all[n]
	if p.revision >= revision && p.PartitionEpoch > 0 {
		return nil
	}
	*p = Partition{
		Leader: BrokerID(r.GetLeader()), LeaderEpoch: record.Epoch(r.GetLeaderEpoch()), PartitionEpoch: r.GetPartitionEpoch(),
		Replicas: brokerIDs(r.GetReplicas()), ISR: brokerIDs(r.GetIsr()), ELR: brokerIDs(r.GetElr()), LastKnown: brokerIDs(r.GetLastKnown()),
		MinISR: max(int(r.GetMinIsr()), 1), Sync: r.GetFlush() != controllerv1.FlushMode_FLUSH_MODE_ASYNC,
		revision: revision,
	}
	for _, e := range r.GetLossyEpochs() {
		p.LossyEpochs = append(p.LossyEpochs, record.Epoch(e))
	}
	return nil
}

func (b *builder) forget(id uuid.UUID, revision int64) {
	t, ok := b.topics.get(id, hashUUID)
	if d, drafted := b.draft[id]; drafted {
		t, ok = d, true
	}
	if !ok || t.revision >= revision {
		return
	}
	delete(b.draft, id)
	if old, ok := b.topics.get(id, hashUUID); ok {
		b.unname(old)
		b.topics.remove(id)
	}
}

// unname takes the topic's name away, unless another topic has it by now.
func (b *builder) unname(t *Topic) {
	if named, ok := b.names.get(t.Name, hashString); ok && named.ID == t.ID {
		b.names.remove(t.Name)
	}
}

func (b *builder) finish() {
	// Names are taken away before they are given: in one change a name may go
	// from a topic that is deleted to its successor.
	for id, t := range b.draft {
		if old, ok := b.topics.get(id, hashUUID); ok && (old.Name != t.Name || t.Phase != TopicActive) {
			b.unname(old)
		}
	}
	for id, t := range b.draft {
		b.topics.set(id, t)
		if t.Phase == TopicActive {
			b.names.set(t.Name, t)
		}
	}
}

func brokerIDs(ids []int32) []BrokerID {
	if len(ids) == 0 {
		return nil
	}
	out := make([]BrokerID, len(ids))
	for i, id := range ids {
		out[i] = BrokerID(id)
	}
	return out
}
