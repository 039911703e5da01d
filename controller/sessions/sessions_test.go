package sessions

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/runnelmq/runnel/controller/state"
)

const timeout = 3 * time.Second

func silent(r *Roster) []state.BrokerID {
	dead, _ := r.Silent()
	return dead
}

// running runs a test with a roster whose process never stands still.
func running(t *testing.T, forever bool, test func(r *Roster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := New(timeout, forever)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() { defer close(done); r.Run(ctx) })
		test(r)
		cancel()
		<-done
	})
}

func TestRoster_knows_who_is_silent(t *testing.T) {
	running(t, false, func(r *Roster) {
		a, b := r.Open(1, uuid.New()), r.Open(2, uuid.New())
		time.Sleep(2 * time.Second)
		a.Heard()
		time.Sleep(1500 * time.Millisecond)
		if got := silent(r); !slices.Equal(got, []state.BrokerID{2}) {
			t.Errorf("silent are %v", got)
		}
		r.Strike(2)
		if !errors.Is(b.Cause(), ErrSilent) || len(silent(r)) != 0 || r.Alive(2) || !r.Alive(1) {
			t.Errorf("after the strike: cause %v, silent %v", b.Cause(), silent(r))
		}
		// A connection that broke is not a death.
		a.Close()
		if !r.Alive(1) {
			t.Error("a broker is dead the moment its connection breaks")
		}
		time.Sleep(timeout)
		if r.Alive(1) || !slices.Equal(silent(r), []state.BrokerID{1}) {
			t.Errorf("silent are %v", silent(r))
		}
		if _, anyAlive := r.Silent(); anyAlive {
			t.Error("somebody is alive")
		}
	})
}

func TestRoster_gives_everyone_time_after_a_failover(t *testing.T) {
	running(t, false, func(r *Roster) {
		r.Begin([]*state.Broker{{ID: 1, Phase: state.BrokerActive}, {ID: 2, Phase: state.BrokerFenced}, {ID: 3, Phase: state.BrokerShuttingDown}})
		time.Sleep(minGrace - time.Millisecond)
		if len(silent(r)) != 0 || !r.Alive(1) || r.Alive(2) {
			t.Errorf("too early: %v", silent(r))
		}
		time.Sleep(2 * time.Millisecond)
		if got := silent(r); !slices.Equal(got, []state.BrokerID{1, 3}) {
			t.Errorf("silent are %v", got)
		}
	})
}

// Signs of life may have come while this process stood still.
func TestRoster_judges_nobody_after_standing_still(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(timeout, false)
		r.Beat()
		r.Open(1, uuid.New())
		time.Sleep(40 * time.Second) // nothing of this process ran
		if got := silent(r); len(got) != 0 {
			t.Errorf("silent are %v", got)
		}
		for range 16 {
			time.Sleep(200 * time.Millisecond)
			r.Beat()
		}
		if got := silent(r); !slices.Equal(got, []state.BrokerID{1}) {
			t.Errorf("silent are %v after it ran on", got)
		}
	})
}

func TestRoster_forever_goes_by_connections(t *testing.T) {
	running(t, true, func(r *Roster) {
		s := r.Open(1, uuid.New())
		time.Sleep(time.Hour)
		if len(silent(r)) != 0 || !r.Alive(1) {
			t.Error("an hour of silence is death")
		}
		s.Close()
		if r.Alive(1) || len(silent(r)) != 0 {
			t.Error("not connected is not dead")
		}
	})
}

func TestOpen_ends_the_session_before(t *testing.T) {
	running(t, false, func(r *Roster) {
		first := r.Open(1, uuid.New())
		first.Applied(7)
		second := r.Open(1, uuid.New())
		<-first.Ended()
		if !errors.Is(first.Cause(), ErrReplaced) || r.Connected(1) != second || r.Count() != 1 {
			t.Errorf("cause %v", first.Cause())
		}
		first.Heard()
		first.Applied(9)
		first.Close()
		if second.Revision() != 0 || r.Connected(1) != second {
			t.Error("the ended session still counts")
		}
	})
}

func TestApplied_waits_for_all(t *testing.T) {
	running(t, false, func(r *Roster) {
		a, b := r.Open(1, uuid.New()), r.Open(2, uuid.New())
		both := func() []state.BrokerID { return []state.BrokerID{1, 2} }
		result := make(chan bool, 1)
		wait := func(d time.Duration) {
			var wg sync.WaitGroup
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), d)
				defer cancel()
				result <- r.Applied(ctx, 5, both)
			})
			synctest.Wait()
		}
		wait(time.Second)
		a.Applied(6)
		b.Applied(4)
		synctest.Wait()
		if len(result) != 0 {
			t.Error("it did not wait for broker 2")
		}
		b.Applied(5)
		if !<-result {
			t.Error("both have applied it")
		}
		b.Close()
		wait(time.Second)
		if <-result {
			t.Error("a broker that is not connected has not applied it")
		}
	})
}
