package replication

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/lifecycle"
	"github.com/runnelmq/runnel/internal/memnet"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/rpcserver"
	"github.com/runnelmq/runnel/internal/vfs"
	"github.com/runnelmq/runnel/internal/wire"
)

const (
	async  = controllerv1.FlushMode_FLUSH_MODE_ASYNC
	bySync = controllerv1.FlushMode_FLUSH_MODE_SYNC
)

const cluster = "c"

// A town is brokers around a network, with a controller that a test plays.
type town struct {
	t   testing.TB
	net *network
	cfg Config
	// reserve is the soft disk mark of brokers that are started; negative: none.
	reserve int64
	log     zerolog.Logger

	// mu guards the fields below
	mu sync.Mutex

	rev     int64
	objects map[string]*controllerv1.MetadataObject
	epochs  int64
	nodes   map[int32]*node
	deaf    bool        // to proposals
	away    atomic.Bool // it confirms no leader
	heard   []metadata.Proposal
}

// A node is one broker's part that replicates.
type node struct {
	town        *town
	id          int32
	addr        string
	mem         *vfs.Mem
	fault       *vfs.Fault
	incarnation string
	root        *commitlog.Root
	store       *metadata.Store
	image       *metadata.Image
	set         *partition.Set
	reg         *prometheus.Registry
	metrics     *Metrics
	server      *Server
	followers   *Followers
	grpc        *rpcserver.Server
	handler     metadata.Handler
	cancel      context.CancelFunc
	wg          sync.WaitGroup
}

func newTown(t *testing.T, brokers ...int32) *town {
	t.Helper()
	w := &town{
		t: t, net: &network{listeners: map[string]*memnet.Listener{}, silenced: map[route]chan struct{}{}, conns: map[*conn]bool{}},
		objects: map[string]*controllerv1.MetadataObject{}, nodes: map[int32]*node{}, reserve: -1, log: zerolog.Nop(),
	}
	for _, id := range brokers {
		w.start(id, vfs.NewMem())
	}
	return w
}

// start starts a broker with a new incarnation, in service at once.
func (w *town) start(id int32, mem *vfs.Mem) *node {
	w.t.Helper()
	n := &node{town: w, id: id, addr: address(id), mem: mem, fault: vfs.NewFault(mem)}
	n.run(n.fault, "data", w.net.listen(n.addr), func(ctx context.Context, to string) (net.Conn, error) { return w.net.dial(ctx, n.addr, to) })
	return n
}

// run runs a broker with a new incarnation on a disk and a network.
func (n *node) run(fs vfs.FS, dir string, lis net.Listener, dial func(ctx context.Context, to string) (net.Conn, error)) {
	w, id := n.town, n.id
	w.t.Helper()
	n.incarnation, n.reg = uuid.NewString(), prometheus.NewRegistry()
	n.metrics = NewMetrics(n.reg)
	root, err := commitlog.OpenRoot(fs, dir, commitlog.RootOptions{
		BrokerID: id, BootID: func() (string, error) { return "boot", nil }, ReserveBytes: w.reserve, BallastBytes: -1,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	n.root = root
	n.store = metadata.NewStore(metadata.BrokerID(id))
	n.image = &metadata.Image{Self: metadata.BrokerID(id), ClusterID: cluster}
	n.set = partition.NewSet(partition.Config{Incarnation: n.incarnation}, partition.Deps{Metrics: n.reg, Root: root, Store: n.store, Session: session{n}, Log: zerolog.Nop()})
	pool := wire.NewPool()
	codec := wire.NewCodec(pool)
	deps := Deps{
		Store: n.store, Set: n.set, Incarnation: n.incarnation, ClusterID: func() string { return cluster }, Pool: pool, Metrics: n.metrics, Log: w.log,
		Dial: func(addr string) (*grpc.ClientConn, error) {
			return rpcserver.Dial(addr, rpcserver.DialOptions{Codec: codec, Dial: dial})
		},
	}
	n.server = NewServer(w.cfg, deps)
	n.followers = NewFollowers(w.cfg, deps)
	n.grpc = rpcserver.New(rpcserver.Options{Port: rpcserver.InternalPort, Rules: Rules(), Codec: codec, Log: zerolog.Nop()})
	replicav1.RegisterReplicaServiceServer(n.grpc, n.server)
	ctx, cancel := context.WithCancel(w.t.Context())
	n.cancel = cancel
	n.wg.Go(func() { _ = n.root.Run(ctx) })
	n.wg.Go(func() { _ = n.set.Run(ctx) })
	n.wg.Go(func() { _ = n.followers.Run(ctx) })
	n.wg.Go(func() { _ = lifecycle.Serve(ctx, n.grpc.Server, lis, time.Second) })
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nodes[id] = n
	n.publishLocked(slices.Collect(maps.Values(w.objects)))
	w.registerLocked(id, n.incarnation, n.addr)
}

// registerLocked puts a process of a broker in service, and returns its epoch.
func (w *town) registerLocked(id int32, incarnation, addr string) int64 {
	w.epochs++
	w.putLocked(&controllerv1.MetadataObject{Object: &controllerv1.MetadataObject_Broker{Broker: &controllerv1.BrokerRecord{
		BrokerId: id, Incarnation: incarnation, BrokerEpoch: w.epochs, Phase: controllerv1.BrokerPhase_BROKER_PHASE_ACTIVE,
		InternalAddress: addr, Judged: true,
	}}})
	return w.epochs
}

func (w *town) register(id int32, incarnation string) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.registerLocked(id, incarnation, address(id))
}

func (w *town) epochOf(id int32) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.objects[fmt.Sprint("broker ", id)].GetBroker().GetBrokerEpoch()
}

func address(id int32) string { return fmt.Sprintf("10.0.0.%d:7421", id) }

// stop ends a broker in an orderly way.
func (n *node) stop() {
	n.town.mu.Lock()
	delete(n.town.nodes, n.id)
	n.town.mu.Unlock()
	n.server.Drain()
	n.cancel()
	n.wg.Wait()
	n.server.Wait()
	n.set.Stop(partition.ErrShuttingDown)
	if err := n.root.Close(1); err != nil {
		n.town.t.Errorf("close: %v", err)
	}
	if n.town.net != nil {
		n.town.net.unlisten(n.addr)
	}
}

func (w *town) end() {
	if w.net != nil {
		w.net.heal()
	}
	for _, n := range slices.Collect(maps.Values(w.nodes)) {
		n.stop()
	}
}

// session is what a set has of a controller.
type session struct{ n *node }

func (session) Report([]metadata.ReplicaReport)      {}
func (session) Removed(uuid.UUID)                    {}
func (session) Applied(int64)                        {}
func (s session) Confirmed() bool                    { return !s.n.town.away.Load() }
func (session) Timeout() time.Duration               { return 3 * time.Second }
func (session) AskLeader(metadata.LeadershipRequest) {}
func (session) Release(metadata.Released)            {}
func (s session) Handle(h metadata.Handler)          { s.n.handler = h }

// Propose is answered as a controller does that has no objections.
func (s session) Propose(ps ...metadata.Proposal) {
	w := s.n.town
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range ps {
		w.heard = append(w.heard, p)
		if w.deaf {
			continue
		}
		o := w.partitionLocked(p.Topic, p.Partition)
		r := o.GetPartition()
		if r.GetLeader() != s.n.id || r.GetLeaderEpoch() != int64(p.LeaderEpoch) || r.GetPartitionEpoch() != p.PartitionEpoch {
			s.n.handler.Rejected(metadata.Rejection{Topic: p.Topic, Partition: p.Partition, Number: p.Number, PartitionEpoch: r.GetPartitionEpoch()})
			continue
		}
		r.Isr = nil
		for _, m := range p.ISR {
			r.Isr = append(r.Isr, int32(m.ID))
		}
		r.PartitionEpoch++
		w.putLocked(o)
	}
}

// put stores objects, and lets everyone know.
func (w *town) put(objects ...*controllerv1.MetadataObject) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.putLocked(objects...)
}

func (w *town) putLocked(objects ...*controllerv1.MetadataObject) {
	w.rev++
	for _, o := range objects {
		o.Revision = w.rev
		w.objects[name(o)] = o
	}
	for _, n := range w.nodes {
		n.publishLocked(objects)
	}
}

func (n *node) publishLocked(objects []*controllerv1.MetadataObject) {
	img, err := n.image.Next(1, max(n.town.rev, 1), objects)
	if err != nil {
		n.town.t.Error(err)
		return
	}
	n.image = img
	n.store.Publish(img)
}

func name(o *controllerv1.MetadataObject) string {
	switch {
	case o.GetBroker() != nil:
		return fmt.Sprint("broker ", o.GetBroker().GetBrokerId())
	case o.GetTopic() != nil:
		return "topic " + o.GetTopic().GetTopicId()
	}
	return fmt.Sprint("partition ", o.GetPartition().GetTopicId(), "/", o.GetPartition().GetPartition())
}

// partitionLocked returns a copy of a partition's record.
func (w *town) partitionLocked(id uuid.UUID, number int32) *controllerv1.MetadataObject {
	o, _ := proto.Clone(w.objects[fmt.Sprint("partition ", id, "/", number)]).(*controllerv1.MetadataObject)
	return o
}

// change edits a partition's record.
func (w *town) change(id uuid.UUID, number int32, edit func(*controllerv1.PartitionRecord)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	o := w.partitionLocked(id, number)
	edit(o.GetPartition())
	o.GetPartition().PartitionEpoch++
	w.putLocked(o)
}

// elect makes a broker the leader, with those in sync.
func (w *town) elect(id uuid.UUID, number, leader int32, isr ...int32) {
	w.change(id, number, func(p *controllerv1.PartitionRecord) {
		p.Leader, p.Isr = leader, isr
		p.LeaderEpoch++
	})
}

// topic makes a topic whose partitions have replicas on all of brokers, the
// first of which leads.
func (w *town) topic(flush controllerv1.FlushMode, partitions int32, minISR int32, brokers ...int32) uuid.UUID {
	id := uuid.New()
	objects := []*controllerv1.MetadataObject{{Object: &controllerv1.MetadataObject_Topic{Topic: &controllerv1.TopicRecord{
		TopicId: id.String(), Name: "t" + id.String()[:8], Phase: controllerv1.TopicPhase_TOPIC_PHASE_ACTIVE, Partitions: partitions,
		ReplicationFactor: int32(len(brokers)),
	}}}}
	for n := range partitions {
		objects = append(objects, &controllerv1.MetadataObject{Object: &controllerv1.MetadataObject_Partition{Partition: &controllerv1.PartitionRecord{
			TopicId: id.String(), Partition: n, Leader: brokers[0], LeaderEpoch: 1, PartitionEpoch: 1, Replicas: brokers, Isr: brokers, MinIsr: minISR, Flush: flush,
		}}})
	}
	w.put(objects...)
	return id
}

func (w *town) isr(id uuid.UUID, number int32) []int32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	isr := slices.Clone(w.partitionLocked(id, number).GetPartition().GetIsr())
	slices.Sort(isr)
	return isr
}

// replica returns a broker's copy.
func (n *node) replica(id uuid.UUID, number int32) *partition.Partition {
	n.town.t.Helper()
	for _, p := range n.set.All() {
		if p.Topic().ID == id && p.Number() == number {
			return p
		}
	}
	n.town.t.Fatalf("broker %d has no copy of %s/%d", n.id, id, number)
	return nil
}

// append appends a batch of records with values of size bytes; committed is
// closed when it is.
func (n *node) append(id uuid.UUID, number int32, records, size int) (last record.Offset, committed <-chan error) {
	n.town.t.Helper()
	p := n.replica(id, number)
	a, err := p.Append(batchOf(n.town.t, records, size), nil)
	if err != nil {
		n.town.t.Fatal(err)
	}
	ch := make(chan error, 1)
	p.WhenCommitted(a, func(err error) { ch <- err })
	return a.Last, ch
}

func batchOf(tb testing.TB, records, size int) *record.Batch {
	tb.Helper()
	b := record.NewBuilder(record.NewCodec(), record.Limits{MaxRecordBytes: 4 << 20, MaxBatchBytes: 4 << 20})
	for i := range records {
		if err := b.Add(fmt.Appendf(nil, "%d", i), bytes.Repeat([]byte{byte(i)}, size), nil, time.Now().UnixMilli()); err != nil {
			tb.Fatal(err)
		}
	}
	out, err := b.Finish(record.CompressionNone, 0)
	if err != nil {
		tb.Fatal(err)
	}
	return &out
}

// bytesOf returns the segments of a copy as they are on the disk.
func (n *node) bytesOf(id uuid.UUID, number int32) map[string][]byte {
	n.town.t.Helper()
	dir := filepath.Join("data", id.String(), fmt.Sprint(number))
	list, err := n.mem.ReadDir(dir)
	if err != nil {
		n.town.t.Fatal(err)
	}
	out := map[string][]byte{}
	for _, e := range list {
		if !strings.HasSuffix(e.Name, ".log") {
			continue
		}
		f, err := n.mem.Open(filepath.Join(dir, e.Name))
		if err != nil {
			n.town.t.Fatal(err)
		}
		b := make([]byte, e.Size)
		if _, err := f.ReadAt(b, 0); err != nil && len(b) > 0 {
			n.town.t.Fatal(err)
		}
		_ = f.Close()
		out[e.Name] = b
	}
	return out
}

// same fails the test unless the copies on all running brokers are byte for byte
// the same.
func (w *town) same(id uuid.UUID, number int32) {
	w.t.Helper()
	var first *node
	for _, n := range w.nodes {
		if first == nil {
			first = n
			continue
		}
		a, b := first.bytesOf(id, number), n.bytesOf(id, number)
		if !maps.EqualFunc(a, b, bytes.Equal) {
			w.t.Errorf("%s/%d: brokers %d and %d differ: %s, %s", id, number, first.id, n.id, sizes(a), sizes(b))
		}
	}
}

func sizes(m map[string][]byte) string {
	out := ""
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out += fmt.Sprintf("%s:%d ", k, len(m[k]))
	}
	return out
}

// within waits, in a bubble, until f is true.
func (w *town) within(d time.Duration, what string, f func() bool) {
	w.t.Helper()
	for end := time.Now().Add(d); ; time.Sleep(time.Millisecond) {
		synctest.Wait()
		if f() {
			return
		}
		if time.Now().After(end) {
			w.t.Fatalf("not within %s: %s", d, what)
		}
	}
}

// done says whether a commit was answered, and well.
func (w *town) done(committed <-chan error) func() bool {
	return func() bool {
		select {
		case err := <-committed:
			if err != nil {
				w.t.Errorf("commit: %v", err)
			}
			return true
		default:
			return false
		}
	}
}

// metric returns the sum of a metric's series.
func (n *node) metric(name string) float64 {
	families, err := n.reg.Gather()
	if err != nil {
		n.town.t.Error(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum
}

func (n *node) dropped() float64 { return n.metric("replication_dropped_subscriptions_total") }
