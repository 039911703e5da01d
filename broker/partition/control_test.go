package partition

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

func TestHandOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrio(t, nil)
		r.pull(2, 3)
		l := r.nodes[1]
		ask := func(epoch record.Epoch) {
			l.session.answers()
			l.session.handler.HandOver(metadata.HandOver{Topic: r.topic, LeaderEpoch: epoch, To: 2})
			synctest.Wait()
		}
		released := func(want ...bool) {
			t.Helper()
			var got []bool
			for _, r := range l.session.answers() {
				got = append(got, r.Released)
			}
			if !slices.Equal(got, want) {
				t.Errorf("released %v, want %v", got, want)
			}
		}
		ask(9)
		released(false) // not in this epoch
		first, err := l.p.Append(batch(t, 1, 0), nil)
		if err != nil {
			t.Errorf("append: %v", err)
		}

		// Nobody acknowledges: it is put off.
		var got error
		l.p.WhenCommitted(first, func(err error) { got = err })
		ask(1)
		if _, err := l.p.Append(batch(t, 1, 0), nil); !errors.Is(err, ErrMoving) || errors.Is(err, ErrCommitUncertain) {
			t.Errorf("append while moving: %v", err)
		}
		time.Sleep(drainTime + 2*moveEvery)
		synctest.Wait()
		released(false)
		a := r.append(1, 1)

		// All do, but the controller chooses nobody.
		committed := false
		l.p.WhenCommitted(a, func(err error) { committed = err == nil })
		ask(1)
		r.pull(2, 3)
		time.Sleep(2 * moveEvery)
		synctest.Wait()
		released(true)
		if !committed || got != nil {
			t.Errorf("what was parked is not answered: %v", got)
		}
		if _, err := l.p.Append(batch(t, 1, 0), nil); !errors.Is(err, ErrMoving) {
			t.Errorf("append after the release: %v", err)
		}
		time.Sleep(releaseTime + 2*moveEvery)
		synctest.Wait()
		r.append(1, 1)
		r.pull(2, 3)

		// All do, and it is moved.
		ask(1)
		time.Sleep(2 * moveEvery)
		synctest.Wait()
		released(true)
		r.lead(2)
		time.Sleep(releaseTime)
		synctest.Wait()
		if st := l.p.State(); st.Moving || st.Leader {
			t.Errorf("%+v", st)
		}
		r.append(2, 1)
	})
}

// An append that hangs is not left behind, and holds nobody else up.
func TestHandOver_hangingAppend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrio(t, nil)
		r.pull(2, 3)
		l := r.nodes[1]
		release := make(chan struct{})
		l.fault.Before(vfs.OpWrite, func(vfs.Op, string) { <-release })
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = l.p.Append(batch(t, 1, 0), nil) })
		synctest.Wait()
		ask := func() []metadata.Released {
			l.session.handler.HandOver(metadata.HandOver{Topic: r.topic, LeaderEpoch: 1, To: 2})
			time.Sleep(drainTime - moveEvery)
			synctest.Wait()
			if got := l.session.answers(); len(got) != 0 {
				t.Errorf("answered %+v with an append under way", got)
			}
			time.Sleep(3 * moveEvery)
			synctest.Wait()
			return l.session.answers()
		}
		if got := ask(); len(got) != 1 || got[0].Released {
			t.Errorf("answered %+v", got)
		}
		close(release)
		wg.Wait()
		if st := l.p.State(); st.Moving || st.LogEnd != 1 {
			t.Errorf("%+v", st)
		}
	})
}

// With all controllers away a leader goes on as long as everybody who could be
// elected vouches for it.
func TestConfirmed_byFollowers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrio(t, nil)
		l := r.nodes[1]
		l.session.confirmed = false
		if _, err := l.p.End(); !errors.Is(err, ErrUnconfirmed) {
			t.Errorf("nobody subscribed: %v", err)
		}
		r.pull(2)
		if l.p.Confirmed() {
			t.Error("confirmed by one of two")
		}
		r.pull(3)
		if _, err := l.p.End(); err != nil {
			t.Errorf("both acknowledged: %v", err)
		}
		time.Sleep(3 * time.Second)
		if _, err := l.p.End(); !errors.Is(err, ErrUnconfirmed) {
			t.Errorf("long after: %v", err)
		}
		r.append(1, 1) // acks of all are as safe as ever
		r.nodes[2].link.Confirm(time.Now())
		r.nodes[3].link.Confirm(time.Now().Add(-time.Second))
		if !l.p.Confirmed() {
			t.Error("both answered heartbeats")
		}
		time.Sleep(2 * time.Second)
		if l.p.Confirmed() {
			t.Error("the older of the answers counts")
		}
		r.nodes[3].link.Confirm(time.Now())
		l.p.FollowerGone(3, r.nodes[3].sub)
		if l.p.Confirmed() {
			t.Error("confirmed by who gave the subscription up")
		}
	})
}

// A leader whose disk hangs asks for another one, now and then.
func TestStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrio(t, func(p *controllerv1.PartitionRecord) { p.Flush = bySync })
		r.pull(2, 3)
		release := make(chan struct{})
		l := r.nodes[1]
		l.fault.Before(vfs.OpSync, func(vfs.Op, string) { <-release })
		r.append(1, 1)
		r.pull(2, 3)
		time.Sleep(9 * time.Second)
		synctest.Wait()
		if len(l.session.asks()) != 0 {
			t.Errorf("asked %+v", l.session.asks())
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := len(l.session.asks()); n < 1 || n > 3 || l.session.asks()[0].LeaderEpoch != 1 || l.session.asks()[0].Suspect || !strings.HasPrefix(l.session.asks()[0].Reason, "stalled") {
			t.Errorf("asked %+v", l.session.asks())
		}
		close(release)
		synctest.Wait()
	})
}

// A disk did not hang because this process stood still in the middle of a call.
func TestStalled_whileItWasAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrio(t, func(p *controllerv1.PartitionRecord) { p.Flush = bySync })
		r.pull(2, 3)
		release := make(chan struct{})
		l := r.nodes[1]
		l.fault.Before(vfs.OpSync, func(vfs.Op, string) { <-release })
		r.append(1, 1)
		r.pull(2, 3)
		time.Sleep(9 * time.Second)
		l.p.tick(time.Now().Add(40*time.Second), true)
		time.Sleep(45 * time.Second)
		synctest.Wait()
		if len(l.session.asks()) != 0 {
			t.Errorf("asked %+v", l.session.asks())
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if len(l.session.asks()) == 0 {
			t.Error("not asked although the disk hangs")
		}
		close(release)
		synctest.Wait()
	})
}
