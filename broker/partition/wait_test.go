package partition

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// With flush=sync an append returns at once; a flusher makes it durable while
// more are appended, which share the next sync.
func TestGroupCommitIsPipelined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
			p.WhenCommitted(a, func(err error) {
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
	synctest.Test(t, func(t *testing.T) {
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
		p.WhenCommitted(a, func(err error) { committed = err == nil })
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

// Who asks for what is there already is called at once, and not with the next
// write, which may never come (GR-18).
func TestWhatIsThereIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vfs.NewMem())
		defer r.end(false)
		p := r.topic("orders", async, nil)
		var first, second, late, committed int
		p.WhenReadable(0, func() { first++ })
		p.WhenReadable(1, func() { second++ })
		a := r.append(p, 1)
		p.WhenReadable(0, func() { late++ })
		p.WhenCommitted(a, func(error) { committed++ })
		if first != 1 || second != 0 || late != 1 || committed != 1 {
			t.Errorf("called %d, %d, %d, %d times", first, second, late, committed)
		}
		if n := p.reads.list.Len(); n != 1 {
			t.Errorf("%d readers wait, one should", n)
		}
		if _, err := p.DeleteRecords(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		if second != 1 {
			t.Error("a reader did not hear that the log start moved")
		}
		p.WhenReadable(0, func() { late++ }) // below the log start: the reader must look
		if late != 2 {
			t.Error("waits below the log start")
		}
	})
}

func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vfs.NewMem())
		defer r.end(false)
		p := r.topic("orders", bySync, nil)
		release := make(chan struct{})
		r.fault.Before(vfs.OpSync, func(vfs.Op, string) { <-release })
		a := r.append(p, 1)
		called := 0
		cancel := p.WhenCommitted(a, func(error) { called++ })
		kept := p.WhenCommitted(a, func(error) { called += 10 })
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
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vfs.NewMem())
		defer r.end(false)
		p := r.topic("orders", async, nil)
		n := 0
		var again func(error)
		again = func(error) {
			if n++; n < 1000 {
				a := r.append(p, 1)
				p.WhenCommitted(a, again)
			}
		}
		p.WhenCommitted(r.append(p, 1), again)
		if n != 1000 {
			t.Errorf("%d rounds", n)
		}
	})
}

// Registrations race with appends a hundred thousand times, and none is lost,
// called twice, or called out of order (GR-18).
func TestWaitersRace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
						p.WhenCommitted(a, func(err error) {
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

// Who asks about a record when its leadership is over, and the log has another
// leader's records at its offsets, is not told of their commit.
func TestDivergence_askedAboutTooLate(t *testing.T) {
	for name, back := range map[string]bool{"another leads": false, "it leads again": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newTrio(t, nil)
				r.pull(2, 3)
				kept := r.append(1, 2)
				r.pull(2, 3)
				lost := r.append(1, 1) // in epoch 1, and nowhere else
				r.lead(2)
				r.append(2, 3)
				r.pull(1, 3)
				r.pull(1)
				if back {
					r.lead(1)
					r.pull(2, 3)
				}
				p := r.nodes[1].p
				if hw := p.State().HighWatermark; hw <= lost.Last {
					t.Fatalf("high watermark %d", hw)
				}
				ask := func(a Appended) error {
					got := errors.New("no answer")
					p.WhenCommitted(a, func(err error) { got = err })
					return got
				}
				if err := ask(lost); !errors.Is(err, ErrCommitUncertain) {
					t.Errorf("the record that was cut: %v", err)
				}
				if err := ask(kept); err != nil {
					t.Errorf("the record that stayed: %v", err)
				}
			})
		})
	}
}

// Who asks when too few replicas are in sync by now is told at once (RP-16).
func TestWhenCommitted_tooFewInSyncByNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrio(t, nil)
		r.pull(2, 3)
		a := r.append(1, 1)
		r.part.Isr = []int32{1}
		r.part.PartitionEpoch++
		r.tell(1)
		var got error
		r.nodes[1].p.WhenCommitted(a, func(err error) { got = err })
		if !errors.Is(got, ErrCommitUncertain) || !strings.Contains(got.Error(), "1 replicas are in sync by now, min.insync.replicas is 2") {
			t.Errorf("got %v", got)
		}
	})
}
