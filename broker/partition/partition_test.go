package partition

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/metadata/metadatatest"
	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// session notes what a set tells.
type session struct {
	// mu guards the fields below
	mu sync.Mutex

	reports   []metadata.ReplicaReport
	reported  bool
	removed   []uuid.UUID
	applied   int64
	confirmed bool
	handler   metadata.Handler
	proposals []metadata.Proposal
	asked     []metadata.LeadershipRequest
	released  []metadata.Released
}

func (s *session) Handle(h metadata.Handler) { s.handler = h }
func (s *session) Timeout() time.Duration    { return 3 * time.Second }

func (s *session) Propose(ps ...metadata.Proposal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proposals = append(s.proposals, ps...)
}

func (s *session) AskLeader(r metadata.LeadershipRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r)
}

func (s *session) Release(r metadata.Released) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.released = append(s.released, r)
}

// proposed returns the proposals so far, asks the requests.
func (s *session) proposed() []metadata.Proposal {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.proposals)
}

func (s *session) asks() []metadata.LeadershipRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

// answers takes the answers to hand-overs.
func (s *session) answers() []metadata.Released {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.released
	s.released = nil
	return out
}

func (s *session) Report(r []metadata.ReplicaReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reports, s.reported = r, true
}

func (s *session) Removed(id uuid.UUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removed = append(s.removed, id)
}

func (s *session) Applied(rev int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.applied = rev
}

func (s *session) Confirmed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.confirmed
}

// rig is a set on a disk in memory, led by the images a test publishes.
type rig struct {
	*Set

	t       *testing.T
	mem     *vfs.Mem
	fault   *vfs.Fault
	root    *commitlog.Root
	store   *metadata.Store
	session *session
	reg     *prometheus.Registry
	image   *metadata.Image
	rev     int64
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	runErr  error
}

const me = 1

// newRig opens the data root on mem and starts the set. It must be called in a
// bubble, and ended.
func newRig(t *testing.T, mem *vfs.Mem) *rig {
	t.Helper()
	r := &rig{t: t, mem: mem, fault: vfs.NewFault(mem), store: metadata.NewStore(me), session: &session{confirmed: true}, reg: prometheus.NewRegistry()}
	r.image = r.store.Load()
	root, err := commitlog.OpenRoot(r.fault, "data", commitlog.RootOptions{
		BrokerID: me, BootID: func() (string, error) { return "boot", nil }, ReserveBytes: -1, BallastBytes: -1,
	})
	if err != nil {
		t.Fatal(err)
	}
	r.root = root
	r.Set = NewSet(Config{Incarnation: "i"}, Deps{Root: root, Store: r.store, Session: r.session, Metrics: r.reg, Log: zerolog.Nop()})
	ctx, cancel := context.WithCancel(t.Context())
	r.cancel = cancel
	r.wg.Go(func() { r.runErr = r.Run(ctx) })
	r.wg.Go(func() { _ = root.Run(ctx) })
	r.publish(broker(controllerv1.BrokerPhase_BROKER_PHASE_ACTIVE, "i"))
	return r
}

// end stops all; crash leaves the disk as a kill would.
func (r *rig) end(crash bool) {
	r.t.Helper()
	r.cancel()
	r.wg.Wait()
	if crash {
		r.mem.Kill()
		return
	}
	r.Stop(ErrShuttingDown)
	if err := r.root.Close(1); err != nil {
		r.t.Errorf("close: %v", err)
	}
}

func broker(phase controllerv1.BrokerPhase, incarnation string) *controllerv1.MetadataObject {
	return &controllerv1.MetadataObject{Object: &controllerv1.MetadataObject_Broker{Broker: &controllerv1.BrokerRecord{
		BrokerId: me, Incarnation: incarnation, Phase: phase,
	}}}
}

// publish makes a new image and waits until the set acts on it.
func (r *rig) publish(objects ...*controllerv1.MetadataObject) {
	r.t.Helper()
	r.rev++
	for _, o := range objects {
		o.Revision = r.rev
	}
	img, err := r.image.Next(1, r.rev, objects)
	if err != nil {
		r.t.Fatal(err)
	}
	r.image = img
	r.store.Publish(img)
	synctest.Wait()
	r.session.mu.Lock()
	defer r.session.mu.Unlock()
	if r.session.applied != r.rev && r.root.Failure().Err() == nil {
		r.t.Fatalf("revision %d is not applied, %d is", r.rev, r.session.applied)
	}
}

// topic publishes a topic of one partition led by this broker.
func (r *rig) topic(name string, flush controllerv1.FlushMode, configs map[string]string) *Partition {
	r.t.Helper()
	return r.topicOf(uuid.New(), name, flush, configs, 1)
}

func (r *rig) topicOf(id uuid.UUID, name string, flush controllerv1.FlushMode, configs map[string]string, epoch int64) *Partition {
	r.t.Helper()
	objects := metadatatest.TopicObjects(id, name, 1, me, epoch)
	objects[0].GetTopic().Configs = configs
	objects[1].GetPartition().Flush = flush
	r.publish(objects...)
	p, err := r.Get(id, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	return p
}

func batch(t testing.TB, records int, ms int64) *record.Batch {
	t.Helper()
	b := record.NewBuilder(record.NewCodec(), record.Limits{})
	for i := range records {
		if err := b.Add([]byte("k"), fmt.Appendf(nil, "value-%d", i), nil, ms); err != nil {
			t.Fatal(err)
		}
	}
	out, err := b.Finish(record.CompressionNone, 0)
	if err != nil {
		t.Fatal(err)
	}
	return &out
}

func (r *rig) append(p *Partition, records int) Appended {
	r.t.Helper()
	a, err := p.Append(batch(r.t, records, time.Now().UnixMilli()), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return a
}

const (
	async  = controllerv1.FlushMode_FLUSH_MODE_ASYNC
	bySync = controllerv1.FlushMode_FLUSH_MODE_SYNC
)

func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

func TestAppendAndRead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, vfs.NewMem())
		defer r.end(false)
		p := r.topic("orders", async, nil)
		a := r.append(p, 3)
		if a.Base != 0 || a.Last != 2 || a.Epoch != 1 {
			t.Errorf("appended %+v", a)
		}
		a = r.append(p, 2)
		st, err := p.End()
		if err != nil || st.HighWatermark != 5 || st.LogEnd != 5 || st.LastStable != 5 || a.Base != 3 {
			t.Errorf("%+v, %v; appended %+v", st, err, a)
		}
		buf := make([]byte, 1<<16)
		n, err := p.Read(buf, 1, 100)
		if err != nil || n == 0 {
			t.Fatalf("read %d, %v", n, err)
		}
		f, v := record.ParseFrame(buf, int64(n), record.MaxFrameSize)
		if v != record.OK || f.Header.BaseOffset != 0 || f.Header.LeaderEpoch != 1 {
			t.Errorf("first frame %+v, %v", f.Header, v)
		}
		if n, err := p.Read(buf, 5, 100); n != 0 || err != nil {
			t.Errorf("at the end: %d, %v", n, err)
		}
		var out *OutOfRangeError
		if _, err := p.Read(buf, 6, 100); !errors.As(err, &out) || out.LogEnd != 5 || out.Metadata()["endOffset"] != "5" {
			t.Errorf("beyond the end: %v", err)
		}
		if _, err := p.Read(buf[:10], 0, 5); !errors.Is(err, ErrShortBuffer) {
			t.Errorf("a short buffer: %v", err)
		}
		epoch := record.Epoch(0)
		if _, err := p.Append(batch(t, 1, 0), &epoch); !errors.Is(err, ErrFencedEpoch) {
			t.Errorf("an older epoch: %v", err)
		}
		epoch = 2
		if _, err := p.Append(batch(t, 1, 0), &epoch); !errors.Is(err, ErrUnknownEpoch) {
			t.Errorf("a newer epoch: %v", err)
		}
	})
}

// Offset for time (ST-13), end offsets that do not depend on what remains
// (ST-09), and numbering that survives an empty log and a crash (ST-07).
func TestOffsets(t *testing.T) {
	mem := vfs.NewMem()
	id := uuid.New()
	bubble(t, func(t *testing.T) {
		r := newRig(t, mem)
		p := r.topicOf(id, "orders", bySync, nil, 1)
		for _, ms := range []int64{2, 4, 6, 8} {
			if _, err := p.Append(batch(t, 1, ms), nil); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		for ms, want := range []int64{0, 0, 0, 1, 1, 2, 2, 3, 3, -1} {
			off, ts, found, err := p.OffsetForTime(int64(ms))
			if err != nil || found != (want >= 0) || (found && (int64(off) != want || ts < int64(ms))) {
				t.Errorf("at %d: offset %d, time %d, %v, %v; want %d", ms, off, ts, found, err, want)
			}
		}
		for range 6 {
			r.append(p, 1)
		}
		synctest.Wait()
		if start, err := p.DeleteRecords(t.Context(), 7); err != nil || start != 7 {
			t.Errorf("deleted to %d, %v", start, err)
		}
		if st, err := p.End(); err != nil || st.LogStart != 7 || st.HighWatermark != 10 {
			t.Errorf("%+v, %v", st, err)
		}
		if start, err := p.DeleteRecords(t.Context(), 3); err != nil || start != 7 {
			t.Errorf("the log start fell to %d, %v", start, err)
		}
		for _, bad := range []record.Offset{11, -2} {
			if _, err := p.DeleteRecords(t.Context(), bad); !errors.Is(err, ErrOffsetOutOfRange) {
				t.Errorf("DeleteRecords(%d): %v", bad, err)
			}
		}
		if _, err := p.Read(make([]byte, 1000), 3, 10); !errors.Is(err, ErrOffsetOutOfRange) {
			t.Errorf("below the log start: %v", err)
		}
		if start, err := p.DeleteRecords(t.Context(), ToHighWatermark); err != nil || start != 10 {
			t.Errorf("deleted all to %d, %v", start, err)
		}
		r.end(true)
	})
	bubble(t, func(t *testing.T) {
		r := newRig(t, mem)
		defer r.end(false)
		p := r.topicOf(id, "orders", bySync, nil, 2)
		if st, err := p.End(); err != nil || st.LogStart != 10 || st.HighWatermark != 10 {
			t.Errorf("after the restart: %+v, %v", st, err)
		}
		if a := r.append(p, 1); a.Base != 10 {
			t.Errorf("numbering goes on at %d", a.Base)
		}
		r.session.mu.Lock()
		defer r.session.mu.Unlock()
		if len(r.session.reports) != 0 { // the topic came after the first image, which had none
			t.Errorf("reports %v", r.session.reports)
		}
	})
}

// With flush=sync an append returns at once; a flusher makes it durable while
// more are appended, which share the next sync.
func TestGroupCommitIsPipelined(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, vfs.NewMem())
		defer r.end(false)
		p := r.topic("orders", bySync, nil)
		var syncs atomic.Int32
		r.fault.Before(vfs.OpSync, func(vfs.Op, string) {
			syncs.Add(1)
			time.Sleep(10 * time.Millisecond) // a disk
		})
		start := time.Now()
		var mu sync.Mutex
		var done []record.Offset
		answered := func() []record.Offset {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(done)
		}
		for range 200 {
			a := r.append(p, 1)
			p.WhenCommitted(a.Last, func(err error) {
				if err != nil {
					t.Errorf("offset %d: %v", a.Last, err)
				}
				mu.Lock()
				defer mu.Unlock()
				done = append(done, a.Last)
			})
			time.Sleep(100 * time.Microsecond)
		}
		if took := time.Since(start); took > 25*time.Millisecond {
			t.Errorf("200 appends took %v: they wait for the disk", took)
		}
		if len(answered()) == 200 {
			t.Error("all are committed before the last sync can have ended")
		}
		time.Sleep(100 * time.Millisecond)
		if done := answered(); len(done) != 200 || !slices.IsSorted(done) {
			t.Errorf("%d answered, in order: %v", len(done), slices.IsSorted(done))
		}
		if n := syncs.Load(); n > 6 {
			t.Errorf("%d syncs for 200 appends in 20 ms on a disk of 10 ms", n)
		}
		if st := p.State(); st.HighWatermark != 200 {
			t.Errorf("high watermark %d", st.HighWatermark)
		}
	})
}

// Before the disk has it, it is not committed: nobody reads it.
func TestSyncHoldsTheHighWatermark(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, vfs.NewMem())
		defer r.end(false)
		p := r.topic("orders", bySync, nil)
		release := make(chan struct{})
		r.fault.Before(vfs.OpSync, func(vfs.Op, string) { <-release })
		a := r.append(p, 1)
		synctest.Wait()
		if st := p.State(); st.HighWatermark != 0 || st.LogEnd != 1 {
			t.Errorf("%+v", st)
		}
		if n, err := p.Read(make([]byte, 1000), 0, 1); n != 0 || err != nil {
			t.Errorf("read %d, %v of what is not committed", n, err)
		}
		committed := false
		p.WhenCommitted(a.Last, func(err error) { committed = err == nil })
		synctest.Wait()
		if committed {
			t.Error("committed before the disk had it")
		}
		close(release)
		synctest.Wait()
		if !committed {
			t.Error("not committed when it had")
		}
	})
}

// The first disk error ends it: what is parked is uncertain, what comes later is
// refused, and the set's root says so.
func TestFailStop(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, vfs.NewMem())
		p := r.topic("orders", bySync, nil)
		r.fault.Inject(vfs.Rule{Ops: vfs.OpSync, Path: "*.log", Err: syscall.EIO})
		a := r.append(p, 1)
		var got error
		woken := false
		p.WhenReadable(0, func() { woken = true })
		p.WhenCommitted(a.Last, func(err error) { got = err })
		synctest.Wait()
		if !errors.Is(got, ErrCommitUncertain) || errors.Is(got, ErrStorageFailed) {
			t.Errorf("parked: %v", got)
		}
		if !woken {
			t.Error("the reader sleeps on")
		}
		if _, err := p.Append(batch(t, 1, 0), nil); !errors.Is(err, ErrStorageFailed) || errors.Is(err, ErrCommitUncertain) {
			t.Errorf("a later append: %v", err)
		}
		p.WhenCommitted(a.Last, func(err error) { got = err })
		if !errors.Is(got, ErrCommitUncertain) {
			t.Errorf("parked later: %v", got)
		}
		if r.root.Failure().Err() == nil {
			t.Error("the root goes on")
		}
		r.cancel()
		r.wg.Wait()
	})
}

func TestFailedWriteIsUncertain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, vfs.NewMem())
		p := r.topic("orders", async, nil)
		r.append(p, 1)
		r.fault.Inject(vfs.Rule{Ops: vfs.OpWrite, Path: "*.log", Err: syscall.EIO})
		if _, err := p.Append(batch(t, 1, 0), nil); !errors.Is(err, ErrCommitUncertain) {
			t.Errorf("the append that failed: %v", err)
		}
		r.cancel()
		r.wg.Wait()
	})
}

// A full disk, and a lack of descriptors, refuse an append and nothing else.
func TestFullDisk(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, vfs.NewMem())
		defer r.end(false)
		p := r.topic("orders", async, nil)
		r.append(p, 1)
		r.fault.Inject(vfs.Rule{Ops: vfs.OpWrite, Path: "*.log", Err: syscall.ENOSPC})
		if _, err := p.Append(batch(t, 1, 0), nil); !errors.Is(err, ErrStorageFull) {
			t.Errorf("a full disk: %v", err)
		}
		if n, err := p.Read(make([]byte, 1000), 0, 1); n == 0 || err != nil {
			t.Errorf("reads go on: %d, %v", n, err)
		}
		r.fault.Clear()
		if a := r.append(p, 1); a.Base != 1 {
			t.Errorf("goes on at %d", a.Base)
		}
		full := r.host.disk
		r.host.disk = func() commitlog.DiskState { return commitlog.DiskState{Soft: true, Free: 7} }
		_, err := p.Append(batch(t, 1, 0), nil)
		if !errors.Is(err, ErrStorageFull) {
			t.Errorf("below the soft mark: %v", err)
		}
		var f *factError
		if !errors.As(err, &f) || f.Metadata()["freeBytes"] != "7" {
			t.Errorf("facts of %v", err)
		}
		r.host.disk = full
		r.append(p, 1)
	})
}

func TestLeadership(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, vfs.NewMem())
		defer r.end(false)
		p := r.topic("orders", bySync, nil)
		id := p.Topic().ID
		release := make(chan struct{})
		r.fault.Before(vfs.OpSync, func(vfs.Op, string) { <-release })
		a := r.append(p, 1)
		var got error
		calls := 0
		p.WhenCommitted(a.Last, func(err error) { got = err; calls++ })
		woken := 0
		p.WhenReadable(0, func() { woken++ })
		moved := metadatatest.PartitionObject(id, 0, 2, 2)
		moved.GetPartition().Replicas, moved.GetPartition().Isr = []int32{2, me}, []int32{2, me}
		r.publish(moved, &controllerv1.MetadataObject{Object: &controllerv1.MetadataObject_Broker{Broker: &controllerv1.BrokerRecord{BrokerId: 2, ClientAddress: "b2:7420"}}})
		if !errors.Is(got, ErrCommitUncertain) || calls != 1 || woken != 1 {
			t.Errorf("parked: %v, %d calls, %d woken", got, calls, woken)
		}
		close(release)
		synctest.Wait()
		if st := p.State(); calls != 1 || st.HighWatermark != 0 || st.Leader {
			t.Errorf("after the sync: %d calls, %+v", calls, st)
		}
		_, err := p.Append(batch(t, 1, 0), nil)
		var f *factError
		if !errors.Is(err, ErrNotLeader) || !errors.As(err, &f) || !maps.Equal(f.Metadata(), map[string]string{"leader": "2", "leaderEpoch": "2", "address": "b2:7420"}) {
			t.Errorf("an append: %v", err)
		}
		// It gives the copy up: the files stay, the leader is named.
		r.publish(metadatatest.PartitionObject(id, 0, 2, 3))
		if _, err := r.Get(id, 0); !errors.Is(err, ErrNotLeader) {
			t.Errorf("Get = %v", err)
		}
		if _, err := r.mem.Stat("data/" + id.String() + "/0"); err != nil {
			t.Errorf("the directory went: %v", err)
		}
	})
}

// A leadership lost and won again is another one: what was parked is uncertain.
func TestNewEpoch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, vfs.NewMem())
		defer r.end(false)
		p := r.topic("orders", bySync, nil)
		release := make(chan struct{})
		r.fault.Before(vfs.OpSync, func(vfs.Op, string) { <-release })
		a := r.append(p, 1)
		var got error
		p.WhenCommitted(a.Last, func(err error) { got = err })
		// The sync must end first: the role changes in turn with it or not at all.
		close(release)
		synctest.Wait()
		if got != nil {
			t.Fatal(got)
		}
		leaderless := metadatatest.PartitionObject(p.Topic().ID, 0, me, 2)
		leaderless.GetPartition().Leader = -1
		r.publish(leaderless)
		if _, err := p.Append(batch(t, 1, 0), nil); !errors.Is(err, ErrNoLeader) {
			t.Errorf("without a leader: %v", err)
		}
		r.publish(metadatatest.PartitionObject(p.Topic().ID, 0, me, 3))
		if st, err := p.End(); err != nil || st.Epoch != 3 || st.HighWatermark != 1 {
			t.Errorf("%+v, %v", st, err)
		}
		if a := r.append(p, 1); a.Base != 1 || a.Epoch != 3 {
			t.Errorf("%+v", a)
		}
	})
}

// While fenced, or of another incarnation, what the metadata say of this broker
// is old.
func TestFencedBrokerDoesNotLead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, vfs.NewMem())
		defer r.end(false)
		p := r.topic("orders", async, nil)
		for _, o := range []*controllerv1.MetadataObject{
			broker(controllerv1.BrokerPhase_BROKER_PHASE_FENCED, "i"), broker(controllerv1.BrokerPhase_BROKER_PHASE_ACTIVE, "other"),
		} {
			r.publish(o)
			if p.State().Leader {
				t.Errorf("leads as %v", o)
			}
			if _, err := p.Append(batch(t, 1, 0), nil); err == nil {
				t.Error("took a record")
			}
		}
		r.publish(broker(controllerv1.BrokerPhase_BROKER_PHASE_SHUTTING_DOWN, "i"))
		if !p.State().Leader {
			t.Error("does not lead until its leaderships are handed over")
		}
	})
}

func TestMinISR(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, vfs.NewMem())
		defer r.end(false)
		p := r.topic("orders", async, nil)
		o := metadatatest.PartitionObject(p.Topic().ID, 0, me, 1)
		o.GetPartition().PartitionEpoch, o.GetPartition().MinIsr = 2, 2
		o.GetPartition().Replicas, o.GetPartition().Isr = []int32{me, 2}, []int32{me, 2}
		r.publish(o)
		a := r.append(p, 1)
		var got error
		p.WhenCommitted(a.Last, func(err error) { got = err })
		if st := p.State(); st.HighWatermark != 0 || got != nil {
			t.Errorf("%+v, %v: committed without the other replica", st, got)
		}
		o = metadatatest.PartitionObject(p.Topic().ID, 0, me, 1)
		o.GetPartition().PartitionEpoch, o.GetPartition().MinIsr, o.GetPartition().Replicas = 3, 2, []int32{me, 2}
		r.publish(o)
		if !errors.Is(got, ErrCommitUncertain) {
			t.Errorf("the ISR shrank below the minimum: %v", got)
		}
		_, err := p.Append(batch(t, 1, 0), nil)
		var f *factError
		if !errors.Is(err, ErrNotEnoughReplicas) || !errors.As(err, &f) || f.Metadata()["isr"] != "1" || f.Metadata()["minIsr"] != "2" {
			t.Errorf("an append: %v", err)
		}
		// Nobody else can vouch for this leader but the controller.
		o = metadatatest.PartitionObject(p.Topic().ID, 0, me, 2)
		o.GetPartition().Replicas, o.GetPartition().Isr = []int32{me, 2}, []int32{me, 2}
		r.publish(o)
		r.session.mu.Lock()
		r.session.confirmed = false
		r.session.mu.Unlock()
		if p.Confirmed() {
			t.Error("confirmed by nobody")
		}
	})
}

func TestDeletion(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, vfs.NewMem())
		defer r.end(false)
		p := r.topic("orders", bySync, nil)
		keep := r.topic("kept", bySync, nil)
		r.append(keep, 1)
		r.append(p, 1)
		synctest.Wait()
		if n := r.series("orders"); n == 0 {
			t.Error("no series of the topic")
		}
		woken := false
		p.WhenReadable(1, func() { woken = true })
		objects := metadatatest.TopicObjects(p.Topic().ID, "orders", 1, me, 1)
		objects[0].GetTopic().Phase = controllerv1.TopicPhase_TOPIC_PHASE_DELETING
		objects[0].GetTopic().AwaitingRemoval = []int32{me}
		r.publish(objects[0])
		if !woken {
			t.Error("the reader sleeps on")
		}
		if !slices.Equal(r.session.removed, []uuid.UUID{p.Topic().ID}) {
			t.Errorf("confirmed %v", r.session.removed)
		}
		if _, err := r.mem.Stat("data/" + p.Topic().ID.String()); err == nil {
			t.Error("the directory is still there")
		}
		for name, err := range map[string]error{
			"append": second(p.Append(batch(t, 1, 0), nil)), "read": second(p.Read(make([]byte, 1000), 0, 1)), "get": second(r.Get(p.Topic().ID, 0)),
		} {
			if !errors.Is(err, ErrDeleted) {
				t.Errorf("%s: %v", name, err)
			}
		}
		var got error
		p.WhenCommitted(5, func(err error) { got = err })
		if !errors.Is(got, ErrCommitUncertain) {
			t.Errorf("parked after the end: %v", got)
		}
		if n := r.series("orders"); n != 0 {
			t.Errorf("%d series of the deleted topic", n)
		}
		if n := r.series("kept"); n == 0 {
			t.Error("the other topic's series went too")
		}
	})
}

func second[T any](_ T, err error) error { return err }

// series counts the series that name a topic.
func (r *rig) series(topic string) int {
	r.t.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	n := 0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "topic" && l.GetValue() == topic {
					n++
				}
			}
		}
	}
	return n
}

// A topic that is absent, and not deleted, keeps its files.
func TestAbsenceDeletesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, vfs.NewMem())
		defer r.end(false)
		p := r.topic("orders", bySync, nil)
		r.append(p, 1)
		r.publish(&controllerv1.MetadataObject{Object: &controllerv1.MetadataObject_DeletedTopicId{DeletedTopicId: p.Topic().ID.String()}})
		if _, err := r.mem.Stat("data/" + p.Topic().ID.String() + "/0"); err != nil {
			t.Errorf("the directory went: %v", err)
		}
		if q := r.root.Quarantined(); len(q) != 1 || q[0].Topic != p.Topic().ID {
			t.Errorf("quarantined %+v", q)
		}
		if len(r.session.removed) != 0 {
			t.Error("confirmed a removal nobody asked for")
		}
	})
}

// What a restart finds: whole, suspect or lost.
func TestRecoveryReports(t *testing.T) {
	mem := vfs.NewMem()
	whole, gone := uuid.New(), uuid.New()
	bubble(t, func(t *testing.T) {
		r := newRig(t, mem)
		r.append(r.topicOf(whole, "whole", bySync, nil, 1), 3)
		r.append(r.topicOf(gone, "gone", bySync, nil, 1), 3)
		synctest.Wait()
		r.end(false)
	})
	if err := mem.RemoveAll("data/" + gone.String()); err != nil {
		t.Fatal(err)
	}
	bubble(t, func(t *testing.T) {
		r := &rig{t: t, mem: mem, fault: vfs.NewFault(mem), store: metadata.NewStore(me), session: &session{}, reg: prometheus.NewRegistry()}
		r.image = r.store.Load()
		root, err := commitlog.OpenRoot(r.fault, "data", commitlog.RootOptions{BrokerID: me, BootID: func() (string, error) { return "boot", nil }})
		if err != nil {
			t.Fatal(err)
		}
		r.root = root
		r.Set = NewSet(Config{Incarnation: "i"}, Deps{Root: root, Store: r.store, Session: r.session, Metrics: r.reg, Log: zerolog.Nop()})
		ctx, cancel := context.WithCancel(t.Context())
		r.cancel = cancel
		r.wg.Go(func() { r.runErr = r.Run(ctx) })
		defer r.end(false)
		objects := append(metadatatest.TopicObjects(whole, "whole", 1, me, 2), metadatatest.TopicObjects(gone, "gone", 1, me, 2)...)
		r.publish(append(objects, broker(controllerv1.BrokerPhase_BROKER_PHASE_FENCED, "i"))...)
		if !r.session.reported || len(r.session.reports) != 2 {
			t.Fatalf("reports %+v", r.session.reports)
		}
		for _, rep := range r.session.reports {
			switch {
			case rep.Topic == whole && (rep.Shape != metadata.Intact || rep.LogEnd != 3 || rep.LastEpoch != 1 || rep.HighWatermark != 3):
				t.Errorf("the whole one: %+v", rep)
			case rep.Topic == gone && rep.Shape != metadata.Lost:
				t.Errorf("the lost one: %+v", rep)
			}
		}
		if len(r.Lost()) != 1 {
			t.Errorf("lost %v", r.Lost())
		}
		r.publish(broker(controllerv1.BrokerPhase_BROKER_PHASE_ACTIVE, "i"))
		if _, err := r.Get(gone, 0); !errors.Is(err, ErrLogCorrupt) {
			t.Errorf("Get of the lost one = %v", err)
		}
		// Elected in the knowledge of the loss, it begins anew.
		o := metadatatest.PartitionObject(gone, 0, me, 3)
		o.GetPartition().LossyEpochs = []int64{3}
		r.publish(o)
		p, err := r.Get(gone, 0)
		if err != nil {
			t.Fatal(err)
		}
		if a := r.append(p, 1); a.Base != 0 || a.Epoch != 3 {
			t.Errorf("%+v", a)
		}
	})
}

// A replica for which there are no descriptors is opened when there are.
func TestOpeningIsTriedAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, vfs.NewMem())
		defer r.end(false)
		r.fault.Inject(vfs.Rule{Ops: vfs.OpCreate | vfs.OpMkdir, Times: -1, Err: syscall.EMFILE})
		id := uuid.New()
		r.publish(metadatatest.TopicObjects(id, "orders", 1, me, 1)...)
		if _, err := r.Get(id, 0); !errors.Is(err, ErrNoLeader) {
			t.Errorf("Get = %v", err)
		}
		r.fault.Clear()
		time.Sleep(2 * retryEvery)
		p, err := r.Get(id, 0)
		if err != nil {
			t.Fatal(err)
		}
		r.append(p, 1)
	})
}

func TestRetention(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, vfs.NewMem())
		defer r.end(false)
		p := r.topic("orders", async, map[string]string{"retention.ms": "60000", "segment.ms": "10000"})
		for range 30 {
			r.append(p, 10)
			time.Sleep(5 * time.Second)
		}
		st := p.State()
		if st.LogStart == 0 || st.LogStart == st.LogEnd || st.LogEnd != 300 {
			t.Errorf("%+v after 150 s with 60 s of retention", st)
		}
		if p.Segments() < 3 {
			t.Errorf("%d segments", p.Segments())
		}
		woken := false
		p.WhenReadable(st.LogEnd, func() { woken = true })
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if st := p.State(); st.LogStart != 300 || st.HighWatermark != 300 {
			t.Errorf("%+v long after", st)
		}
		if !woken {
			t.Error("a reader did not hear that the log start moved")
		}
	})
}

func TestCancel(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, vfs.NewMem())
		defer r.end(false)
		p := r.topic("orders", bySync, nil)
		release := make(chan struct{})
		r.fault.Before(vfs.OpSync, func(vfs.Op, string) { <-release })
		a := r.append(p, 1)
		called := 0
		cancel := p.WhenCommitted(a.Last, func(error) { called++ })
		kept := p.WhenCommitted(a.Last, func(error) { called += 10 })
		stop := p.WhenReadable(0, func() { called += 100 })
		if !cancel() || cancel() {
			t.Error("the first cancel counts, and only the first")
		}
		stop()
		close(release)
		synctest.Wait()
		if called != 10 {
			t.Errorf("called %d", called)
		}
		if kept() {
			t.Error("canceled what had been called")
		}
		if r := p.reads.list.Len() + p.commits.list.Len(); r != 0 {
			t.Errorf("%d waiters left", r)
		}
	})
}

// A callback may use the partition again.
func TestCallbacksMayComeBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, vfs.NewMem())
		defer r.end(false)
		p := r.topic("orders", async, nil)
		n := 0
		var again func(error)
		again = func(error) {
			if n++; n < 1000 {
				a := r.append(p, 1)
				p.WhenCommitted(a.Last, again)
			}
		}
		p.WhenCommitted(r.append(p, 1).Last, again)
		if n != 1000 {
			t.Errorf("%d rounds", n)
		}
	})
}

// Registrations race with appends a hundred thousand times, and none is lost,
// called twice, or called out of order (GR-18).
func TestWaitersRace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, vfs.NewMem())
		defer r.end(false)
		for _, flush := range []controllerv1.FlushMode{async, bySync} {
			p := r.topic(fmt.Sprintf("orders-%d", flush), flush, nil)
			const writers, each, readers = 4, 12500, 8
			var wg sync.WaitGroup
			var committed, reads atomic.Int64
			for range writers {
				wg.Go(func() {
					last := record.Offset(-1)
					for range each {
						a, err := p.Append(batch(t, 1, 0), nil)
						if err != nil {
							t.Error(err)
							return
						}
						p.WhenCommitted(a.Last, func(err error) {
							if err != nil || a.Last <= last { // in order among themselves, never two at a time
								t.Errorf("offset %d after %d: %v", a.Last, last, err)
							}
							last = a.Last
							committed.Add(1)
						})
					}
				})
			}
			for i := range readers {
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(i), 1))
					for from := record.Offset(0); from < writers*each; {
						woken := make(chan struct{})
						cancel := p.WhenReadable(from, func() {
							reads.Add(1)
							close(woken)
						})
						if rng.IntN(4) == 0 {
							cancel()
							select {
							case <-woken:
							default:
								continue
							}
						}
						<-woken // a lost wake-up hangs the bubble, which fails the test
						from = p.State().HighWatermark
					}
				})
			}
			wg.Wait()
			synctest.Wait()
			if committed.Load() != writers*each {
				t.Errorf("%d of %d writes were answered", committed.Load(), writers*each)
			}
			if n := p.reads.list.Len() + p.commits.list.Len(); n != 0 {
				t.Errorf("%d waiters left", n)
			}
		}
	})
}
