// Package encoding turns the controller's objects into the Protobuf records that etcd keeps and brokers are told, and back.
package encoding

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/controller/state"
)

// ErrUnreadable is returned for a key or a value that is not one of ours. Metadata that cannot be read is never skipped: a
// controller that did not see a partition would make decisions without it.
var ErrUnreadable = errors.New("unreadable metadata")

// The places of objects below the cluster's prefix.
const (
	brokers    = "brokers/"
	topics     = "topics/"
	names      = "names/"
	partitions = "partitions/"
	counters   = "counters"
	cluster    = "cluster"
	controller = "controller"
	producers  = "producer-ids"
)

// Path returns where an object is kept, below the cluster's prefix.
func Path(k state.Key) string {
	switch k.Kind {
	case state.KindBroker:
		return brokers + strconv.Itoa(int(k.Broker))
	case state.KindTopic:
		return topics + k.Topic.String()
	case state.KindName:
		return names + k.Name
	case state.KindPartition:
		return partitions + k.Topic.String() + "/" + strconv.Itoa(int(k.Partition))
	case state.KindCounters:
		return counters
	case state.KindCluster:
		return cluster
	case state.KindController:
		return controller
	case state.KindProducerIDs:
		return producers
	default:
		panic(fmt.Sprintf("encoding: no path for kind %d", k.Kind))
	}
}

// ParsePath returns the key of what is kept at path.
func ParsePath(path string) (state.Key, error) {
	switch path {
	case counters:
		return state.Key{Kind: state.KindCounters}, nil
	case cluster:
		return state.Key{Kind: state.KindCluster}, nil
	case controller:
		return state.Key{Kind: state.KindController}, nil
	case producers:
		return state.Key{Kind: state.KindProducerIDs}, nil
	}
	if rest, ok := strings.CutPrefix(path, brokers); ok {
		id, err := strconv.ParseInt(rest, 10, 32)
		return state.BrokerKey(state.BrokerID(id)), unreadable(path, err)
	}
	if rest, ok := strings.CutPrefix(path, topics); ok {
		id, err := uuid.Parse(rest)
		return state.TopicKey(id), unreadable(path, err)
	}
	if rest, ok := strings.CutPrefix(path, names); ok {
		return state.NameKey(rest), nil
	}
	if rest, ok := strings.CutPrefix(path, partitions); ok {
		topic, number, _ := strings.Cut(rest, "/")
		id, err := uuid.Parse(topic)
		n, nerr := strconv.ParseInt(number, 10, 32)
		return state.Key{Kind: state.KindPartition, Topic: id, Partition: int32(n)}, unreadable(path, errors.Join(err, nerr))
	}
	return state.Key{}, fmt.Errorf("%w: key %q is none of this version's", ErrUnreadable, path)
}

func unreadable(path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: key %q: %w", ErrUnreadable, path, err)
}

// Marshal returns an object's value. Equal objects have equal values.
func Marshal(o state.Object) ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(Record(o))
}

// Record returns an object as the message that is kept of it.
func Record(o state.Object) proto.Message {
	switch o := o.(type) {
	case *state.Broker:
		return Broker(o)
	case *state.Topic:
		return Topic(o)
	case *state.Name:
		return &controllerv1.NameRecord{TopicId: o.Topic.String()}
	case *state.Partition:
		return Partition(o)
	case *state.Counters:
		return &controllerv1.CountersRecord{BrokerEpoch: o.BrokerEpoch, ControllerEpoch: o.ControllerEpoch, FeatureLevel: o.FeatureLevel}
	case *state.ProducerIDs:
		return &controllerv1.ProducerIdsRecord{NextProducerId: o.Next}
	case *state.Cluster:
		return &controllerv1.ClusterRecord{ClusterId: o.ID.String()}
	case *state.Controller:
		return &controllerv1.ControllerRecord{Address: o.Address, Incarnation: o.Incarnation.String(), ControllerEpoch: o.Epoch}
	default:
		panic(fmt.Sprintf("encoding: no record for %T", o))
	}
}

// Unmarshal returns the object kept under a key, last written at rev.
func Unmarshal(k state.Key, value []byte, rev state.Revision) (state.Object, error) {
	o, err := unmarshal(k, value, rev)
	if err != nil {
		return nil, unreadable(Path(k), err)
	}
	if o.Key() != k {
		return nil, fmt.Errorf("%w: key %q holds %s", ErrUnreadable, Path(k), Path(o.Key()))
	}
	return o, nil
}

func unmarshal(k state.Key, value []byte, rev state.Revision) (state.Object, error) {
	switch k.Kind {
	case state.KindBroker:
		r, err := read[controllerv1.BrokerRecord](value)
		if err != nil {
			return nil, err
		}
		return ToBroker(r, rev)
	case state.KindTopic:
		r, err := read[controllerv1.TopicRecord](value)
		if err != nil {
			return nil, err
		}
		return ToTopic(r, rev)
	case state.KindName:
		r, err := read[controllerv1.NameRecord](value)
		if err != nil {
			return nil, err
		}
		id, err := uuid.Parse(r.GetTopicId())
		return &state.Name{Name: k.Name, Topic: id, Revision: rev}, err
	case state.KindPartition:
		r, err := read[controllerv1.PartitionRecord](value)
		if err != nil {
			return nil, err
		}
		return ToPartition(r, rev)
	case state.KindCounters:
		r, err := read[controllerv1.CountersRecord](value)
		return &state.Counters{BrokerEpoch: r.GetBrokerEpoch(), ControllerEpoch: r.GetControllerEpoch(), FeatureLevel: r.GetFeatureLevel(), Revision: rev}, err
	case state.KindProducerIDs:
		r, err := read[controllerv1.ProducerIdsRecord](value)
		if err == nil && r.GetNextProducerId() < 1 {
			err = fmt.Errorf("next producer id %d", r.GetNextProducerId())
		}
		return &state.ProducerIDs{Next: r.GetNextProducerId(), Revision: rev}, err
	case state.KindCluster:
		r, err := read[controllerv1.ClusterRecord](value)
		if err != nil {
			return nil, err
		}
		id, err := uuid.Parse(r.GetClusterId())
		return &state.Cluster{ID: id, Revision: rev}, err
	case state.KindController:
		r, err := read[controllerv1.ControllerRecord](value)
		if err != nil {
			return nil, err
		}
		id, err := uuid.Parse(r.GetIncarnation())
		return &state.Controller{Address: r.GetAddress(), Incarnation: id, Epoch: r.GetControllerEpoch(), Revision: rev}, err
	default:
		return nil, fmt.Errorf("kind %d", k.Kind)
	}
}

// read parses a record strictly: a field that this version does not know was written by a newer one, and would be lost when
// the record is written back.
func read[T any, P interface {
	*T
	proto.Message
}](value []byte) (P, error) {
	r := P(new(T))
	if err := proto.Unmarshal(value, r); err != nil {
		return nil, err
	}
	if len(r.ProtoReflect().GetUnknown()) > 0 {
		return nil, errors.New("it has fields that only a newer version knows: upgrade this controller")
	}
	return r, nil
}

// Broker returns a broker's record.
func Broker(b *state.Broker) *controllerv1.BrokerRecord {
	return &controllerv1.BrokerRecord{
		BrokerId: int32(b.ID), Incarnation: b.Incarnation.String(), DirectoryId: b.DirectoryID.String(),
		BrokerEpoch: b.Epoch, Phase: controllerv1.BrokerPhase(b.Phase), Judged: b.Judged, Held: b.Held,
		VouchedEpoch: b.Vouched, Outdated: b.Outdated,
		ClientAddress: b.ClientAddress, InternalAddress: b.InternalAddress, Rack: b.Rack, Version: b.Version,
		MinFeatureLevel: b.MinFeatureLevel, MaxFeatureLevel: b.MaxFeatureLevel,
	}
}

// ToBroker returns the broker that a record describes. A registration, which has no phase yet, gets none.
func ToBroker(r *controllerv1.BrokerRecord, rev state.Revision) (*state.Broker, error) {
	incarnation, err1 := uuid.Parse(r.GetIncarnation())
	directory, err2 := uuid.Parse(r.GetDirectoryId())
	if r.GetPhase() < 0 || r.GetPhase() > controllerv1.BrokerPhase_BROKER_PHASE_SHUTTING_DOWN {
		return nil, fmt.Errorf("broker phase %d", r.GetPhase())
	}
	return &state.Broker{
		ID: state.BrokerID(r.GetBrokerId()), Incarnation: incarnation, DirectoryID: directory,
		Epoch: r.GetBrokerEpoch(), Phase: state.BrokerPhase(r.GetPhase()), Judged: r.GetJudged(), Held: r.GetHeld(), //nolint:gosec // checked
		Vouched: r.GetVouchedEpoch(), Outdated: r.GetOutdated(),
		ClientAddress: r.GetClientAddress(), InternalAddress: r.GetInternalAddress(), Rack: r.GetRack(), Version: r.GetVersion(),
		MinFeatureLevel: r.GetMinFeatureLevel(), MaxFeatureLevel: r.GetMaxFeatureLevel(), Revision: rev,
	}, errors.Join(err1, err2)
}

// Topic returns a topic's record.
func Topic(t *state.Topic) *controllerv1.TopicRecord {
	return &controllerv1.TopicRecord{
		TopicId: t.ID.String(), Name: t.Name, Phase: controllerv1.TopicPhase(t.Phase),
		Partitions: t.Partitions, ReplicationFactor: t.ReplicationFactor,
		Configs: t.Configs, ClusterConfigs: t.ClusterConfigs, Internal: t.Internal, CreatedMs: t.CreatedMs,
		AwaitingRemoval: fromIDs(t.AwaitingRemoval), TargetReplicationFactor: t.TargetFactor,
	}
}

// ToTopic returns the topic that a record describes.
func ToTopic(r *controllerv1.TopicRecord, rev state.Revision) (*state.Topic, error) {
	id, err := uuid.Parse(r.GetTopicId())
	if err != nil {
		return nil, err
	}
	if r.GetPhase() <= 0 || r.GetPhase() > controllerv1.TopicPhase_TOPIC_PHASE_DELETING {
		return nil, fmt.Errorf("topic phase %d", r.GetPhase())
	}
	return &state.Topic{
		ID: id, Name: r.GetName(), Phase: state.TopicPhase(r.GetPhase()), //nolint:gosec // checked
		Partitions: r.GetPartitions(), ReplicationFactor: r.GetReplicationFactor(),
		Configs: r.GetConfigs(), ClusterConfigs: r.GetClusterConfigs(), Internal: r.GetInternal(), CreatedMs: r.GetCreatedMs(),
		AwaitingRemoval: toIDs(r.GetAwaitingRemoval()), TargetFactor: r.GetTargetReplicationFactor(), Revision: rev,
	}, nil
}

// Partition returns a partition's record.
func Partition(p *state.Partition) *controllerv1.PartitionRecord {
	flush := controllerv1.FlushMode_FLUSH_MODE_ASYNC
	if p.Sync {
		flush = controllerv1.FlushMode_FLUSH_MODE_SYNC
	}
	return &controllerv1.PartitionRecord{
		TopicId: p.Topic.String(), Partition: p.Number,
		Replicas: fromIDs(p.Replicas), Leader: int32(p.Leader), LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch,
		Isr: fromIDs(p.ISR), Elr: fromIDs(p.ELR), LastKnown: fromIDs(p.LastKnown),
		MinIsr: p.MinISR, Flush: flush, LossyEpochs: slices.Clone(p.LossyEpochs),
	}
}

// ToPartition returns the partition that a record describes.
func ToPartition(r *controllerv1.PartitionRecord, rev state.Revision) (*state.Partition, error) {
	id, err := uuid.Parse(r.GetTopicId())
	if err != nil {
		return nil, err
	}
	if len(r.GetReplicas()) == 0 || r.GetLeaderEpoch() < 1 || r.GetPartitionEpoch() < 1 {
		return nil, errors.New("a partition without replicas or epochs")
	}
	if f := r.GetFlush(); f != controllerv1.FlushMode_FLUSH_MODE_ASYNC && f != controllerv1.FlushMode_FLUSH_MODE_SYNC {
		return nil, fmt.Errorf("flush mode %d", f)
	}
	return &state.Partition{
		Topic: id, Number: r.GetPartition(),
		Replicas: toIDs(r.GetReplicas()), Leader: state.BrokerID(r.GetLeader()), LeaderEpoch: r.GetLeaderEpoch(), PartitionEpoch: r.GetPartitionEpoch(),
		ISR: toIDs(r.GetIsr()), ELR: toIDs(r.GetElr()), LastKnown: toIDs(r.GetLastKnown()),
		MinISR: r.GetMinIsr(), Sync: r.GetFlush() == controllerv1.FlushMode_FLUSH_MODE_SYNC, LossyEpochs: r.GetLossyEpochs(), Revision: rev,
	}, nil
}

func fromIDs(ids []state.BrokerID) []int32 {
	var out []int32
	for _, id := range ids {
		out = append(out, int32(id))
	}
	return out
}

func toIDs(ids []int32) []state.BrokerID {
	var out []state.BrokerID
	for _, id := range ids {
		out = append(out, state.BrokerID(id))
	}
	return out
}
