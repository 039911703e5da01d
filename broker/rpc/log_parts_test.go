package rpc

import (
	"testing"
	"testing/synctest"

	"github.com/google/uuid"

	"github.com/runnelmq/runnel/internal/wire"
)

// gRPC never gives back what a dead connection had queued: the account is
// settled when the handler returns, once.
func TestFetchFlow_settlesWhatNeverComesBack(t *testing.T) {
	pool, budget := wire.NewPool(), newFetchBudget(32<<20)
	f := newFetchFlow(pool, budget)
	var lost []*[]byte
	for _, size := range []int{firstResponse, 1 << 20} {
		if claim := budget.claim(int64(size)); claim != nil {
			t.Fatal("no memory at first")
		}
		f.took(int64(size))
		b := pool.Get(size)
		payloads{f}.sending(b)
		lost = append(lost, b)
	}
	if budget.small.free != 16<<20-firstResponse || budget.large.free != 15<<20 || f.clear() {
		t.Errorf("small %d, large %d free", budget.small.free, budget.large.free)
	}
	f.settle()
	for _, b := range lost {
		payloads{f}.Put(b) // late
	}
	if budget.small.free != 16<<20 || budget.large.free != 16<<20 || !f.clear() {
		t.Errorf("after settling: small %d, large %d free", budget.small.free, budget.large.free)
	}
}

// Who asked first is served first, and a claim that is given up leaves nothing.
func TestFetchBudget_isFair(t *testing.T) {
	b := newFetchBudget(32 << 20)
	if b.claim(16<<20) != nil {
		t.Fatal("no memory at first")
	}
	first, second, third := b.claim(8<<20), b.claim(1<<20), b.claim(8<<20)
	if first == nil || second == nil || third == nil || b.try(1<<20) {
		t.Fatal("granted what was not there, or past who waits")
	}
	first.abandon()
	b.release(4<<20, 0)
	granted := func(c *budgetClaim) bool {
		select {
		case <-c.ready:
			return true
		default:
			return false
		}
	}
	if !granted(second) || granted(third) {
		t.Error("the second was not next")
	}
	b.release(12<<20, 0)
	if !granted(third) {
		t.Error("the third was not served")
	}
	third.abandon()
	b.release(1<<20, 0)
	if b.large.free != 16<<20 || b.small.free != 16<<20 {
		t.Errorf("small %d, large %d free", b.small.free, b.large.free)
	}
}

// What leaves a session does not stay registered with its partition.
func TestSubBoard_leavesNoWakeUps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		id := b.topic("t", 1)
		board := newSubBoard()
		for i, leave := range []func(*fetchSub){
			board.remove, board.pause, func(*fetchSub) { board.removeAll() },
			func(s *fetchSub) { board.hold(s, s.lastSent, noStop); board.remove(s) },
		} {
			s := &fetchSub{key: subKey{id, int32(i)}, part: b.part("t", 0), stop: noStop}
			board.add(s)
			board.idle(s, s.part.State().HighWatermark)
			leave(s)
			b.append("t", 0, "news")
			synctest.Wait()
			if got := board.woken.take(); len(got) > 0 {
				t.Errorf("case %d: woken after it left", i)
			}
		}
		// And what stays is woken once, even by something that is there already.
		s := &fetchSub{key: subKey{uuid.New(), 0}, part: b.part("t", 0), stop: noStop}
		board.add(s)
		board.idle(s, 0)
		synctest.Wait()
		if got := board.woken.take(); len(got) != 1 || got[0] != s {
			t.Errorf("%d wake-ups, want 1", len(got))
		}
	})
}

// A stream that ends does not leave its waits behind until their timeouts
// (PD-15, GR-16).
func TestCallBook_abandonsWhatItWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		b.topic("t", 1)
		p := b.svc.newProducer(t.Context())
		canceled := 0
		for range 3 {
			c := p.calls.admit(p)
			pt := c.newPart(partKey{}, b.part("t", 0))
			p.calls.enter(c)
			p.calls.await(pt, func() bool { canceled++; return true })
			p.calls.read(c)
		}
		p.calls.abandonAll()
		if answers, state := p.calls.take(nil); canceled != 3 || len(answers) != 3 || !state.last || len(p.calls.queues) != 0 {
			t.Errorf("%d canceled, %d answered, last %v, %d queues", canceled, len(answers), state.last, len(p.calls.queues))
		}
		if p.calls.admit(p) != nil {
			t.Error("it admits calls after its end")
		}
	})
}
