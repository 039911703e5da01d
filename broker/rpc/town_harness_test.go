package rpc

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/coordinator"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/broker/router"
	"github.com/runnelmq/runnel/internal/memnet"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/rpcserver"
	"github.com/runnelmq/runnel/internal/wire"
)

// A testTown is several brokers in one synctest bubble, which know each other.
// The test is their controller.
type testTown struct {
	t       *testing.T
	brokers map[int32]*testBroker
	routers map[int32]*router.Router
	forward map[int32]*ForwardService
	topics  map[string]*testTopic
	tune    func(*router.Options)
	// catchUp is called when a broker asks what is new. nil: nothing is.
	catchUp func(id int32) error
	// groupConfig is not nil where brokers keep consumer groups.
	groupConfig *coordinator.Config
	// subscriptions counts those of followers.
	subscriptions int64

	// mu guards the fields below
	mu sync.Mutex

	listeners map[string]*memnet.Listener
	conns     map[string][]net.Conn
	dials     map[string]int
}

// A testTopic is what the town's controller knows of a topic.
type testTopic struct {
	id         uuid.UUID
	partitions []*controllerv1.PartitionRecord
	configs    map[string]string
}

// newTown starts brokers 1 to n. tune may change how they route.
func newTown(t *testing.T, n int32, tune func(*router.Options), opts LogOptions) *testTown {
	t.Helper()
	return buildTown(t, n, tune, opts, nil)
}

func buildTown(t *testing.T, n int32, tune func(*router.Options), opts LogOptions, groups *coordinator.Config) *testTown {
	t.Helper()
	w := &testTown{
		t: t, brokers: map[int32]*testBroker{}, routers: map[int32]*router.Router{}, forward: map[int32]*ForwardService{},
		topics: map[string]*testTopic{}, listeners: map[string]*memnet.Listener{}, conns: map[string][]net.Conn{}, dials: map[string]int{},
		tune: tune, groupConfig: groups,
	}
	for id := int32(1); id <= n; id++ {
		w.brokers[id] = newTestBroker(t, testConfig{id: id, town: w, opts: opts})
	}
	var objects []*controllerv1.MetadataObject
	for id := range w.brokers {
		objects = append(objects, w.registration(id, controllerv1.BrokerPhase_BROKER_PHASE_ACTIVE))
	}
	w.publish(objects)
	return w
}

func (w *testTown) incarnation(id int32) string {
	return fmt.Sprintf("00000000-0000-4000-8000-%012d", id)
}

func internalAddress(id int32) string { return fmt.Sprintf("broker-%d:7421", id) }

func (w *testTown) registration(id int32, phase controllerv1.BrokerPhase) *controllerv1.MetadataObject {
	return &controllerv1.MetadataObject{Object: &controllerv1.MetadataObject_Broker{Broker: &controllerv1.BrokerRecord{
		BrokerId: id, Incarnation: w.incarnation(id), BrokerEpoch: 1, Phase: phase,
		InternalAddress: internalAddress(id), ClientAddress: fmt.Sprintf("broker-%d:7420", id),
	}}}
}

// join gives a broker its router and its internal port.
func (w *testTown) join(b *testBroker, id int32, opts *LogOptions) (leave func()) {
	ro := router.Options{Store: b.store, Rules: Rules(), Pool: opts.Pool, Dial: func(addr string) (*grpc.ClientConn, error) {
		return rpcserver.Dial(addr, rpcserver.DialOptions{Codec: wire.NewCodec(opts.Pool), Dial: w.dial})
	}}
	if w.tune != nil {
		w.tune(&ro)
	}
	r := router.New(ro)
	opts.Router, opts.CatchUp = r, w.catchUpOf(id)
	w.routers[id] = r
	srv := rpcserver.New(rpcserver.Options{Port: rpcserver.InternalPort, Rules: Rules(), Log: zerolog.Nop(), Codec: wire.NewCodec(opts.Pool)})
	lis := memnet.Listen(internalAddress(id), 1<<20)
	w.mu.Lock()
	w.listeners[internalAddress(id)] = lis
	w.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = r.Run(ctx) })
	b.openInternal = func() {
		b.admin = NewAdminService(AdminDeps{Store: b.store, Set: b.set, Root: b.root, Finder: w.finder(b, id), Router: r, Log: zerolog.Nop()})
		if w.groupConfig != nil {
			c := w.joinGroups(b, id, r)
			wg.Go(func() { _ = c.Run(ctx) })
		}
		fwd := NewForwardService(b.svc, b.admin)
		w.forward[id] = fwd
		fwd.Register(srv)
		wg.Go(func() { _ = srv.Serve(lis) })
	}
	return func() {
		cancel()
		srv.Stop()
		w.forward[id].Wait()
		wg.Wait()
	}
}

// joinGroups lets a broker keep consumer groups.
func (w *testTown) joinGroups(b *testBroker, id int32, r *router.Router) *coordinator.Coordinator {
	c := coordinator.New(*w.groupConfig, coordinator.Deps{
		Store: b.store, Local: b.set.Get, CatchUp: w.catchUpOf(id), Log: zerolog.Nop(),
		Measure: func(ctx context.Context, places []coordinator.Place) []coordinator.Measure {
			return b.groups.Measure(ctx, places)
		},
	})
	b.groups = NewGroupService(GroupDeps{
		Store: b.store, Coordinator: c, Finder: w.finder(b, id), Router: r, Logs: b.svc, Admin: b.admin,
		Ensure: func(context.Context) (*metadata.Topic, error) {
			if t, ok := b.store.Load().Topic(coordinator.Topic); ok {
				return t, nil
			}
			return nil, metadata.ErrNoController
		},
	})
	return c
}

func (w *testTown) finder(b *testBroker, id int32) metadata.Finder {
	return metadata.Finder{Store: b.store, CatchUp: w.catchUpOf(id)}
}

// catchUpOf is how a broker asks what is new.
func (w *testTown) catchUpOf(id int32) func(context.Context) error {
	return func(context.Context) error {
		if w.catchUp == nil {
			return nil
		}
		return w.catchUp(id)
	}
}

func (w *testTown) dial(ctx context.Context, addr string) (net.Conn, error) {
	w.mu.Lock()
	lis := w.listeners[addr]
	w.dials[addr]++
	w.mu.Unlock()
	if lis == nil {
		return nil, syscall.ECONNREFUSED
	}
	c, err := lis.DialContext(ctx)
	if err == nil {
		w.mu.Lock()
		w.conns[addr] = append(w.conns[addr], c)
		w.mu.Unlock()
	}
	return c, err
}

// cut breaks every connection to a broker's internal port.
func (w *testTown) cut(id int32) {
	w.mu.Lock()
	conns := w.conns[internalAddress(id)]
	delete(w.conns, internalAddress(id))
	w.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
}

// publish tells brokers, or all when none is named, what is new, and waits until
// they are what it says.
func (w *testTown) publish(objects []*controllerv1.MetadataObject, to ...int32) {
	w.t.Helper()
	if len(to) == 0 {
		to = slices.Sorted(maps.Keys(w.brokers))
	}
	for _, id := range to {
		var copies []*controllerv1.MetadataObject
		for _, o := range objects {
			c, _ := proto.Clone(o).(*controllerv1.MetadataObject)
			copies = append(copies, c)
		}
		b := w.brokers[id]
		b.publish(copies...)
		b.wait(b.revision)
	}
}

// topic creates a topic whose partitions are led by the given brokers.
func (w *testTown) topic(name string, leaders ...int32) uuid.UUID {
	w.t.Helper()
	tt := &testTopic{id: uuid.New(), configs: map[string]string{"flush": "async"}}
	w.topics[name] = tt
	objects := []*controllerv1.MetadataObject{{Object: &controllerv1.MetadataObject_Topic{Topic: &controllerv1.TopicRecord{
		TopicId: tt.id.String(), Name: name, Phase: controllerv1.TopicPhase_TOPIC_PHASE_ACTIVE, Partitions: int32(len(leaders)),
		Internal:          strings.HasPrefix(name, "__"),
		ReplicationFactor: int32(len(w.brokers)), Configs: tt.configs,
	}}}}
	for n, leader := range leaders {
		p := &controllerv1.PartitionRecord{
			TopicId: tt.id.String(), Partition: int32(n), Replicas: slices.Sorted(maps.Keys(w.brokers)), Leader: leader,
			LeaderEpoch: 1, PartitionEpoch: 1, Isr: []int32{leader}, MinIsr: 1, Flush: controllerv1.FlushMode_FLUSH_MODE_ASYNC,
		}
		tt.partitions = append(tt.partitions, p)
		objects = append(objects, partitionObject(p))
	}
	w.publish(objects)
	for _, b := range w.brokers {
		b.topics[name] = tt.id
	}
	return tt.id
}

func partitionObject(p *controllerv1.PartitionRecord) *controllerv1.MetadataObject {
	return &controllerv1.MetadataObject{Object: &controllerv1.MetadataObject_Partition{Partition: p}}
}

// move gives a partition another leader, -1: none, in the next epoch. Only the
// brokers named hear of it, or all.
func (w *testTown) move(name string, n, leader int32, to ...int32) {
	w.t.Helper()
	p := w.topics[name].partitions[n]
	p.Leader = leader
	p.LeaderEpoch++
	p.PartitionEpoch++
	if leader >= 0 {
		p.Isr = []int32{leader}
	}
	w.publish([]*controllerv1.MetadataObject{partitionObject(p)}, to...)
}

// tell lets brokers know what there is to know of a partition.
func (w *testTown) tell(name string, n int32, to ...int32) {
	w.t.Helper()
	w.publish([]*controllerv1.MetadataObject{partitionObject(w.topics[name].partitions[n])}, to...)
}

// isr changes the ISR and its minimum, as the leader is to see it.
func (w *testTown) isr(name string, n, minISR int32, isr ...int32) {
	w.t.Helper()
	p := w.topics[name].partitions[n]
	p.PartitionEpoch++
	p.Isr, p.MinIsr = isr, minISR
	w.publish([]*controllerv1.MetadataObject{partitionObject(p)})
}

// A stored is one record of a log.
type stored struct {
	epoch  record.Epoch
	offset record.Offset
	value  string
}

// contents returns what all brokers together have stored of a partition, in the
// order of epochs and offsets. Each leads it for a moment, as far as it knows.
func (w *testTown) contents(name string, n int32) (all []stored) {
	w.t.Helper()
	for id := range w.brokers {
		all = append(all, w.log(name, n, id)...)
	}
	slices.SortFunc(all, func(a, b stored) int {
		return cmp.Or(cmp.Compare(a.epoch, b.epoch), cmp.Compare(a.offset, b.offset))
	})
	return all
}

// log returns what one broker has stored. It ends all leadership.
func (w *testTown) log(name string, n, id int32) (all []stored) {
	w.t.Helper()
	w.move(name, n, id, id)
	p := w.brokers[id].part(name, n)
	buf := make([]byte, 8<<20)
	size, err := p.Read(buf, 0, p.State().HighWatermark)
	if err != nil {
		w.t.Fatal(err)
	}
	for b := buf[:size]; len(b) > 0; {
		frame, verdict := record.ParseFrame(b, int64(len(b)), record.MaxFrameSize)
		if verdict != record.OK {
			w.t.Fatal(verdict)
		}
		it := record.NewIterator(record.NewCodec())
		it.Reset(frame.Header, frame.Payload(b))
		for it.Next() {
			r := it.Record()
			all = append(all, stored{frame.Header.LeaderEpoch, r.Offset, string(r.Value)})
		}
		b = b[frame.Size:]
	}
	return all
}

// A forwardStream is a ForwardProduce stream by hand.
type forwardStream struct {
	t      *testing.T
	stream grpc.ClientStream
	conn   *grpc.ClientConn
	sent   uint64
}

func (w *testTown) forwardStream(id int32) *forwardStream {
	w.t.Helper()
	conn := w.brokers[id].dial(func(ctx context.Context, _ string) (net.Conn, error) { return w.dial(ctx, internalAddress(id)) })
	desc := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
	stream, err := conn.NewStream(w.t.Context(), desc, replicav1.ForwardService_ForwardProduce_FullMethodName)
	if err != nil {
		w.t.Fatal(err)
	}
	return &forwardStream{t: w.t, stream: stream, conn: conn}
}

func (s *forwardStream) end() { _ = s.conn.Close() }

func (s *forwardStream) send(r *wire.ForwardProduce) {
	s.t.Helper()
	s.sent++
	r.Sequence = s.sent
	r.Batch = mem.SliceBuffer(buildBatch(s.t, record.CompressionNone, time.Now().UnixMilli(), []byte("v")))
	if err := s.stream.SendMsg(r); err != nil {
		s.t.Fatal(err)
	}
}

func (s *forwardStream) recv() (r wire.ForwardProduced) {
	s.t.Helper()
	var msg wire.Message
	if err := s.stream.RecvMsg(&msg); err != nil {
		s.t.Fatal(err)
	}
	b := msg.Copy(wire.NewPool(), 0)
	if err := r.Parse(*b, 0, len(*b)); err != nil {
		s.t.Fatal(err)
	}
	return r
}

// check sends a request, and wants an error with that reason, or none.
func (s *forwardStream) check(r *wire.ForwardProduce, reason runnelv1.ErrorReason) {
	s.t.Helper()
	s.send(r)
	if got := s.recv(); got.Sequence != s.sent || got.Error.GetReason() != reason || got.Error.GetOutcomeUnknown() {
		s.t.Errorf("request %d: %+v, want %v", s.sent, got, reason)
	}
}

// copyLog brings the logs of other brokers up to what the leader has, as
// replication does. Readers there see nothing of it.
func (w *testTown) copyLog(name string, n int32, to ...int32) {
	w.t.Helper()
	leader := w.topics[name].partitions[n].GetLeader()
	for _, id := range to {
		if id != leader {
			w.tell(name, n, id)
			if err := w.follow(w.brokers[id].part(name, n), w.brokers[leader].part(name, n), id); err != nil {
				w.t.Fatal(err)
			}
		}
	}
}

// follow has a replica take all that its leader has.
func (w *testTown) follow(p, leader *partition.Partition, id int32) error {
	w.subscriptions++
	s, ok := p.FollowerStart(w.subscriptions, func() {})
	if !ok {
		return fmt.Errorf("broker %d does not follow", id) //nolint:err113 // a test's
	}
	defer p.FollowerStop(w.subscriptions)
	s.Follower, s.BrokerEpoch = metadata.BrokerID(id), 1
	a, err := leader.Subscribe(s, nil, func() {})
	if err != nil {
		return err
	}
	defer leader.FollowerGone(s.Follower, w.subscriptions)
	if a.Kind != partition.Accepted {
		return fmt.Errorf("broker %d is answered %+v", id, a) //nolint:err113 // a test's
	}
	if _, err := p.OnSubscribed(w.subscriptions, a); err != nil {
		return err
	}
	buf := make([]byte, 16<<20)
	r, err := leader.ReadReplica(buf, s.Follower, w.subscriptions, s.NextOffset)
	if err != nil || r.N == 0 {
		return err
	}
	return p.OnData(partition.Data{
		Epoch: s.Epoch, Subscription: w.subscriptions, Start: s.NextOffset, Next: r.Next, PrevEpoch: r.PrevEpoch, HasPrevEpoch: r.HasPrevEpoch,
		HighWatermark: r.HighWatermark, LogStart: r.LogStart, Batches: buf[:r.N],
	})
}
