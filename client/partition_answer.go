package client

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// remove takes b out of list.
func remove(list []*batch, b *batch) []*batch {
	for i := range list {
		if list[i] == b {
			return append(list[:i:i], list[i+1:]...)
		}
	}
	return list
}

// answered gives b, which was in flight, its verdict.
func (pt *partition) answered(b *batch, v verdict) {
	var out []settled
	pt.mu.Lock()
	pt.inflight = remove(pt.inflight, b)
	if v.err == nil {
		pt.trouble = nil
	}
	if pt.p.o.idempotent {
		out = pt.judgeNumbered(b, v, out)
	} else {
		out = pt.judgeOnce(b, v, out)
	}
	pt.finish(out)
}

// finish looks what follows from a change, and unlocks the partition, which
// the caller has locked.
func (pt *partition) finish(out []settled) {
	if len(pt.inflight) == 0 {
		out = pt.requeueLocked(out)
	}
	schedule := pt.scheduleLocked(time.Now())
	pt.mu.Unlock()
	for _, s := range out {
		pt.p.settle(s)
	}
	if schedule {
		pt.push()
	}
}

// judgeOnce gives a batch without a number its verdict. One that may be stored
// is never sent again.
func (pt *partition) judgeOnce(b *batch, v verdict, out []settled) []settled {
	if v.err == nil {
		pt.proven = max(pt.proven, b.sized)
	}
	if v.err == nil || v.doubt() {
		out = pt.overtakenLocked(out)
	}
	if v.lost {
		pt.proven = 0
	}
	switch {
	case b.stage == stageSettled: // its time was up before
		b.drop(&pt.p.builders)
	case v.again || v.split && b.mayBeCut(v.err):
		pt.proven = 0
		pt.refuseLocked(b, v)
	default:
		out = pt.settleLocked(b, v, out)
	}
	return out
}

// refuseLocked keeps b to be sent again.
func (pt *partition) refuseLocked(b *batch, v verdict) {
	b.stage, b.lastErr = stageQueued, telling(b.lastErr, bare(v.err))
	pt.trouble = telling(pt.trouble, b.lastErr)
	b.misplaced, b.cut = v.outOfOrder, v.split
	b.attempts++
	b.retries++
	pt.refused = append(pt.refused, b)
	switch {
	case v.split:
		b.attempts = 0
	case v.moved, v.outOfOrder && (b.attempts == 1 || pt.mendingLocked()): // at once
	default:
		pt.pauseLocked(b, v.pause)
	}
}

// mendingLocked reports whether it is known why a number is not the next one: an
// earlier batch is gone, or will come in parts.
func (pt *partition) mendingLocked() bool {
	return pt.num.gap || slices.ContainsFunc(pt.refused, func(b *batch) bool { return b.cut })
}

// settleLocked ends b.
func (pt *partition) settleLocked(b *batch, v verdict, out []settled) []settled {
	s, ok := b.settle(v.err)
	if ok {
		s.base, s.stampMs, s.duplicate = v.base, v.stampMs, v.duplicate
		out = append(out, s)
	}
	b.drop(&pt.p.builders)
	return out
}

// overtakenLocked fails what was refused before a batch that is, or may be,
// stored: sending it again would change the order.
func (pt *partition) overtakenLocked(out []settled) []settled {
	for _, b := range pt.refused {
		out = pt.settleLocked(b, verdict{err: fmt.Errorf("%w: refused: %w", ErrOrder, b.lastErr), base: -1}, out)
	}
	pt.refused = nil
	return out
}

// requeueLocked puts what was refused back at the head of the queue, in order.
// What was too large, or has a bad record in it, goes in parts. Nothing is in flight.
func (pt *partition) requeueLocked(out []settled) []settled {
	if pt.p.o.idempotent {
		out = pt.renumberLocked(out)
	}
	if len(pt.refused) == 0 {
		return out
	}
	var head []*batch
	for _, b := range pt.refused {
		if b.stage == stageSettled {
			continue
		}
		if !b.cut {
			head = append(head, b)
			continue
		}
		parts, failed := pt.p.split(b)
		head = append(head, parts...)
		if failed != nil {
			out = append(out, *failed)
		}
	}
	pt.refused = nil
	pt.queue = append(head, pt.queue...)
	return out
}

// pauseLocked keeps the partition quiet for a while that grows with each
// refusal, or as long as the broker asked for.
func (pt *partition) pauseLocked(b *batch, asked time.Duration) {
	d := backoffFor(b.attempts)
	if asked > 0 {
		d = asked
	}
	till := time.Now().Add(d)
	if till.Before(pt.pausedTill) {
		return
	}
	pt.pausedTill = till
	time.AfterFunc(d, pt.wake)
}

// backoffFor returns the pause after the nth failure in a row.
func backoffFor(n int) time.Duration {
	d := firstBackoff << min(max(n-1, 0), 10)
	d = min(d, maxBackoff)
	return d/2 + rand.N(d/2+1) //nolint:gosec // to spread, not to hide
}

// returned takes batches back that no broker has read, in the order they were
// sent.
func (pt *partition) returned(bs []*batch, why error) {
	pt.mu.Lock()
	pt.proven = 0
	var head []*batch
	for _, b := range bs {
		pt.inflight = remove(pt.inflight, b)
		if b.stage == stageSettled {
			pt.num.gone(b, b.inDoubt)
			b.drop(&pt.p.builders)
			continue
		}
		b.stage, b.misplaced, b.cut = stageQueued, false, false
		if why != nil {
			b.lastErr = why
		}
		head = append(head, b)
	}
	if pt.p.o.idempotent {
		pt.refused = append(pt.refused, head...)
	} else {
		pt.queue = append(head, pt.queue...)
	}
	pt.finish(nil)
}
