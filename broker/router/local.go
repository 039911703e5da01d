package router

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/runnelmq/runnel/broker/partition"
)

// appendHere appends what waits to this broker's own partition, which leads
// now, one after another.
func (p *Pipeline) appendHere() {
	for {
		w := p.nextHere()
		if w == nil {
			return
		}
		if err := p.stream.local.WriteLocal(p.topic, p.n, w); err != nil && !p.refusedHere(w, err) {
			return
		}
	}
}

// nextHere takes the next write; nil: none, or another broker leads.
func (p *Pipeline) nextHere() *Write {
	now := time.Now()
	p.mu.Lock()
	done := p.overdueLocked(now)
	var w *Write
	v, err := p.r.leader(p.topic, p.n, p.hint)
	if err == nil && v.leader == p.r.self && len(p.waiting) > 0 {
		w = p.waiting[0]
		p.waiting[0] = nil
		p.waiting = p.waiting[1:]
		w.state, w.at = writeLocal, v
	} else {
		p.local = false
		done = append(done, p.kickLocked(now)...)
	}
	p.mu.Unlock()
	tell(done)
	return w
}

// refusedHere handles a failure to append, and says whether to go on.
func (p *Pipeline) refusedHere(w *Write, err error) (goOn bool) {
	now := time.Now()
	p.mu.Lock()
	if !Routable(err) {
		done := p.finishLocked(w, Result{Err: err})
		p.mu.Unlock()
		tell([]outcome{done})
		return true
	}
	w.state, w.cause = writeWaiting, err
	p.waiting = append([]*Write{w}, p.waiting...)
	p.local = false
	p.retryLocked(now, err, w.at)
	p.mu.Unlock()
	return false
}

// stored notes where a write is in this broker's log.
func (p *Pipeline) stored(w *Write, got partition.Appended) {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.backoff = 0
	w.got = got
}

// await notes how to stop waiting. One whose time passed meanwhile stops at once.
func (p *Pipeline) await(w *Write, cancel func() bool) {
	p.mu.Lock()
	overdue := w.late
	if w.state != writeFinished {
		w.cancel = cancel
	}
	p.mu.Unlock()
	if overdue {
		p.expire(w)
	}
}

// committed ends a write that was stored here.
func (p *Pipeline) committed(w *Write, err error) {
	p.mu.Lock()
	if w.state == writeFinished {
		p.mu.Unlock()
		return
	}
	done := p.finishLocked(w, Result{Appended: w.got, Stored: true, Err: err})
	p.mu.Unlock()
	tell([]outcome{done})
}

// loosen takes bytes of a stream that has ended over, when there is room.
func (r *Router) loosen(size int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.detached+size > detachedBytes || r.closed.Load() {
		return false
	}
	r.detached += size
	return true
}

func (r *Router) unloose(size int64) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.detached = max(r.detached-size, 0)
}

func causeText(err error) string {
	if err == nil {
		return "it ended"
	}
	if errors.Is(err, errPeerGone) || errors.Is(err, partition.ErrShuttingDown) {
		return err.Error()
	}
	// Its text may speak of addresses.
	switch code := status.Code(err); code {
	case codes.OK, codes.Unknown:
		return "it failed"
	default:
		return fmt.Sprintf("gRPC calls it %s", code)
	}
}

// unhanded takes back what was about to be handed over when its link broke.
func (p *Pipeline) unhanded(w *Write) {
	p.mu.Lock()
	if w.state == writeHanded {
		w.state = writeQueued
	}
	p.mu.Unlock()
	p.returned(w, errUnreachable)
}
