package metadata_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/metadata/metadatatest"
	"github.com/runnelmq/runnel/internal/memnet"
	"github.com/runnelmq/runnel/internal/rpcserver"
)

// identity is kept in memory.
type identity struct {
	// mu guards the fields below
	mu sync.Mutex

	cluster string
	epoch   int64
	data    int64
}

func (i *identity) ClusterID() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.cluster
}

func (i *identity) HighestControllerEpoch() int64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.epoch
}

func (i *identity) DataEpoch() int64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.data
}

func (i *identity) Remember(cluster string, epoch, data int64) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.cluster, i.epoch, i.data = cluster, epoch, data
	return nil
}

// world is a broker's session among controllers on addresses a, b, …
type world struct {
	*metadata.Session

	store       *metadata.Store
	id          *identity
	controllers map[string]*metadatatest.Controller
	condition   metadata.Condition
	cancel      context.CancelFunc
	wg          sync.WaitGroup
	runErr      error
	servers     []*grpc.Server
	healths     []*health.Server
	log         bytes.Buffer // JSON lines
}

func newWorld(t *testing.T, addrs ...string) *world {
	t.Helper()
	w := &world{store: metadata.NewStore(1), id: &identity{}, controllers: map[string]*metadatatest.Controller{}}
	listeners := map[string]*memnet.Listener{}
	for _, a := range addrs {
		c := metadatatest.New()
		w.controllers[a] = c
		lis := memnet.Listen(a, 1<<20)
		listeners[a] = lis
		srv := grpc.NewServer(grpc.WaitForHandlers(true))
		controllerv1.RegisterControllerServiceServer(srv, c)
		h := health.NewServer() // serving
		healthpb.RegisterHealthServer(srv, h)
		w.healths = append(w.healths, h)
		w.servers = append(w.servers, srv)
		w.wg.Go(func() { _ = srv.Serve(lis) })
	}
	dial := func(ctx context.Context, addr string) (net.Conn, error) {
		if l, ok := listeners[addr]; ok {
			return l.DialContext(ctx)
		}
		return nil, errors.New("connection refused")
	}
	w.Session = metadata.NewSession(metadata.SessionConfig{
		Broker:      &controllerv1.BrokerRecord{BrokerId: 1, Incarnation: "i1", DirectoryId: "d1", ClientAddress: "c:1"},
		Controllers: addrs,
		Dial: func(addr string) (*grpc.ClientConn, error) {
			return rpcserver.Dial(addr, rpcserver.DialOptions{Dial: dial})
		},
		Identity: w.id, Condition: func() metadata.Condition { return w.condition }, Log: zerolog.New(zerolog.SyncWriter(&w.log)),
	}, w.store)
	return w
}

// run starts the session; the returned function ends it and the controllers.
func (w *world) run(t *testing.T) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w.cancel = cancel
	var session sync.WaitGroup
	session.Go(func() { w.runErr = w.Run(ctx) })
	return func() {
		cancel()
		session.Wait()
		for _, s := range w.servers {
			s.Stop()
		}
		for _, c := range w.controllers {
			c.Wait()
		}
		w.wg.Wait()
	}
}

func (w *world) await(t *testing.T, addr string, want func(metadatatest.Heard) bool) metadatatest.Heard {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := w.controllers[addr].Await(ctx, want); err != nil {
		t.Fatalf("controller %s heard %+v: %v", addr, w.controllers[addr].Heard(), err)
	}
	return w.controllers[addr].Heard()
}

func registered(h metadatatest.Heard) bool { return h.Sessions == 1 }

// settle waits until nothing moves but time.
func settle() { synctest.Wait() }

func TestRegisterAndFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		id := uuid.New()
		w.controllers["a"].Put(metadatatest.TopicObjects(id, "orders", 3, 1, 1)...)
		defer w.run(t)()
		h := w.await(t, "a", registered)
		if r := h.Registers[0]; r.GetBroker().GetIncarnation() != "i1" || r.GetBroker().GetDirectoryId() != "d1" || r.GetClusterId() != "" {
			t.Errorf("registered as %v", r)
		}
		settle()
		topic, ok := w.store.Load().Topic("orders")
		if !ok || len(topic.Partitions) != 3 || topic.Partitions[2].Leader != 1 {
			t.Fatalf("the snapshot shows %+v, %v", topic, ok)
		}
		if w.id.ClusterID() != w.controllers["a"].ClusterID() || w.id.HighestControllerEpoch() != 1 {
			t.Errorf("remembers %q, %d", w.id.ClusterID(), w.id.HighestControllerEpoch())
		}
		if w.Epoch() != 1 {
			t.Errorf("broker epoch %d", w.Epoch())
		}
		// A change, and the answer that it is acted on, at once.
		changed := w.store.Changed()
		rev := w.controllers["a"].Put(metadatatest.PartitionObject(id, 2, 1, 9))
		<-changed
		if got := w.store.Load(); got.Revision != rev {
			t.Fatalf("revision %d, want %d", got.Revision, rev)
		}
		topic, _ = w.store.Load().Topic("orders")
		if topic.Partitions[2].LeaderEpoch != 9 || topic.Partitions[1].LeaderEpoch != 1 {
			t.Errorf("after the delta: %+v", topic.Partitions)
		}
		start := time.Now()
		w.Applied(rev)
		w.await(t, "a", func(h metadatatest.Heard) bool { return h.Applied == rev })
		if took := time.Since(start); took > 10*time.Millisecond {
			t.Errorf("the controller learnt it after %v", took)
		}
	})
}

// A delta that comes late, or twice, changes nothing: it would bring back what
// was deleted since, and take the image's revision back.
func TestOlderDeltasAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		c := w.controllers["a"]
		defer w.run(t)()
		w.await(t, "a", registered)
		id, kept := uuid.New(), uuid.New()
		objects := metadatatest.TopicObjects(id, "orders", 1, 1, 1)
		made := c.Put(objects...)
		c.Put(metadatatest.TopicObjects(kept, "kept", 1, 1, 1)...)
		gone := c.Put(&controllerv1.MetadataObject{Object: &controllerv1.MetadataObject_DeletedTopicId{DeletedTopicId: id.String()}})
		for _, revision := range []int64{made, gone} {
			c.Delta(revision, objects...)
			settle()
			img := w.store.Load()
			if _, ok := img.TopicByID(id); ok || img.Revision != gone {
				t.Errorf("after a delta of revision %d: at revision %d, want %d; the deleted topic is back: %v", revision, img.Revision, gone, ok)
			}
		}
		if _, _, err := w.Controller(); err != nil {
			t.Errorf("no session any more: %v", err)
		}
		c.Delta(gone+1, objects...) // the next one is taken
		settle()
		if img := w.store.Load(); img.Revision != gone+1 {
			t.Errorf("at revision %d, want %d", img.Revision, gone+1)
		}
	})
}

func TestHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		w.condition = metadata.Condition{DiskLow: true}
		if w.Confirmed() {
			t.Error("confirmed before any answer")
		}
		defer w.run(t)()
		w.await(t, "a", registered)
		first := w.await(t, "a", func(h metadatatest.Heard) bool { return h.Last != nil }).Last.GetNumber()
		time.Sleep(5 * time.Second)
		h := w.controllers["a"].Heard()
		if got := h.Last.GetNumber() - first; got < 9 || got > 11 {
			t.Errorf("%d heartbeats in 5 s", got)
		}
		if !h.Last.GetDiskLow() || h.Last.GetStorageFailed() {
			t.Errorf("says %v of the disk", h.Last)
		}
		if !w.Confirmed() {
			t.Error("not confirmed by answers")
		}
		if len(h.Registers) != 1 {
			t.Errorf("registered %d times", len(h.Registers))
		}
	})
}

// The broker gives a silent controller up after ⅔ of the time the controller
// gives the broker, and what it was told is confirmed by its own sending.
func TestSilentController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		defer w.run(t)()
		w.await(t, "a", registered)
		time.Sleep(2 * time.Second)
		w.controllers["a"].Set(metadatatest.Mute(true))
		start := time.Now()
		h := w.await(t, "a", func(h metadatatest.Heard) bool { return len(h.Registers) == 2 })
		if first, again := h.Registers[0].GetBrokerEpoch(), h.Registers[1].GetBrokerEpoch(); first != 0 || again != w.Epoch() {
			t.Errorf("registered as one with epochs %d and %d, want 0 and %d", first, again, w.Epoch())
		}
		if took := time.Since(start); took < time.Second || took > 2600*time.Millisecond {
			t.Errorf("registered anew after %v, want about 2 s", took)
		}
		time.Sleep(time.Until(start.Add(3100 * time.Millisecond)))
		if w.Confirmed() {
			t.Error("still confirmed a session timeout after the last answer")
		}
	})
}

func notController(addr string) error {
	st, err := status.New(codes.FailedPrecondition, "not the active controller").WithDetails(&errdetails.ErrorInfo{
		Reason: "NOT_CONTROLLER", Domain: "runnel", Metadata: map[string]string{"address": addr},
	})
	if err != nil {
		return err
	}
	return st.Err()
}

func refusal(reason string, code codes.Code) error {
	st, err := status.New(code, "refused").WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: "runnel"})
	if err != nil {
		return err
	}
	return st.Err()
}

func TestFollowsToTheActiveController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b", "c")
		cluster := w.controllers["a"].ClusterID()
		for a, c := range w.controllers {
			c.Set(metadatatest.Cluster(cluster))
			if a != "c" {
				c.Set(metadatatest.Refuse(notController("c")))
			}
		}
		defer w.run(t)()
		start := time.Now()
		w.await(t, "c", registered)
		if took := time.Since(start); took > 10*time.Millisecond {
			t.Errorf("took %v although the first answer named the active one", took)
		}
		settle()
		if _, addr, err := w.Controller(); err != nil || addr != "c" {
			t.Errorf("Controller = %q, %v", addr, err)
		}
		// Another one takes over, with a higher epoch.
		w.controllers["a"].Set(metadatatest.Refuse(nil), metadatatest.Epoch(2))
		w.controllers["b"].Set(metadatatest.Refuse(notController("a")))
		w.controllers["c"].Set(metadatatest.Refuse(notController("a")))
		w.controllers["c"].Break(status.Error(codes.Unavailable, "resigned"))
		w.await(t, "a", registered)
		settle()
		if w.id.HighestControllerEpoch() != 2 {
			t.Errorf("highest epoch %d", w.id.HighestControllerEpoch())
		}
		// The old one wakes up and thinks it is active: it is not obeyed.
		w.controllers["c"].Set(metadatatest.Refuse(nil))
		w.controllers["a"].Set(metadatatest.Refuse(notController("c")))
		w.controllers["b"].Set(metadatatest.Refuse(notController("c")))
		w.controllers["a"].Break(status.Error(codes.Unavailable, "gone"))
		time.Sleep(10 * time.Second)
		if _, addr, err := w.Controller(); err == nil {
			t.Errorf("obeys %s, which has an older epoch", addr)
		}
		if n := len(w.controllers["c"].Heard().Registers); n > 60 {
			t.Errorf("asked it %d times in 10 s", n)
		}
	})
}

// Two controllers that point at each other, as in the middle of an election,
// don't make the broker spin.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b")
		w.controllers["a"].Set(metadatatest.Refuse(notController("b")))
		w.controllers["b"].Set(metadatatest.Refuse(notController("a")))
		defer w.run(t)()
		time.Sleep(10 * time.Second)
		n := len(w.controllers["a"].Heard().Registers) + len(w.controllers["b"].Heard().Registers)
		if n < 10 || n > 80 {
			t.Errorf("%d attempts in 10 s", n)
		}
	})
}

func TestDuplicateBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		w.controllers["a"].Set(metadatatest.Refuse(refusal("DUPLICATE_BROKER", codes.AlreadyExists)))
		end := w.run(t)
		time.Sleep(4 * time.Second) // the old session ends
		w.controllers["a"].Set(metadatatest.Refuse(nil))
		w.await(t, "a", registered)
		w.controllers["a"].Set(metadatatest.Refuse(refusal("DUPLICATE_BROKER", codes.AlreadyExists)))
		w.controllers["a"].Break(status.Error(codes.Unavailable, "x"))
		time.Sleep(35 * time.Second)
		end()
		if !errors.Is(w.runErr, metadata.ErrDuplicateBroker) {
			t.Errorf("Run = %v", w.runErr)
		}
	})
}

// Reports and confirmations are told to every controller, until they are known.
func TestWhatIsToBeToldIsToldAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		gone := uuid.New()
		deleting := metadatatest.TopicObjects(gone, "old", 1, 1, 1)
		deleting[0].GetTopic().Phase = controllerv1.TopicPhase_TOPIC_PHASE_DELETING
		deleting[0].GetTopic().AwaitingRemoval = []int32{1}
		w.controllers["a"].Put(deleting...)
		defer w.run(t)()
		var reports []metadata.ReplicaReport
		for n := range int32(2500) {
			reports = append(reports, metadata.ReplicaReport{Topic: gone, Partition: n, Shape: metadata.Shape(n % 3), LogEnd: 7, Reason: "r"})
		}
		w.Report(reports)
		w.Removed(gone)
		h := w.await(t, "a", func(h metadatatest.Heard) bool { return h.Reported == 1 && len(h.Removed) == 1 })
		if len(h.Reports) != 2500 || h.Reports[2].GetShape() != controllerv1.ReplicaShape_REPLICA_SHAPE_LOST || h.Reports[0].GetLogEndOffset() != 7 {
			t.Errorf("heard %d reports, such as %v", len(h.Reports), h.Reports[2])
		}
		w.controllers["a"].Break(status.Error(codes.Unavailable, "x"))
		w.await(t, "a", func(h metadatatest.Heard) bool { return h.Reported == 2 && len(h.Removed) == 2 })
		// The cluster has taken note: the confirmation is over, the report not.
		w.controllers["a"].Put(&controllerv1.MetadataObject{Object: &controllerv1.MetadataObject_DeletedTopicId{DeletedTopicId: gone.String()}})
		settle()
		w.controllers["a"].Break(status.Error(codes.Unavailable, "x"))
		w.await(t, "a", func(h metadatatest.Heard) bool { return h.Reported == 3 })
		time.Sleep(2 * time.Second)
		if h := w.controllers["a"].Heard(); len(h.Removed) != 2 {
			t.Errorf("confirmed %d times", len(h.Removed))
		}
	})
}

// An empty data directory has an empty report.
func TestEmptyReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		defer w.run(t)()
		w.await(t, "a", registered)
		time.Sleep(time.Second)
		if w.controllers["a"].Heard().Reported != 0 {
			t.Error("reported before recovery")
		}
		w.Report(nil)
		w.await(t, "a", func(h metadatatest.Heard) bool { return h.Reported == 1 && len(h.Reports) == 0 })
	})
}

func TestHandOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		end := w.run(t)
		w.await(t, "a", registered)
		settle() // the answer has come
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if err := w.HandOver(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("HandOver without an answer = %v", err)
		}
		// A new controller is told too.
		w.controllers["a"].Break(status.Error(codes.Unavailable, "x"))
		w.await(t, "a", func(h metadatatest.Heard) bool { return h.Leaving == 2 })
		w.controllers["a"].MayDrain()
		if err := w.HandOver(t.Context()); err != nil {
			t.Errorf("HandOver = %v", err)
		}
		end()
		if h := w.controllers["a"].Heard(); h.Ended != 1 || w.runErr != nil {
			t.Errorf("%d orderly ends, Run = %v", h.Ended, w.runErr)
		}
	})
}

func TestCatchUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		f := metadata.Finder{Store: w.store, CatchUp: w.CatchUp}
		// No controller yet: nobody can tell.
		if _, err := f.Find(t.Context(), "orders", ""); !errors.Is(err, metadata.ErrStale) {
			t.Errorf("without a controller: %v", err)
		}
		defer w.run(t)()
		w.await(t, "a", registered)
		settle()
		w.Applied(w.store.Load().Revision)
		if _, err := f.Find(t.Context(), "orders", ""); !errors.Is(err, metadata.ErrTopicNotFound) {
			t.Errorf("an unknown topic: %v", err)
		}
		for _, bad := range []string{"", ".", "..", "a/b", "a b", "\xff\xfe", "ä", fmt.Sprintf("%0250d", 0)} {
			if _, err := f.Find(t.Context(), bad, ""); !errors.Is(err, metadata.ErrInvalidName) {
				t.Errorf("%q: %v", bad, err)
			}
		}
		// Known to the controller, not yet acted on here: the finder waits.
		id := uuid.New()
		rev := w.controllers["a"].Put(metadatatest.TopicObjects(id, "orders", 1, 1, 1)...)
		var wg sync.WaitGroup
		wg.Go(func() {
			time.Sleep(200 * time.Millisecond)
			w.Applied(rev)
		})
		got, err := f.Find(t.Context(), "orders", id.String())
		if err != nil || got.ID != id {
			t.Errorf("a new topic: %v, %v", got, err)
		}
		wg.Wait()
		if _, err := f.Find(t.Context(), "orders", uuid.NewString()); !errors.Is(err, metadata.ErrTopicIDMismatch) {
			t.Errorf("another id: %v", err)
		}
		// A controller that hangs costs 500 ms, and makes nothing "not found".
		w.controllers["a"].Set(metadatatest.Mute(true))
		start := time.Now()
		if _, err := f.Find(t.Context(), "other", ""); !errors.Is(err, metadata.ErrStale) || time.Since(start) > 600*time.Millisecond {
			t.Errorf("with a hung controller: %v after %v", err, time.Since(start))
		}
	})
}
