package partition

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

func TestReplicate(t *testing.T) {
	for name, flush := range map[string]controllerv1.FlushMode{"async": async, "sync": bySync} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newTrio(t, func(p *controllerv1.PartitionRecord) { p.Flush = flush })
				r.pull(2, 3)
				noted := r.nodes[1].noted[2]
				a := r.append(1, 3)
				if r.nodes[1].noted[2] == noted {
					t.Error("the follower's end was not told of the append")
				}
				committed := false
				r.nodes[1].p.WhenCommitted(a, func(err error) { committed = err == nil })
				r.pull(2)
				if committed || r.nodes[1].p.State().HighWatermark != 0 {
					t.Error("committed without broker 3")
				}
				told := r.nodes[3].told
				r.pull(3)
				if !committed {
					t.Error("not committed by all")
				}
				if r.nodes[3].told == told {
					t.Error("the follower's end has nothing to acknowledge")
				}
				r.pull(2, 3)
				r.wantEqual()
				if st := r.nodes[2].p.State(); st.HighWatermark != 3 || st.Leader || !errors.Is(st.Err, ErrNotLeader) {
					t.Errorf("%+v", st)
				}
			})
		})
	}
}

func TestISR_shrinksAndGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrio(t, nil)
		r.pull(2, 3)
		time.Sleep(time.Hour)
		synctest.Wait()
		if r.settle(1) != 0 {
			t.Error("an idle follower was left out")
		}
		a := r.append(1, 1)
		var got error
		done := false
		r.nodes[1].p.WhenCommitted(a, func(err error) { got, done = err, true })
		r.nodes[1].p.Credit(3, r.nodes[3].sub, false)
		r.pull(2)
		time.Sleep(9 * time.Second)
		synctest.Wait()
		if r.settle(1) != 0 || done {
			t.Error("left out too early")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if done {
			t.Error("committed before the controller said so")
		}
		if r.settle(1) != 1 || !slices.Equal(r.part.GetIsr(), []int32{1, 2}) {
			t.Errorf("isr %v", r.part.GetIsr())
		}
		if !done || got != nil {
			t.Errorf("not committed without the one that lags: %v", got)
		}
		r.append(1, 5)
		r.pull(2)
		r.pull(3)
		if r.settle(1) != 1 || len(r.part.GetIsr()) != 3 {
			t.Errorf("isr %v", r.part.GetIsr())
		}
		if s, e := r.nodes[1].count(t, "isr_shrinks_total"), r.nodes[1].count(t, "isr_expands_total"); s != 1 || e != 1 {
			t.Errorf("%v shrinks, %v expands", s, e)
		}
		r.pull(2, 3)
		r.wantEqual()
	})
}

// A rejected proposal is made again, a while later; an ignored one is not.
func TestISR_rejected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrio(t, func(p *controllerv1.PartitionRecord) { p.Isr = []int32{1, 2} })
		r.pull(2, 3)
		s := r.nodes[1].session
		if len(s.proposed()) != 1 || s.proposed()[0].Session != 1 || s.proposed()[0].PartitionEpoch != 1 || len(s.proposed()[0].ISR) != 3 {
			t.Fatalf("proposals %+v", s.proposed())
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(s.proposed()) != 1 {
			t.Errorf("%d proposals without an answer", len(s.proposed()))
		}
		s.handler.Rejected(metadata.Rejection{Topic: r.topic, Number: s.proposed()[0].Number, Reason: "no"})
		synctest.Wait()
		if len(s.proposed()) != 1 {
			t.Error("proposed again at once")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(s.proposed()) != 2 || s.proposed()[1].Number == s.proposed()[0].Number {
			t.Errorf("proposals %+v", s.proposed())
		}
	})
}

// A deposed leader's records that nobody has are cut; who waited for them hears
// that it is uncertain, never that they were not stored.
func TestDivergence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrio(t, nil)
		r.pull(2, 3)
		r.append(1, 2)
		r.pull(2, 3)
		a := r.append(1, 3) // 2, 3, 4 in epoch 1, and nowhere else
		var got error
		r.nodes[1].p.WhenCommitted(a, func(err error) { got = err })
		r.lead(2, 2, 3)
		r.pull(3)
		r.append(2, 2)
		r.pull(3)
		if hw := r.nodes[2].p.State().HighWatermark; hw != 2 {
			t.Errorf("committed up to %d without broker 1", hw)
		}
		r.tell(1)
		if !errors.Is(got, ErrCommitUncertain) || errors.Is(got, ErrNotLeader) {
			t.Errorf("parked: %v", got)
		}
		kinds, err := r.follow(r.nodes[1])
		if err != nil || !slices.Equal(kinds, []AnswerKind{Diverging, Accepted}) {
			t.Errorf("answers %v, %v", kinds, err)
		}
		r.pull(1, 3)
		r.pull(1, 3)
		r.wantEqual()
		if st := r.nodes[1].p.State(); st.LogEnd != 4 || st.HighWatermark != 4 {
			t.Errorf("%+v", st)
		}
		if r.nodes[1].count(t, "truncated_below_hw_total")+r.nodes[1].count(t, "divergence_total") != 0 {
			t.Error("nothing that was committed was cut")
		}
	})
}

// Committed records are never cut as a matter of course.
func TestDivergence_belowHighWatermark(t *testing.T) {
	for name, lossy := range map[string]bool{"unexplained": false, "lossy": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newTrio(t, nil)
				r.pull(2)
				r.pull(3)
				r.append(1, 4)
				r.pull(2, 3)
				r.pull(2, 3)
				// Broker 2 loses two records and leads all the same.
				if err := r.nodes[2].p.log.TruncateTo(2); err != nil {
					t.Fatal(err)
				}
				if lossy {
					r.part.LossyEpochs = []int64{2}
				}
				r.lead(2)
				before := r.nodes[3].bytes(t)
				kinds, err := r.follow(r.nodes[3])
				kept := ""
				for _, e := range dirOf(t, r.nodes[3]) {
					if strings.HasSuffix(e.Name, ".diverged") && e.Size > 0 {
						kept = e.Name
					}
				}
				if lossy {
					if err != nil || !slices.Equal(kinds, []AnswerKind{Diverging, Accepted}) || kept == "" || r.nodes[3].p.State().LogEnd != 2 {
						t.Errorf("answers %v, %v; kept %q, %+v", kinds, err, kept, r.nodes[3].p.State())
					}
					if n := r.nodes[3].count(t, "truncated_below_hw_total"); n != 1 {
						t.Errorf("counted %v", n)
					}
					return
				}
				if !errors.Is(err, ErrDiverged) || !errors.Is(r.nodes[3].p.Diverged(), ErrDiverged) || kept != "" {
					t.Errorf("%v, kept %q", err, kept)
				}
				if !slices.Equal(before, r.nodes[3].bytes(t)) {
					t.Error("the log was cut")
				}
				if n := r.nodes[3].count(t, "divergence_total"); n != 1 {
					t.Errorf("counted %v", n)
				}
				if _, err := r.follow(r.nodes[3]); !errors.Is(err, errNobody) {
					t.Errorf("follows again: %v", err)
				}
				r.lead(1)
				if _, err := r.follow(r.nodes[3]); err != nil {
					t.Errorf("another leader: %v", err)
				}
			})
		})
	}
}

func dirOf(t *testing.T, n *trioNode) []vfs.DirEntry {
	t.Helper()
	entries, err := n.mem.ReadDir(n.p.log.Dir())
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

// Who is below the log start begins anew.
func TestReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrio(t, func(p *controllerv1.PartitionRecord) { p.Isr, p.MinIsr = []int32{1, 2}, 1 })
		r.pull(2, 3)
		r.append(1, 3)
		r.pull(2, 3)
		if r.settle(1) != 1 {
			t.Fatal("3 did not join")
		}
		r.part.Isr = []int32{1, 2}
		r.part.PartitionEpoch++
		r.tell()
		f := r.nodes[3]
		r.append(1, 5)
		r.pull(2)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		done := make(chan error)
		var deleting sync.WaitGroup
		defer deleting.Wait()
		deleting.Go(func() {
			_, err := r.nodes[1].p.DeleteRecords(ctx, 6)
			done <- err
		})
		synctest.Wait()
		r.pull(2)
		if err := <-done; err != nil {
			t.Errorf("delete: %v", err)
		}
		if _, err := r.nodes[1].p.ReadReplica(make([]byte, 1<<16), 3, f.sub, f.next); !errors.Is(err, ErrNotSubscribed) {
			t.Errorf("overtaken by the log start: %v", err)
		}
		if _, ok := r.nodes[1].p.ReplicaProgress(3, f.sub); ok {
			t.Error("the subscription goes on")
		}
		kinds, err := r.follow(f)
		if err != nil || !slices.Equal(kinds, []AnswerKind{Reset, Accepted}) {
			t.Errorf("answers %v, %v", kinds, err)
		}
		r.pull(3)
		r.pull(2, 3)
		r.wantEqual()
		if st := f.p.State(); st.LogStart != 6 || st.LogEnd != 8 {
			t.Errorf("%+v", st)
		}
	})
}

func TestDeleteRecords_waitsForTheISR(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrio(t, nil)
		r.pull(2, 3)
		r.append(1, 5)
		r.pull(2, 3)
		r.pull(2, 3)
		for _, c := range []struct {
			name  string
			to    record.Offset
			do    func()
			kind  error
			start record.Offset
		}{
			{"all of them", 2, func() { r.pull(2, 3) }, nil, 2},
			{"one is silent", 3, func() { r.pull(2) }, ErrCommitUncertain, 0},
			{"there already", 3, func() { r.pull(2, 3) }, nil, 3},
			{"the leadership goes", 4, func() { r.lead(2) }, ErrCommitUncertain, 0},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			type answer struct {
				start record.Offset
				err   error
			}
			done := make(chan answer)
			var deleting sync.WaitGroup
			deleting.Go(func() {
				start, err := r.nodes[1].p.DeleteRecords(ctx, c.to)
				done <- answer{start, err}
			})
			synctest.Wait()
			c.do()
			a := <-done
			cancel()
			if !errors.Is(a.err, c.kind) || a.start != c.start {
				t.Errorf("%s: %d, %v", c.name, a.start, a.err)
			}
			if errors.Is(a.err, context.DeadlineExceeded) {
				t.Errorf("%s: %v is told as a timeout of the caller", c.name, a.err)
			}
		}
		if n := len(r.nodes[1].p.deletes); n != 0 {
			t.Errorf("%d still wait", n)
		}
	})
}

// Bytes that were read while the leadership ended are not sent: they may be the
// next leader's.
func TestReadReplica_afterTheEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrio(t, nil)
		r.pull(2, 3)
		r.append(1, 1)
		noted := r.nodes[1].noted[3]
		r.lead(2)
		if r.nodes[1].noted[3] == noted {
			t.Error("the follower's end was not told")
		}
		if _, err := r.nodes[1].p.ReadReplica(make([]byte, 1<<16), 3, r.nodes[3].sub, 0); !errors.Is(err, ErrNotSubscribed) {
			t.Errorf("read %v", err)
		}
		if _, ok := r.nodes[1].p.ReplicaProgress(3, r.nodes[3].sub); ok {
			t.Error("the subscription goes on")
		}
	})
}

// Frames that do not belong are dropped, and the subscription with them.
func TestOnData_refuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrio(t, nil)
		r.pull(2, 3)
		r.append(1, 2)
		f := r.nodes[3]
		buf := make([]byte, 1<<16)
		got, err := r.nodes[1].p.ReadReplica(buf, 3, f.sub, 0)
		if err != nil {
			t.Fatal(err)
		}
		good := Data{Epoch: 1, Subscription: f.sub, Start: 0, Next: got.Next, Batches: buf[:got.N]}
		for name, change := range map[string]func(*Data){
			"flipped bits": func(d *Data) { d.Batches = slices.Clone(d.Batches); d.Batches[got.N-1] ^= 1 },
			"cut":          func(d *Data) { d.Batches = d.Batches[:got.N-1] },
			"a later epoch": func(d *Data) {
				d.Batches, d.Next = batch(t, 1, 0).Seal(0, 2, 0, record.CreateTime), 1
			},
			"more than it says":    func(d *Data) { d.Next = 1 },
			"a place of its own":   func(d *Data) { d.Start = 1 },
			"another subscription": func(d *Data) { d.Subscription-- },
		} {
			if _, err := r.follow(f); err != nil {
				t.Fatal(err)
			}
			d := good
			d.Subscription = f.sub
			change(&d)
			if err := f.p.OnData(d); !errors.Is(err, ErrNotSubscribed) {
				t.Errorf("%s: %v", name, err)
			}
			if _, ok := f.p.FollowerAck(f.sub); ok == (d.Subscription == f.sub) {
				t.Errorf("%s: still subscribed: %v", name, ok)
			}
			if end := f.p.State().LogEnd; end != 0 {
				t.Fatalf("%s: stored up to %d", name, end)
			}
		}
		f.disk.Store(&commitlog.DiskState{Hard: true, Soft: true})
		if _, err := r.follow(f); err != nil {
			t.Errorf("in sync, it does not follow with a full disk: %v", err)
		}
		d := good
		d.Subscription = f.sub
		if err := f.p.OnData(d); !errors.Is(err, ErrStorageFull) {
			t.Errorf("with a full disk: %v", err)
		}
		r.part.Isr, r.part.PartitionEpoch = []int32{1, 2}, r.part.PartitionEpoch+1
		r.tell()
		if _, err := r.follow(f); !errors.Is(err, errNobody) {
			t.Errorf("out of sync, it follows with a full disk: %v", err)
		}
		f.disk.Store(nil)
		r.pull(2, 3)
		r.pull(2, 3)
		r.wantEqual()
	})
}

// Whoever copies partitions hears of every change of whom they follow.
func TestOnFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrio(t, nil)
		n := r.nodes[3]
		var heard []*Partition
		n.OnFollow(func(p *Partition) { heard = append(heard, p) })
		changed := n.Changed()
		r.part.PartitionEpoch++
		r.tell()
		if len(heard) != 0 {
			t.Error("told of a change of the ISR")
		}
		select {
		case <-changed:
		default:
			t.Error("the image is applied, and nobody is told")
		}
		r.lead(2)
		r.lead(2) // the same again, in another epoch
		r.lead(3)
		r.lead(1)
		if len(heard) != 4 || heard[0] != n.p {
			t.Errorf("told %d times", len(heard))
		}
		r.part.Replicas, r.part.Isr = []int32{1, 2}, []int32{1, 2}
		r.part.PartitionEpoch++
		r.tell()
		if len(heard) != 5 {
			t.Errorf("not told that the replica is no more")
		}
		if _, _, ok := n.p.Following(); ok {
			t.Error("follows without a replica")
		}
	})
}

// What is read while the leadership ends may be of the next one.
func TestReadReplica_whileTheEpochEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrio(t, nil)
		r.pull(2, 3)
		r.append(1, 1)
		moved := false
		r.nodes[1].fault.Before(vfs.OpRead, func(vfs.Op, string) {
			if !moved {
				moved = true
				r.lead(2)
			}
		})
		got, err := r.nodes[1].p.ReadReplica(make([]byte, 1<<16), 3, r.nodes[3].sub, 0)
		if !moved || !errors.Is(err, ErrNotSubscribed) || got.N != 0 {
			t.Errorf("moved %v: read %+v, %v", moved, got, err)
		}
	})
}

// A leadership in which nothing was appended leaves nothing behind that keeps
// older records out.
func TestEmptyLeadership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrio(t, nil)
		r.pull(2, 3)
		r.append(1, 3) // nobody else has them
		r.lead(2)
		r.lead(1) // and it keeps them
		r.pull(2, 3)
		r.pull(2, 3)
		r.wantEqual()
		if st := r.nodes[2].p.State(); st.HighWatermark != 3 {
			t.Errorf("%+v", st)
		}
	})
}
