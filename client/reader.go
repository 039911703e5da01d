package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/record"
)

// A Reader reads partitions, without a group: it is told which, and where to
// begin. It fetches ahead, as far as [Prefetch] allows, and survives broken
// connections without losing or repeating a record.
//
// One goroutine at a time may call Poll or walk over Records; everything else
// is safe for concurrent use.
type Reader struct {
	c     *Client
	o     readerOptions
	codec *record.Codec
	// wake tells run that something has changed.
	wake    chan struct{}
	closing chan struct{}
	// news interrupts Poll, for the group that the reader reads for; else nil.
	news    chan struct{}
	stop    context.CancelFunc
	spawn   func()
	worker  sync.WaitGroup
	batches sync.Pool // of *Batch

	// mu guards the fields below
	mu sync.Mutex

	parts   map[partitionKey]*assigned
	lanes   map[place]*fetchLane
	queue   []*Batch
	arrived chan struct{} // closed and replaced when queue, parts or err change
	current *Batch        // the batch last returned; its buffers are in use
	passed  []passage     // for the group
	asked   uint64        // the last ask that was given
	resume  bool          // Records was left in the middle of current
	begun   bool
	closed  bool
	err     error // ends all reading
	failing time.Time
}

var errReaderClosed = fmt.Errorf("the reader is %w", ErrClosed)

type partitionKey struct {
	topic     string
	partition int32
}

// An assigned partition is one that is being read. The reader's mu guards it.
type assigned struct {
	partitionKey

	id    string // of the topic; "" while not known
	start Start  // for next == noOffset: EARLIEST
	// next is the offset to fetch next, pos the one to hand out next; noOffset
	// until known. Invariant: pos <= next.
	next, pos int64
	stop      int64 // first offset not wanted; noOffset: none
	epoch     int64 // of the last record fetched; noOffset: none
	// lane is where it is read, nil before that is known. ask tells what was
	// asked for there from what was before.
	lane *fetchLane
	ask  uint64
	// tag tells what is read since the last seek from what was before. It is
	// changed under mu only.
	tag    atomic.Uint64
	paused bool
	lost   atomic.Bool // by the group: what is in hand of it is not to be gone on with
	ended  bool        // nothing more will come: it was read to its stop, or failed
	// sent is whether the stream knows of it; dirty, that it must be told.
	sent, dirty bool
	// doubted is the offset after the one at which damage was met last; 0: none.
	doubted  atomic.Int64
	attempts int
	failing  time.Time
}

// NewReader returns a reader of nothing; see Assign.
func (c *Client) NewReader(opts ...ReaderOption) (*Reader, error) {
	o, err := newReaderOptions(opts)
	if err != nil {
		return nil, err
	}
	r := &Reader{
		c: c, o: o, codec: record.NewCodec(),
		wake: make(chan struct{}, 1), closing: make(chan struct{}), arrived: make(chan struct{}),
		parts: map[partitionKey]*assigned{}, lanes: map[place]*fetchLane{},
	}
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	r.spawn = func() { r.worker.Go(func() { r.run(ctx) }) }
	return r, nil
}

// An Assignment says what to read.
type Assignment struct {
	// Topic is the topic's name.
	Topic string
	// Partition is its number; [AnyPartition] stands for all that the topic
	// has at present.
	Partition int32
	// Start is where to begin; the zero value is [Earliest].
	Start Start
	// Stop is the first offset not wanted; 0: read on for ever.
	Stop int64
	// AtEnd stops at the end as it is at the time of Assign.
	AtEnd bool
}

// Assign adds partitions to read, or moves those that are being read. When it
// returns, the places to begin and to stop are fixed: a record that is stored
// later is after [Latest] and after the end.
func (r *Reader) Assign(ctx context.Context, as ...Assignment) error {
	var (
		ls    []*lookup
		stops []int64
	)
	for _, a := range as {
		if err := a.check(); err != nil {
			return err
		}
		r.c.cluster.want(a.Topic)
		parts := []int32{a.Partition}
		id := ""
		if a.Partition == AnyPartition {
			n, topicID, err := r.c.partitions(ctx, a.Topic)
			if err != nil {
				return err
			}
			id, parts = topicID, numbers(n)
		}
		for _, n := range parts {
			ls = append(ls, &lookup{topic: a.Topic, id: id, partition: n, start: a.Start, atEnd: a.AtEnd})
			stops = append(stops, a.Stop)
		}
	}
	if err := r.c.resolveAll(ctx, ls, r.o.isolation); err != nil {
		return fmt.Errorf("assign: %w", err)
	}
	for _, a := range as {
		r.c.cluster.await(ctx, a.Topic)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errReaderClosed
	}
	for i, l := range ls {
		r.placeLocked(l, stops[i])
	}
	if !r.begun {
		r.begun = true
		r.spawn()
	}
	r.changedLocked()
	return nil
}

// check refuses what no broker knows an answer to.
func (a *Assignment) check() error {
	if err := checkTopic(a.Topic); err != nil {
		return err
	}
	if a.Partition < AnyPartition {
		return localError(runnelv1.ErrorReason_ERROR_REASON_PARTITION_NOT_FOUND,
			"topic %q has no partition %d: they are counted from 0, and AnyPartition stands for all", a.Topic, a.Partition)
	}
	if a.Stop < 0 {
		return localError(runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "stop at offset %d: want 0, for none, or more", a.Stop)
	}
	return a.Start.check()
}

func numbers(n int32) []int32 {
	all := make([]int32, n)
	for i := range all {
		all[i] = int32(i)
	}
	return all
}

// placeLocked adds a partition, or moves it.
func (r *Reader) placeLocked(l *lookup, stop int64) {
	key := partitionKey{l.topic, l.partition}
	a := r.parts[key]
	if a == nil {
		a = &assigned{partitionKey: key}
		r.parts[key] = a
	}
	a.id, a.start = l.id, l.start
	a.stop = noOffset
	if stop > 0 {
		a.stop = stop
	}
	if l.end != noOffset && (a.stop == noOffset || l.end < a.stop) {
		a.stop = l.end
	}
	r.moveLocked(a, l.from)
}

// moveLocked makes a go on at an offset; noOffset: at its beginning.
func (r *Reader) moveLocked(a *assigned, offset int64) {
	r.dropLocked(a)
	a.next, a.pos, a.epoch = offset, offset, noOffset
	a.ended = a.stop != noOffset && offset >= a.stop || a.stop == 0
	a.attempts, a.failing = 0, time.Time{}
	a.dirty = true
}

// dropLocked forgets what was fetched of a and not handed out.
func (r *Reader) dropLocked(a *assigned) {
	a.tag.Add(1)
	r.askLocked(a)
	kept := r.queue[:0]
	for _, b := range r.queue {
		if b.a == a {
			r.releaseLocked(b)
			continue
		}
		kept = append(kept, b)
	}
	clear(r.queue[len(kept):])
	r.queue = kept
	if r.current != nil && r.current.a == a {
		r.resume = false
	}
}

// askLocked tells what is asked for of a from now on from all that was before. No
// number is given twice: answers to what was asked for before a was taken away may
// still come when it has been assigned anew.
func (r *Reader) askLocked(a *assigned) {
	r.asked++
	a.ask = r.asked
}

// changedLocked wakes whoever waits for a change: Poll, and run.
func (r *Reader) changedLocked() {
	r.arrivedLocked()
	poke(r.wake)
}

// arrivedLocked wakes Poll. It is called for every answer, and run has a look at
// all partitions when it is woken.
func (r *Reader) arrivedLocked() {
	close(r.arrived)
	r.arrived = make(chan struct{})
}

// Seek makes a partition that is being read go on at another place. Records
// that were fetched and not handed out are forgotten. Stop stays as it is.
func (r *Reader) Seek(ctx context.Context, topic string, partition int32, to Start) error {
	if err := to.check(); err != nil {
		return err
	}
	l := &lookup{topic: topic, partition: partition, start: to}
	if err := r.c.resolveAll(ctx, []*lookup{l}, r.o.isolation); err != nil {
		return fmt.Errorf("seek: %w", err)
	}
	return r.edit(topic, partition, func(a *assigned) {
		a.start = to
		r.moveLocked(a, l.from)
	})
}

// Pause stops reading a partition until Resume. What was fetched of it and not
// handed out is fetched again then.
func (r *Reader) Pause(topic string, partition int32) error {
	return r.edit(topic, partition, func(a *assigned) {
		if a.paused {
			return
		}
		a.paused, a.dirty = true, true
		r.rewindLocked(a)
	})
}

// rewindLocked goes back to what has been handed out.
func (r *Reader) rewindLocked(a *assigned) {
	pos := r.positionLocked(a)
	r.dropLocked(a)
	if pos != a.next {
		// What is in the log at pos has been read before: of which epoch it
		// was is not known here.
		a.epoch = noOffset
	}
	a.next, a.pos = pos, pos
	a.ended = a.stop != noOffset && pos >= a.stop
}

// Resume goes on with a partition where it was when it was paused.
func (r *Reader) Resume(topic string, partition int32) error {
	return r.edit(topic, partition, func(a *assigned) {
		if a.paused {
			a.paused, a.dirty = false, true
			a.tag.Add(1)
			r.askLocked(a)
		}
	})
}

// Remove stops reading a partition for good.
func (r *Reader) Remove(topic string, partition int32) error {
	return r.edit(topic, partition, func(a *assigned) {
		r.dropLocked(a)
		delete(r.parts, a.partitionKey)
		a.leaveLocked()
	})
}

func (r *Reader) edit(topic string, partition int32, f func(*assigned)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.parts[partitionKey{topic, partition}]
	if r.closed {
		return errReaderClosed
	}
	if a == nil {
		return fmt.Errorf("%s/%d is not assigned to this reader: call Assign first", topic, partition)
	}
	f(a)
	r.changedLocked()
	return nil
}

// Position returns the offset of a partition's record that is handed out next,
// to store it and go on there another time. It is false for one that is not
// assigned, or that began at [Earliest] and has not handed out anything.
func (r *Reader) Position(topic string, partition int32) (int64, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.parts[partitionKey{topic, partition}]
	if a == nil {
		return 0, false
	}
	pos := r.positionLocked(a)
	return pos, pos != noOffset
}

func (r *Reader) positionLocked(a *assigned) int64 {
	if r.current != nil && r.current.a == a && r.current.tag == a.tag.Load() && r.resume {
		return r.current.pos.Load()
	}
	return a.pos
}

// Poll returns the next records, all of one partition, and waits for them until
// ctx ends. They are good until the next call of Poll, or step of Records, or
// Close: see [Record.Clone].
//
// The error is [io.EOF] when every partition has been read to its stop, and a
// [*PartitionError] when one of them cannot be read on; the others go on with
// the next call.
func (r *Reader) Poll(ctx context.Context) (*Batch, error) {
	for {
		r.mu.Lock()
		if r.resume {
			r.resume = false
			r.current.a.pos = r.current.next
			b := r.current
			r.mu.Unlock()
			return b, nil
		}
		b, err := r.takeLocked()
		arrived := r.arrived
		r.mu.Unlock()
		if b != nil || err != nil {
			return b, err
		}
		select {
		case <-arrived:
		case <-r.news:
			return nil, errNews
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// takeLocked returns the next batch with records, or what ends the wait for
// one.
func (r *Reader) takeLocked() (*Batch, error) {
	if b := r.current; b != nil {
		if b.bad != nil && b.tag == b.a.tag.Load() {
			// Nothing after damage is handed out as if nothing were missing.
			r.moveLocked(b.a, max(b.pos.Load(), b.from))
			if b.again && b.rec.Topic != "" && b.rec.Offset+1 == b.a.next {
				b.a.epoch = b.rec.LeaderEpoch // another leader may say that this is not there
			}
			b.a.ended = b.a.ended || !b.again
			poke(r.wake)
		}
		r.releaseLocked(b)
		r.current = nil
	}
	for len(r.queue) > 0 {
		b := r.queue[0]
		r.queue[0] = nil
		r.queue = r.queue[1:]
		if b.err != nil {
			err := &PartitionError{Topic: b.a.topic, Partition: b.a.partition, Err: b.err}
			r.releaseLocked(b)
			return nil, err
		}
		b.a.pos = b.next
		if b.fetched.Batches == 0 { // it only moves the position
			if r.news != nil {
				r.passed = append(r.passed, passage{b.a, b.tag, b.fetched.LogStart, b.next})
			}
			r.releaseLocked(b)
			continue
		}
		r.current = b
		return b, nil
	}
	switch {
	case r.closed:
		return nil, errReaderClosed
	case r.err != nil:
		return nil, r.err
	case len(r.passed) > 0:
		return nil, errNews
	case r.doneLocked():
		return nil, io.EOF
	}
	return nil, nil
}

// doneLocked reports whether every partition has ended, and there is one.
func (r *Reader) doneLocked() bool {
	for _, a := range r.parts {
		if !a.ended {
			return false
		}
	}
	return len(r.parts) > 0 && r.news == nil // a group may be given more
}

// Records walks over the records of all partitions as they come, those of a
// partition in order. Each record is good until the next step: see
// [Record.Clone]. The walk ends when every partition has been read to its
// stop; with an error that is not a [*PartitionError], such as that of ctx; or
// when the loop is left, and the next walk goes on with the record after.
func (r *Reader) Records(ctx context.Context) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		for {
			b, err := r.Poll(ctx)
			switch {
			case errors.Is(err, io.EOF):
				return
			case err != nil:
				_, one := errors.AsType[*PartitionError](err)
				if !yield(Record{}, err) || !one {
					return
				}
				continue
			}
			if !r.walk(b, yield) {
				return
			}
		}
	}
}

// walk yields the records of b that were not yet; false when the loop was left.
func (r *Reader) walk(b *Batch, yield func(Record, error) bool) bool {
	r.mu.Lock()
	r.resume = r.current == b // not after Close
	r.mu.Unlock()
	for b.Next() {
		if !yield(b.rec, nil) {
			return false
		}
		if b.tag != b.a.tag.Load() {
			break // it was moved by the loop's body
		}
	}
	r.mu.Lock()
	r.resume = false
	r.mu.Unlock()
	if err := b.Err(); err != nil {
		return yield(Record{}, err)
	}
	return true
}

// Close ends the reader. A Poll that waits returns [ErrClosed].
func (r *Reader) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	close(r.closing)
	for _, b := range r.queue {
		r.releaseLocked(b)
	}
	if r.resume { // where a loop was left, or is
		r.current.a.pos = r.current.pos.Load()
	}
	// The batch in hand is the caller's alone from here on.
	r.queue, r.current, r.resume = nil, nil, false
	r.changedLocked()
	r.mu.Unlock()
	r.stop()
	r.worker.Wait()
	return nil
}
