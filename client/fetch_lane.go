package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
)

// A fetchLane is a reader's way to one place, with one stream at a time. The
// reader's mu guards its fields, but for wake.
type fetchLane struct {
	r     *Reader
	place place
	wake  chan struct{}

	// removed are partitions that the stream is still to be told of.
	removed []partitionKey
	// share is what may be sent ahead here, queued what is in the reader's queue
	// or being read, and credit what may be given to the broker beside what was
	// given.
	share  int
	queued int64
	credit int64
	ended  bool // it leads nowhere any more, and no partition is on it
}

// run sees to it that every partition is read on the lane that is right for
// it, until ctx ends.
func (r *Reader) run(ctx context.Context) {
	stop := r.c.cluster.listen(func() { poke(r.wake) })
	defer stop()
	var lanes sync.WaitGroup
	defer lanes.Wait()
	again := time.NewTicker(arrangeEvery)
	defer again.Stop()
	for ctx.Err() == nil {
		for _, l := range r.arrange() {
			lanes.Go(func() { l.run(ctx) })
		}
		select {
		case <-r.wake:
		case <-again.C:
		case <-ctx.Done():
		}
	}
}

// arrangeEvery is how often a reader looks whether a leader that could not be
// reached can be again.
const arrangeEvery = 5 * time.Second

// arrange gives every partition its lane, and returns those that are new.
func (r *Reader) arrange() (fresh []*fetchLane) {
	to := r.routes()
	r.mu.Lock()
	defer r.mu.Unlock()
	used, taken := map[*fetchLane]bool{}, map[*fetchLane]bool{}
	for key, a := range r.parts {
		p, ok := to[key]
		if !ok {
			poke(r.wake) // it is new: its turn is next
			continue
		}
		l := r.lanes[p]
		if l == nil {
			l = &fetchLane{r: r, place: p, wake: make(chan struct{}, 1)}
			r.lanes[p] = l
			fresh = append(fresh, l)
		}
		if a.lane != l {
			a.leaveLocked()
			a.lane, a.dirty = l, true
			r.askLocked(a)
		}
		taken[l] = true
		if a.wanted() {
			used[l] = true
		}
	}
	for p, l := range r.lanes {
		if l.ended = !taken[l] && !r.c.knows(p); l.ended {
			delete(r.lanes, p)
		}
		l.share = max(r.o.prefetch/max(len(used), 1), minPrefetch)
		poke(l.wake)
	}
	return fresh
}

// routes returns where each partition is to be read from.
func (r *Reader) routes() map[partitionKey]place {
	r.mu.Lock()
	to := make(map[partitionKey]place, len(r.parts))
	ids := make(map[partitionKey]string, len(r.parts))
	for key, a := range r.parts {
		ids[key] = a.id
	}
	r.mu.Unlock()
	view := r.c.cluster.view.Load()
	for key, id := range ids {
		to[key], _ = r.c.route(view, key.topic, id, key.partition)
	}
	return to
}

// leaveLocked takes a partition off its lane.
func (a *assigned) leaveLocked() {
	if a.lane != nil && a.sent {
		a.lane.removed = append(a.lane.removed, a.partitionKey)
	}
	a.sent = false
}

// run keeps a stream open while there is something to read here, until ctx ends
// or the lane leads nowhere.
func (l *fetchLane) run(ctx context.Context) {
	defer l.r.c.use(l.place)()
	for failures := 0; ctx.Err() == nil && !l.over(); {
		if !l.active() {
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
			if s.any {
				failures = 0
			}
		}
		if err != nil && ctx.Err() == nil {
			failures++
			wait = max(wait, backoffFor(failures))
			if l.failed(err) {
				return
			}
		}
		if wait > 0 {
			pause(ctx, wait)
		}
	}
}

// active reports whether any partition is to be read here now.
func (l *fetchLane) active() bool {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	for _, a := range l.r.parts {
		if a.lane == l && a.wanted() {
			return true
		}
	}
	return false
}

func (l *fetchLane) over() bool {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	return l.ended
}

func (l *fetchLane) shareNow() int {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	return l.share
}

func (a *assigned) wanted() bool { return !a.paused && !a.ended }

// failed takes note of a broken stream. It is true when reading is over. A
// leader that cannot be reached is read through another broker.
func (l *fetchLane) failed(err error) bool {
	l.r.c.opts.hooks.broken(l.place, err)
	fatal := errors.Is(err, ErrClosed) || refusesStream(err) || hasCode(err, codes.InvalidArgument)
	if l.place != viaSeed && !fatal {
		l.r.c.shun(l.place, err)
		poke(l.r.wake)
		return false
	}
	r := l.r
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if r.failing.IsZero() {
		r.failing = now
	}
	switch {
	case fatal:
		r.err = err
	case r.o.retryTimeout > 0 && now.Sub(r.failing) >= r.o.retryTimeout:
		r.err = fmt.Errorf("tried for %v: %w", r.o.retryTimeout, err)
	default:
		return false
	}
	r.changedLocked()
	return true
}

func hasCode(err error, c codes.Code) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Code == c
}
