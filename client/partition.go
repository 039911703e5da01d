package client

import (
	"cmp"
	"errors"
	"fmt"
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
	usual      int               // size of the last batch that was completed
	// lane is where what is in flight went; another one is chosen only when
	// nothing is. epoch is the leader's then, as far as it was known.
	lane  *lane
	epoch int64
	// scheduled is true while the partition is in the lane's ready list.
	scheduled bool
	recalling bool
	num       numbering
	// trouble is why a batch was refused last, nil once one was taken again.
	trouble error
	closed  error // why it takes no records any more
}

// add puts a record of size bytes into the open batch, and reports whether the
// partition has now something to send and is to be scheduled. due is when the
// record's time is up, and gen the generation of one that was held, nil of others.
func (pt *partition) add(r *Record, size, maxRecord int, e entry, cost int64, due time.Time, urgent bool, gen *generation) (schedule bool, err error) {
	now := due.Add(-pt.p.o.delivery)
	if gen != nil {
		now = time.Now()
	}
	pt.mu.Lock()
	defer pt.mu.Unlock()
	if pt.closed != nil {
		return false, pt.closed
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
		if pt.open != nil && (apart || gen != nil && pt.open.gen != gen || pt.open.builder.Size()+roomFor(size) > full) {
			pt.sealLocked()
		}
		if pt.open == nil {
			pt.open = pt.newBatch(now, due, gen)
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

func (pt *partition) newBatch(now, due time.Time, gen *generation) *batch {
	b := &batch{
		part: pt, entries: pt.p.entries.get(),
		gen: pt.p.join(gen), opened: now, due: due, seq: notNumbered,
	}
	b.builder, b.reserved = pt.p.builders.get(pt.usual)
	b.expiry = time.AfterFunc(due.Sub(now), func() { pt.expire(b) })
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
	pt.usual = pt.open.size()
	pt.open.complete(&pt.p.builders)
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

// expire ends the wait for b, wherever it is.
func (pt *partition) expire(b *batch) {
	var out []settled
	pt.mu.Lock()
	sent := b.stage == stageInFlight
	cause := b.lastErr
	if cause == nil || misplaced(cause) {
		cause = cmp.Or(pt.hindranceLocked(b), cause)
	}
	err := deliveryTimeout(pt.p.o.delivery, cause)
	if sent || b.inDoubt {
		err = unknown(err)
	} else {
		err = certain(err)
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

// hindranceLocked is why b is not sent at present.
func (pt *partition) hindranceLocked(b *batch) error {
	if pt.lane != nil {
		if err := pt.lane.failure(); err != nil {
			return err
		}
	}
	switch {
	case b.stage == stageInFlight:
	case len(pt.refused) > 0:
		return pt.refused[0].lastErr
	case len(pt.inflight) > 0:
		return cmp.Or(pt.inflight[0].lastErr, errBehind)
	}
	return cmp.Or(pt.p.identityError(), pt.trouble)
}

var errBehind = errors.New("records of the partition that were sent before are not answered")

// failUnsent fails what was never sent.
func (pt *partition) failUnsent(err error) {
	err = certain(err)
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

// abandon settles all that has no outcome when the producer, or the client under
// it, is closed: with closed what is certainly not stored, and with unanswered
// what may be. Nothing is in flight any more.
func (pt *partition) abandon(closed, unanswered error) {
	var (
		out   []settled
		first error // of what stood in the way, for those behind, too
	)
	pt.mu.Lock()
	pt.closed = closed
	pt.sealLocked()
	for _, b := range append(pt.refused, pt.queue...) {
		cause := telling(first, b.lastErr)
		if first == nil {
			first = cause
		}
		why := certain(closedBecause(closed, cause))
		if b.inDoubt {
			why = unknown(closedBecause(unanswered, cause))
		}
		out = pt.settleLocked(b, verdict{err: why, base: -1}, out)
	}
	pt.refused, pt.queue = nil, nil
	pt.mu.Unlock()
	for _, s := range out {
		pt.p.settle(s)
	}
}

// What becomes of records that have no outcome when their producer is closed.
var (
	errProducerClosed = fmt.Errorf("the producer is %w", ErrClosed)
	errUnanswered     = fmt.Errorf("the producer was %w before the answer", ErrClosed)
	errClientGone     = fmt.Errorf("the client was %w before the answer", ErrClosed)
)

// closedBecause says of a record that it was lost by closing, and what stood in
// its way before, unless that is the closing itself.
func closedBecause(closed, cause error) error {
	if cause == nil || errors.Is(cause, ErrClosed) {
		return closed
	}
	return fmt.Errorf("%w: %w", closed, cause)
}

// telling returns the reason that says more: that the time for a try was up,
// that an earlier batch is missing, or that the producer is closing, says
// nothing where something is known.
func telling(before, now error) error {
	if before != nil && (now == nil || errors.Is(now, ErrTimeout) || errors.Is(now, ErrClosed) || misplaced(now)) {
		return before
	}
	return now
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
