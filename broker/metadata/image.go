// Package metadata keeps a broker's picture of the cluster: an immutable image
// that everybody reads, and the session with the controller that renews it.
package metadata

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"

	"github.com/google/uuid"

	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/refusal"
	"github.com/runnelmq/runnel/internal/topicconfig"
)

// A BrokerID names a broker of the cluster.
type BrokerID int32

// NoBroker stands where no broker is, such as the leader of a partition that
// has none.
const NoBroker BrokerID = -1

// A BrokerPhase says what a broker may do.
type BrokerPhase uint8

// The phases.
const (
	BrokerFenced       BrokerPhase = iota // electable nowhere
	BrokerActive                          // in service
	BrokerShuttingDown                    // leads nothing new
)

// A Broker is one registration.
type Broker struct {
	ID              BrokerID
	Incarnation     string
	Epoch           int64
	Phase           BrokerPhase
	ClientAddress   string // host:port
	InternalAddress string // host:port
	Rack            string
	Version         string
	// Judged: the controller has weighed what this incarnation reported of its
	// logs.
	Judged bool
	// Held: an operator took this incarnation out of service.
	Held bool

	revision int64
}

// A TopicPhase says where a topic is in its life.
type TopicPhase uint8

// The phases.
const (
	TopicCreating TopicPhase = iota // invisible to clients
	TopicActive
	TopicDeleting // its name is free, its directories go
)

// A Topic is one topic as the controller describes it. Immutable.
type Topic struct {
	ID       uuid.UUID
	Name     string
	Phase    TopicPhase
	Internal bool
	// Config holds the values in force.
	Config topicconfig.Config
	// ConfigErr says which of them this version does not understand.
	ConfigErr error
	// Set and Cluster are the texts Config was made from: the topic's own, and
	// the cluster's defaults when it was created.
	Set, Cluster map[string]string
	// RF is the replication factor.
	RF int
	// TargetRF is what the replication factor of an internal topic grows to as
	// brokers come; 0: it stays as it is.
	TargetRF int
	// Partitions are indexed by number. One whose record has not arrived yet
	// has no replicas and no leader.
	Partitions []Partition
	CreatedMs  int64
	// AwaitingRemoval lists, while it is deleted, the brokers that still have
	// to confirm that its directories are gone.
	AwaitingRemoval []BrokerID

	revision int64
	known    bool        // the topic's own record has arrived
	all      []Partition // also those above the topic's count
}

// Partition returns partition n.
func (t *Topic) Partition(n int32) (*Partition, bool) {
	if n < 0 || int(n) >= len(t.Partitions) {
		return nil, false
	}
	return &t.Partitions[n], true
}

// A Partition is the committed state of one partition. Immutable.
type Partition struct {
	Leader         BrokerID // NoBroker: none
	LeaderEpoch    record.Epoch
	PartitionEpoch int64
	Replicas       []BrokerID // in order of preference
	ISR            []BrokerID
	ELR            []BrokerID
	LastKnown      []BrokerID
	// MinISR is how large ISR must be for the high watermark to move.
	MinISR int
	// Sync says that a replica counts a record only when its disk has it.
	Sync        bool
	LossyEpochs []record.Epoch

	revision int64
}

// SameAs says that partition n, and all else of the topic that concerns it, is as
// in old, an earlier state of the topic under the same session.
func (t *Topic) SameAs(old *Topic, n int32) bool {
	now, ok := t.Partition(n)
	was, had := old.Partition(n)
	return ok && had && t.known && old.known && t.revision == old.revision && now.revision == was.revision
}

// An Image is the cluster at one revision. Immutable; the zero of a broker
// that has not heard from a controller is revision 0.
type Image struct {
	Revision        int64
	ControllerEpoch int64
	ClusterID       string
	Self            BrokerID
	// Session counts the snapshots this broker was given. An image of a higher
	// number settles all that was asked of the controller under a lower one.
	Session uint64

	brokers map[BrokerID]*Broker
	topics  shards[uuid.UUID, *Topic]
	names   shards[string, *Topic] // active topics only

	sorted struct {
		once   sync.Once
		topics []*Topic
	}
}

// Errors of look-ups.
var (
	ErrTopicNotFound     = errors.New("topic not found")
	ErrPartitionNotFound = errors.New("partition not found")
	ErrTopicIDMismatch   = errors.New("topic id mismatch")
	// ErrStale is returned when this broker can't tell at present whether a
	// topic exists.
	ErrStale = errors.New("metadata may be stale")
)

// ErrInvalidID is returned for what can't be the id of a topic.
var ErrInvalidID = errors.New("invalid topic id")

// ParseTopicID reads the topic_id of a request, or returns ErrInvalidID.
func ParseTopicID(id string) (uuid.UUID, error) {
	parsed, err := uuid.Parse(id)
	if err != nil || parsed == uuid.Nil {
		return uuid.Nil, refusal.New(ErrInvalidID, nil,
			"topic_id %.100q is not a topic's id: leave it out, or give the UUID that a description of the topic shows", id)
	}
	return parsed, nil
}

// Resolve finds the active topic of that name. When id is not empty, the topic
// must have it.
func (i *Image) Resolve(name, id string) (*Topic, error) {
	want := uuid.Nil
	if id != "" {
		var err error
		if want, err = ParseTopicID(id); err != nil {
			return nil, err
		}
	}
	t, ok := i.Topic(name)
	if !ok {
		return nil, refusal.New(ErrTopicNotFound, map[string]string{"topic": name}, "topic %q does not exist: create it, or fix the name", name)
	}
	if id != "" && want != t.ID {
		return nil, refusal.New(ErrTopicIDMismatch, map[string]string{"topic": name, "topicId": t.ID.String()},
			"topic %q now has the id %s, not %q: it was deleted and created again", name, t.ID, id)
	}
	return t, nil
}

// Find returns partition n of t, or an error that says how many there are.
func (t *Topic) Find(n int32) (*Partition, error) {
	if p, ok := t.Partition(n); ok {
		return p, nil
	}
	count := strconv.Itoa(len(t.Partitions))
	return nil, refusal.New(ErrPartitionNotFound, map[string]string{"topic": t.Name, "partition": strconv.Itoa(int(n)), "partitions": count},
		"topic %q has no partition %d: it has %s, counted from 0", t.Name, n, count)
}

// Topic returns the active topic of that name.
func (i *Image) Topic(name string) (*Topic, bool) { return i.names.get(name, hashString) }

// TopicByID returns the topic with that id, in whatever phase it is.
func (i *Image) TopicByID(id uuid.UUID) (*Topic, bool) { return i.topics.get(id, hashUUID) }

// Topics returns the active topics in the order of their names. The slice is
// shared: it must not be changed.
func (i *Image) Topics() []*Topic {
	i.sorted.once.Do(func() {
		i.sorted.topics = slices.SortedFunc(i.names.values(), func(a, b *Topic) int { return cmp.Compare(a.Name, b.Name) })
	})
	return i.sorted.topics
}

// Everything yields every topic in any phase, in no order.
func (i *Image) Everything() func(yield func(*Topic) bool) { return i.topics.values() }

// Broker returns the registration of a broker.
func (i *Image) Broker(id BrokerID) (*Broker, bool) {
	b, ok := i.brokers[id]
	return b, ok
}

// Brokers returns all registrations by id.
func (i *Image) Brokers() []*Broker {
	return slices.SortedFunc(maps.Values(i.brokers), func(a, b *Broker) int { return cmp.Compare(a.ID, b.ID) })
}

// A Diff is what became different from one image to another.
type Diff struct {
	// Changed holds topics that are new or different, in whatever phase.
	Changed []*Topic
	// Gone holds the last state of topics that no longer are.
	Gone []*Topic
	// Brokers says whether any registration differs.
	Brokers bool
}

// Since returns what became different from old to i. It costs little when
// little did.
func (i *Image) Since(old *Image) Diff {
	var d Diff
	for s := range i.topics.parts {
		now, was := i.topics.parts[s], old.topics.parts[s]
		if now == was {
			continue
		}
		for id, t := range now.all() {
			if w, ok := was.get(id); !ok || w != t {
				d.Changed = append(d.Changed, t)
			}
		}
		for id, t := range was.all() {
			if _, ok := now.get(id); !ok {
				d.Gone = append(d.Gone, t)
			}
		}
	}
	d.Brokers = !maps.EqualFunc(i.brokers, old.brokers, func(a, b *Broker) bool { return a == b || *a == *b })
	return d
}

// awaits says whether the deleted topic still waits for broker id to confirm
// that its directories are gone.
func (t *Topic) awaits(id BrokerID) bool {
	return t.Phase == TopicDeleting && slices.Contains(t.AwaitingRemoval, id)
}
