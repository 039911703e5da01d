package partition

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// spoil damages the second batch a broker has stored, and makes it notice.
func (n *trioNode) spoil(t *testing.T) {
	t.Helper()
	for _, e := range dirOf(t, n) {
		if !strings.HasSuffix(e.Name, ".log") {
			continue
		}
		f, err := n.mem.Open(n.p.log.Dir() + "/" + e.Name)
		if err != nil {
			t.Fatal(err)
		}
		frame, _ := record.ParseFrame(n.bytes(t), e.Size, record.MaxFrameSize)
		if _, err := f.WriteAt([]byte{0xff, 0xff, 0xff, 0xff}, int64(frame.Size)+20); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	_, err := n.p.log.Read(make([]byte, 1<<16), 1, 2)
	if err = n.p.readFailed(1, err); !errors.Is(err, ErrLogCorrupt) {
		t.Fatalf("read of what is damaged: %v", err)
	}
	if n.p.Damage() == nil {
		t.Fatal("the damage is not remembered")
	}
}

// flip damages the payload of a stored batch. Nobody notices.
func (n *trioNode) flip(t *testing.T, batch int) {
	t.Helper()
	stored, at := n.bytes(t), 0
	for {
		frame, verdict := record.ParseFrame(stored[at:], int64(len(stored)-at), record.MaxFrameSize)
		if verdict != record.OK {
			t.Fatal(verdict)
		}
		if batch--; batch < 0 {
			at += frame.PayloadStart
			break
		}
		at += frame.Size
	}
	for _, e := range dirOf(t, n) {
		if !strings.HasSuffix(e.Name, ".log") {
			continue
		}
		f, err := n.mem.Open(n.p.log.Dir() + "/" + e.Name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte{stored[at] ^ 1}, int64(at)); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// waits has a damaged follower ask to begin anew, which its leader refuses until
// it has read its own log through, and gives it time to do so.
func (r *trio) waits(f *trioNode) {
	r.t.Helper()
	end := f.p.log.End()
	if kinds, err := r.follow(f); !errors.Is(err, ErrNotSubscribed) || !slices.Equal(kinds, []AnswerKind{Refused}) {
		r.t.Errorf("broker %d asks to begin anew: %v, %v", f.id, kinds, err)
	}
	if f.p.log.End() != end || f.p.Damage() == nil {
		r.t.Errorf("broker %d has thrown its log away: it ends at %d, and had %d", f.id, f.p.log.End(), end)
	}
	time.Sleep(100 * time.Millisecond)
	synctest.Wait()
}

// Each copy is damaged, at a place of its own, and two have each record: none is
// thrown away for one that may lack what it has.
func TestDamage_ofAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrio(t, nil)
		r.append(1, 4)
		r.pull(2, 3)
		r.pull(2, 3)
		for id := range int32(3) {
			r.nodes[metadata.BrokerID(id+1)].flip(t, int(id)+1)
		}
		_ = r.nodes[1].p.Damaged(1, 2, "a reader found it", ErrLogCorrupt)
		r.part.Isr = []int32{2, 3}
		r.lead(2)
		r.waits(r.nodes[1])
		if d := r.nodes[2].p.log.Damage(); len(d) != 1 || d[0].From != 2 || d[0].To != 3 {
			t.Errorf("the second one found %v", d)
		}
		r.waits(r.nodes[1])
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if a := r.nodes[2].session.asks(); len(a) == 0 || !a[0].Suspect {
			t.Errorf("the second one asks for another leader: %+v", a)
		}
		r.part.Isr = []int32{3}
		r.lead(3)
		for range 2 {
			r.waits(r.nodes[1])
			r.waits(r.nodes[2])
		}
		if d := r.nodes[3].p.log.Damage(); len(d) != 1 || d[0].From != 3 {
			t.Errorf("the third one found %v", d)
		}
	})
}

// A damaged leader wants to be none; a damaged follower withdraws when others
// are enough, and begins anew when nobody counts on it.
func TestDamage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrio(t, nil)
		r.pull(2, 3)
		r.append(1, 4)
		r.pull(2, 3)
		r.pull(2, 3)
		bad := r.nodes[3]
		bad.spoil(t)
		bad.p.FollowerStop(bad.sub)
		r.nodes[1].p.FollowerGone(3, bad.sub)
		if _, err := r.follow(bad); !errors.Is(err, errNobody) {
			t.Errorf("follows on, in the ISR of three: %v", err)
		}
		r.append(1, 1)
		r.pull(2)
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if r.settle(1) != 1 || len(r.part.GetIsr()) != 2 {
			t.Fatalf("isr %v", r.part.GetIsr())
		}
		r.waits(bad)
		r.pull(3)
		r.settle(1)
		if len(r.part.GetIsr()) != 3 || bad.p.Damage() != nil {
			t.Errorf("isr %v, %v", r.part.GetIsr(), bad.p.Damage())
		}
		r.pull(2, 3)
		r.wantEqual()

		bad.spoil(t)
		r.part.Isr, r.part.Elr, r.part.MinIsr = []int32{1, 3}, nil, 2
		r.lead(1)
		r.pull(3) // the two are as many as must be: it stays
		if bad.p.Damage() == nil {
			t.Error("emptied while it was counted on")
		}
		r.lead(3)
		// As long as another broker may take over, readers are to come again.
		if _, err := bad.p.Read(make([]byte, 1<<16), 1, 2); !errors.Is(err, ErrMoving) || errors.Is(err, ErrLogCorrupt) {
			t.Errorf("read at a leader that can be replaced: %v", err)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if a := bad.session.asks(); len(a) == 0 || !strings.HasPrefix(a[0].Reason, "corrupt") || !a[0].Suspect {
			t.Errorf("asked %+v", a)
		}
		time.Sleep(10 * time.Second)
		if _, err := bad.p.Read(make([]byte, 1<<16), 1, 2); !errors.Is(err, ErrLogCorrupt) {
			t.Errorf("read when nobody has taken over: %v", err)
		}
	})
}

// A leader that is replaced while a read of it is under way says who leads; that
// its copy is damaged, or begins anew and is shorter, is no reader's concern then.
func TestDamage_readWhileItIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrio(t, nil)
		r.append(1, 4)
		r.pull(2, 3)
		r.pull(2, 3)
		bad := r.nodes[1]
		bad.spoil(t)
		for _, met := range []error{
			&CorruptError{Topic: "t", From: 1, Next: 2, Err: errors.New("damage")}, //nolint:err113 // a text
			&OutOfRangeError{Offset: 1},
		} {
			if err := bad.p.elsewhere(met); errors.Is(err, ErrNotLeader) {
				t.Errorf("while it leads: %v", err)
			}
		}
		r.lead(2)
		for _, met := range []error{
			&CorruptError{Topic: "t", From: 1, Next: 2, Err: errors.New("damage")}, //nolint:err113 // a text
			&OutOfRangeError{Offset: 1},
		} {
			if err := bad.p.elsewhere(met); !errors.Is(err, ErrNotLeader) {
				t.Errorf("of another leader's follower: %v", err)
			}
			if err := bad.p.Damaged(1, 2, "damage", met); !errors.Is(err, ErrNotLeader) {
				t.Errorf("damage found after it was read: %v", err)
			}
		}
	})
}

// A damaged follower that may be in sync by now, by a proposal whose outcome it
// has not heard, is not emptied: it may be elected for what it has.
func TestDamage_whileItIsProposed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrio(t, func(p *controllerv1.PartitionRecord) { p.Isr = []int32{1, 2} })
		r.append(1, 4)
		r.pull(2)
		r.pull(2, 3)
		if n := len(r.nodes[1].session.proposed()); n != 1 {
			t.Fatalf("%d proposals", n)
		}
		bad := r.nodes[3]
		bad.spoil(t)
		bad.p.FollowerStop(bad.sub)
		r.nodes[1].p.FollowerGone(3, bad.sub)
		if _, err := r.follow(bad); err == nil || bad.p.Damage() == nil || bad.p.log.End() != 4 {
			t.Errorf("begins anew: %v, the log ends at %d", err, bad.p.log.End())
		}
		if r.settle(1) != 1 || len(r.part.GetIsr()) != 3 {
			t.Fatalf("isr %v", r.part.GetIsr())
		}
		r.lead(3)
		if st := bad.p.State(); st.LogEnd != 4 {
			t.Errorf("it leads with a log that ends at %d", st.LogEnd)
		}
	})
}

// A replica that may have lost records is trusted again when a controller that
// knows of it has it in the ISR.
func TestSuspicion_lifted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrio(t, func(p *controllerv1.PartitionRecord) { p.Isr = []int32{1, 2} })
		n := r.nodes[3]
		if err := n.p.log.SetSuspicion(commitlog.SuspectNoCheckpoint); err != nil {
			t.Fatal(err)
		}
		n.p.mu.Lock()
		n.p.suspicion = commitlog.SuspectNoCheckpoint.String() // as if recovery had found it
		n.p.mu.Unlock()
		r.pull(2, 3)
		if n.p.log.Suspicion() == commitlog.NotSuspect {
			t.Error("lifted before it is of the ISR")
		}
		r.settle(1)
		if n.p.log.Suspicion() != commitlog.NotSuspect || n.p.Suspicion() != "" {
			t.Error("not lifted")
		}
	})
}

// What the disk does not give back is told as damage, not as a failure of this
// program; whoever has it goes on unhurt, and it comes back from there.
func TestDamage_unreadable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrio(t, nil)
		r.append(1, 4)
		r.pull(2, 3)
		r.pull(2, 3)
		bad := r.nodes[1]
		bad.fault.Inject(vfs.Rule{Ops: vfs.OpRead, Path: "*.log", Times: -1, Err: syscall.EIO})
		if _, err := bad.p.Read(make([]byte, 1<<16), 1, 2); !errors.Is(err, ErrMoving) {
			t.Errorf("read at a leader that can be replaced: %v", err)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if a := bad.session.asks(); len(a) == 0 || !strings.HasPrefix(a[0].Reason, "corrupt") || !a[0].Suspect {
			t.Errorf("asked %+v", a)
		}
		time.Sleep(10 * time.Second)
		_, err := bad.p.Read(make([]byte, 1<<16), 1, 2)
		if !errors.Is(err, ErrLogCorrupt) || !strings.Contains(err.Error(), syscall.EIO.Error()) {
			t.Errorf("read when nobody has taken over: %v", err)
		}
		if err := bad.p.Damage(); err == nil || bad.gauge(t, "damaged_replicas") != 1 || r.nodes[2].gauge(t, "damaged_replicas") != 0 {
			t.Errorf("damage %v, %v replicas", err, bad.gauge(t, "damaged_replicas"))
		}
		if bad.root.Failure().Err() != nil {
			t.Errorf("the disk failed: %v", bad.root.Failure().Err())
		}

		r.part.Isr = []int32{2, 3}
		r.lead(2)
		r.append(2, 2)
		r.pull(3)
		bad.fault.Clear()
		r.waits(bad)
		r.pull(1, 3)
		if bad.p.Damage() != nil || bad.gauge(t, "damaged_replicas") != 0 {
			t.Errorf("after it began anew: %v", bad.p.Damage())
		}
		r.pull(1, 3)
		r.wantEqual()
	})
}

// damagedThird is a trio of which the third one is damaged, out of sync, and has
// been told to wait until its leader has read its own log through.
func damagedThird(t *testing.T) *trio {
	t.Helper()
	r := newTrio(t, nil)
	r.append(1, 4)
	r.pull(2, 3)
	r.pull(2, 3)
	r.part.Isr = []int32{1, 2}
	r.part.PartitionEpoch++
	r.tell()
	bad := r.nodes[3]
	bad.spoil(t)
	bad.p.FollowerStop(bad.sub)
	r.nodes[1].p.FollowerGone(3, bad.sub)
	r.waits(bad)
	return r
}

// A leader that has found its log good meets damage after all: what is damaged at
// a follower is not thrown away for it.
func TestDamage_ofTheLeaderAfterItWasFoundGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := damagedThird(t)
		r.nodes[1].flip(t, 2)
		_ = r.nodes[1].p.Damaged(2, 3, "a reader found it", ErrLogCorrupt)
		for range 2 {
			r.waits(r.nodes[3])
		}
	})
}

// That a log was good once says little later: it is read again.
func TestDamage_ofTheLeaderLongAfterItWasFoundGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := damagedThird(t)
		r.nodes[1].flip(t, 2)
		time.Sleep(soundFor)
		for range 2 {
			r.waits(r.nodes[3])
		}
		if d := r.nodes[1].p.log.Damage(); len(d) != 1 || d[0].From != 2 {
			t.Errorf("the leader found %v", d)
		}
	})
}

// A leader that is replaced, or whose topic is deleted, reads no further.
func TestDamage_proofEndsWithTheLeadership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrio(t, nil)
		r.append(1, 4)
		r.pull(2, 3)
		r.pull(2, 3)
		p := r.nodes[1].p
		epoch := p.State().Epoch
		// Retention has moved the log's start, and the partition has not heard yet.
		if err := p.log.DeleteBefore(2); err != nil {
			t.Fatal(err)
		}
		if err := p.readThrough(t.Context(), epoch, 4); err != nil {
			t.Errorf("while it leads: %v", err)
		}
		r.lead(1)
		if err := p.readThrough(t.Context(), epoch, 4); !errors.Is(err, errReplaced) {
			t.Errorf("in a later epoch: %v", err)
		}
		r.lead(2)
		if err := p.readThrough(t.Context(), epoch, 4); !errors.Is(err, errReplaced) {
			t.Errorf("while another leads: %v", err)
		}
		r.lead(1)
		p.stop(ErrDeleted)
		if err := p.readThrough(t.Context(), p.State().Epoch, 4); !errors.Is(err, errReplaced) {
			t.Errorf("out of service: %v", err)
		}
	})
}
