package memnet

import (
	"io"
	"os"
	"sync"
	"time"
)

// A pipe carries bytes one way.
type pipe struct {
	size int

	// mu guards the fields below
	mu sync.Mutex

	changed sync.Cond // of mu; signalled at every change
	data    []byte    // what was written; from head on it is not read, at most size bytes
	head    int
	ended   bool // the writer is gone: io.EOF follows the data
	broken  bool // the reader is gone: nothing is taken any more
	reads   deadline
	writes  deadline
}

// A deadline of one end.
type deadline struct {
	timer  *time.Timer
	passed bool
	set    int // counts changes, so that a timer overtaken by one does nothing
}

func newPipe(size int) *pipe {
	p := &pipe{size: size}
	p.changed.L = &p.mu
	return p
}

func (p *pipe) read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case p.broken:
			return 0, io.ErrClosedPipe
		case p.reads.passed:
			return 0, os.ErrDeadlineExceeded
		case p.head < len(p.data):
			n := copy(b, p.data[p.head:])
			p.head += n
			p.changed.Broadcast()
			return n, nil
		case p.ended:
			return 0, io.EOF
		case len(b) == 0:
			return 0, nil
		}
		p.changed.Wait()
	}
}

func (p *pipe) write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	written := 0
	for {
		switch room := p.size - (len(p.data) - p.head); {
		case p.ended, p.broken:
			return written, io.ErrClosedPipe
		case p.writes.passed:
			return written, os.ErrDeadlineExceeded
		case written == len(b):
			return written, nil
		case room > 0:
			n := min(room, len(b)-written)
			if len(p.data)+n > p.size {
				p.data, p.head = append(p.data[:0], p.data[p.head:]...), 0
			}
			p.data = append(p.data, b[written:written+n]...)
			written += n
			p.changed.Broadcast()
			continue
		}
		p.changed.Wait()
	}
}

func (p *pipe) closeRead() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken, p.data, p.head = true, nil, 0
	p.reads.stop()
	p.changed.Broadcast()
}

func (p *pipe) closeWrite() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	p.writes.stop()
	p.changed.Broadcast()
}

// setDeadline sets one of p's deadlines; the zero time is none.
func (p *pipe) setDeadline(d *deadline, t time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d.stop()
	d.passed = false
	if t.IsZero() {
		return
	}
	left := time.Until(t)
	if left <= 0 {
		d.passed = true
		p.changed.Broadcast()
		return
	}
	set := d.set
	d.timer = time.AfterFunc(left, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if d.set == set {
			d.passed = true
			p.changed.Broadcast()
		}
	})
}

// stop forgets the timer, under the pipe's lock.
func (d *deadline) stop() {
	d.set++
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}
