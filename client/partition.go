package client

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/runnelmq/runnel/internal/record"
)

// A partition is where a producer collects, sends and waits for the batches of
// one partition. Batches move from open over queue to inflight, oldest first,
// and from there to their outcome; one that is refused for a passing reason
// waits in refused until nothing is in flight any more, and then goes to the
// head of the queue again.
type partition struct {
	p      *Producer
	topic  *topic
	id     string // topic id that the partition was known under
	number int32

	// mu guards the fields below and the batches
	mu sync.Mutex

	open     *batch
	queue    []*batch
	inflight []*batch
	refused  []*batch
	// proven is the size of the largest batch that a broker has taken since the
	// last refusal or lost stream. A larger one is sent alone: should it be
	// refused, nothing later is stored before it comes again.
	proven int
	// pausedTill is when a refused batch may be sent again.
	pausedTill time.Time
	headers    []record.HeaderKV // of the record being added
	// lane is where what is in flight went; another one is chosen only when
	// nothing is. epoch is the leader's then, as far as it was known.
	lane  *lane
	epoch int64
	// scheduled is true while the partition is in the lane's ready list.
	scheduled bool
	recalling bool
	num       numbering
	closed    bool // takes no records any more
}

// add puts a record of size bytes into the open batch, and reports whether the
// partition has now something to send and is to be scheduled. gen is the
// generation that the record belongs to already, nil for none.
func (pt *partition) add(r *Record, size, maxRecord int, e entry, cost int64, now time.Time, urgent bool, gen *generation) (schedule bool, err error) {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	if pt.closed {
		return false, ErrClosed
	}
	pt.headers = pt.headers[:0]
	for _, h := range r.Headers {
		pt.headers = append(pt.headers, record.HeaderKV(h))
	}
	// A record at the limit needs a batch to itself: its time takes no bytes
	// there.
	apart := size+maxTimestampSize > maxRecord
	full := pt.topic.batchBytes(pt.p.o.batchBytes)
	for {
		if pt.open != nil && (apart || gen != nil && pt.open.gen != gen || pt.open.builder.Size()+size > full) {
			pt.sealLocked()
		}
		if pt.open == nil {
			pt.open = pt.newBatch(now, gen)
		}
		b := pt.open
		err = b.builder.Add(r.Key, r.Value, pt.headers, e.stampMs)
		if err == nil {
			break
		}
		if b.builder.Count() == 0 {
			pt.discardLocked()
			return false, recordError(err)
		}
		// It is full, or the record's time too far from the first one's: what
		// is wrong with the record alone shows in a batch of its own.
		pt.sealLocked()
	}
	b := pt.open
	b.entries = append(b.entries, e)
	b.cost += cost
	b.urgent = b.urgent || urgent
	if apart || b.builder.Size() >= full || len(b.entries) >= maxBatchRecords {
		pt.sealLocked()
	}
	return pt.scheduleLocked(now), nil
}

func (pt *partition) newBatch(now time.Time, gen *generation) *batch {
	b := &batch{
		part: pt, builder: pt.p.builders.get(), entries: pt.p.entries.get(),
		gen: pt.p.join(gen), opened: now, due: now.Add(pt.p.o.delivery), seq: notNumbered,
	}
	b.expiry = time.AfterFunc(pt.p.o.delivery, func() { pt.expire(b) })
	if pt.p.o.linger > 0 {
		b.linger = time.AfterFunc(pt.p.o.linger, pt.wake)
	}
	return b
}

// discardLocked takes back an open batch that never got a record.
func (pt *partition) discardLocked() {
	s, _ := pt.open.settle(nil)
	pt.open.drop(&pt.p.builders)
	pt.open = nil
	pt.p.settle(s)
}

// sealLocked moves the open batch to the queue.
func (pt *partition) sealLocked() {
	if pt.open == nil {
		return
	}
	pt.open.stage = stageQueued
	pt.queue = append(pt.queue, pt.open)
	pt.open = nil
}

// seal ends the wait of the open batch, for a flush.
func (pt *partition) seal() {
	pt.mu.Lock()
	pt.sealLocked()
	pt.mu.Unlock()
	pt.wake()
}

// wake schedules the partition when it has something to send.
func (pt *partition) wake() {
	pt.mu.Lock()
	schedule := pt.scheduleLocked(time.Now())
	pt.mu.Unlock()
	if schedule {
		pt.push()
	}
}

// push puts a partition that was scheduled into the ready list of its lane.
func (pt *partition) push() {
	pt.mu.Lock()
	l := pt.lane
	pt.mu.Unlock()
	l.push(pt)
}

// unschedule takes the partition, which was in a ready list, out of it, and
// schedules it as it is now right.
func (pt *partition) unschedule() {
	pt.mu.Lock()
	pt.scheduled = false
	pt.mu.Unlock()
	pt.wake()
}

// scheduleLocked marks the partition as scheduled and returns true when it has
// something to send and was not.
func (pt *partition) scheduleLocked(now time.Time) bool {
	if pt.scheduled || !pt.sendableLocked(now) || !pt.routedLocked() {
		return false
	}
	pt.scheduled = true
	return true
}

func (pt *partition) sendableLocked(now time.Time) bool {
	switch {
	case len(pt.refused) > 0 || pt.num.gap || len(pt.inflight) >= pt.p.o.inFlight || now.Before(pt.pausedTill):
		return false
	case len(pt.queue) > 0:
		return pt.provenLocked(pt.queue[0])
	case pt.open == nil || !pt.provenLocked(pt.open):
		return false
	case pt.open.urgent || pt.p.memory.pressed():
		return true
	case pt.p.o.linger == 0:
		return len(pt.inflight) == 0
	}
	return now.Sub(pt.open.opened) >= pt.p.o.linger
}

// routedLocked reports whether the next batch can go, and sees to it that lane
// is where to. What goes another way waits until nothing is in flight.
func (pt *partition) routedLocked() bool {
	if !pt.p.identified() {
		return false
	}
	c := pt.p.c
	to, epoch := c.route(c.cluster.view.Load(), pt.topic.name, pt.id, pt.number)
	if pt.lane != nil && pt.lane.place == to {
		pt.epoch = epoch
		return true
	}
	if len(pt.inflight) > 0 {
		return false
	}
	pt.lane, pt.epoch = pt.p.laneTo(to), epoch
	return true
}

// moved looks whether there is another leader than the one that what is in
// flight went to. From that one nothing may come for long; with numbers, what
// it was sent can be sent to the new leader as well.
func (pt *partition) moved() {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	if pt.recalling || !pt.strandedLocked() {
		return
	}
	pt.recalling = true
	time.AfterFunc(recallAfter, pt.recall)
}

// recallAfter is how long the former leader may take to answer.
const recallAfter = time.Second

func (pt *partition) strandedLocked() bool {
	if !pt.p.o.idempotent || len(pt.inflight) == 0 || pt.lane == nil || pt.lane.place == viaSeed {
		return false
	}
	addr, epoch := pt.p.c.cluster.view.Load().leader(pt.topic.name, pt.id, pt.number)
	return epoch > pt.epoch && place(addr) != pt.lane.place
}

func (pt *partition) recall() {
	pt.mu.Lock()
	pt.recalling = false
	l, stranded := pt.lane, pt.strandedLocked()
	pt.mu.Unlock()
	if !stranded {
		return
	}
	l.recall(pt, errLeaderMoved)
	pt.moved() // what was just being sent
}

// provenLocked reports whether b may follow what is in flight. With numbers
// anything may: the leader takes nothing after what it has refused.
func (pt *partition) provenLocked(b *batch) bool {
	if len(pt.inflight) == 0 || pt.p.o.idempotent {
		return true
	}
	return b.size() <= pt.proven && pt.inflight[len(pt.inflight)-1].sized <= pt.proven
}

// take moves the next batch in flight, on lane l, and returns it; nil when
// there is nothing to send there. The partition is no longer scheduled, unless
// more is true.
func (pt *partition) take(l *lane, now time.Time) (b *batch, more bool) {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	pt.scheduled = false
	if !pt.sendableLocked(now) {
		return nil, false
	}
	if !pt.routedLocked() || pt.lane != l {
		return nil, pt.scheduleLocked(now) // for another lane, or none yet
	}
	if len(pt.queue) == 0 {
		pt.sealLocked()
	}
	b = pt.queue[0]
	pt.queue = pt.queue[1:]
	b.stage = stageInFlight
	b.sized = b.size()
	if pt.p.o.idempotent {
		pt.num.assign(b)
	}
	pt.inflight = append(pt.inflight, b)
	return b, pt.scheduleLocked(now)
}

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
	case v.again || v.split && len(b.entries) > 1:
		pt.proven = 0
		pt.refuseLocked(b, v)
	default:
		out = pt.settleLocked(b, v, out)
	}
	return out
}

// refuseLocked keeps b to be sent again.
func (pt *partition) refuseLocked(b *batch, v verdict) {
	b.stage, b.lastErr = stageQueued, v.err
	b.attempts++
	b.retries++
	pt.refused = append(pt.refused, b)
	switch {
	case v.split:
		b.attempts = 0
	case !v.moved && !(v.outOfOrder && b.attempts == 1):
		pt.pauseLocked(b, v.pause)
	}
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
// What was too large goes in parts. Nothing is in flight.
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
		if !errors.Is(b.lastErr, ErrRecordTooLarge) {
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
		b.stage = stageQueued
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

// expire ends the wait for b, wherever it is.
func (pt *partition) expire(b *batch) {
	var out []settled
	pt.mu.Lock()
	sent := b.stage == stageInFlight
	err := deliveryTimeout(pt.p.o.delivery, b.lastErr, pt.hindranceLocked())
	if sent || b.inDoubt {
		err = unknown(err)
	}
	s, ok := b.settle(err)
	if ok {
		out = append(out, s)
		if !sent {
			pt.num.gone(b, b.inDoubt)
			pt.forgetLocked(b)
		}
	}
	pt.finish(out)
}

// hindranceLocked is why nothing is sent at present.
func (pt *partition) hindranceLocked() error {
	if pt.lane != nil {
		if err := pt.lane.failure(); err != nil {
			return err
		}
	}
	return pt.p.identityError()
}

// failUnsent fails what was never sent.
func (pt *partition) failUnsent(err error) {
	var out []settled
	pt.mu.Lock()
	pt.sealLocked()
	kept := pt.queue[:0]
	for _, b := range pt.queue {
		if b.seq != notNumbered {
			kept = append(kept, b)
			continue
		}
		out = pt.settleLocked(b, verdict{err: err, base: -1}, out)
	}
	clear(pt.queue[len(kept):])
	pt.queue = kept
	pt.finish(out)
}

// forgetLocked drops a batch that was never sent, or was refused. One that is
// in flight keeps its place until its answer or the end of its stream.
func (pt *partition) forgetLocked(b *batch) {
	if pt.open == b {
		pt.open = nil
	}
	pt.queue = remove(pt.queue, b)
	pt.refused = remove(pt.refused, b)
	b.drop(&pt.p.builders)
}

// abandon settles all that has no outcome when the producer is closed: err for
// what was never sent. Nothing is in flight any more.
func (pt *partition) abandon(err error) {
	var out []settled
	pt.mu.Lock()
	pt.closed = true
	pt.sealLocked()
	for _, b := range append(pt.refused, pt.queue...) {
		why := err
		if b.lastErr != nil {
			why = fmt.Errorf("%w: %w", err, b.lastErr)
		}
		if b.inDoubt {
			why = unknown(why)
		}
		out = pt.settleLocked(b, verdict{err: why, base: -1}, out)
	}
	pt.refused, pt.queue = nil, nil
	pt.mu.Unlock()
	for _, s := range out {
		pt.p.settle(s)
	}
}

// deliveryTimeout says how long was tried and what stood in the way.
func deliveryTimeout(d time.Duration, causes ...error) error {
	for _, c := range causes {
		if c != nil {
			return fmt.Errorf("%w after %v: %w", ErrDeliveryTimeout, d, c)
		}
	}
	return fmt.Errorf("%w after %v", ErrDeliveryTimeout, d)
}
