package client

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// A lane is a producer's way to one place. There is never more than one stream
// on it, so that batches of a partition cannot overtake each other.
type lane struct {
	p     *Producer
	place place
	wake  chan struct{}

	// mu guards the fields below. It may be taken while a partition's is held.
	mu sync.Mutex

	ready  []*partition // that have something to send
	stream *produceStream
	err    error // why there is no stream at present

	// ended: it takes no partitions any more. It is set under mu only.
	ended atomic.Bool
}

// laneTo returns the lane to a place.
func (p *Producer) laneTo(to place) *lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.lanes[to]; l != nil && !l.ended.Load() {
		return l
	}
	l := &lane{p: p, place: to, wake: make(chan struct{}, 1)}
	p.lanes[to] = l
	p.startLocked(l.run)
	return l
}

// push adds a partition that has something to send. It is false when the lane
// has ended meanwhile.
func (l *lane) push(pt *partition) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended.Load() {
		return false
	}
	l.ready = append(l.ready, pt)
	poke(l.wake)
	return true
}

// retire ends the lane when it leads to a broker that is no member of the
// cluster any more, and nothing is to be sent. The caller is the one that sends,
// and has nothing unanswered.
func (l *lane) retire() bool {
	if l.ended.Load() {
		return true
	}
	if l.p.c.knows(l.place) || !l.end() {
		return false
	}
	l.p.forget(l)
	return true
}

// end takes no partitions from here on, unless there are some.
func (l *lane) end() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.ready) > 0 {
		return false
	}
	l.ended.Store(true)
	return true
}

// forget takes a lane that has ended off the list.
func (p *Producer) forget(l *lane) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lanes[l.place] == l {
		delete(p.lanes, l.place)
	}
}

func (l *lane) next() *partition {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.ready) == 0 {
		return nil
	}
	pt := l.ready[0]
	l.ready[0] = nil
	l.ready = l.ready[1:]
	return pt
}

// unshift takes back that pt was to be sent from, for the next stream.
func (l *lane) unshift(pt *partition) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ready = append([]*partition{pt}, l.ready...)
}

func (l *lane) hasReady() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.ready) > 0
}

func (l *lane) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *lane) fails(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
}

// run keeps a stream open while there is something to send, until ctx ends or
// the lane leads nowhere.
func (l *lane) run(ctx context.Context) {
	defer l.p.c.use(l.place)()
	for failures := 0; ctx.Err() == nil; {
		if l.retire() {
			return
		}
		if !l.hasReady() {
			select {
			case <-l.wake:
			case <-ctx.Done():
			}
			continue
		}
		s, err := l.open(ctx)
		var wait time.Duration
		if err == nil {
			err = s.serve(ctx)
			wait = rejoinAfter(s.goaway)
			if s.answered {
				failures = 0
			}
		}
		if err != nil && ctx.Err() == nil {
			failures++
			l.fails(err)
			if errors.Is(err, ErrClosed) { // the client is: nothing will ever be sent
				l.p.eachPartition(func(pt *partition) { pt.abandon(errClientClosed, errClientGone) })
				return
			}
			l.p.c.opts.hooks.broken(l.place, err)
			wait = max(wait, backoffFor(failures))
			if l.place != viaSeed {
				if errors.Is(err, ErrUnreachable) {
					l.p.c.shun(l.place, err)
				}
				l.disband()
			}
		}
		if wait > 0 {
			pause(ctx, wait)
		}
	}
}

func (l *lane) carries(s *produceStream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stream = s
}

// disband lets every partition that waits look for a better way.
func (l *lane) disband() {
	l.mu.Lock()
	ready := l.ready
	l.ready = nil
	l.mu.Unlock()
	for _, pt := range ready {
		pt.unschedule()
	}
}

// recall gives up waiting for the answers to what is in flight of pt.
func (l *lane) recall(pt *partition, why error) {
	l.mu.Lock()
	s := l.stream
	l.mu.Unlock()
	if s == nil {
		return
	}
	for _, b := range s.forget(pt) {
		pt.answered(b, verdict{err: unknown(why), base: -1, lost: true})
	}
}
