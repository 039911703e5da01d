package partition

import (
	"errors"
	"fmt"

	"github.com/runnelmq/runnel/internal/record"
)

// WhenCommitted calls fn once: with nil when the high watermark has passed what
// was appended, with ErrCommitUncertain when that can't be promised any more. It
// may do so before it returns. fn is called without locks, in the order of
// offsets, never two at a time of one partition; it must not block. After
// cancel has returned true it is never called.
func (p *Partition) WhenCommitted(a Appended, fn func(error)) (cancel func() bool) {
	last := a.Last
	p.mu.Lock()
	var err error
	switch {
	case last >= p.core.own.written || p.log.EpochAt(last) != a.Epoch:
		// The leadership was lost since, the log cut, and the offset may be
		// another leader's: that one's commit says nothing of this record.
		err = p.uncertainLocked()
	case p.core.hw > last: // committed, whatever became of the leadership since
	case p.stopped != nil || p.core.role != leading || !p.core.enough():
		err = p.uncertainLocked()
	default:
		e := p.commits.add(&commitWaiter{last: last, fn: fn})
		p.mu.Unlock()
		return func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()

			return p.commits.cancel(e)
		}
	}
	p.due = append(p.due, callback{commit: fn, err: err})
	p.mu.Unlock()
	p.deliver()
	return func() bool { return false }
}

// uncertainLocked is what becomes of writes whose leader stopped leading, or has
// too few replicas in sync.
func (p *Partition) uncertainLocked() error {
	why := p.stopped
	switch {
	case why != nil:
	case p.core.role == leading && !p.core.enough():
		why = fmt.Errorf("%d replicas are in sync by now, min.insync.replicas is %d", len(p.core.committed), p.core.minISR) //nolint:err113 // a text, not a kind
	default:
		why = errors.New("the leadership was lost before the record was committed") //nolint:err113 // a text, not a kind
	}
	return fmt.Errorf("%s: %w: %w", p, ErrCommitUncertain, opaque{why})
}

// opaque is an error that is told of, but is not the kind of what wraps it.
type opaque struct{ error }

// WhenReadable calls fn once when there is something to read at from: the high
// watermark passed it, or the state changed in another way that a reader must
// look at (leadership, log start, an error, deletion). It checks after it has
// registered, so no wake-up is lost; fn may be called before it returns. fn is
// called without locks and must not block. After cancel it is not called,
// unless it was about to be.
func (p *Partition) WhenReadable(from record.Offset, fn func()) (cancel func()) {
	p.mu.Lock()
	if p.core.hw <= from && from >= p.core.logStart && p.stopped == nil && p.core.role == leading {
		e := p.reads.add(&readWaiter{from: from, fn: fn})
		p.mu.Unlock()
		return func() {
			p.mu.Lock()
			defer p.mu.Unlock()

			p.reads.cancel(e)
		}
	}
	p.due = append(p.due, callback{read: fn})
	p.mu.Unlock()
	p.deliver()
	return func() {}
}

// deliver runs due callbacks, unless another goroutine is at it: that one will
// run ours too.
func (p *Partition) deliver() {
	p.mu.Lock()
	if p.delivering {
		p.mu.Unlock()
		return
	}
	p.delivering = true
	for len(p.due) > 0 {
		batch := p.due
		p.due = nil
		p.mu.Unlock()
		for _, c := range batch {
			switch {
			case c.commit != nil:
				c.commit(c.err)
			case c.read != nil:
				c.read()
			default:
				c.note.due.Store(false) // first: what happens from here on is news
				c.note.fn()
			}
		}
		p.mu.Lock()
	}
	p.delivering = false
	p.mu.Unlock()
}
