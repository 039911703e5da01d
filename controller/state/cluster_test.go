package state

import (
	"fmt"
	"slices"

	"github.com/google/uuid"
)

// A failer is a test, or a run of a property.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// A bench is an image with a store that commits whatever was decided on the newest state.
type bench struct {
	*Image

	t        failer
	revision Revision
	deltas   []Delta
}

func newBench(t failer) *bench {
	b := &bench{Image: NewImage(), t: t, revision: 1}
	b.commit([]Change{put(&Cluster{ID: uuid.MustParse("11111111-1111-4111-8111-111111111111")}, 0)})
	return b
}

// commit applies a transaction as the store would: whole, and only if nothing changed meanwhile.
func (b *bench) commit(changes []Change) {
	b.t.Helper()
	if len(changes) == 0 {
		return
	}
	if len(changes) > MaxChanges {
		b.t.Fatalf("a transaction of %d changes", len(changes))
	}
	b.revision++
	var updates []Update
	seen := map[Key]bool{}
	for _, c := range changes {
		if now := b.modified(c.Key); now != c.Base || seen[c.Key] {
			b.t.Fatalf("change of %+v is based on revision %d, it stands at %d", c.Key, c.Base, now)
		}
		seen[c.Key] = true
		u := Update{Key: c.Key}
		if c.Object != nil {
			u.Object = written(c.Object, b.revision)
		}
		updates = append(updates, u)
	}
	b.deltas = append(b.deltas, b.Apply(b.revision, updates))
}

// written returns o as it is when it was written at rev.
func written(o Object, rev Revision) Object {
	switch o := o.(type) {
	case *Broker:
		c := *o
		c.Revision = rev
		return &c
	case *Topic:
		c := o.clone()
		c.Revision = rev
		return c
	case *Name:
		return &Name{Name: o.Name, Topic: o.Topic, Revision: rev}
	case *Partition:
		c := o.clone()
		c.Revision = rev
		return c
	case *Counters:
		c := *o
		c.Revision = rev
		return &c
	case *Cluster:
		c := *o
		c.Revision = rev
		return &c
	default:
		panic(fmt.Sprintf("this bench writes no %T", o))
	}
}

func (b *bench) modified(k Key) Revision {
	var o Object
	switch k.Kind {
	case KindBroker:
		if v := b.Broker(k.Broker); v != nil {
			o = v
		}
	case KindTopic:
		if v := b.Topic(k.Topic); v != nil {
			o = v
		}
	case KindName:
		if v := b.names[k.Name]; v != nil {
			o = v
		}
	case KindPartition:
		if v := b.Partition(PartitionKey{k.Topic, k.Partition}); v != nil {
			o = v
		}
	case KindCounters:
		return b.Counters().Revision
	case KindProducerIDs:
		return b.ProducerIDs().Revision
	case KindCluster, KindController:
		return 0
	}
	if o == nil {
		return 0
	}
	return o.Modified()
}

// must commits what was decided without a refusal.
func (b *bench) must(changes []Change, err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatalf("refused: %v", err)
	}
	b.commit(changes)
}

// work commits everything that is left to be done and returns how many transactions that took.
func (b *bench) work() int {
	b.t.Helper()
	for n := 0; ; n++ {
		changes := b.Work()
		if len(changes) == 0 {
			return n
		}
		if n > 1000 {
			b.t.Fatalf("work never ends: %+v", changes)
		}
		b.commit(changes)
	}
}

func id(n int) uuid.UUID { return uuid.MustParse(fmt.Sprintf("00000000-0000-4000-8000-%012d", n)) }

// registration returns that of a broker's incarnation, on data of the latest.
func registration(b BrokerID, incarnation int) Registration {
	return Registration{Broker: Broker{
		ID: b, Incarnation: id(int(b)*1000 + incarnation), DirectoryID: id(int(b)), ClientAddress: fmt.Sprintf("b%d:1", b), InternalAddress: fmt.Sprintf("b%d:2", b),
	}}
}

// registration is that of a process whose data are as new as can be.
func (b *bench) registration(broker BrokerID, incarnation int) Registration {
	r := registration(broker, incarnation)
	if old := b.Broker(broker); old != nil {
		r.DataEpoch = old.Epoch
	}
	return r
}

// join registers a broker and puts it in service, with nothing lost.
func (b *bench) join(broker BrokerID, incarnation int) {
	b.t.Helper()
	b.must(b.Register(b.registration(broker, incarnation)))
	b.work()
	b.judge(broker, ShapeIntact)
	b.must(b.Unfence(broker, b.Broker(broker).Epoch))
	b.work()
}

// judge weighs a report in which all replicas of a broker have a shape.
func (b *bench) judge(broker BrokerID, shape Shape) {
	b.t.Helper()
	found := map[PartitionKey]ReplicaReport{}
	for _, p := range b.PartitionsOf(broker) {
		found[p.PartitionKey()] = ReplicaReport{Shape: shape}
	}
	for !b.Broker(broker).Judged {
		changes, err := b.Judge(broker, b.Broker(broker).Epoch, found)
		if err != nil || len(changes) == 0 {
			b.t.Fatalf("judging broker %d: %v, %v", broker, changes, err)
		}
		b.commit(changes)
	}
}

// withBrokers returns a bench with n brokers in service.
func withBrokers(t failer, n int) *bench {
	b := newBench(t)
	for i := range n {
		b.join(BrokerID(i+1), 1)
	}
	return b
}

func defaults() Defaults {
	return Defaults{Partitions: 1, ReplicationFactor: 3, MaxPartitions: 10_000}
}

// topic creates a topic and returns its id.
func (b *bench) newTopic(name string, partitions, factor int32, configs map[string]string) uuid.UUID {
	b.t.Helper()
	plan, err := b.CreateTopic(NewTopic{Name: name, Partitions: &partitions, ReplicationFactor: &factor, Configs: configs}, defaults(), id(900_000+int(b.revision)), 7)
	if err != nil {
		b.t.Fatalf("create %s: %v", name, err)
	}
	b.commit(plan.Changes)
	b.work()
	return plan.Topic.ID
}

func (b *bench) fence(broker BrokerID) {
	b.t.Helper()
	b.must(b.Fence(broker, b.Broker(broker).Epoch))
}

// check tests what must hold of every partition at any time, and more when all work is done.
func (b *bench) check(settled bool) {
	b.t.Helper()
	for _, t := range b.Topics() {
		for _, p := range b.Partitions(t.ID) {
			in := slices.Contains[[]BrokerID]
			for _, m := range p.ISR {
				if !in(p.Replicas, m) || in(p.ELR, m) {
					b.t.Fatalf("ISR member %d: %+v", m, p)
				}
			}
			for _, m := range slices.Concat(p.ELR, p.LastKnown) {
				if !in(p.Replicas, m) {
					b.t.Fatalf("member %d is no replica: %+v", m, p)
				}
			}
			if p.Leader != NoLeader && (!in(p.ISR, p.Leader) || len(p.LastKnown) > 0) {
				b.t.Fatalf("leader outside the ISR, or with last known members: %+v", p)
			}
			if p.Leader != NoLeader && len(p.ISR) >= int(p.MinISR) && len(p.ELR) > 0 {
				b.t.Fatalf("ELR with enough in-sync replicas: %+v", p)
			}
			if !settled || t.Phase == TopicDeleting {
				continue
			}
			if p.Leader != NoLeader && b.phase(p.Leader) == BrokerFenced {
				b.t.Fatalf("fenced leader: %+v", p)
			}
			if p.Leader == NoLeader && slices.ContainsFunc(slices.Concat(p.ISR, p.ELR), b.electable) {
				b.t.Fatalf("nobody leads, and somebody could: %+v", p)
			}
			if p.Leader != NoLeader && slices.ContainsFunc(p.ISR, func(m BrokerID) bool { return b.phase(m) == BrokerFenced }) {
				b.t.Fatalf("fenced member of a led partition: %+v", p)
			}
		}
	}
}
