package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// mostCommits bounds the partitions of one request.
const mostCommits = 10000

// An OffsetCommit says how far a group has come in a partition.
type OffsetCommit struct {
	Topic     string
	Partition int32
	// Offset is the next to read: one more than that of the last record processed.
	Offset int64
	// LeaderEpoch is that of the last record processed; 0: not known.
	LeaderEpoch int64
	// Metadata is anything, at most 4096 bytes; it is kept with the offset.
	Metadata string
}

// A commitQueue is what is to be committed: of each partition the newest offset,
// so that they never go back; and who waits for it.
type commitQueue struct {
	offsets map[partitionKey]*queuedCommit
	waiters []*commitWaiter
	last    uint64 // number that was given
	sent    uint64 // requests, whatever became of them
	trouble error  // why the last request was not taken; nil: it was, or is not answered
}

// A queuedCommit is of one partition. The queue forgets it when it has an outcome, or
// a newer one takes its place.
type queuedCommit struct {
	part     *groupPart
	offset   int64
	epoch    int64
	metadata string
	number   uint64 // rises with each
	underway bool   // it was sent, and not answered
}

func (c *queuedCommit) same(o *queuedCommit) bool {
	return c.part == o.part && c.offset == o.offset && c.epoch == o.epoch && c.metadata == o.metadata
}

// A commitWaiter is called when all its partitions have an outcome.
type commitWaiter struct {
	// awaits has the number of the commit that is waited for, or of one after it.
	awaits map[partitionKey]uint64
	errs   []error // so far
	done   func(error)
	till   time.Time
}

// Commit commits that recs, and all records before them in their partitions, are
// processed; without any, what is processed now. It returns when that is durable.
// A record before one that was committed takes nothing back: for that there is
// [Group.CommitOffsets].
//
// A record of a partition that is not this member's any more, or was lost meanwhile,
// is [ErrStaleAssignment]; [ErrUnknownMember] and [ErrFencedMember] are about the
// member as a whole. What may or may not have been stored is [ErrOutcomeUnknown]:
// committing the same again is always safe, also where another member has gone on.
func (g *Group) Commit(ctx context.Context, recs ...Record) error {
	return g.wait(ctx, func(done func(error)) { g.CommitAsync(recs, done) })
}

// CommitAsync is Commit without waiting: done, if not nil, is called with the
// outcome. It must not block. Commits of one partition never overtake one another.
func (g *Group) CommitAsync(recs []Record, done func(error)) {
	g.mu.Lock()
	var (
		cs  []queuedCommit
		err error
	)
	if len(recs) == 0 {
		cs = g.processedLocked(sortedParts(g.parts))
	}
	ends := map[*groupPart]int{} // by part, where in cs
	for i := range recs {
		r := &recs[i]
		p := g.parts[partitionKey{r.Topic, r.Partition}]
		if p == nil || r.Offset < max(p.first, 0) || r.Offset >= p.handed {
			err = errors.Join(err, fmt.Errorf("commit %s/%d offset %d: not handed out by this member since it owns the partition: %w",
				r.Topic, r.Partition, r.Offset, ErrStaleAssignment))
			continue
		}
		at, ok := ends[p]
		if !ok {
			at = len(cs)
			ends[p] = at
			cs = append(cs, queuedCommit{})
		}
		if r.Offset+1 > p.said.offset { // else that was said with a later record
			p.said = queuedCommit{part: p, offset: r.Offset + 1, epoch: r.LeaderEpoch}
		}
		cs[at] = p.said
		if r.Offset+1 > p.done { // as said; what is committed by itself goes on from there
			p.done, p.doneEpoch = r.Offset+1, r.LeaderEpoch
		}
	}
	g.enqueueLocked(cs, err, done)
}

// CommitOffsets commits the given offsets, also such that lie before what was
// committed. Else it is as Commit.
func (g *Group) CommitOffsets(ctx context.Context, offsets ...OffsetCommit) error {
	return g.wait(ctx, func(done func(error)) {
		g.mu.Lock()
		var (
			cs  []queuedCommit
			err error
		)
		for _, o := range offsets {
			p := g.parts[partitionKey{o.Topic, o.Partition}]
			if p == nil {
				err = errors.Join(err, fmt.Errorf("commit: %w", notOwned(o.Topic, o.Partition)))
				continue
			}
			if bad := checkText("the metadata", o.Metadata); bad != nil {
				err = errors.Join(err, fmt.Errorf("commit %s/%d: %w", o.Topic, o.Partition, bad))
				continue
			}
			epoch := o.LeaderEpoch
			if epoch <= 0 {
				epoch = noOffset
			}
			p.said = queuedCommit{part: p, offset: o.Offset, epoch: epoch, metadata: o.Metadata}
			cs = append(cs, p.said)
			p.done, p.doneEpoch = o.Offset, epoch
		}
		g.enqueueLocked(cs, err, done)
	})
}

// wait calls f, which calls back, and waits until it does.
func (g *Group) wait(ctx context.Context, f func(done func(error))) error {
	outcome := make(chan error, 1)
	f(func(err error) { outcome <- err })
	select {
	case err := <-outcome:
		return err
	case <-ctx.Done():
		g.mu.Lock()
		trouble := g.queue.trouble
		g.mu.Unlock()
		return inVain(context.Cause(ctx), trouble)
	}
}

// inVain is about a commit that has no outcome when err ends the wait for it.
// trouble is why it was last not taken, nil when it was not answered.
func inVain(err, trouble error) error {
	if trouble == nil {
		return fmt.Errorf("commit: %w: %w", err, ErrOutcomeUnknown)
	}
	return fmt.Errorf("commit: %w: %w: %w", err, ErrOutcomeUnknown, trouble)
}

// processedLocked returns what of ps is processed and was not committed.
func (g *Group) processedLocked(ps []*groupPart) (cs []queuedCommit) {
	for _, p := range ps {
		if g.parts[p.partitionKey] == p && p.done != noOffset && p.done != p.committed {
			cs = append(cs, queuedCommit{part: p, offset: p.done, epoch: p.doneEpoch})
		}
	}
	return cs
}

// enqueueLocked takes commits, and unlocks the group. With err, which is about
// others of the same call, done gets that, too.
func (g *Group) enqueueLocked(cs []queuedCommit, err error, done func(error)) {
	if done == nil {
		done = func(error) {}
	}
	switch {
	case g.ended:
		err = errors.Join(err, errGroupClosed)
		cs = nil
	case g.err != nil:
		err = errors.Join(err, g.err)
		cs = nil
	case len(cs) > 0 && !g.begun:
		cs = nil
	}
	if len(cs) == 0 {
		g.mu.Unlock()
		done(err)
		return
	}
	w := &commitWaiter{awaits: map[partitionKey]uint64{}, done: done, till: time.Now().Add(commitTimeout)}
	if err != nil {
		w.errs = append(w.errs, err)
	}
	var over []*commitWaiter
	for i := range cs {
		number, late := g.queueLocked(&cs[i])
		w.awaits[cs[i].part.partitionKey] = number
		over = append(over, late...)
	}
	g.queue.waiters = append(g.queue.waiters, w)
	g.mu.Unlock()
	finish(over)
	poke(g.toCommit)
}

// queueLocked makes a commit the newest of its partition, and returns its number:
// that of one which says the same, if that is the newest. It also returns who waited
// for commits that will not be made, since the partition was lost meanwhile.
func (g *Group) queueLocked(c *queuedCommit) (number uint64, over []*commitWaiter) {
	key := c.part.partitionKey
	if g.queue.offsets == nil {
		g.queue.offsets = map[partitionKey]*queuedCommit{}
	}
	was := g.queue.offsets[key]
	switch {
	case was == nil:
	case was.same(c):
		return was.number, nil
	case was.part != c.part && !was.underway:
		over = g.outcomeLocked(key, was.number, notOwned(key.topic, key.partition))
	}
	g.queue.last++
	c.number = g.queue.last
	g.queue.offsets[key] = c
	return c.number, over
}

// commitLast commits what of ps is processed, and waits for it.
func (g *Group) commitLast(ctx context.Context, ps []*groupPart) error {
	return g.wait(ctx, func(done func(error)) {
		g.mu.Lock()
		var cs []queuedCommit
		if !g.o.manual {
			cs = g.processedLocked(ps)
		}
		for _, p := range ps { // and whatever of them is still on its way
			if c := g.queue.offsets[p.partitionKey]; c != nil && c.part == p && g.o.manual {
				cs = append(cs, queuedCommit{part: p, offset: c.offset, epoch: c.epoch, metadata: c.metadata})
			}
		}
		g.enqueueLocked(cs, nil, done)
	})
}

// repeatable reports whether a commit may be sent once more: always, unless it was
// refused for good.
func repeatable(err error) bool {
	return Retriable(err) || errors.Is(err, ErrOutcomeUnknown) || errors.Is(err, ErrCommitUncertain) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, errStreamEnded) || errors.Is(err, errStreamSilent) || errors.Is(err, errNoAnswer)
}

// request takes what is queued, and not under way, into a request, and returns those
// that need none any more. What is queued stays there until it has an outcome.
func (g *Group) request() (req *runnelv1.CommitRequest, cs []*queuedCommit, done []*commitWaiter) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for key, c := range g.queue.offsets {
		switch {
		case c.underway: // it may yet be taken
		case g.parts[key] != c.part:
			delete(g.queue.offsets, key)
			done = append(done, g.outcomeLocked(key, c.number, notOwned(key.topic, key.partition))...)
		case len(cs) < mostCommits && g.epoch != 0:
			c.underway = true
			cs = append(cs, c)
		}
	}
	if len(cs) == 0 {
		return nil, nil, done
	}
	g.queue.sent++
	req = &runnelv1.CommitRequest{
		Sequence: g.queue.sent, Group: g.name, MemberId: g.id, MemberEpoch: g.epoch, Timeout: durationpb.New(commitWithin), Offsets: make([]*runnelv1.OffsetCommit, len(cs)),
	}
	for i, c := range cs {
		o := &runnelv1.OffsetCommit{
			Topic: c.part.topic, TopicId: &c.part.id, Partition: c.part.partition, Offset: c.offset, Metadata: c.metadata,
		}
		if c.epoch != noOffset {
			o.LeaderEpoch = new(c.epoch)
		}
		req.Offsets[i] = o
	}
	return req, cs, done
}

// outcomeLocked ends the commits of a partition up to a number, and returns those who
// wait for nothing else.
func (g *Group) outcomeLocked(key partitionKey, number uint64, err error) []*commitWaiter {
	return g.endLocked(func(w *commitWaiter) bool { return w.awaits[key] <= number && w.ends(key, err) })
}

// endLocked forgets the waiters that over is true of, and returns them.
func (g *Group) endLocked(over func(*commitWaiter) bool) (done []*commitWaiter) {
	kept := g.queue.waiters[:0]
	for _, w := range g.queue.waiters {
		if over(w) {
			done = append(done, w)
			continue
		}
		kept = append(kept, w)
	}
	clear(g.queue.waiters[len(kept):])
	g.queue.waiters = kept
	return done
}

// ends takes the outcome of a partition in. It is true when that was the last one.
func (w *commitWaiter) ends(key partitionKey, err error) bool {
	if _, ok := w.awaits[key]; !ok {
		return false
	}
	delete(w.awaits, key)
	if err != nil {
		w.errs = append(w.errs, err)
	}
	return len(w.awaits) == 0
}

func finish(ws []*commitWaiter) {
	for _, w := range ws {
		w.done(errors.Join(w.errs...))
	}
}

// settle takes the outcome of a request in. It is true when something is to be sent
// again: of each partition the newest commit only.
func (g *Group) settle(cs []*queuedCommit, results []error, err error) (again bool) {
	var done []*commitWaiter
	g.mu.Lock()
	for i, c := range cs {
		key, one := c.part.partitionKey, err
		if err == nil {
			one = results[i]
		}
		c.underway = false
		newest := g.queue.offsets[key]
		if repeatable(one) {
			switch {
			case newest == c:
				again = true
				g.queue.trouble = one
				done = append(done, g.lateLocked(c, one)...)
			case newest == nil || newest.part != c.part: // the partition was lost meanwhile
				done = append(done, g.outcomeLocked(key, c.number, fmt.Errorf("commit %s/%d offset %d: %w: %w", key.topic, key.partition, c.offset, ErrOutcomeUnknown, one))...)
			}
			continue
		}
		if one == nil {
			c.part.committed = c.offset
			g.queue.trouble = nil
		} else {
			one = fmt.Errorf("commit %s/%d offset %d: %w", key.topic, key.partition, c.offset, one)
		}
		if newest == c {
			delete(g.queue.offsets, key)
		}
		done = append(done, g.outcomeLocked(key, c.number, one)...)
	}
	g.mu.Unlock()
	finish(done)
	return again
}

// lateLocked ends the waits for a commit that have taken too long.
func (g *Group) lateLocked(c *queuedCommit, err error) []*commitWaiter {
	now, key, waits := time.Now(), c.part.partitionKey, false
	done := g.endLocked(func(w *commitWaiter) bool {
		if _, ok := w.awaits[key]; !ok {
			return false
		}
		if now.After(w.till) {
			return w.ends(key, fmt.Errorf("commit %s/%d: tried for %v: %w: %w", key.topic, key.partition, commitTimeout, ErrOutcomeUnknown, err))
		}
		waits = true
		return false
	})
	if !waits {
		delete(g.queue.offsets, key)
	}
	return done
}

// give ends all that is queued.
func (g *Group) give(err error) {
	g.mu.Lock()
	ws, trouble := g.queue.waiters, g.queue.trouble
	g.queue = commitQueue{}
	g.ended = true
	g.mu.Unlock()
	for _, w := range ws {
		w.errs = append(w.errs, inVain(err, trouble))
	}
	finish(ws)
}
