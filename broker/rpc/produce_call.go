package rpc

import (
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/broker/router"
)

// A produceCall is one request from when it was read until it is answered.
type produceCall struct {
	p  *produceSession
	id uint64
	// err is why the whole request failed; nothing was sent anywhere then.
	err error
	// parts are what goes to each partition. Invariant: it does not change
	// once the call is in the queues.
	parts []*producePart
	// places tells for each record, in input order, where it went.
	places []recordPlace
	// batch is true when the request was a batch, whose answer has no results.
	batch, none bool
	timeout     time.Duration
	deadline    time.Time

	// unresolved counts parts without an outcome, plus one while the reader is
	// still at it.
	unresolved int
	answered   bool
	// next and prev link the calls that wait.
	next, prev *produceCall
}

type recordPlace struct {
	part, index int32
}

// A producePart is what of a request goes to one partition.
type producePart struct {
	call *produceCall
	key  partKey
	part *partition.Partition // nil: this broker has no copy of it
	// queued is true when it is in the queue of its partition.
	queued bool
	// done is what the partition calls; made once for each part ever made.
	done   func(error)
	cancel func() bool
	got    partition.Appended
	parked bool // counted as waiting for its commit
	// stored is true once the log has it.
	stored bool
	// logAppendTime is true when the answer tells the leader's time.
	logAppendTime bool
	resolved      bool
	err           error
	// next is the part behind it in the queue of its partition.
	next *producePart
}

// partKey names a partition.
type partKey struct {
	topic  uuid.UUID
	number int32
}

// partQueue is what one stream has sent to one partition and not been answered,
// in the order sent.
type partQueue struct {
	head, tail *producePart
}

// maxKept is how many finished calls a stream keeps for reuse.
const maxKept = 64

// callBook keeps the calls of one stream: it answers those of one partition in
// the order they came, whatever order they are done in.
type callBook struct {
	// wake receives when there may be answers to send, or the end came.
	wake chan struct{}
	// parked counts parts that wait for their commit, of all streams.
	parked prometheus.Gauge

	// mu guards the fields below
	mu sync.Mutex

	closed bool  // nothing is admitted any more
	gone   bool  // and nobody sends answers any more
	ended  bool  // the reader has read its last
	cause  error // why, nil at an orderly end
	// inflight counts calls that were read and not answered yet.
	inflight int
	answers  []*produceCall
	queues   map[partKey]*partQueue
	spare    []*partQueue
	kept     []*produceCall
	// waiting is the ring of calls in the queues.
	waiting produceCall
}

func (b *callBook) init(parked prometheus.Gauge) {
	b.parked = parked
	b.wake = make(chan struct{}, 1)
	b.queues = map[partKey]*partQueue{}
	b.waiting.next, b.waiting.prev = &b.waiting, &b.waiting
}

func (b *callBook) signal() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// admit begins a call; nil when the stream takes no more.
func (b *callBook) admit(p *produceSession) *produceCall {
	b.mu.Lock()
	defer b.mu.Unlock()

	if b.closed {
		return nil
	}
	b.inflight++
	if n := len(b.kept); n > 0 {
		c := b.kept[n-1]
		b.kept = b.kept[:n-1]
		return c
	}
	return &produceCall{p: p}
}

// newPart adds a part to a call that is not in the queues yet.
func (c *produceCall) newPart(key partKey, part *partition.Partition) *producePart {
	if n := len(c.parts); n < cap(c.parts) {
		c.parts = c.parts[:n+1]
		if pt := c.parts[n]; pt != nil {
			pt.key, pt.part = key, part
			return pt
		}
		c.parts = c.parts[:n]
	}
	pt := &producePart{call: c, key: key, part: part}
	pt.done = func(err error) { c.p.calls.resolve(pt, err) }
	c.parts = append(c.parts, pt)
	return pt
}

// answer answers a call that touches no partition, at once.
func (b *callBook) answer(c *produceCall, err error) {
	b.mu.Lock()
	c.err, c.answered = err, true
	b.answers = append(b.answers, c)
	b.mu.Unlock()
	b.signal()
}

// enter puts the call into the queues of its partitions, all at once: so the
// calls of a stream have one order everywhere.
func (b *callBook) enter(c *produceCall) {
	b.mu.Lock()
	defer b.mu.Unlock()

	c.unresolved = len(c.parts) + 1
	c.prev, c.next = b.waiting.prev, &b.waiting
	c.prev.next, c.next.prev = c, c
	for _, pt := range c.parts {
		if pt.err != nil {
			continue
		}
		pt.queued = true
		q := b.queues[pt.key]
		if q == nil {
			q = b.newQueue()
			b.queues[pt.key] = q
		}
		if q.head == nil {
			q.head = pt
		} else {
			q.tail.next = pt
		}
		q.tail = pt
	}
}

func (b *callBook) newQueue() *partQueue {
	if n := len(b.spare); n > 0 {
		q := b.spare[n-1]
		b.spare = b.spare[:n-1]
		return q
	}
	return &partQueue{}
}

// resolve notes the outcome of a part.
func (b *callBook) resolve(pt *producePart, err error) {
	b.mu.Lock()
	b.resolveLocked(pt, err)
	b.mu.Unlock()
	b.signal()
}

func (b *callBook) resolveLocked(pt *producePart, err error) {
	if pt.resolved {
		return
	}
	b.unparkLocked(pt)
	pt.err = err
	if pt.stored && err != nil {
		pt.err = &uncertainError{cause: err, base: pt.got.Base}
	}
	b.doneLocked(pt.call)
}

// unparkLocked notes that a part has an outcome.
func (b *callBook) unparkLocked(pt *producePart) {
	if pt.parked {
		b.parked.Dec()
	}
	pt.resolved, pt.parked, pt.cancel = true, false, nil
}

// forwarded notes what became of a part that took the way through the router.
func (b *callBook) forwarded(pt *producePart, res router.Result) {
	b.mu.Lock()
	pt.got = res.Appended
	err := res.Err
	if err != nil && res.Stored && errors.Is(err, partition.ErrCommitUncertain) {
		err = &uncertainError{cause: err, base: res.Appended.Base}
	}
	b.resolveLocked(pt, err)
	b.mu.Unlock()
	b.signal()
}

// read notes that the reader is through with the call.
func (b *callBook) read(c *produceCall) {
	b.mu.Lock()
	b.doneLocked(c)
	b.mu.Unlock()
	b.signal()
}

func (b *callBook) doneLocked(c *produceCall) {
	if c.unresolved--; c.unresolved == 0 {
		b.settleLocked(c)
	}
}

// settleLocked answers c and those behind it that only waited for it.
func (b *callBook) settleLocked(c *produceCall) {
	if c.answered || c.unresolved > 0 {
		return
	}
	for _, pt := range c.parts {
		if pt.queued && b.queues[pt.key].head != pt {
			return
		}
	}
	c.answered = true
	c.prev.next, c.next.prev = c.next, c.prev
	b.answers = append(b.answers, c)
	for _, pt := range c.parts {
		if !pt.queued {
			continue
		}
		q := b.queues[pt.key]
		if q.head, pt.next = pt.next, nil; q.head == nil {
			delete(b.queues, pt.key)
			q.tail = nil
			b.spare = append(b.spare, q)
			continue
		}
		b.settleLocked(q.head.call)
	}
}

// await notes how to stop waiting for a part. When the stream ended while the
// reader was appending, nobody else will: it stops at once.
func (b *callBook) await(pt *producePart, cancel func() bool) {
	b.mu.Lock()
	if !pt.resolved {
		pt.cancel, pt.parked = cancel, true
		b.parked.Inc()
	}
	gone := b.gone
	b.mu.Unlock()
	if gone {
		b.abandon(pt, false)
	}
}

// expire gives up on parts whose time has passed, and returns when the next
// one's will; zero: none waits.
func (b *callBook) expire(now time.Time) time.Time {
	var overdue []*producePart
	var next time.Time
	b.mu.Lock()
	for c := b.waiting.next; c != &b.waiting; c = c.next {
		if now.Before(c.deadline) {
			next = earlier(next, c.deadline)
			continue
		}
		for _, pt := range c.parts {
			if pt.cancel != nil {
				overdue = append(overdue, pt)
			}
		}
	}
	b.mu.Unlock()
	for _, pt := range overdue {
		b.abandon(pt, true)
	}
	return next
}

// abandon stops waiting for a part, unless its outcome is on its way.
func (b *callBook) abandon(pt *producePart, late bool) {
	b.mu.Lock()
	cancel := pt.cancel
	b.mu.Unlock()
	if cancel == nil || !cancel() { // takes the partition's lock, so not under ours
		return
	}
	b.mu.Lock()
	if !pt.resolved {
		b.unparkLocked(pt)
		u := &uncertainError{cause: partition.ErrCommitUncertain, base: pt.got.Base}
		if late {
			u.after = pt.call.timeout
		}
		pt.err = u
		b.doneLocked(pt.call)
	}
	b.mu.Unlock()
	b.signal()
}

// abandonAll stops waiting for everything: the client is gone.
func (b *callBook) abandonAll() {
	b.mu.Lock()
	b.closed, b.gone = true, true
	var parts []*producePart
	for c := b.waiting.next; c != &b.waiting; c = c.next {
		for _, pt := range c.parts {
			if pt.cancel != nil {
				parts = append(parts, pt)
			}
		}
	}
	b.mu.Unlock()
	for _, pt := range parts {
		b.abandon(pt, false)
	}
}

// close admits no more calls. What was admitted is still answered.
func (b *callBook) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.signal()
}

// finish notes that the reader reads no more.
func (b *callBook) finish(cause error) {
	b.mu.Lock()
	b.closed, b.ended, b.cause = true, true, cause
	b.mu.Unlock()
	b.signal()
}

// A bookState is what a look into the book shows.
type bookState struct {
	// last is true when the answers taken are all there will ever be.
	last bool
	// ended and cause say whether and why the reader has read its last.
	ended bool
	cause error
}

// take moves the answers to send behind into.
func (b *callBook) take(into []*produceCall) ([]*produceCall, bookState) {
	b.mu.Lock()
	defer b.mu.Unlock()

	into = append(into, b.answers...)
	clear(b.answers)
	b.answers = b.answers[:0]
	return into, bookState{last: b.closed && b.inflight == len(into), ended: b.ended, cause: b.cause}
}

// sent ends a call; it may be reused then.
func (b *callBook) sent(c *produceCall) {
	b.mu.Lock()
	defer b.mu.Unlock()

	b.inflight--
	if len(b.kept) >= maxKept || cap(c.places) > 1<<16 || cap(c.parts) > 16 {
		return
	}
	for _, pt := range c.parts {
		*pt = producePart{call: c, done: pt.done}
	}
	*c = produceCall{p: c.p, parts: c.parts[:0], places: c.places[:0]}
	b.kept = append(b.kept, c)
}

// appendedOK records what the log did with a part. It is called before anybody
// waits for the part.
func (b *callBook) appendedOK(pt *producePart, got partition.Appended) {
	b.mu.Lock()
	defer b.mu.Unlock()

	pt.got, pt.stored = got, true
}
