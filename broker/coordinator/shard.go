package coordinator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/runnelmq/runnel/broker/group"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/internal/lifecycle"
	"github.com/runnelmq/runnel/internal/record"
)

// Times of a shard.
const (
	tickEvery = 200 * time.Millisecond
	// tickLate is after what delay of a tick nobody is blamed for silence: it was
	// this process that did not listen.
	tickLate = time.Second
	// lookEvery is how often a shard that waits for its partition looks at it.
	lookEvery = 20 * time.Millisecond
	// unreadableRetry is how often damaged state is looked at again.
	unreadableRetry = 30 * time.Second
	// turnTasks bounds what is done at a time.
	turnTasks = 2000
)

// A shard coordinates the groups of one partition of Topic, in one leader epoch
// of this broker. One goroutine does everything; others submit tasks.
type shard struct {
	c     *Coordinator
	n     int32
	epoch record.Epoch
	log   zerolog.Logger
	wake  chan struct{} // cap 1
	armed atomic.Bool   // the partition will poke

	// mu guards the fields below
	mu sync.Mutex

	inbox []task
	// refusal is why tasks are not taken, nil when they are.
	refusal error

	shardState
}

// shardState is what the goroutine of a shard alone uses. It begins anew with
// every load.
type shardState struct {
	part    *partition.Partition
	groups  map[string]*group.Group
	streams map[group.Stream]*Membership
	view    *view
	topics  *group.Resolver

	// appended is the end of the log as this shard knows it.
	appended record.Offset
	waiting  []waiter

	// Of the present turn.
	now     time.Time
	fx      group.Effects
	touched []*group.Group
	answers []answer

	ticked    time.Time
	retained  time.Time
	unheard   bool // the leadership was unconfirmed
	builder   *record.Builder
	buildSize int
	resets    []*reset
}

func newShard(c *Coordinator, n int32, epoch record.Epoch) *shard {
	return &shard{
		c: c, n: n, epoch: epoch, wake: make(chan struct{}, 1), refusal: loading(),
		log: c.deps.Log.With().Int32("partition", n).Int64("leader_epoch", int64(epoch)).Logger(),
	}
}

func loading() error {
	return fmt.Errorf("%w: it reads what is stored of its groups, try again", group.ErrLoading)
}

func (s *shard) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// submit hands a task over, or lets it fail at once.
func (s *shard) submit(t task) {
	s.mu.Lock()
	err := s.refusal
	if err == nil {
		s.inbox = append(s.inbox, t)
	}
	s.mu.Unlock()
	if err != nil {
		t.fail(err)
		return
	}
	s.poke()
}

// refuse lets tasks fail from here on, those that are waiting included; nil
// takes them again.
func (s *shard) refuse(err error) {
	s.mu.Lock()
	s.refusal = err
	var left []task
	if err != nil {
		left, s.inbox = s.inbox, nil
	}
	s.mu.Unlock()
	for _, t := range left {
		t.fail(err)
	}
}

// serving says whether the shard answers.
func (s *shard) serving() error {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.refusal
}

// run loads and serves, again and again where that is needed, until ctx is done.
func (s *shard) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := s.once(ctx)
		s.unload(err)
		wait := lookEvery
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, group.ErrUnreadable):
			s.log.Error().Err(err).Msg("the stored state of groups can't be read: nobody coordinates them")
			s.c.metrics.unreadable.Inc()
			wait = unreadableRetry
		case err != nil:
			s.log.Warn().Err(err).Msg("a coordinator of groups begins anew")
		}
		lifecycle.Wait(ctx, wait)
	}
}

// once awaits the leadership, loads, and serves until that is over. Its error is
// why, nil when the leadership just ended.
func (s *shard) once(ctx context.Context) error {
	s.shardState = shardState{groups: map[string]*group.Group{}, streams: map[group.Stream]*Membership{}}
	if !s.await(ctx) {
		return nil
	}
	began := time.Now()
	s.c.metrics.loading.Inc()
	err := s.load(ctx)
	s.c.metrics.loading.Dec()
	if err != nil || ctx.Err() != nil {
		return err
	}
	s.c.metrics.loads.Observe(time.Since(began).Seconds())
	s.log.Info().Int("groups", len(s.groups)).Dur("took", time.Since(began)).Msg("coordinating the groups of a partition")
	s.refuse(nil)
	return s.serve(ctx)
}

// state returns the partition's state, and whether it is led here in the shard's
// epoch.
func (s *shard) state() (partition.State, bool) {
	st := s.part.State()
	return st, st.Err == nil && st.Leader && st.Epoch == s.epoch
}

// await returns when the partition is led here, and nothing in its log is
// undecided. It says whether that has come.
func (s *shard) await(ctx context.Context) bool {
	for {
		if s.part == nil {
			s.part, _ = s.c.local(s.n)
		}
		if s.part != nil {
			if st, ok := s.state(); ok && st.Settled && st.HighWatermark == st.LogEnd {
				return true
			}
		}
		if !lifecycle.Wait(ctx, lookEvery) {
			return false
		}
	}
}

// unload forgets everything. Whoever waits is told what is known: that what was
// stored may stay or not.
func (s *shard) unload(why error) {
	refusal := loading()
	if errors.Is(why, group.ErrUnreadable) {
		refusal = why
	}
	s.refuse(refusal)
	for _, w := range s.waiting {
		for _, a := range w.answers {
			if a.wrote {
				a.fn(fmt.Errorf("%w: the coordinator of the group changed; look, or commit the same again", partition.ErrCommitUncertain))
				continue
			}
			a.fn(refusal)
		}
	}
	s.failTurn(refusal)
	for _, r := range s.resets {
		r.reply(nil, refusal)
	}
	for _, m := range s.streams {
		m.end(refusal)
	}
	s.shardState = shardState{}
}

// failTurn lets the answers of the present turn fail: nothing of it was stored.
func (s *shard) failTurn(err error) {
	answers := s.answers
	s.answers = nil
	for _, a := range answers {
		a.fn(err)
	}
}

// serve does tasks until ctx is done, the leadership is lost, or what was to be
// stored could not be.
func (s *shard) serve(ctx context.Context) error {
	s.now = time.Now()
	s.ticked, s.retained = s.now, s.now
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	for {
		s.arm()
		ticked := false
		select {
		case <-s.wake:
		case <-tick.C:
			ticked = true
		case <-ctx.Done():
			return nil
		}
		st, ok := s.state()
		if !ok {
			return nil
		}
		s.release(st.HighWatermark)
		s.now = time.Now()
		if err := s.turn(&st, ticked); err != nil {
			return err
		}
	}
}

// arm has the partition poke when the high watermark moves, or the leadership.
func (s *shard) arm() {
	if s.armed.Swap(true) {
		return
	}
	s.part.WhenReadable(s.part.State().HighWatermark, func() {
		s.armed.Store(false)
		s.poke()
	})
}

// release gives the answers whose records are below the high watermark.
func (s *shard) release(hw record.Offset) {
	for len(s.waiting) > 0 && s.waiting[0].next <= hw {
		w := s.waiting[0]
		s.waiting = s.waiting[1:]
		for i := range w.changes {
			c := &w.changes[i]
			if g := s.groups[c.Group]; g != nil {
				g.Confirm(c)
				s.sweep(g)
			}
		}
		for _, a := range w.answers {
			a.fn(nil)
		}
		for i := range w.told {
			s.send(&w.told[i])
		}
	}
}

// sweep forgets a group of which nothing is known.
func (s *shard) sweep(g *group.Group) {
	if g.Blank() {
		delete(s.groups, g.ID())
	}
}

// take returns the next tasks.
func (s *shard) take() []task {
	s.mu.Lock()
	tasks := s.inbox
	s.inbox = nil
	if len(tasks) > turnTasks {
		s.inbox = tasks[turnTasks:]
		tasks = tasks[:turnTasks:turnTasks]
	}
	more := len(s.inbox) > 0
	s.mu.Unlock()
	if more {
		s.poke()
	}
	return tasks
}

// turn does what there is to do, stores what comes of it in one append, and
// leaves answers to be given when that is committed.
func (s *shard) turn(st *partition.State, ticked bool) error {
	tasks := s.take()
	// In this order: what is confirmed may be a later epoch, with changes of
	// another coordinator before it.
	confirmed := s.part.Confirmed()
	if _, ok := s.state(); !ok || !confirmed {
		s.mute(tasks)
		return nil
	}
	refused := writable(s.part, st)
	if refused != nil {
		s.unheard = true // nobody can join, go on or give something up
		s.readOnly(tasks, refused)
		return nil
	}
	if s.unheard || since(s.now, s.ticked) > tickEvery+tickLate {
		for _, g := range s.groups {
			g.Revive(s.now)
		}
		s.unheard = false
	}
	s.ticked = s.now
	s.follow()
	for _, t := range tasks {
		t.do(s)
	}
	if ticked {
		s.tick()
	}
	s.advanceResets()
	return s.finish()
}

// readOnly does the tasks that store nothing. What is to be stored, because it
// was found while loading, waits.
func (s *shard) readOnly(tasks []task, refused error) {
	for _, t := range tasks {
		if t.writes {
			t.fail(refused)
			continue
		}
		t.do(s)
	}
	if len(s.answers) > 0 {
		s.park(nil, nil)
	}
}

// mute answers nothing positive, and ends the streams: another broker may be the
// coordinator already.
func (s *shard) mute(tasks []task) {
	err := fmt.Errorf("%s: %w: try again", s.part, partition.ErrUnconfirmed)
	s.unheard = true
	for _, t := range tasks {
		t.fail(err)
	}
	for id, m := range s.streams {
		m.end(err)
		delete(s.streams, id)
	}
	for _, g := range s.groups {
		g.Detach()
	}
}

// writable says why nothing can be stored at present.
func writable(p *partition.Partition, st *partition.State) error {
	switch {
	case st.Moving:
		return fmt.Errorf("%s: %w: nothing was stored, try again", p, partition.ErrMoving)
	case !st.MinISRMet:
		return fmt.Errorf("%s: %w: nothing was stored, try again", p, partition.ErrNotEnoughReplicas)
	}
	return nil
}

// touch returns the group of that id, to be settled at the end of the turn. It
// is made when there is none.
func (s *shard) touch(id string) *group.Group {
	g := s.groups[id]
	if g == nil {
		g = group.New(id, s.c.limits())
		s.groups[id] = g
	}
	s.touched = append(s.touched, g)
	return g
}

// answer calls fn when everything that was stored by the end of this turn is
// committed.
func (s *shard) answer(fn func(error)) { s.answers = append(s.answers, answer{fn: fn}) }

// answerWrite is answer for something that stores.
func (s *shard) answerWrite(fn func(error)) {
	s.answers = append(s.answers, answer{fn: fn, wrote: true})
}

// follow looks whether topics came, went or grew.
func (s *shard) follow() {
	v := s.c.view.Load()
	if v == s.view {
		return
	}
	keep := s.keeper(s.view, v)
	s.view, s.topics = v, group.NewResolver(v)
	for _, g := range s.groups {
		g.Refresh(s.now, s.topics)
		g.Retain(s.now, keep, &s.fx)
		s.touched = append(s.touched, g)
	}
}

// tick does what time alone causes.
func (s *shard) tick() {
	retain := since(s.now, s.retained) >= s.c.cfg.RetainEvery
	if retain {
		s.retained = s.now
	}
	keep := s.keeper(nil, s.view)
	for _, g := range s.groups {
		before := len(s.fx.Changes)
		if g.Size() > 0 {
			g.Tick(s.now, &s.fx)
		}
		if retain {
			g.Retain(s.now, keep, &s.fx)
		}
		if len(s.fx.Changes) > before {
			s.touched = append(s.touched, g)
		}
	}
}

// finish ends a turn.
func (s *shard) finish() error {
	for _, g := range s.touched {
		g.Settle(s.now, s.topics, &s.fx)
	}
	for _, g := range s.touched {
		s.sweep(g)
	}
	s.touched = s.touched[:0]
	if s.fx.Empty() && len(s.answers) == 0 {
		return nil
	}
	fx := s.fx
	s.fx = group.Effects{}
	if err := s.store(fx.Changes); err != nil {
		return err
	}
	s.park(fx.Changes, fx.Messages)
	return nil
}

// park has the answers of the turn, and what came of it, wait until all that was
// appended is committed.
func (s *shard) park(changes []group.Change, told []group.Message) {
	s.waiting = append(s.waiting, waiter{next: s.appended, changes: changes, answers: s.answers, told: told})
	s.answers = nil
	if st, ok := s.state(); ok {
		s.release(st.HighWatermark)
	}
}
