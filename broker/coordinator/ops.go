package coordinator

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/runnelmq/runnel/broker/group"
)

// outcome is what a task that was submitted comes to.
type outcome[T any] struct {
	value T
	err   error
}

// ask submits a task and waits for what it answers. late says what it is when
// ctx ends first.
func ask[T any](ctx context.Context, s *shard, writes bool, late func(context.Context) error, do func(s *shard, reply func(T, error))) (T, error) {
	got := make(chan outcome[T], 1) // one answer, and nobody may wait for it any more
	reply := func(v T, err error) {
		select {
		case got <- outcome[T]{v, err}:
		default:
		}
	}
	s.submit(task{
		writes: writes,
		do:     func(s *shard) { do(s, reply) },
		fail: func(err error) {
			var none T
			reply(none, err)
		},
	})
	select {
	case o := <-got:
		return o.value, o.err
	case <-ctx.Done():
		var none T
		return none, late(ctx)
	}
}

// unanswered is late for what only reads.
func unanswered(ctx context.Context) error {
	return fmt.Errorf("%w: it did not answer in time (%w)", group.ErrLoading, context.Cause(ctx))
}

// A Taken is what became of a commit.
type Taken struct {
	// Offset is what is committed now: another one, if the commit came after later ones
	// of the same member.
	Offset int64
	Err    error // then nothing was stored
}

// Commit stores offsets of a group of partition n; see group.Group.Commit. It
// returns when they are durable. When ctx ends first the outcome is unknown.
func (c *Coordinator) Commit(ctx context.Context, n int32, id, member string, epoch int64, commits []group.Commit) ([]Taken, error) {
	s, err := c.at(n)
	if err != nil {
		return nil, err
	}
	return ask(ctx, s, true, orTimeout, func(s *shard, reply func([]Taken, error)) {
		g := s.touch(id)
		errs, err := g.Commit(s.now, member, epoch, commits, &s.fx)
		if err != nil {
			s.answer(func(failed error) { reply(nil, orElse(failed, err)) })
			return
		}
		taken := make([]Taken, len(commits))
		for i, err := range errs {
			if taken[i].Err = err; err == nil {
				taken[i].Offset = g.Last(commits[i].Part).Offset
			}
		}
		s.answerWrite(func(failed error) {
			if failed == nil {
				c.metrics.commits.Add(float64(len(commits)))
			}
			reply(taken, failed)
		})
	})
}

// Delete deletes an empty group of partition n.
func (c *Coordinator) Delete(ctx context.Context, n int32, id string) error {
	s, err := c.at(n)
	if err != nil {
		return err
	}
	_, err = ask(ctx, s, true, orTimeout, func(s *shard, reply func(struct{}, error)) {
		g := s.groups[id]
		if g == nil {
			s.answer(func(failed error) { reply(struct{}{}, orElse(failed, group.NotFound(id))) })
			return
		}
		if err := s.touch(id).Delete(&s.fx); err != nil {
			s.answer(func(failed error) { reply(struct{}{}, orElse(failed, err)) })
			return
		}
		s.answerWrite(func(failed error) { reply(struct{}{}, failed) })
	})
	return err
}

// Committed returns the committed offsets of a group of partition n, by part: all
// that was answered before it was called, by whichever coordinator.
func (c *Coordinator) Committed(ctx context.Context, n int32, id string) ([]*group.Offset, error) {
	if err := c.sure(ctx, n); err != nil {
		return nil, err
	}
	s, err := c.at(n)
	if err != nil {
		return nil, err
	}
	return ask(ctx, s, false, unanswered, func(s *shard, reply func([]*group.Offset, error)) {
		g := s.groups[id]
		if g == nil {
			reply(nil, group.NotFound(id))
			return
		}
		reply(g.AllCommitted(), nil) // durable ones only: there is nothing to wait for
	})
}

// A Listing is one line of a list of groups.
type Listing struct {
	ID      string
	Phase   group.Phase
	Members int
}

// List returns groups of partition n whose ids begin with prefix and are after
// the given one, by id, at most limit.
func (c *Coordinator) List(ctx context.Context, n int32, prefix, after string, phases []group.Phase, limit int) ([]Listing, error) {
	s, err := c.at(n)
	if err != nil {
		return nil, err
	}
	return ask(ctx, s, false, unanswered, func(s *shard, reply func([]Listing, error)) {
		var out []Listing
		for _, id := range slices.Sorted(maps.Keys(s.groups)) {
			if id <= after || !strings.HasPrefix(id, prefix) {
				continue
			}
			g := s.groups[id]
			if p := g.Phase(); len(phases) == 0 || slices.Contains(phases, p) {
				out = append(out, Listing{ID: id, Phase: p, Members: g.Size()})
			}
			if len(out) == limit {
				break
			}
		}
		s.answer(func(failed error) { reply(out, failed) })
	})
}

// A Description is a group at one moment.
type Description struct {
	ID       string
	Phase    group.Phase
	Epoch    int64
	Assignor group.Assignor
	Members  []group.MemberView
	Parts    []group.PartView
	// Now is when it was made, for what is measured against it.
	Now time.Time
	// ExpiresAt is when it will be deleted; zero: not.
	ExpiresAt time.Time
}

// Describe describes a group of partition n.
func (c *Coordinator) Describe(ctx context.Context, n int32, id string) (*Description, error) {
	s, err := c.at(n)
	if err != nil {
		return nil, err
	}
	return ask(ctx, s, false, unanswered, func(s *shard, reply func(*Description, error)) {
		g := s.groups[id]
		if g == nil {
			s.answer(func(failed error) { reply(nil, orElse(failed, group.NotFound(id))) })
			return
		}
		d := &Description{
			ID: id, Phase: g.Phase(), Epoch: g.Epoch(), Assignor: g.Assignor(), Members: g.Members(), Parts: g.Parts(),
			Now: s.now, ExpiresAt: g.ExpiresAt(),
		}
		s.answer(func(failed error) { reply(d, failed) })
	})
}

// A Target says where to go with a partition.
type Target struct {
	Part group.Part
	// Offset is absolute; with Relative it is added to what is committed, within
	// [Low, High].
	Offset    int64
	Relative  bool
	Low, High int64
}

// Moved is what a reset does to a partition.
type Moved struct {
	Part group.Part
	Old  *group.Offset // nil: nothing was committed
	New  int64
	Err  error // then nothing is reset
}

// resetGrace is how long a shard may take to say what became of a reset.
const resetGrace = 2 * time.Second

// A reset waits until nobody owns the partitions.
type reset struct {
	ctx     context.Context //nolint:containedctx // of the call that waits
	group   string
	targets []Target
	parts   []group.Part
	reply   func([]Moved, error)
}

// Reset moves committed offsets of a group of partition n, all or none, taking
// the partitions back from the members first. When ctx ends before they have
// been given up, nothing is changed.
func (c *Coordinator) Reset(ctx context.Context, n int32, id string, targets []Target, dry bool) ([]Moved, error) {
	s, err := c.at(n)
	if err != nil {
		return nil, err
	}
	r := &reset{ctx: ctx, group: id, targets: targets}
	for _, t := range targets {
		r.parts = append(r.parts, t.Part)
	}
	// Whether a reset is still made when its time is over, its shard decides: it
	// is given a moment to say.
	wait, cancel := ctx, context.CancelFunc(func() {})
	if deadline, ok := ctx.Deadline(); ok && !dry {
		wait, cancel = context.WithDeadline(context.WithoutCancel(ctx), deadline.Add(resetGrace))
	}
	defer cancel()
	return ask(wait, s, !dry, orTimeout, func(s *shard, reply func([]Moved, error)) {
		r.reply = reply
		if dry {
			moved, _ := s.plan(r)
			s.answer(func(failed error) { reply(moved, failed) })
			return
		}
		s.touch(id).Hold(s.now, r.parts)
		s.resets = append(s.resets, r)
	})
}

// advanceResets makes those whose partitions are nobody's.
func (s *shard) advanceResets() {
	if len(s.resets) == 0 {
		return
	}
	// What is given up may not have been settled yet: a partition that is held is
	// given to nobody, so Free stays true once it is.
	s.resets = slices.DeleteFunc(s.resets, func(r *reset) bool {
		g := s.touch(r.group)
		switch {
		case r.ctx.Err() != nil:
			g.Let(s.now, r.parts)
			s.answer(func(error) {
				r.reply(nil, fmt.Errorf("%w: the members did not give the partitions up in time: nothing was changed", ErrTimeout))
			})
			return true
		case !g.Free(r.parts):
			return false
		}
		moved, ok := s.plan(r)
		if ok {
			commits := make([]group.Commit, len(moved))
			for i, m := range moved {
				commits[i] = group.Commit{Part: m.Part, Offset: m.New, LeaderEpoch: -1}
			}
			g.Reset(s.now, commits, &s.fx)
		}
		g.Let(s.now, r.parts)
		s.answerWrite(func(failed error) { r.reply(moved, failed) })
		return true
	})
}

// plan says what a reset does, and whether it can be made.
func (s *shard) plan(r *reset) (moved []Moved, ok bool) {
	ok = true
	g := s.groups[r.group]
	for _, t := range r.targets {
		m := Moved{Part: t.Part, New: t.Offset}
		if g != nil {
			m.Old = g.Last(t.Part)
		}
		if t.Relative {
			if m.Old == nil {
				m.Err = fmt.Errorf("%w: nothing was committed of partition %d, so there is nothing to shift: give an offset or a position", ErrShift, t.Part.Number)
				ok = false
			} else {
				shift := min(max(t.Offset, -m.Old.Offset), t.High) // so that the sum can't overflow
				m.New = min(max(m.Old.Offset+shift, t.Low), t.High)
			}
		}
		moved = append(moved, m)
	}
	return moved, ok
}
