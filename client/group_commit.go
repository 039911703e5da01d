package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

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
	offsets map[partitionKey]queuedCommit
	waiters []*commitWaiter
}

type queuedCommit struct {
	part     *groupPart
	offset   int64
	epoch    int64
	metadata string
}

// A commitWaiter is called when all its partitions have an outcome.
type commitWaiter struct {
	keys []partitionKey
	errs []error // so far
	done func(error)
	till time.Time
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
	for i := range recs {
		r := &recs[i]
		p := g.parts[partitionKey{r.Topic, r.Partition}]
		if p == nil || r.Offset < max(p.first, 0) || r.Offset >= p.handed {
			err = errors.Join(err, fmt.Errorf("commit %s/%d offset %d: not handed out by this member since it owns the partition: %w",
				r.Topic, r.Partition, r.Offset, ErrStaleAssignment))
			continue
		}
		if r.Offset+1 > p.said.offset { // else that was said with a later record
			p.said = queuedCommit{part: p, offset: r.Offset + 1, epoch: r.LeaderEpoch}
		}
		cs = append(cs, p.said)
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
		return fmt.Errorf("commit: %w: %w", context.Cause(ctx), ErrOutcomeUnknown)
	}
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
		err = errors.Join(err, ErrClosed)
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
	w := &commitWaiter{done: done, till: time.Now().Add(commitTimeout)}
	if err != nil {
		w.errs = append(w.errs, err)
	}
	if g.queue.offsets == nil {
		g.queue.offsets = map[partitionKey]queuedCommit{}
	}
	for _, c := range cs {
		g.queue.offsets[c.part.partitionKey] = c
		if !slices.Contains(w.keys, c.part.partitionKey) {
			w.keys = append(w.keys, c.part.partitionKey)
		}
	}
	g.queue.waiters = append(g.queue.waiters, w)
	g.mu.Unlock()
	poke(g.toCommit)
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
			if c, ok := g.queue.offsets[p.partitionKey]; ok && c.part == p && g.o.manual {
				cs = append(cs, c)
			}
		}
		g.enqueueLocked(cs, nil, done)
	})
}

// commitLoop commits, one request at a time, until ctx ends.
func (g *Group) commitLoop(ctx context.Context) {
	ticker := time.NewTicker(g.o.interval)
	defer ticker.Stop()
	for attempt := 0; ; {
		select {
		case <-g.toCommit:
		case <-ticker.C:
			if !g.o.manual {
				g.mu.Lock()
				g.enqueueLocked(g.processedLocked(sortedParts(g.parts)), nil, nil)
			}
		case <-ctx.Done():
			g.give(ErrClosed)
			return
		}
		wait := g.flush(ctx, &attempt)
		if wait > 0 {
			pause(ctx, wait)
			poke(g.toCommit)
		}
	}
}

// flush sends what is queued. It returns when to send the rest; 0: nothing is left.
func (g *Group) flush(ctx context.Context, attempt *int) time.Duration {
	req, cs, now := g.request()
	for _, w := range now {
		w.finish()
	}
	if req == nil {
		*attempt = 0
		return 0
	}
	results, err := g.exchange(ctx, req)
	*attempt++
	if errors.Is(err, ErrUnknownMember) || errors.Is(err, ErrFencedMemberEpoch) {
		g.forfeit(fmt.Errorf("%w: %w", ErrPartitionLost, err), false)
	}
	if g.settle(cs, results, err) {
		return max(backoffFor(*attempt), retryAfter(err))
	}
	*attempt = 0
	return 0
}

// repeatable reports whether a commit may be sent once more: always, unless it was
// refused for good.
func repeatable(err error) bool {
	return Retriable(err) || errors.Is(err, ErrOutcomeUnknown) || errors.Is(err, ErrCommitUncertain) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errStreamEnded)
}

// request takes what is queued into a request, and returns those that need none
// any more. What is queued stays there until it has an outcome.
func (g *Group) request() (req *runnelv1.CommitRequest, cs []queuedCommit, done []*commitWaiter) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for key, c := range g.queue.offsets {
		if g.parts[key] != c.part {
			done = append(done, g.outcomeLocked(key, notOwned(key.topic, key.partition))...)
			continue
		}
		if len(cs) < mostCommits {
			cs = append(cs, c)
		}
	}
	if len(cs) == 0 || g.epoch == 0 {
		return nil, nil, done
	}
	req = &runnelv1.CommitRequest{RequestId: 1, Group: g.name, MemberId: g.id, MemberEpoch: g.epoch}
	for _, c := range cs {
		o := &runnelv1.OffsetCommit{
			Topic: c.part.topic, TopicId: &c.part.id, Partition: c.part.partition, Offset: c.offset, Metadata: c.metadata,
		}
		if c.epoch != noOffset {
			o.LeaderEpoch = new(c.epoch)
		}
		req.Offsets = append(req.Offsets, o)
	}
	return req, cs, done
}

// outcomeLocked ends the commit of a partition, and returns those who wait for
// nothing else.
func (g *Group) outcomeLocked(key partitionKey, err error) (done []*commitWaiter) {
	delete(g.queue.offsets, key)
	kept := g.queue.waiters[:0]
	for _, w := range g.queue.waiters {
		if w.ends(key, err) {
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
	for i, k := range w.keys {
		if k != key {
			continue
		}
		w.keys = append(w.keys[:i], w.keys[i+1:]...)
		if err != nil {
			w.errs = append(w.errs, err)
		}
		return len(w.keys) == 0
	}
	return false
}

func (w *commitWaiter) finish() { w.done(errors.Join(w.errs...)) }

// settle takes the outcome of a request in. A commit that was overtaken in the
// queue meanwhile stays there. It is true when something is to be sent again.
func (g *Group) settle(cs []queuedCommit, results map[partitionKey]error, err error) (again bool) {
	var done []*commitWaiter
	g.mu.Lock()
	for _, c := range cs {
		key := c.part.partitionKey
		one := err
		if err == nil {
			one = results[key]
		}
		queued, ok := g.queue.offsets[key]
		if repeatable(one) {
			again = true
			done = append(done, g.lateLocked(key, one)...)
			continue
		}
		if one == nil {
			c.part.committed = c.offset
		}
		if ok && queued == c {
			if one != nil {
				one = fmt.Errorf("commit %s/%d offset %d: %w", key.topic, key.partition, c.offset, one)
			}
			done = append(done, g.outcomeLocked(key, one)...)
			continue
		}
		again = again || ok
	}
	g.mu.Unlock()
	for _, w := range done {
		w.finish()
	}
	return again
}

// lateLocked ends the waits for a partition that have taken too long.
func (g *Group) lateLocked(key partitionKey, err error) (done []*commitWaiter) {
	now := time.Now()
	kept := g.queue.waiters[:0]
	waits := false
	for _, w := range g.queue.waiters {
		if now.After(w.till) && w.ends(key, fmt.Errorf("commit %s/%d: tried for %v: %w: %w", key.topic, key.partition, commitTimeout, ErrOutcomeUnknown, err)) {
			done = append(done, w)
			continue
		}
		waits = waits || !now.After(w.till)
		kept = append(kept, w)
	}
	clear(g.queue.waiters[len(kept):])
	g.queue.waiters = kept
	if !waits {
		delete(g.queue.offsets, key)
	}
	return done
}

// give ends all that is queued.
func (g *Group) give(err error) {
	g.mu.Lock()
	ws := g.queue.waiters
	g.queue = commitQueue{}
	g.ended = true
	g.mu.Unlock()
	for _, w := range ws {
		w.errs = append(w.errs, fmt.Errorf("commit: %w: %w", err, ErrOutcomeUnknown))
		w.finish()
	}
}

// exchange sends one request, and returns the errors of its partitions.
func (g *Group) exchange(ctx context.Context, req *runnelv1.CommitRequest) (map[partitionKey]error, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	s, err := runnelv1.NewLogServiceClient(g.c.conn).Commit(ctx)
	if err != nil {
		return nil, rpcError(err)
	}
	if err := s.Send(req); err != nil && !errors.Is(err, io.EOF) {
		return nil, rpcError(err)
	}
	if err := s.CloseSend(); err != nil {
		return nil, rpcError(err)
	}
	for {
		resp, err := s.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil, errStreamEnded
		case err != nil:
			return nil, rpcError(err)
		case resp.GetRequestId() != req.GetRequestId():
			continue // a goaway
		case resp.GetError() != nil:
			return nil, itemError(resp.GetError())
		case len(resp.GetResults()) != len(req.GetOffsets()):
			return nil, fmt.Errorf("commit: %d results for %d offsets", len(resp.GetResults()), len(req.GetOffsets()))
		}
		results := map[partitionKey]error{}
		for i, r := range resp.GetResults() {
			o := req.GetOffsets()[i]
			results[partitionKey{o.GetTopic(), o.GetPartition()}] = itemError(r.GetError())
		}
		return results, nil
	}
}
