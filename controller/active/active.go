// Package active is the controller while it is the active one: it turns events into committed changes, one after the other.
//
// One loop makes all decisions. Each is made on the picture as it is after the last commit, and goes into the metadata store
// as one fenced transaction, or as several with the intent in the first. What is left to be done is derived from the picture
// whenever no event waits, so a failover in the middle loses nothing.
package active

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/runnelmq/runnel/controller/mirror"
	"github.com/runnelmq/runnel/controller/probe"
	"github.com/runnelmq/runnel/controller/sessions"
	"github.com/runnelmq/runnel/controller/state"
	"github.com/runnelmq/runnel/controller/store"
)

// ErrAlone ends the tenure of a controller that hears no broker: another one may.
var ErrAlone = errors.New("no broker is heard by this controller")

// ErrEnded is returned for what this controller did not begin, because its time as the active one was over.
var ErrEnded = errors.New("this controller is not the active one any more")

// Times of the loop.
const (
	tickPeriod    = 100 * time.Millisecond // how often silence is looked for
	commitTimeout = 10 * time.Second       // after which an outcome stays unknown
	retryPeriod   = time.Second            // after work failed because the store did
	maxQueue      = 1024                   // events that wait
)

// Config says how to decide.
type Config struct {
	Defaults     state.Defaults
	RecoveryWait time.Duration // how long a recovery election waits for the last known members
	// SessionTimeout is how long a broker may be silent before it is fenced.
	SessionTimeout time.Duration
	// PreferredAfter is how long a partition must have been whole and unchanged before its preferred leader gets it back.
	PreferredAfter time.Duration
	// Probe is whether a broker must be reached at its internal address before it is in service.
	Probe bool
	// FastFencing is whether a broker whose process has certainly ended is fenced before its time is up.
	FastFencing bool
	// Sole is whether there is no other controller to leave the brokers to.
	Sole func() bool
	// Dev is true for the one process that is controller and broker: nothing is ever fenced by time.
	Dev bool
}

// Deps are what an Active works with.
type Deps struct {
	Store   *store.Store
	Mirror  *mirror.Mirror
	Metrics *Metrics
	Prober  *probe.Prober
	Log     zerolog.Logger
}

// An Active is one tenure.
type Active struct {
	Deps

	cfg    Config
	roster *sessions.Roster
	tenure store.Tenure
	ops    chan *op
	kicks  chan struct{} // holds a token when brokers may have got further
	tasks  chan func(context.Context)
	done   chan struct{} // closed when Run has returned
	ready  chan struct{} // closed when half-done work is finished

	desk desk
}

// A desk is what the loop alone touches.
type desk struct {
	// reports holds the recovery reports of connected brokers, whole ones only, with the epoch each is about.
	reports  state.Reports
	reported map[state.BrokerID]int64
	// reportedAt is when they came.
	reportedAt map[state.BrokerID]time.Time
	// admitted is, per broker, which epoch was let in and at which revision its registration stood.
	admitted map[state.BrokerID]admission
	// bereft is since when each partition could have a recovery election, and waits for the other last known members. While none of
	// them is there it does not wait: after a restoration the controllers may be there long before the brokers.
	bereft map[state.PartitionKey]time.Time
	// leaving are the sessions of brokers that want to shut down and have not been let go.
	leaving map[state.BrokerID]*sessions.Session
	// reached are the brokers that answered at their internal addresses.
	reached map[state.BrokerID]reached
	// unheard is whether no broker was heard of late, and nobody else could be left to try.
	unheard bool
	// visited is when a broker came last that was sent away because another process with its id may live.
	visited time.Time
	// fenced is when brokers were fenced because their processes had ended.
	fenced []time.Time
	// moves are the hand-overs under way.
	moves map[state.PartitionKey]*move
	// misled is since when each partition waits for its preferred leader.
	misled map[state.PartitionKey]misled
	// planNext is when it is looked again who should lead.
	planNext time.Time
	// limbo are the partitions that a transaction of proposals may still change whose outcome is unknown, each with the revision
	// that the transaction expects it at.
	limbo map[state.PartitionKey]state.Revision
	retry time.Time // work rests until then
}

type admission struct {
	epoch    int64
	revision state.Revision
}

// New returns the controller of a tenure.
func New(cfg Config, deps Deps, tenure store.Tenure) *Active {
	return &Active{
		Deps: deps, cfg: cfg, tenure: tenure, roster: sessions.New(cfg.SessionTimeout, cfg.Dev),
		tasks: make(chan func(context.Context)), ops: make(chan *op, maxQueue), kicks: make(chan struct{}, 1), done: make(chan struct{}), ready: make(chan struct{}),
		desk: desk{
			reports: state.Reports{}, reported: map[state.BrokerID]int64{}, reportedAt: map[state.BrokerID]time.Time{},
			admitted: map[state.BrokerID]admission{}, bereft: map[state.PartitionKey]time.Time{},
			leaving: map[state.BrokerID]*sessions.Session{},
			reached: map[state.BrokerID]reached{},
			moves:   map[state.PartitionKey]*move{}, misled: map[state.PartitionKey]misled{}, limbo: map[state.PartitionKey]state.Revision{},
		},
	}
}

// Epoch returns the controller epoch.
func (a *Active) Epoch() int64 { return a.tenure.Epoch }

// Done is closed when the tenure is over.
func (a *Active) Done() <-chan struct{} { return a.done }

// Run decides until ctx is done, or until another controller has taken over, which is store.ErrFenced.
func (a *Active) Run(ctx context.Context) error {
	defer close(a.done)
	// The picture must show all that earlier controllers committed. Nothing of theirs can be committed after our election.
	shown := func(i *state.Image) bool { return i.Controller() != nil && i.Controller().Epoch >= a.tenure.Epoch }
	if err := a.Mirror.Until(ctx, shown); err != nil {
		return nil
	}
	if err := a.finishOthersWork(ctx); err != nil {
		return err
	}
	a.Mirror.View(func(i *state.Image) { a.roster.Begin(i.Brokers()) })
	close(a.ready)
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() { a.roster.Run(ctx) })
	wg.Go(func() { a.runTasks(ctx) })
	wg.Go(func() { a.seekMissing(ctx) })
	tick := time.NewTicker(tickPeriod)
	defer tick.Stop()
	for ctx.Err() == nil {
		if err := a.turn(ctx, tick.C); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// turn serves one event if one waits, else does one piece of work, else waits for either.
func (a *Active) turn(ctx context.Context, tick <-chan time.Time) error {
	select {
	case o := <-a.ops:
		return a.serve(ctx, o)
	default:
	}
	if worked, err := a.step(ctx); worked || err != nil {
		return err
	}
	a.plan()
	select {
	case <-ctx.Done():
	case o := <-a.ops:
		return a.serve(ctx, o)
	case <-a.kicks:
	case <-tick:
		return a.fenceSilent(ctx)
	}
	return nil
}

// finishOthersWork ends what an earlier controller began, as far as that is possible at present.
func (a *Active) finishOthersWork(ctx context.Context) error {
	for ctx.Err() == nil {
		worked, err := a.step(ctx)
		if err != nil || !worked {
			return err
		}
	}
	return nil
}

// kick has the loop look whether brokers got further.
func (a *Active) kick() {
	select {
	case a.kicks <- struct{}{}:
	default:
	}
}

// view calls fn with the picture. See mirror.Mirror.View.
func (a *Active) view(fn func(*state.Image)) { a.Mirror.View(fn) }

// commit makes changes and waits until the picture shows them. It is the loop's alone.
func (a *Active) commit(ctx context.Context, changes []state.Change) (state.Revision, error) {
	old := map[state.PartitionKey]*state.Partition{}
	a.view(func(i *state.Image) {
		for _, c := range changes {
			if p, ok := c.Object.(*state.Partition); ok {
				old[p.PartitionKey()] = i.Partition(p.PartitionKey())
			}
		}
	})
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	start := time.Now()
	rev, err := a.Store.Commit(ctx, a.tenure.Fence, changes)
	a.Metrics.commitDuration.Observe(time.Since(start).Seconds())
	if err != nil {
		return 0, err
	}
	if err := a.Mirror.Reach(ctx, rev); err != nil {
		return 0, fmt.Errorf("%w: revision %d is committed and has not come back: %w", store.ErrUnknown, rev, err)
	}
	for _, c := range changes {
		if p, ok := c.Object.(*state.Partition); ok {
			a.noteElection(old[p.PartitionKey()], p)
		}
	}
	return rev, nil
}

// noteElection counts elections and tells people of those that may have lost data.
func (a *Active) noteElection(old, now *state.Partition) {
	kind := state.Elected(old, now)
	if kind == "" {
		return
	}
	a.Metrics.elections.WithLabelValues(string(kind)).Inc()
	if kind == state.ElectionRecovery || kind == state.ElectionUnclean {
		a.Log.Error().Stringer("topic_id", now.Topic).Int32("partition", now.Number).Int32("leader", int32(now.Leader)).
			Int64("leader_epoch", now.LeaderEpoch).Str("kind", string(kind)).Msg("elected a leader that may lack acknowledged records")
	}
}

// step makes one transaction of what is left to be done, and reports whether there was any. It returns an error only when the
// tenure is over; otherwise work rests for a while, since it can wait and the picture holds it.
func (a *Active) step(ctx context.Context) (bool, error) {
	if time.Now().Before(a.desk.retry) {
		return false, nil
	}
	w := a.next()
	if len(w.changes) == 0 {
		return false, nil
	}
	if err := a.commitWork(ctx, w); err != nil {
		return false, a.tolerate(err)
	}
	return true, nil
}

// A work is changes and what to tell once they are committed.
type work struct {
	changes []state.Change
	note    func() // may be nil
}

func (a *Active) commitWork(ctx context.Context, w work) error {
	_, err := a.commit(ctx, w.changes)
	if err == nil && w.note != nil {
		w.note()
	}
	return err
}

// tolerate returns err only when it ends the tenure.
func (a *Active) tolerate(err error) error {
	if errors.Is(err, store.ErrFenced) || errors.Is(err, context.Canceled) {
		return err
	}
	a.Log.Warn().Err(err).Msg("metadata could not be written; trying again")
	a.desk.retry = time.Now().Add(retryPeriod)
	return nil
}

// next returns the next transaction: what the picture asks for, then what waited for
// brokers to apply something, then what brokers wait for, then recovery elections.
func (a *Active) next() work {
	var w work
	a.view(func(i *state.Image) {
		if w.changes = i.Work(); len(w.changes) > 0 {
			return
		}
		if w.changes = i.Lower(a.roster.Revision); len(w.changes) > 0 {
			return
		}
		if w = a.moveWork(i); len(w.changes) > 0 {
			return
		}
		if w = a.advance(i); len(w.changes) > 0 {
			return
		}
		w.changes = i.Recover(a.desk.reports, a.due(i))
	})
	return w
}

// due returns the function that says whether a recovery election has waited long enough.
func (a *Active) due(i *state.Image) func(state.PartitionKey) bool {
	since := map[state.PartitionKey]time.Time{}
	for _, k := range i.Bereft(a.desk.reports) {
		t, ok := a.desk.bereft[k]
		if !ok {
			t = time.Now()
		}
		since[k] = t
	}
	a.desk.bereft = since
	return func(k state.PartitionKey) bool {
		t, waits := since[k]
		return waits && time.Since(t) >= a.cfg.RecoveryWait
	}
}
