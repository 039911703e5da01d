package client

import (
	"context"
	"errors"
	"sync"
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
}

// laneTo returns the lane to a place.
func (p *Producer) laneTo(to place) *lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.lanes[to]; l != nil {
		return l
	}
	l := &lane{p: p, place: to, wake: make(chan struct{}, 1)}
	p.lanes[to] = l
	p.startLocked(l.run)
	return l
}

// push adds a partition that has something to send.
func (l *lane) push(pt *partition) {
	l.mu.Lock()
	l.ready = append(l.ready, pt)
	l.mu.Unlock()
	poke(l.wake)
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

// run keeps a stream open while there is something to send.
func (l *lane) run(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; {
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
