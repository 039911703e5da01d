package controller_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/controller"
	"github.com/runnelmq/runnel/controller/store/storetest"
	"github.com/runnelmq/runnel/internal/memnet"
	"github.com/runnelmq/runnel/internal/rpcserver"
)

// A world is a metadata store with the controllers and brokers of a test, all in memory.
type world struct {
	t  *testing.T
	kv *storetest.Fake
	// dialer reaches controllers on real sockets; nil: those of this world.
	dialer func(ctx context.Context, network, addr string) (net.Conn, error)

	// mu guards the fields below
	mu sync.Mutex

	listeners map[string]*memnet.Listener
	dialErrs  map[string]error        // by address: what dialling gives
	conns     map[string][]*breakable // by the address they lead to, those of controllers apart
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, kv: storetest.New(), listeners: map[string]*memnet.Listener{}, dialErrs: map[string]error{}, conns: map[string][]*breakable{}}
	t.Cleanup(w.kv.Close)
	return w
}

func (w *world) listen(_ context.Context, addr string) (net.Listener, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	lis := memnet.Listen(addr, 1<<20)
	w.listeners[addr] = lis
	return lis, nil
}

func (w *world) dial(ctx context.Context, addr string) (net.Conn, error) {
	return w.dialAs(ctx, addr, "")
}

// byController begins the places where connections of controllers are kept.
const byController = "controller>"

func (w *world) dialAs(ctx context.Context, addr, who string) (net.Conn, error) {
	if w.dialer != nil {
		return w.dialer(ctx, "tcp", addr)
	}
	w.mu.Lock()
	lis, err := w.listeners[addr], w.dialErrs[addr]
	w.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if lis == nil {
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	}
	conn, err := lis.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	b := &breakable{Conn: conn}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns[who+addr] = append(w.conns[who+addr], b)
	return b, nil
}

// A running controller can be stopped, and waited for.
type running struct {
	*controller.Controller

	addr     string
	registry *prometheus.Registry
	cancel   context.CancelFunc
	done     chan struct{}
	err      error
}

// stop ends the controller in an orderly way.
func (r *running) stop(t *testing.T) {
	t.Helper()
	r.cancel()
	<-r.done
	if r.err != nil {
		t.Errorf("controller %s: %v", r.addr, r.err)
	}
}

func testConfig(addr string) controller.Config {
	cfg := controller.DefaultConfig()
	cfg.Cluster.Probe, cfg.Cluster.FastFencing = false, false // the brokers of most tests cannot be dialled
	cfg.Listen.Controller, cfg.Listen.Advertised, cfg.Listen.Admin = "127.0.0.1:0", addr, ""
	return cfg
}

// controller starts a controller. It must be stopped.
func (w *world) controller(addr string, change func(*controller.Config, *controller.Deps)) *running {
	w.t.Helper()
	cfg := testConfig(addr)
	deps := controller.Deps{
		KV: w.kv, Dial: func(ctx context.Context, addr string) (net.Conn, error) { return w.dialAs(ctx, addr, byController) }, Bootstrap: true, Log: zerolog.New(zerolog.NewTestWriter(w.t)).Level(zerolog.WarnLevel),
		Listen: func(ctx context.Context, _ string) (net.Listener, error) { return w.listen(ctx, addr) }, Registry: prometheus.NewRegistry(),
	}
	if change != nil {
		change(&cfg, &deps)
	}
	c, err := controller.New(cfg, deps)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{Controller: c, addr: addr, registry: deps.Registry, cancel: cancel, done: make(chan struct{})}
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(r.done)
		r.err = c.Run(ctx)
	})
	<-c.Bound()
	return r
}

// client returns a client of a controller, closed with the test.
func (w *world) client(addr string) controllerv1.ControllerServiceClient {
	w.t.Helper()
	conn, err := rpcserver.Dial(addr, rpcserver.DialOptions{Dial: w.dial})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	return controllerv1.NewControllerServiceClient(conn)
}

// A broker is a broker as far as a controller can tell.
type broker struct {
	w         *world
	register  *controllerv1.Register
	stream    grpc.BidiStreamingClient[controllerv1.SessionRequest, controllerv1.SessionResponse]
	cancel    context.CancelFunc
	out       chan *controllerv1.SessionRequest
	ended     chan struct{}
	drain     chan struct{}
	conn      *grpc.ClientConn
	wg        sync.WaitGroup // of the session's goroutines
	shape     controllerv1.ReplicaShape
	shapes    map[string]*controllerv1.ReplicaReport // by topic id/partition; else shape
	noRecover bool
	handOvers chan *controllerv1.HandOver
	rejected  chan *controllerv1.IsrRejection

	// mu guards the fields below
	mu sync.Mutex

	held            chan struct{} // nil, or it receives nothing until this is closed
	mute            bool          // sends no heartbeats
	lazy            bool          // never says that it applied anything
	diskLow         bool          // says that its disk is nearly full
	stubborn        int           // hand-overs it puts off before it releases; -1: all
	deaf            bool          // does not answer hand-overs
	epoch           int64
	controllerEpoch int64
	revision        int64
	topics          map[string]*controllerv1.TopicRecord
	partitions      map[string]*controllerv1.PartitionRecord
	brokers         map[int32]*controllerv1.BrokerRecord
	pieces          []int // objects in each piece of the snapshot
	ledAtFirst      int   // partitions it led in the snapshot
	deltas          []*controllerv1.MetadataDelta
	beats           uint64
	answered        uint64
	answers         []answer // to heartbeats, in order
	changed         chan struct{}
	err             error
}

// An answer is what a broker had been told when a heartbeat was answered.
type answer struct {
	number   uint64
	revision int64
}

// newBroker returns a broker that has not come to a controller.
func (w *world) newBroker(id int32) *broker {
	return &broker{
		w: w, shape: controllerv1.ReplicaShape_REPLICA_SHAPE_INTACT, shapes: map[string]*controllerv1.ReplicaReport{},
		handOvers: make(chan *controllerv1.HandOver, 10_000), rejected: make(chan *controllerv1.IsrRejection, 1000),
		register: &controllerv1.Register{Broker: &controllerv1.BrokerRecord{
			BrokerId: id, Incarnation: uuid.NewString(), DirectoryId: uuid.NewString(),
			ClientAddress: fmt.Sprintf("broker-%d:7420", id), InternalAddress: fmt.Sprintf("broker-%d:7421", id), Version: "test",
			MinFeatureLevel: 1, MaxFeatureLevel: 1,
		}},
	}
}

// restarted returns a new incarnation of a broker, on the same data.
func (b *broker) restarted() *broker {
	n := b.w.newBroker(b.register.GetBroker().GetBrokerId())
	n.register.Broker.DirectoryId = b.register.GetBroker().GetDirectoryId()
	n.register.ClusterId = b.cluster()
	b.mu.Lock()
	defer b.mu.Unlock()
	n.register.DataEpoch = b.epoch
	return n
}

// join opens a session with the controller at an address. An earlier one must have ended.
func (b *broker) join(addr string) {
	b.w.t.Helper()
	b.wg.Wait()
	conn, err := rpcserver.Dial(addr, rpcserver.DialOptions{Dial: b.w.dial})
	if err != nil {
		b.w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	b.conn, b.cancel = conn, cancel
	if b.stream, err = controllerv1.NewControllerServiceClient(conn).Session(ctx); err != nil {
		b.w.t.Fatal(err)
	}
	b.mu.Lock()
	b.out, b.ended, b.drain = make(chan *controllerv1.SessionRequest, 1000), make(chan struct{}), make(chan struct{})
	b.topics, b.partitions, b.brokers = map[string]*controllerv1.TopicRecord{}, map[string]*controllerv1.PartitionRecord{}, map[int32]*controllerv1.BrokerRecord{}
	b.changed, b.err, b.pieces, b.deltas, b.revision = make(chan struct{}), nil, nil, nil, 0
	register := proto.CloneOf(b.register)
	b.mu.Unlock()
	b.out <- &controllerv1.SessionRequest{Event: &controllerv1.SessionRequest_Register{Register: register}}
	b.wg.Go(b.sendAll)
	b.wg.Go(b.receiveAll)
	b.wg.Go(b.beat)
}

// leave breaks the session off.
func (b *broker) leave() {
	b.cancel()
	b.wg.Wait()
	_ = b.conn.Close()
}

func (b *broker) sendAll() {
	for {
		select {
		case req := <-b.out:
			_ = b.stream.Send(req)
		case <-b.ended:
			return
		}
	}
}

func (b *broker) beat() {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			b.heartbeat()
		case <-b.ended:
			return
		}
	}
}

func (b *broker) heartbeat() {
	b.mu.Lock()
	if b.mute || b.epoch == 0 {
		b.mu.Unlock()
		return
	}
	b.beats++
	hb := &controllerv1.BrokerHeartbeat{Number: b.beats, AppliedRevision: b.revision}
	if b.lazy {
		hb.AppliedRevision = 0
	}
	hb.DiskLow = b.diskLow
	b.mu.Unlock()
	b.out <- &controllerv1.SessionRequest{Event: &controllerv1.SessionRequest_Heartbeat{Heartbeat: hb}}
}

func (b *broker) receiveAll() {
	defer close(b.ended)
	for {
		b.mu.Lock()
		held := b.held
		b.mu.Unlock()
		if held != nil {
			<-held
		}
		resp, err := b.stream.Recv()
		if err != nil {
			b.mu.Lock()
			b.err = err
			close(b.changed)
			b.changed = make(chan struct{})
			b.mu.Unlock()
			return
		}
		b.take(resp)
	}
}

func (b *broker) take(resp *controllerv1.SessionResponse) {
	b.mu.Lock()
	b.controllerEpoch = resp.GetControllerEpoch()
	applied, whole := false, false
	switch ev := resp.GetEvent().(type) {
	case *controllerv1.SessionResponse_Registered:
		b.epoch = ev.Registered.GetBrokerEpoch()
		b.register.ClusterId = ev.Registered.GetClusterId()
	case *controllerv1.SessionResponse_Heartbeat:
		b.answered = max(b.answered, ev.Heartbeat.GetNumber())
		b.answers = append(b.answers, answer{ev.Heartbeat.GetNumber(), b.revision})
	case *controllerv1.SessionResponse_Snapshot:
		b.applyLocked(ev.Snapshot.GetObjects())
		b.pieces = append(b.pieces, len(ev.Snapshot.GetObjects()))
		if ev.Snapshot.GetComplete() {
			b.revision = ev.Snapshot.GetRevision()
			applied, whole = true, true
			b.ledAtFirst = 0
			for _, p := range b.partitions {
				if p.GetLeader() == b.register.GetBroker().GetBrokerId() {
					b.ledAtFirst++
				}
			}
		}
	case *controllerv1.SessionResponse_Delta:
		if ev.Delta.GetRevision() <= b.revision {
			b.w.t.Errorf("delta of revision %d after %d", ev.Delta.GetRevision(), b.revision)
		}
		b.applyLocked(ev.Delta.GetObjects())
		b.deltas = append(b.deltas, ev.Delta)
		b.revision = ev.Delta.GetRevision()
		applied = true
	case *controllerv1.SessionResponse_MayDrain:
		close(b.drain)
	case *controllerv1.SessionResponse_HandOver:
		b.handOver(ev.HandOver)
	case *controllerv1.SessionResponse_Rejections:
		for _, r := range ev.Rejections.GetRejections() {
			b.rejected <- r
		}
	}
	close(b.changed)
	b.changed = make(chan struct{})
	b.mu.Unlock()
	if applied {
		b.heartbeat()
	}
	if whole && !b.noRecover {
		b.recover()
	}
}

// handOver, called with mu held, answers as a leader whose parked records are committed does.
func (b *broker) handOver(h *controllerv1.HandOver) {
	b.handOvers <- h
	if b.deaf {
		return
	}
	released := b.stubborn == 0
	if b.stubborn > 0 {
		b.stubborn--
	}
	b.out <- &controllerv1.SessionRequest{Event: &controllerv1.SessionRequest_Released{Released: &controllerv1.Released{
		TopicId: h.GetTopicId(), Partition: h.GetPartition(), LeaderEpoch: h.GetLeaderEpoch(), Released: released,
	}}}
}

func partitionName(topic string, n int32) string { return fmt.Sprintf("%s/%d", topic, n) }

func (b *broker) applyLocked(objects []*controllerv1.MetadataObject) {
	for _, o := range objects {
		switch {
		case o.GetBroker() != nil:
			b.brokers[o.GetBroker().GetBrokerId()] = o.GetBroker()
		case o.GetTopic() != nil:
			b.topics[o.GetTopic().GetTopicId()] = o.GetTopic()
		case o.GetPartition() != nil:
			b.partitions[partitionName(o.GetPartition().GetTopicId(), o.GetPartition().GetPartition())] = o.GetPartition()
		default:
			delete(b.topics, o.GetDeletedTopicId())
			maps.DeleteFunc(b.partitions, func(_ string, p *controllerv1.PartitionRecord) bool { return p.GetTopicId() == o.GetDeletedTopicId() })
		}
	}
}

// recover reports what a broker's recovery found.
func (b *broker) recover() {
	b.mu.Lock()
	report := &controllerv1.RecoveryReport{Complete: true}
	for name, p := range b.partitions {
		if !slices.Contains(p.GetReplicas(), b.register.GetBroker().GetBrokerId()) {
			continue
		}
		r := b.shapes[name]
		if r == nil {
			r = &controllerv1.ReplicaReport{Shape: b.shape}
		}
		r.TopicId, r.Partition = p.GetTopicId(), p.GetPartition()
		report.Replicas = append(report.Replicas, r)
	}
	b.mu.Unlock()
	// In two pieces, as a large one would come.
	half := len(report.GetReplicas()) / 2
	b.out <- &controllerv1.SessionRequest{Event: &controllerv1.SessionRequest_Recovery{Recovery: &controllerv1.RecoveryReport{Replicas: report.GetReplicas()[:half]}}}
	b.out <- &controllerv1.SessionRequest{Event: &controllerv1.SessionRequest_Recovery{Recovery: &controllerv1.RecoveryReport{Replicas: report.GetReplicas()[half:], Complete: true}}}
}

// until waits until the broker's picture fulfils a condition.
func (b *broker) until(what string, cond func() bool) {
	b.w.t.Helper()
	timer := time.NewTimer(5 * time.Minute)
	defer timer.Stop()
	for {
		b.mu.Lock()
		met, changed, err := cond(), b.changed, b.err
		b.mu.Unlock()
		if met {
			return
		}
		select {
		case <-changed:
		case <-timer.C:
			b.w.t.Fatalf("broker %d: %s never came; session: %v", b.register.GetBroker().GetBrokerId(), what, err)
		}
	}
}

// locked calls fn while the picture stands still.
func (b *broker) locked(fn func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fn()
}

// cluster returns the id of the cluster that the broker belongs to, if it knows it.
func (b *broker) cluster() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.register.GetClusterId()
}

// toldBy returns the epoch of the controller that spoke last.
func (b *broker) toldBy() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.controllerEpoch
}

func (b *broker) phase(id int32) controllerv1.BrokerPhase {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.phaseLocked(id)
}

func (b *broker) phaseLocked(id int32) controllerv1.BrokerPhase { return b.brokers[id].GetPhase() }

// serve joins and waits until the broker is in service.
func (b *broker) serve(addr string) *broker {
	b.w.t.Helper()
	b.join(addr)
	id := b.register.GetBroker().GetBrokerId()
	b.until("being in service", func() bool {
		return b.phaseLocked(id) == controllerv1.BrokerPhase_BROKER_PHASE_ACTIVE && b.brokers[id].GetBrokerEpoch() == b.epoch
	})
	return b
}

// failure waits for the session's end and returns why it ended.
func (b *broker) failure() error {
	<-b.ended
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

func (b *broker) topicNamed(name string) *controllerv1.TopicRecord {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.topics {
		if t.GetName() == name && t.GetPhase() == controllerv1.TopicPhase_TOPIC_PHASE_ACTIVE {
			return t
		}
	}
	return nil
}

func (b *broker) partition(topic string, n int32) *controllerv1.PartitionRecord {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.partitions[partitionName(topic, n)]
}
