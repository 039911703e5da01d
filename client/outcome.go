package client

import (
	"errors"
	"sync"
	"time"
)

// An Outcome is what became of a record.
type Outcome uint8

// The outcomes.
const (
	// Acknowledged: it is in the log, as far as the acks ask for.
	Acknowledged Outcome = iota
	// Failed for certain: it is not in the log, and will not be.
	Failed
	// Unknown: it may or may not be in the log.
	Unknown
)

// String returns the outcome's name in lower case.
func (o Outcome) String() string {
	switch o {
	case Acknowledged:
		return "acknowledged"
	case Failed:
		return "failed"
	default:
		return "unknown"
	}
}

// A Result says what became of one record.
type Result struct {
	// Topic is the record's.
	Topic string
	// Partition is where it went; -1 when it had none yet.
	Partition int32
	// Offset is its place, -1 unless it was acknowledged by more than
	// [AcksNone].
	Offset int64
	// Timestamp is the time stored with it.
	Timestamp time.Time
	// Err is nil when it was acknowledged.
	Err error
}

// Outcome says which of the three it is.
func (r Result) Outcome() Outcome {
	switch {
	case r.Err == nil:
		return Acknowledged
	case errors.Is(r.Err, ErrOutcomeUnknown):
		return Unknown
	default:
		return Failed
	}
}

// unknown marks err as one that leaves the outcome open.
func unknown(err error) error {
	if errors.Is(err, ErrOutcomeUnknown) {
		return err
	}
	return &unknownError{err}
}

type unknownError struct{ cause error }

func (e *unknownError) Error() string        { return ErrOutcomeUnknown.Error() + ": " + e.cause.Error() }
func (e *unknownError) Unwrap() error        { return e.cause }
func (e *unknownError) Is(target error) bool { return target == ErrOutcomeUnknown }

// certain marks err as one about records that are not in the log, for certain,
// although something else that err tells of may be open: they were never sent,
// or always refused.
func certain(err error) error {
	if !errors.Is(err, ErrOutcomeUnknown) {
		return err
	}
	return &certainError{err}
}

// A certainError is its cause in all but that.
type certainError struct{ cause error }

func (e *certainError) Error() string { return e.cause.Error() }

func (e *certainError) Is(target error) bool {
	return target != ErrOutcomeUnknown && errors.Is(e.cause, target)
}

func (e *certainError) As(target any) bool {
	if !errors.As(e.cause, target) {
		return false
	}
	if answer, ok := target.(**Error); ok {
		told := **answer
		told.OutcomeUnknown = false
		*answer = &told
	}
	return true
}

// bare is err without what unknown says of it, for whoever keeps that apart.
func bare(err error) error {
	if u, ok := err.(*unknownError); ok { //nolint:errorlint // the outermost only
		return u.cause
	}
	return err
}

// A settled is a group of records with one fate.
type settled struct {
	topic     string
	partition int32
	entries   []entry
	base      int64 // offset of the first; -1 for none
	stampMs   int64 // the broker's append time; 0: each record's own
	err       error
	cost      int64 // bytes of memory to give back
	gen       *generation

	// For hooks.
	opened      time.Time
	bytes, wire int
	retries     int
	duplicate   bool
}

// An entry is what a producer remembers of a record once its bytes are in a
// batch.
type entry struct {
	done    func(Result)
	stampMs int64
}

// keptOutcomes is for how many groups the room is kept once they have been told.
const keptOutcomes = 1024

// outcomes hands results to their callbacks, one at a time and in order, in
// one goroutine, so that a slow callback does not stop the network.
type outcomes struct {
	wake chan struct{}

	// mu guards the fields below
	mu sync.Mutex

	queue  []settled
	closed bool
	ended  bool // run has returned, or is about to
}

// put queues a group; false when nobody looks any more.
func (o *outcomes) put(s settled) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return false
	}
	o.queue = append(o.queue, s)
	poke(o.wake)
	return true
}

func (o *outcomes) close() {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	poke(o.wake)
}

// run calls callbacks until close, and until all have been called.
func (o *outcomes) run(after func(*settled)) {
	var batch []settled
	for {
		o.mu.Lock()
		batch, o.queue = o.queue, batch[:0]
		o.ended = o.closed && len(batch) == 0
		ended := o.ended
		o.mu.Unlock()
		if ended {
			return
		}
		if len(batch) == 0 {
			<-o.wake
			continue
		}
		for i := range batch {
			batch[i].tell()
			after(&batch[i])
		}
		clear(batch)
		if cap(batch) > keptOutcomes {
			batch = nil // what one flood took is not held for good
		}
	}
}

func (s *settled) tell() {
	r := Result{Topic: s.topic, Partition: s.partition, Offset: -1, Err: s.err}
	for i, e := range s.entries {
		if e.done == nil {
			continue
		}
		if s.err == nil && s.base >= 0 {
			r.Offset = s.base + int64(i)
		}
		stamp := s.stampMs
		if stamp == 0 {
			stamp = e.stampMs
		}
		r.Timestamp = time.UnixMilli(stamp)
		e.done(r)
	}
}

// poke wakes the one goroutine that waits on c, now or when it next looks.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// A generation is the groups of records taken between two flushes. A flush
// waits for its own generation and those before.
type generation struct {
	open int           // groups without an outcome; guarded by the producer's mu
	done chan struct{} // closed when open falls to 0
}
