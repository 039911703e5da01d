package partition

import (
	"errors"
	"maps"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/broker/metadata/metadatatest"
	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/refusal"
	"github.com/runnelmq/runnel/internal/vfs"
)

func TestAppendAndRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
		if _, err := p.Read(buf[:10], 0, 5); !errors.Is(err, commitlog.ErrShortBuffer) {
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
	synctest.Test(t, func(t *testing.T) {
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
	synctest.Test(t, func(t *testing.T) {
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

// Who reads while records are being deleted is told where the log begins now, not
// where it did: a reader that is to go on from there would be where it is.
func TestReadWhileDeleting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vfs.NewMem())
		defer r.end(false)
		p := r.topic("orders", bySync, nil)
		r.append(p, 9)
		synctest.Wait()
		if err := p.log.DeleteBefore(7); err != nil { // the state comes later
			t.Fatal(err)
		}
		_, err := p.Read(make([]byte, 4<<10), 0, 9)
		if e, ok := errors.AsType[*OutOfRangeError](err); !ok || e.LogStart != 7 || e.LogEnd != 9 {
			t.Errorf("Read = %v", err)
		}
	})
}

// The first disk error ends it: what is parked is uncertain, what comes later is
// refused, and the set's root says so.
func TestFailStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vfs.NewMem())
		p := r.topic("orders", bySync, nil)
		r.fault.Inject(vfs.Rule{Ops: vfs.OpSync, Path: "*.log", Err: syscall.EIO})
		a := r.append(p, 1)
		var got error
		woken := false
		p.WhenReadable(0, func() { woken = true })
		p.WhenCommitted(a, func(err error) { got = err })
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
		p.WhenCommitted(a, func(err error) { got = err })
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
	synctest.Test(t, func(t *testing.T) {
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
	synctest.Test(t, func(t *testing.T) {
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
		var f *refusal.Error
		if !errors.As(err, &f) || f.Metadata()["freeBytes"] != "7" {
			t.Errorf("facts of %v", err)
		}
		r.host.disk = full
		r.append(p, 1)
	})
}

func TestLeadership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vfs.NewMem())
		defer r.end(false)
		p := r.topic("orders", bySync, nil)
		id := p.Topic().ID
		release := make(chan struct{})
		r.fault.Before(vfs.OpSync, func(vfs.Op, string) { <-release })
		a := r.append(p, 1)
		var got error
		calls := 0
		p.WhenCommitted(a, func(err error) { got = err; calls++ })
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
		var f *refusal.Error
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
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vfs.NewMem())
		defer r.end(false)
		p := r.topic("orders", bySync, nil)
		release := make(chan struct{})
		r.fault.Before(vfs.OpSync, func(vfs.Op, string) { <-release })
		a := r.append(p, 1)
		var got error
		p.WhenCommitted(a, func(err error) { got = err })
		r.publish(metadatatest.PartitionObject(p.Topic().ID, 0, me, 3))
		if !errors.Is(got, ErrCommitUncertain) {
			t.Errorf("parked in epoch 1, in epoch 3: %v", got)
		}
		if st, err := p.End(); !errors.Is(err, ErrOffsetNotAvailable) || st.Epoch != 3 || st.HighWatermark != 0 {
			t.Errorf("before the disk has what there is: %+v, %v", st, err)
		}
		if _, _, found, err := p.OffsetForTime(1 << 60); found || !errors.Is(err, ErrOffsetNotAvailable) {
			t.Errorf("there is no such time yet: %v, %v", found, err)
		}
		if _, err := p.DeleteRecords(t.Context(), ToHighWatermark); !errors.Is(err, ErrOffsetNotAvailable) {
			t.Errorf("deleted up to an end that is not known: %v", err)
		}
		close(release)
		synctest.Wait()
		if st, err := p.End(); err != nil || st.HighWatermark != 1 {
			t.Errorf("%+v, %v", st, err)
		}
		leaderless := metadatatest.PartitionObject(p.Topic().ID, 0, me, 4)
		leaderless.GetPartition().Leader = -1
		r.publish(leaderless)
		if _, err := p.Append(batch(t, 1, 0), nil); !errors.Is(err, ErrNoLeader) {
			t.Errorf("without a leader: %v", err)
		}
		r.publish(metadatatest.PartitionObject(p.Topic().ID, 0, me, 5))
		if a := r.append(p, 1); a.Base != 1 || a.Epoch != 5 {
			t.Errorf("%+v", a)
		}
	})
}

// While fenced, or of another incarnation, what the metadata say of this broker
// is old.
func TestFencedBrokerDoesNotLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vfs.NewMem())
		defer r.end(false)
		p := r.topic("orders", async, nil)
		o := metadatatest.PartitionObject(p.Topic().ID, 0, me, 1)
		o.GetPartition().PartitionEpoch, o.GetPartition().MinIsr = 2, 2
		o.GetPartition().Replicas, o.GetPartition().Isr = []int32{me, 2}, []int32{me, 2}
		r.publish(o)
		a := r.append(p, 1)
		var got error
		p.WhenCommitted(a, func(err error) { got = err })
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
		var f *refusal.Error
		if !errors.Is(err, ErrNotEnoughReplicas) || !errors.As(err, &f) || f.Metadata()["isr"] != "1" || f.Metadata()["minIsr"] != "2" {
			t.Errorf("an append: %v", err)
		}
		if _, err := p.AppendAtOnce(batch(t, 1, 0), nil); err != nil {
			t.Errorf("an append that nobody waits for needs no minimum: %v", err)
		}
		// Nobody else can vouch for this leader but the controller.
		o = metadatatest.PartitionObject(p.Topic().ID, 0, me, 2)
		o.GetPartition().Replicas, o.GetPartition().Isr = []int32{me, 2}, []int32{me, 2}
		r.publish(o)
		r.session.mu.Lock()
		r.session.confirmed = false
		r.session.mu.Unlock()
		end := p.State().LogEnd
		if _, err := p.AppendAtOnce(batch(t, 1, 0), nil); !errors.Is(err, ErrUnconfirmed) || p.State().LogEnd != end {
			t.Errorf("answered at once by a leader that may be none: %v", err)
		}
		if p.Confirmed() {
			t.Error("confirmed by nobody")
		}
		// It may be one that others have left behind, at any end but its own.
		end = p.State().LogEnd
		if _, err := p.Read(nil, end+1, end+2); !errors.Is(err, ErrUnconfirmed) && !errors.Is(err, ErrOffsetNotAvailable) {
			t.Errorf("a read beyond the end of a leader nobody confirms: %v", err)
		}
		r.session.mu.Lock()
		r.session.confirmed = true
		r.session.mu.Unlock()
		if _, err := p.Read(nil, end+1, end+2); p.State().Settled != errors.Is(err, ErrOffsetOutOfRange) {
			t.Errorf("a read beyond the end of a confirmed leader: %v, of %+v", err, p.State())
		}
	})
}

func TestRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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

// A suspicion is lifted when the replica is in sync again, and not before.
func TestCaughtUpReplicaIsNotSuspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vfs.NewMem())
		defer r.end(false)
		p := r.topic("orders", async, nil)
		if err := p.log.SetSuspicion(commitlog.SuspectOther); err != nil {
			t.Fatal(err)
		}
		p.mu.Lock()
		p.suspicion = "for the test"
		p.mu.Unlock()
		for i, c := range []struct {
			isr  []int32
			want bool
		}{{[]int32{2}, true}, {[]int32{2, me}, false}} {
			o := metadatatest.PartitionObject(p.Topic().ID, 0, 2, int64(2+i))
			o.GetPartition().Replicas, o.GetPartition().Isr = []int32{2, me}, c.isr
			r.publish(o)
			if got := p.Suspicion() != ""; got != c.want {
				t.Errorf("with the ISR %v, it is said to be suspect: %v", c.isr, got)
			}
			if got := p.log.Suspicion() != commitlog.NotSuspect; got != c.want {
				t.Errorf("with the ISR %v, the log is suspect: %v", c.isr, got)
			}
		}
	})
}
