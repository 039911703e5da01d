package rpc

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/memnet"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/rpcerr"
	"github.com/runnelmq/runnel/internal/rpcserver"
	"github.com/runnelmq/runnel/internal/vfs"
	"github.com/runnelmq/runnel/internal/wire"
)

const testIncarnation = "00000000-0000-4000-8000-000000000001"

// A testBroker is LogService over real partitions on a file system in memory.
// Use it inside a synctest bubble; it ends with the test.
type testBroker struct {
	t     testing.TB
	svc   *LogService
	store *metadata.Store
	set   *partition.Set
	root  *commitlog.Root
	conn  *grpc.ClientConn
	// dialer opens more connections.
	dialer func(context.Context, string) (net.Conn, error)
	log    runnelv1.LogServiceClient

	// openInternal opens the internal port, in a town.
	openInternal func()
	admin        *AdminService
	groups       *GroupService // nil: it keeps none

	wait     func(revision int64)
	revision int64
	topics   map[string]uuid.UUID
}

// A testSession is the controller's side as far as a Set needs it.
type testSession struct {
	mu      sync.Mutex
	applied int64
	changed chan struct{}
}

func (s *testSession) Report([]metadata.ReplicaReport) {}
func (s *testSession) Removed(uuid.UUID)               {}
func (s *testSession) Confirmed() bool                 { return true }

func (s *testSession) Handle(metadata.Handler)              {}
func (s *testSession) Propose(...metadata.Proposal)         {}
func (s *testSession) AskLeader(metadata.LeadershipRequest) {}
func (s *testSession) Release(metadata.Released)            {}
func (s *testSession) Timeout() time.Duration               { return time.Second }

func (s *testSession) Applied(revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.applied = revision
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *testSession) wait(revision int64) {
	for {
		s.mu.Lock()
		done, changed := s.applied >= revision, s.changed
		s.mu.Unlock()
		if done {
			return
		}
		<-changed
	}
}

type testConfig struct {
	opts LogOptions
	fs   vfs.FS
	disk bool // a real one
	// listen returns where to serve and how to get there; nil: in memory.
	listen func() (net.Listener, func(context.Context, string) (net.Conn, error))
	// dial are options of the client's connection.
	dial []grpc.DialOption
	// id is the broker's, 0: 1; town is where it lives, nil: alone.
	id   int32
	town *testTown
}

func newTestBroker(tb testing.TB, cfg testConfig) *testBroker {
	tb.Helper()
	if cfg.fs == nil {
		cfg.fs = vfs.NewMem()
	}
	cfg.id = max(cfg.id, 1)
	incarnation := testIncarnation
	if cfg.town != nil {
		incarnation = cfg.town.incarnation(cfg.id)
	}
	dir := "data"
	if cfg.disk {
		cfg.fs, dir = vfs.OS(), tb.TempDir()
	}
	root, err := commitlog.OpenRoot(cfg.fs, dir, commitlog.RootOptions{
		ClusterID: "test", BrokerID: cfg.id, ReserveBytes: -1, BallastBytes: -1, BootID: func() (string, error) { return "boot", nil },
	})
	if err != nil {
		tb.Fatal(err)
	}
	b := &testBroker{t: tb, root: root, store: metadata.NewStore(metadata.BrokerID(cfg.id)), topics: map[string]uuid.UUID{}}
	b.store.Publish(&metadata.Image{Self: metadata.BrokerID(cfg.id), ClusterID: "test"})
	session := &testSession{changed: make(chan struct{})}
	b.set = partition.NewSet(partition.Config{Incarnation: incarnation}, partition.Deps{
		Root: root, Store: b.store, Session: session, Log: zerolog.Nop(),
	})
	opts := cfg.opts
	opts.Store, opts.Partitions, opts.Rules = b.store, b.set, Rules()
	if opts.Pool == nil {
		opts.Pool = wire.NewPool()
	}
	leave := func() {}
	if cfg.town != nil {
		leave = cfg.town.join(b, cfg.id, &opts)
	}
	b.svc = NewLogService(opts)
	if b.openInternal != nil {
		b.openInternal()
	}
	srv := rpcserver.New(rpcserver.Options{Port: rpcserver.ClientPort, Rules: Rules(), Log: zerolog.Nop(), Codec: wire.NewCodec(opts.Pool)})
	b.svc.Register(srv)
	if b.groups != nil {
		runnelv1.RegisterGroupServiceServer(srv, b.groups)
	}

	lis, dial := listenInMemory()
	if cfg.listen != nil {
		lis, dial = cfg.listen()
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = b.set.Run(ctx) })
	wg.Go(func() { _ = root.Run(ctx) })
	wg.Go(func() { _ = srv.Serve(lis) })
	b.dialer = dial
	b.conn = b.dial(dial, cfg.dial...)
	b.log = runnelv1.NewLogServiceClient(b.conn)
	tb.Cleanup(func() {
		_ = b.conn.Close()
		srv.Stop()
		b.svc.Wait()
		leave()
		cancel()
		wg.Wait()
		_ = root.Close(1)
	})
	b.wait = session.wait
	if cfg.town != nil {
		return b // the town tells it who is there
	}
	b.publish(&controllerv1.MetadataObject{Object: &controllerv1.MetadataObject_Broker{Broker: &controllerv1.BrokerRecord{
		BrokerId: 1, Incarnation: incarnation, BrokerEpoch: 1, Phase: controllerv1.BrokerPhase_BROKER_PHASE_ACTIVE,
	}}})
	session.wait(b.revision)
	return b
}

func listenInMemory() (net.Listener, func(context.Context, string) (net.Conn, error)) {
	lis := memnet.Listen("broker:7420", 1<<20)
	return lis, func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }
}

func (b *testBroker) dial(dial func(context.Context, string) (net.Conn, error), opts ...grpc.DialOption) *grpc.ClientConn {
	b.t.Helper()
	opts = append([]grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(wire.NewCodec(wire.NewPool()))), // to send raw messages
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(dial), grpc.WithIdleTimeout(0),
	}, opts...)
	conn, err := grpc.NewClient("passthrough:///broker", opts...)
	if err != nil {
		b.t.Fatal(err)
	}
	return conn
}

// publish lays objects over the image, as the controller would.
func (b *testBroker) publish(objects ...*controllerv1.MetadataObject) {
	b.t.Helper()
	b.revision++
	for _, o := range objects {
		o.Revision = b.revision
	}
	img, err := b.store.Load().Next(1, b.revision, objects)
	if err != nil {
		b.t.Fatal(err)
	}
	b.store.Publish(img)
}

// topic creates a topic that this broker leads, and waits until it does.
func (b *testBroker) topic(name string, partitions int32, configs ...string) uuid.UUID {
	b.t.Helper()
	id := uuid.New()
	b.topics[name] = id
	b.change(name, partitions, 1, configs...)
	return id
}

// change changes a topic's partition count, leader epoch or configuration.
func (b *testBroker) change(name string, partitions int32, epoch int64, configs ...string) {
	b.t.Helper()
	id := b.topics[name]
	set := map[string]string{"flush": "async"}
	for kv := range slices.Chunk(configs, 2) {
		set[kv[0]] = kv[1]
	}
	objects := []*controllerv1.MetadataObject{{Object: &controllerv1.MetadataObject_Topic{Topic: &controllerv1.TopicRecord{
		TopicId: id.String(), Name: name, Phase: controllerv1.TopicPhase_TOPIC_PHASE_ACTIVE, Partitions: partitions,
		ReplicationFactor: 1, Configs: set, Internal: len(name) > 2 && name[:2] == "__",
	}}}}
	flush := controllerv1.FlushMode_FLUSH_MODE_ASYNC
	if set["flush"] == "sync" {
		flush = controllerv1.FlushMode_FLUSH_MODE_SYNC
	}
	for n := range partitions {
		objects = append(objects, &controllerv1.MetadataObject{Object: &controllerv1.MetadataObject_Partition{Partition: &controllerv1.PartitionRecord{
			TopicId: id.String(), Partition: n, Replicas: []int32{1}, Leader: 1, LeaderEpoch: epoch, PartitionEpoch: epoch,
			Isr: []int32{1}, MinIsr: 1, Flush: flush,
		}}})
	}
	b.publish(objects...)
	b.wait(b.revision)
}

// remove deletes a topic.
func (b *testBroker) remove(name string, partitions int32) {
	b.t.Helper()
	id := b.topics[name]
	b.publish(&controllerv1.MetadataObject{Object: &controllerv1.MetadataObject_Topic{Topic: &controllerv1.TopicRecord{
		TopicId: id.String(), Name: name, Phase: controllerv1.TopicPhase_TOPIC_PHASE_DELETING, Partitions: partitions,
		ReplicationFactor: 1, AwaitingRemoval: []int32{1},
	}}})
	b.wait(b.revision)
}

// isr makes the ISR of every partition something else.
func (b *testBroker) isr(name string, partitions int32, pepoch int64, minISR int32, isr ...int32) {
	b.t.Helper()
	var objects []*controllerv1.MetadataObject
	for n := range partitions {
		objects = append(objects, &controllerv1.MetadataObject{Object: &controllerv1.MetadataObject_Partition{Partition: &controllerv1.PartitionRecord{
			TopicId: b.topics[name].String(), Partition: n, Replicas: []int32{1, 2}, Leader: 1, LeaderEpoch: 1, PartitionEpoch: pepoch,
			Isr: isr, MinIsr: minISR, Flush: controllerv1.FlushMode_FLUSH_MODE_ASYNC,
		}}})
	}
	b.publish(objects...)
	b.wait(b.revision)
}

// part returns a local partition.
func (b *testBroker) part(name string, n int32) *partition.Partition {
	b.t.Helper()
	p, err := b.set.Get(b.topics[name], n)
	if err != nil {
		b.t.Fatal(err)
	}
	return p
}

// ends returns the log ends of a topic's partitions: what was stored.
func (b *testBroker) ends() map[string]int64 {
	out := map[string]int64{}
	for _, p := range b.set.All() {
		if end := p.State().LogEnd; end > 0 {
			out[p.String()] = int64(end)
		}
	}
	return out
}

// produce sends one request on a stream of its own and returns the answer.
func (b *testBroker) produce(req *runnelv1.ProduceRequest) *runnelv1.ProduceResponse {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	stream, err := b.log.Produce(ctx)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := stream.Send(req); err != nil {
		b.t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		b.t.Fatal(err)
	}
	resp, err := stream.Recv()
	if err != nil {
		b.t.Fatalf("produce: %v", err)
	}
	if _, err := stream.Recv(); err == nil {
		b.t.Fatal("a second answer to one request")
	}
	return resp
}

// text produces strings to a partition and returns the first one's offset.
func (b *testBroker) text(topic string, n int32, values ...string) int64 {
	b.t.Helper()
	req := &runnelv1.ProduceRequest{Topic: topic, Partition: &n}
	for _, v := range values {
		req.TextRecords = append(req.TextRecords, &runnelv1.ProduceTextRecord{Value: &v})
	}
	resp := b.produce(req)
	if resp.GetError() != nil {
		b.t.Fatalf("produce: %v", resp.GetError())
	}
	return resp.GetBaseOffset()
}

func marshal(tb testing.TB, m proto.Message) []byte {
	tb.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// append appends straight to a partition, past the service.
func (b *testBroker) append(topic string, n int32, values ...string) {
	b.t.Helper()
	builder := record.NewBuilder(record.NewCodec(), record.Limits{})
	for _, v := range values {
		if err := builder.Add(nil, []byte(v), nil, time.Now().UnixMilli()); err != nil {
			b.t.Fatal(err)
		}
	}
	batch, err := builder.Finish(record.CompressionNone, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.part(topic, n).Append(&batch, nil); err != nil {
		b.t.Fatal(err)
	}
}

func reasonOf(err error) runnelv1.ErrorReason { return rpcerr.Reason(err) }
