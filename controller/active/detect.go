package active

import (
	"context"
	"sync"
	"time"

	"github.com/runnelmq/runnel/controller/probe"
	"github.com/runnelmq/runnel/controller/sessions"
	"github.com/runnelmq/runnel/controller/state"
	"github.com/runnelmq/runnel/internal/lifecycle"
)

// Times of the detection of failures.
const (
	reachPeriod   = 500 * time.Millisecond // between probes of a broker that registered and could not be reached
	complaintsPer = 20                     // probes to one line in the log
	againPeriod   = 200 * time.Millisecond // between looks at a broker whose connection broke
	missingAfter  = 500 * time.Millisecond // after which a new controller looks for the brokers that have not come
)

// runTasks runs what must not keep the loop, until ctx is done and all of it has ended.
func (a *Active) runTasks(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		select {
		case task := <-a.tasks:
			wg.Go(func() { task(ctx) })
		case <-ctx.Done():
			return
		}
	}
}

// start has a task run beside the loop, with Run's context, unless ctx is done or the tenure is over first.
func (a *Active) start(ctx context.Context, task func(context.Context)) {
	select {
	case a.tasks <- task:
	case <-ctx.Done():
	case <-a.done:
	}
}

// probes reports whether brokers must be reached before they are in service.
func (a *Active) probes() bool { return a.cfg.Probe && !a.cfg.Dev }

// reach asks at a broker's internal address until the broker itself answers: until then its peers could not reach it either, and
// it is not eligible.
func (a *Active) reach(ctx context.Context, s *sessions.Session, b *state.Broker, cluster string) {
	for n := 0; ; n++ {
		got, err := a.Prober.Ask(ctx, b.InternalAddress)
		// A broker on an empty disk may not know its cluster yet.
		if err == nil && got.Broker == int32(b.ID) && got.Incarnation == b.Incarnation.String() && (got.Cluster == "" || got.Cluster == cluster) {
			_ = a.do(ctx, func(context.Context) error {
				a.desk.reached[b.ID] = reached{b.Epoch, got.At}
				return nil
			})
			return
		}
		if n%complaintsPer == 1 { // the first may be a hiccup
			ev := a.Log.Warn().Err(err).Int32("broker", int32(b.ID)).Str("internal_address", b.InternalAddress)
			if err == nil {
				ev = ev.Int32("answers", got.Broker).Str("incarnation", got.Incarnation).Str("cluster", got.Cluster)
			}
			ev.Msg("broker registered and is not reached at its internal address: it stays out of service until it is; check listen.advertised_internal")
		}
		if !waitUnless(ctx, reachPeriod, s.Ended()) {
			return
		}
	}
}

// waitUnless waits and reports whether neither ctx nor the other is done.
func waitUnless(ctx context.Context, d time.Duration, other <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-other:
	case <-ctx.Done():
	}
	return false
}

// A reached broker answered at its internal address.
type reached struct {
	epoch int64
	at    string // the address, resolved
}

// Broke tells that a session ended because its connection was closed or reset by the other side, as the end of a process does.
// If the process has ended indeed, the broker is fenced at once.
func (a *Active) Broke(ctx context.Context, adm *Admission) {
	if !a.cfg.FastFencing || a.cfg.Dev {
		return
	}
	a.start(ctx, func(ctx context.Context) { a.investigate(ctx, adm.Session.Broker(), adm.Epoch) })
}

// seekMissing looks for the brokers that are in service and have not come to this new controller.
func (a *Active) seekMissing(ctx context.Context) {
	if !a.cfg.FastFencing || a.cfg.Dev || !lifecycle.Wait(ctx, missingAfter) {
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	var missing []*state.Broker
	a.view(func(i *state.Image) {
		for _, b := range i.Brokers() {
			if b.Phase != state.BrokerFenced && a.roster.Connected(b.ID) == nil {
				missing = append(missing, b)
			}
		}
	})
	for _, b := range missing {
		wg.Go(func() { a.investigate(ctx, b.ID, b.Epoch) })
	}
}

// investigate finds out whether a broker is dead, again and again until it is known, it is back, or its time is up anyway.
func (a *Active) investigate(ctx context.Context, id state.BrokerID, epoch int64) {
	for {
		var b *state.Broker
		var cluster string
		a.view(func(i *state.Image) { b, cluster = i.Broker(id), i.ClusterID().String() })
		if b == nil || b.Epoch != epoch || b.Phase == state.BrokerFenced || b.InternalAddress == "" || a.roster.Connected(id) != nil {
			return
		}
		verdict, err := a.Prober.Broker(ctx, a.lastAt(ctx, b), probe.Identity{Cluster: cluster, Broker: int32(id), Incarnation: b.Incarnation.String()})
		if verdict == probe.Dead {
			_ = a.do(ctx, func(ctx context.Context) error { return a.fenceDead(ctx, id, epoch) })
			return
		}
		a.Log.Debug().Err(err).Int32("broker", int32(id)).Msg("the connection of a broker broke, and it may live")
		if !lifecycle.Wait(ctx, againPeriod) {
			return
		}
	}
}

// lastAt returns where a broker answered last, or its address as it advertises it.
func (a *Active) lastAt(ctx context.Context, b *state.Broker) string {
	at, err := ask(ctx, a, func(context.Context) (string, error) {
		if r := a.desk.reached[b.ID]; r.epoch == b.Epoch && r.at != "" {
			return r.at, nil
		}
		return b.InternalAddress, nil
	}, nil)
	if err != nil {
		return b.InternalAddress
	}
	return at
}

// fenceDead fences a broker whose process has ended, unless it is back or too many are fenced that way: then the fault is more
// likely in what connects them with this controller, and the time decides.
func (a *Active) fenceDead(ctx context.Context, id state.BrokerID, epoch int64) error {
	if a.roster.Connected(id) != nil {
		return nil
	}
	now := time.Now()
	recent := a.desk.fenced[:0]
	for _, t := range a.desk.fenced {
		if now.Sub(t) < a.cfg.SessionTimeout {
			recent = append(recent, t)
		}
	}
	a.desk.fenced = recent
	var w work
	many := false
	a.view(func(i *state.Image) {
		inService := len(recent)
		for _, b := range i.Brokers() {
			if b.Phase != state.BrokerFenced {
				inService++
			}
		}
		many = 2*(len(recent)+1) >= inService
		if b := i.Broker(id); b != nil && b.Epoch == epoch && !many {
			w = a.fence(i, b, causeGone)
		}
	})
	if many {
		a.Log.Warn().Int32("broker", int32(id)).Msg("a broker's process seems to have ended; with half of the brokers gone, only its session timeout decides")
	}
	if len(w.changes) == 0 {
		return nil
	}
	if err := a.commitWork(ctx, w); err != nil {
		return err
	}
	a.desk.fenced = append(a.desk.fenced, now)
	a.roster.Strike(id)
	return nil
}
