package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// A groupPart is a partition that this member owns. The group's mu guards it.
type groupPart struct {
	partitionKey

	id    string // of the topic
	epoch int64  // of the assignment
	// from is where the group stood: noOffset when it has not committed anything.
	from, fromEpoch int64
	// placed is whether it is being read, or has failed.
	placed bool
	first  int64 // where reading began; noOffset: at the beginning
	handed int64 // first offset that was not handed out; noOffset: none was
	done   int64 // first offset that is not processed; noOffset: not known
	// doneEpoch is the leader epoch of the record before done.
	doneEpoch int64
	committed int64
	said      queuedCommit // by the program, the furthest
	// revoked is closed when it is to be given up, or lost; gone, when it is
	// not owned any more.
	revoked, gone chan struct{}
	// giving is whether it is; moving, whether Seek is at work.
	giving, moving bool
}

// beginLocked takes note of where reading begins, which is processed up to there.
func (p *groupPart) beginLocked(at int64) {
	p.first, p.handed, p.done, p.doneEpoch, p.committed = at, at, at, noOffset, noOffset
	p.said = queuedCommit{part: p, offset: at, epoch: noOffset}
}

var errGroupClosed = fmt.Errorf("the group is %w", ErrClosed)

// A groupHand is what the program has in hand.
type groupHand struct {
	part *groupPart
	b    *Batch
	// next is what is done when it is processed; noOffset: nothing yet. whole is
	// whether that is the batch.
	next   int64
	epoch  int64
	whole  bool
	cancel context.CancelCauseFunc // of the handler; may be nil
}

func sortedParts(parts map[partitionKey]*groupPart) []*groupPart {
	return slices.SortedFunc(maps.Values(parts), func(a, b *groupPart) int {
		return cmp.Or(cmp.Compare(a.topic, b.topic), cmp.Compare(a.partition, b.partition))
	})
}

func partIDs(ps []*groupPart) []PartitionID {
	ids := make([]PartitionID, 0, len(ps))
	for _, p := range ps {
		ids = append(ids, PartitionID{p.topic, p.partition})
	}
	return ids
}

func (g *Group) part(key partitionKey) *groupPart {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.parts[key]
}

// resume begins where it has not begun, counts what was handed out as processed,
// and returns the rest of a batch that was left in the middle.
func (g *Group) resume(whole bool) (*Batch, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, errGroupClosed
	}
	if !g.begun {
		g.begun = true
		g.begin()
	}
	g.settleLocked()
	b := g.rest
	g.rest = nil
	if b == nil || !g.holdsLocked(b) {
		return nil, nil
	}
	g.handLocked(b, whole)
	return b, nil
}

// trouble returns what the program is to be told.
func (g *Group) trouble() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed:
		return errGroupClosed
	case g.err != nil:
		return g.err
	case len(g.errs) > 0:
		err := g.errs[0]
		g.errs = g.errs[1:]
		return err
	}
	return nil
}

// settleLocked counts what is in hand as processed.
func (g *Group) settleLocked() {
	h := g.hand
	if h == nil {
		return
	}
	if h.whole {
		h.next, h.epoch = h.b.next, h.b.last
		if h.b.bad != nil { // only what came before it
			h.next, h.epoch = h.b.pos.Load(), h.b.epoch
		}
	}
	if h.next > h.part.done {
		h.part.done, h.part.doneEpoch = h.next, h.epoch
	}
	g.emptyLocked()
}

// emptyLocked takes note that nothing is in hand.
func (g *Group) emptyLocked() {
	g.hand = nil
	close(g.settled)
	g.settled = make(chan struct{})
}

// holdsLocked reports whether records of b may be handed out.
func (g *Group) holdsLocked(b *Batch) bool {
	p := g.parts[b.a.partitionKey]
	return p != nil && !p.giving && !p.moving && !g.closed && b.tag == b.a.tag.Load() && g.aliveLocked()
}

// aliveLocked reports whether the group may still count this member in. Once it
// is false, everything is lost: answers that come too late change nothing.
func (g *Group) aliveLocked() bool {
	if time.Now().Before(g.lease) {
		return true
	}
	g.lease = time.Time{}
	poke(g.toWatch)
	return false
}

func (g *Group) handLocked(b *Batch, whole bool) {
	p := g.parts[b.a.partitionKey]
	g.hand = &groupHand{part: p, b: b, next: noOffset, epoch: noOffset, whole: whole}
	if whole {
		p.handed = b.next
	}
}

// accept takes a batch in hand. It is false when its partition is not this
// member's any more.
func (g *Group) accept(b *Batch, whole bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.holdsLocked(b) {
		return false
	}
	g.handLocked(b, whole)
	return true
}

// hold counts the record before as processed and takes the present one of b in
// hand. It is false when that may not be.
func (g *Group) hold(b *Batch) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.hand
	if h == nil { // it was moved by the loop's body
		return false
	}
	if h.next > h.part.done {
		h.part.done, h.part.doneEpoch = h.next, h.epoch
	}
	if !g.holdsLocked(b) {
		g.emptyLocked()
		return false
	}
	h.next, h.epoch = b.rec.Offset+1, b.rec.LeaderEpoch
	h.part.handed = h.next
	return true
}

// layDown counts what is in hand as processed, and keeps the rest of b for the next
// call.
func (g *Group) layDown(b *Batch) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.hand != nil {
		g.settleLocked()
		g.rest = b
	}
}

// leaveAt takes note that the loop was left with the present record of b in hand.
func (g *Group) leaveAt(b *Batch) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.rest = b
	}
}

// finish counts a batch that was walked through as processed.
func (g *Group) finish(b *Batch) {
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.hand
	if h == nil {
		return
	}
	if b.bad == nil && h.b == b {
		h.next = max(h.next, b.next)
		if b.last != noOffset {
			h.epoch = b.last
		}
	}
	g.settleLocked()
}

// A passage is a move of a Reader's position over offsets that have no records.
type passage struct {
	a              *assigned
	tag            uint64
	logStart, next int64
}

// pass counts offsets without records as processed. All that came before them was
// handed out, and is settled.
func (g *Group) pass() {
	g.r.mu.Lock()
	ps := g.r.passed
	g.r.passed = nil
	g.r.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, x := range ps {
		p := g.parts[x.a.partitionKey]
		if p == nil || p.giving || p.moving || x.tag != x.a.tag.Load() || !g.aliveLocked() {
			continue
		}
		// Where nothing was committed, nothing is as long as there is nothing.
		if x.next > max(p.done, x.logStart) {
			p.done, p.doneEpoch = x.next, noOffset
		}
	}
}

// passing reports whether an error of reading is one that the group gets over
// by itself: a topic that is deleted is taken away by the brokers soon.
func (g *Group) passing(err error) bool {
	pe, ok := errors.AsType[*PartitionError](err)
	if !ok || !vanished(err) {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if p := g.parts[partitionKey{pe.Topic, pe.Partition}]; p != nil {
		p.placed = false
		if p.done != noOffset {
			p.from, p.fromEpoch = p.done, p.doneEpoch
		}
	}
	time.AfterFunc(replaceAfter, func() { poke(g.toKeep) })
	return true
}

// vanished reports whether err is about a topic that there is not, or not yet.
func vanished(err error) bool {
	return errors.Is(err, ErrTopicNotFound) || errors.Is(err, ErrTopicIDMismatch) || errors.Is(err, ErrPartitionNotFound)
}

// forfeit takes everything for lost. With final, for good.
func (g *Group) forfeit(why error, final bool) {
	g.mu.Lock()
	ps := sortedParts(g.parts)
	g.epoch, g.target, g.lease = 0, nil, time.Time{}
	clear(g.given)
	if final && g.err == nil {
		g.err = why
	}
	g.loseLocked(ps, why)
	g.mu.Unlock()
	g.dropped(ps)
	poke(g.toRejoin)
}

// loseLocked takes partitions for lost.
func (g *Group) loseLocked(ps []*groupPart, why error) {
	for _, p := range ps {
		delete(g.parts, p.partitionKey)
		if !p.giving {
			close(p.revoked)
		}
		p.giving = true
		close(p.gone)
		if h := g.hand; h != nil && h.part == p {
			if h.cancel != nil {
				h.cancel(ErrPartitionLost)
			}
			g.emptyLocked()
		}
	}
	g.lost = append(g.lost, ps...)
	g.lostWhy = why
}

// dropped stops reading lost partitions, also a batch of them that is in hand, and
// has the program told.
func (g *Group) dropped(ps []*groupPart) {
	for _, p := range ps {
		g.r.lose(p.partitionKey)
	}
	poke(g.r.news)
	poke(g.toKeep)
	poke(g.toCommit)
}

// lose stops reading a partition, and ends the batch of it that is in hand.
func (r *Reader) lose(key partitionKey) {
	_ = r.edit(key.topic, key.partition, func(a *assigned) {
		a.lost.Store(true)
		r.dropLocked(a)
		delete(r.parts, key)
		a.leaveLocked()
	})
}

// placeAt begins to read a partition at a place that was resolved. The epoch is
// that of the record before; noOffset: not known.
func (r *Reader) placeAt(l *lookup, epoch int64) {
	r.c.cluster.want(l.topic)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	r.placeLocked(l, 0)
	r.parts[partitionKey{l.topic, l.partition}].epoch = epoch
	if !r.begun {
		r.begun = true
		r.spawn()
	}
	r.changedLocked()
}
