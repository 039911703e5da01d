package client

import (
	"context"
	"errors"
	"time"
)

// A groupRevision names an Assignment: the number of the stream that it came
// over, and its own there.
type groupRevision struct {
	stream   int
	revision uint64
}

// A groupTarget is what the member is to own, whole. It is never changed.
type groupTarget struct {
	groupRevision

	parts map[partitionKey]*groupPart
}

// replaceAfter is how soon a partition that could not be begun with is tried again.
const replaceAfter = time.Second

// keep brings what is owned in line with what is to be owned, one change at a time,
// until ctx ends. All hooks are called here, but for those of Close.
func (g *Group) keep(ctx context.Context) {
	retry := time.NewTimer(0)
	defer retry.Stop()
	for ctx.Err() == nil {
		select {
		case <-g.toKeep:
		case <-retry.C:
		case <-ctx.Done():
			return
		}
		g.mourn()
		g.mu.Lock()
		t := g.target
		g.mu.Unlock()
		if t == nil {
			continue
		}
		if !g.reconcile(ctx, t) {
			retry.Reset(replaceAfter)
		}
	}
}

// mourn tells of what was lost.
func (g *Group) mourn() {
	g.mu.Lock()
	ps, why := g.lost, g.lostWhy
	g.lost = nil
	g.mu.Unlock()
	if len(ps) > 0 && g.o.hooks.OnLost != nil {
		g.o.hooks.OnLost(partIDs(ps), why)
	}
}

// reconcile carries a target out. It is false when something is to be tried again.
func (g *Group) reconcile(ctx context.Context, t *groupTarget) bool {
	gone, anew := g.compare(t)
	if len(anew) > 0 {
		g.mu.Lock()
		g.loseLocked(anew, ErrPartitionLost)
		g.mu.Unlock()
		g.dropped(anew)
		g.mourn()
	}
	if len(gone) > 0 {
		g.stopReading(gone)
		g.awaitHand(ctx, gone)
		if ctx.Err() != nil {
			return true // Close does the rest
		}
		// Its error is the business of whoever waits for a commit: what was not stored
		// is processed once more by the next owner.
		_ = g.giveUp(ctx, gone)
	}
	fresh := g.adopt(t)
	if len(fresh) > 0 && g.o.hooks.OnAssign != nil {
		g.o.hooks.OnAssign(partIDs(fresh))
	}
	ok := g.place(ctx)
	g.mu.Lock()
	if g.target != nil && g.target.stream == t.stream {
		g.carried = t.groupRevision
	}
	g.mu.Unlock()
	poke(g.toTell)
	return ok
}

// compare returns what is owned and not to be, and what is to be begun anew: it
// was somebody else's meanwhile, or its offset was set by hand.
func (g *Group) compare(t *groupTarget) (gone, anew []*groupPart) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range sortedParts(g.parts) {
		switch want := t.parts[p.partitionKey]; {
		case want == nil:
			gone = append(gone, p)
		case want.epoch != p.epoch || want.id != p.id:
			anew = append(anew, p)
		}
	}
	return gone, anew
}

// stopReading ends fetching, and handing out, of partitions that are given up.
func (g *Group) stopReading(ps []*groupPart) {
	g.mu.Lock()
	for _, p := range ps {
		if !p.giving {
			p.giving = true
			close(p.revoked)
		}
	}
	g.mu.Unlock()
	for _, p := range ps {
		_ = g.r.Remove(p.topic, p.partition) // it may not have been placed
	}
	poke(g.r.news)
}

// awaitHand waits until nothing of ps is in hand: at most for most of the rebalance
// timeout, since who is over it is expelled, with all that it has.
func (g *Group) awaitHand(ctx context.Context, ps []*groupPart) {
	g.mu.Lock()
	wait := g.rebalance
	g.mu.Unlock()
	if wait == 0 {
		wait = time.Minute
	}
	timer := time.NewTimer(wait - wait/5)
	defer timer.Stop()
	for {
		g.mu.Lock()
		settled, busy := g.settled, (*groupPart)(nil)
		for _, p := range ps {
			if g.hand != nil && g.hand.part == p {
				busy = p
			}
		}
		g.mu.Unlock()
		if busy == nil {
			return
		}
		select {
		case <-settled:
		case <-timer.C:
			g.mu.Lock()
			g.loseLocked([]*groupPart{busy}, ErrPartitionLost)
			g.mu.Unlock()
			g.dropped([]*groupPart{busy})
			return
		case <-ctx.Done():
			return
		}
	}
}

// giveUp has the last commits of ps answered, and owns them no more.
func (g *Group) giveUp(ctx context.Context, ps []*groupPart) error {
	g.mu.Lock()
	var held []*groupPart
	for _, p := range ps {
		if g.parts[p.partitionKey] == p {
			held = append(held, p)
		}
	}
	g.mu.Unlock()
	if len(held) == 0 {
		return nil
	}
	if g.o.hooks.OnRevoke != nil {
		g.o.hooks.OnRevoke(partIDs(held))
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := g.commitLast(ctx, held)
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range held {
		if g.parts[p.partitionKey] == p {
			delete(g.parts, p.partitionKey)
			close(p.gone)
			g.given[p.partitionKey] = p
		}
	}
	return err
}

// adopt takes over what is new in t, and returns it.
func (g *Group) adopt(t *groupTarget) (fresh []*groupPart) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.target == nil || g.closed { // all was lost meanwhile
		return nil
	}
	for _, p := range sortedParts(t.parts) {
		if g.parts[p.partitionKey] != nil {
			continue
		}
		if now := g.target.parts[p.partitionKey]; now == nil || now.epoch != p.epoch {
			continue // the next target, which is there already, is another
		}
		own := *p
		own.revoked, own.gone = make(chan struct{}), make(chan struct{})
		own.first, own.handed, own.done, own.doneEpoch, own.committed = noOffset, noOffset, noOffset, noOffset, noOffset
		if was, ok := g.given[p.partitionKey]; ok && was.epoch == p.epoch && was.id == p.id && was.done != noOffset {
			own.from, own.fromEpoch = was.done, was.doneEpoch // it came back before it was anybody else's
		}
		delete(g.given, p.partitionKey)
		g.parts[p.partitionKey] = &own
		fresh = append(fresh, &own)
	}
	return fresh
}

// place begins to read what is owned and not read yet. It is false when something
// is to be tried again.
func (g *Group) place(ctx context.Context) bool {
	g.mu.Lock()
	var ps []*groupPart
	for _, p := range sortedParts(g.parts) {
		if !p.placed && !p.giving {
			ps = append(ps, p)
		}
	}
	g.mu.Unlock()
	ok := true
	for _, p := range ps {
		ok = g.placeOne(ctx, p) && ok
	}
	return ok
}

func (g *Group) placeOne(ctx context.Context, p *groupPart) bool {
	l := &lookup{topic: p.topic, id: p.id, partition: p.partition, start: AtOffset(p.from)}
	switch {
	case p.from != noOffset:
	case g.o.noCommit == ResetFail:
		g.fail(p, ErrNoCommit)
		return true
	case g.o.noCommit == ResetLatest:
		l.start = Latest()
	default:
		l.start = Earliest()
	}
	one, cancel := context.WithTimeout(ctx, callTimeout)
	err := g.c.resolveAll(one, []*lookup{l}, g.r.o.isolation)
	cancel()
	switch {
	case err == nil:
	case vanished(err), Retriable(err), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return false
	default:
		g.fail(p, err)
		return true
	}
	g.mu.Lock()
	owned := g.parts[p.partitionKey] == p && !p.giving && !g.closed
	if owned {
		p.placed = true
		from, epoch := p.from, p.fromEpoch
		p.beginLocked(l.from)
		if from != noOffset {
			p.committed, p.doneEpoch = from, epoch
		}
	}
	g.mu.Unlock()
	if !owned {
		return true
	}
	g.r.placeAt(l, p.fromEpoch)
	g.mu.Lock()
	owned = g.parts[p.partitionKey] == p && !p.giving
	g.mu.Unlock()
	if !owned { // it was lost between the two
		g.r.lose(p.partitionKey)
	}
	return true
}

// fail has the program told that a partition is not read.
func (g *Group) fail(p *groupPart, err error) {
	g.mu.Lock()
	p.placed = true
	if _, ok := errors.AsType[*PartitionError](err); !ok {
		err = &PartitionError{Topic: p.topic, Partition: p.partition, Err: err}
	}
	g.errs = append(g.errs, err)
	g.mu.Unlock()
	poke(g.r.news)
}
