package partition

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// A trio is three brokers with a replica each of one partition. The test is the
// controller, and carries what replicas say to each other.
type trio struct {
	t     *testing.T
	topic uuid.UUID
	part  *controllerv1.PartitionRecord
	rev   int64
	nodes []*trioNode // by id, from 1
	// configs are the topic's.
	configs map[string]string
}

type trioNode struct {
	*Set

	id      metadata.BrokerID
	mem     *vfs.Mem
	fault   *vfs.Fault
	root    *commitlog.Root
	store   *metadata.Store
	session *session
	reg     *prometheus.Registry
	p       *Partition
	disk    atomic.Pointer[commitlog.DiskState] // nil: as it is

	// As a follower.
	subs   int64
	sub    int64 // the current one, 0 when there is none
	leader *trioNode
	next   record.Offset
	link   *Link
	told   int // calls of the follower's notify
	// As a leader.
	noted map[metadata.BrokerID]int // calls of notify
}

// newTrio starts three brokers, of which 1 leads and all are in the ISR. It must
// be called in a bubble.
func newTrio(t *testing.T, change func(*controllerv1.PartitionRecord)) *trio {
	t.Helper()
	r := &trio{t: t, topic: uuid.New(), nodes: []*trioNode{nil}}
	r.part = &controllerv1.PartitionRecord{
		TopicId: r.topic.String(), Replicas: []int32{1, 2, 3}, Leader: 1, LeaderEpoch: 1, PartitionEpoch: 1, Isr: []int32{1, 2, 3}, MinIsr: 2,
		Flush: controllerv1.FlushMode_FLUSH_MODE_ASYNC,
	}
	if change != nil {
		change(r.part)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, id := range ids(1, 2, 3) {
		n := &trioNode{
			id: id, mem: vfs.NewMem(), store: metadata.NewStore(id), session: &session{confirmed: true}, reg: prometheus.NewRegistry(),
			noted: map[metadata.BrokerID]int{}, link: &Link{},
		}
		n.fault = vfs.NewFault(n.mem)
		root, err := commitlog.OpenRoot(n.fault, "data", commitlog.RootOptions{
			BrokerID: int32(id), BootID: func() (string, error) { return "boot", nil }, ReserveBytes: -1, BallastBytes: -1,
		})
		if err != nil {
			t.Fatal(err)
		}
		n.root = root
		n.Set = NewSet(Config{Incarnation: "i"}, Deps{Root: root, Store: n.store, Session: n.session, Metrics: n.reg, Log: zerolog.Nop()})
		usual := n.host.disk
		n.host.disk = func() commitlog.DiskState {
			if d := n.disk.Load(); d != nil {
				return *d
			}
			return usual()
		}
		wg.Go(func() { _ = n.Run(ctx) })
		wg.Go(func() { _ = root.Run(ctx) })
		r.nodes = append(r.nodes, n)
	}
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	r.tell()
	for _, n := range r.nodes[1:] {
		var err error
		if n.p, err = n.Get(r.topic, 0); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// objects is the whole of the cluster.
func (r *trio) objects() []*controllerv1.MetadataObject {
	out := []*controllerv1.MetadataObject{
		{Object: &controllerv1.MetadataObject_Topic{Topic: &controllerv1.TopicRecord{
			TopicId: r.topic.String(), Name: "orders", Phase: controllerv1.TopicPhase_TOPIC_PHASE_ACTIVE, Partitions: 1, ReplicationFactor: 3,
			Configs: r.configs,
		}}},
		{Object: &controllerv1.MetadataObject_Partition{Partition: r.part}},
	}
	for id := range int32(3) {
		out = append(out, &controllerv1.MetadataObject{Object: &controllerv1.MetadataObject_Broker{Broker: &controllerv1.BrokerRecord{
			BrokerId: id + 1, Incarnation: "i", BrokerEpoch: 10, Phase: controllerv1.BrokerPhase_BROKER_PHASE_ACTIVE, Judged: true,
		}}})
	}
	for _, o := range out {
		o.Revision = r.rev
	}
	return out
}

// tell gives brokers, or all, the partition as it is now.
func (r *trio) tell(to ...int) {
	r.t.Helper()
	r.rev++
	if to == nil {
		to = []int{1, 2, 3}
	}
	for _, id := range to {
		n := r.nodes[id]
		img, err := (&metadata.Image{Self: n.id, Session: 1}).Next(1, r.rev, r.objects())
		if err != nil {
			r.t.Fatal(err)
		}
		n.store.Publish(img)
	}
	synctest.Wait()
}

// lead makes a broker the leader, in the next epoch.
func (r *trio) lead(id int32, to ...int) {
	r.t.Helper()
	r.part.Leader = id
	r.part.LeaderEpoch++
	r.part.PartitionEpoch++
	r.tell(to...)
}

// settle carries the proposals of a leader out and returns how many there were.
func (r *trio) settle(leader int) int {
	r.t.Helper()
	s := r.nodes[leader].session
	s.mu.Lock()
	ps := s.proposals
	s.proposals = nil
	s.mu.Unlock()
	for _, p := range ps {
		if p.PartitionEpoch != r.part.GetPartitionEpoch() {
			continue
		}
		r.part.Isr = nil
		for _, m := range p.ISR {
			r.part.Isr = append(r.part.Isr, int32(m.ID))
		}
		r.part.PartitionEpoch++
		r.tell()
	}
	return len(ps)
}

// follow subscribes until the leader accepts, and returns the answers.
func (r *trio) follow(f *trioNode) (kinds []AnswerKind, err error) {
	r.t.Helper()
	id, _, ok := f.p.Following()
	if !ok {
		return nil, errNobody
	}
	f.leader = r.nodes[id]
	for {
		f.subs++
		ask, ok := f.p.FollowerStart(f.subs, func() { f.told++ })
		if !ok {
			return kinds, errNobody
		}
		ask.BrokerEpoch = 10
		a, err := f.leader.p.Subscribe(ask, f.link, func() { f.leader.noted[f.id]++ })
		if err != nil {
			return kinds, err
		}
		kinds = append(kinds, a.Kind)
		told := f.told
		again, err := f.p.OnSubscribed(f.subs, a)
		if a.Kind == Accepted && err == nil && f.told == told {
			r.t.Error("accepted, and nobody is told to acknowledge it at once")
		}
		if err != nil {
			return kinds, err
		}
		if !again {
			f.sub, f.next = f.subs, ask.NextOffset
			r.ack(f)
			return kinds, nil
		}
		if len(kinds) > 10 {
			r.t.Fatalf("answers without end: %v", kinds)
		}
	}
}

var errNobody = errors.New("nobody to follow")

func (r *trio) ack(f *trioNode) {
	if a, ok := f.p.FollowerAck(f.sub); ok {
		a.Follower, a.BrokerEpoch = f.id, 10
		f.leader.p.Ack(a)
	}
}

// pull carries what there is to followers, and their acks back.
func (r *trio) pull(followers ...int) {
	r.t.Helper()
	for _, id := range followers {
		f := r.nodes[id]
		if _, ok := f.p.FollowerAck(f.sub); !ok {
			if _, err := r.follow(f); err != nil {
				r.t.Fatal(err)
			}
		}
		buf := make([]byte, 1<<16)
		for {
			got, err := f.leader.p.ReadReplica(buf, f.id, f.sub, f.next)
			if err != nil {
				r.t.Fatalf("read for %d: %v", id, err)
			}
			if got.N == 0 {
				break
			}
			err = f.p.OnData(Data{
				Epoch: f.leader.p.State().Epoch, Subscription: f.sub, Start: f.next, Next: got.Next, PrevEpoch: got.PrevEpoch,
				HasPrevEpoch: got.HasPrevEpoch, HighWatermark: got.HighWatermark, LogStart: got.LogStart, Batches: buf[:got.N],
			})
			if err != nil {
				r.t.Fatalf("data for %d: %v", id, err)
			}
			f.next = got.Next
			r.ack(f)
		}
		synctest.Wait() // a flusher may have more to say
		r.ack(f)
	}
	for _, id := range followers {
		f := r.nodes[id]
		if pr, ok := f.leader.p.ReplicaProgress(f.id, f.sub); ok {
			if err := f.p.OnProgress(f.sub, pr.HighWatermark, pr.LogStart); err != nil {
				r.t.Fatal(err)
			}
			r.ack(f)
		}
	}
	synctest.Wait()
}

// append appends n batches at a broker and returns the last.
func (r *trio) append(id, n int) (a Appended) {
	r.t.Helper()
	for range n {
		var err error
		if a, err = r.nodes[id].p.Append(batch(r.t, 1, 0), nil); err != nil {
			r.t.Fatal(err)
		}
	}
	return a
}

// count returns the value of a broker's counter.
func (n *trioNode) count(t *testing.T, name string) float64 {
	t.Helper()
	families, err := n.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// gauge returns the value of a broker's gauge.
func (n *trioNode) gauge(t *testing.T, name string) float64 {
	t.Helper()
	families, err := n.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// bytes returns all that a broker has stored.
func (n *trioNode) bytes(t *testing.T) []byte {
	t.Helper()
	buf := make([]byte, 1<<20)
	got, err := n.p.log.Read(buf, n.p.log.Start(), n.p.log.End())
	if err != nil {
		t.Fatal(err)
	}
	return buf[:got]
}

func (r *trio) wantEqual() {
	r.t.Helper()
	for _, n := range r.nodes[2:] {
		if !slices.Equal(n.bytes(r.t), r.nodes[1].bytes(r.t)) || n.p.State().HighWatermark != r.nodes[1].p.State().HighWatermark {
			r.t.Errorf("broker %d: %+v; broker 1: %+v", n.id, n.p.State(), r.nodes[1].p.State())
		}
	}
}
