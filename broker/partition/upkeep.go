package partition

import (
	"errors"
	"fmt"
	"time"

	"github.com/runnelmq/runnel/internal/commitlog"
)

// flushLocked asks for a flusher, unless one is on its way.
func (p *Partition) flushLocked() {
	switch p.flusher {
	case clean:
		p.flusher = queued
		p.host.flush(p)
	case flushing:
		p.flusher = dirty
	case queued, dirty:
	}
}

// flushOnce makes what was appended so far durable, and the high watermark
// move by it. Only flushers call it. Appends go on meanwhile: they are in the
// next turn.
func (p *Partition) flushOnce() {
	p.mu.Lock()
	p.flusher = flushing
	p.mu.Unlock()
	start := time.Now()
	p.syncingSince.begin()
	err := p.log.Sync()
	p.syncingSince.end()
	p.host.metrics.flush.Observe(time.Since(start).Seconds())
	if err != nil && !errors.Is(err, commitlog.ErrClosed) {
		p.stop(fmt.Errorf("%s: %w: %w", p, ErrStorageFailed, err))
	}
	p.mu.Lock()
	again := p.flusher == dirty && err == nil
	p.flusher = clean
	if err == nil && (p.core.synced(p.log.Durable()) || p.core.role == following) {
		p.publishLocked()
	}
	if again {
		p.flushLocked()
	}
	p.mu.Unlock()
	p.deliver()
}

// maintain rolls, and as a leader retains. It says what retention removed: a
// follower removes what its leader has removed, and nothing else.
func (p *Partition) maintain(now time.Time) (removed int, err error) {
	if p.isStopped() {
		return 0, nil
	}
	p.producers.expire(now.UnixMilli())
	p.log.Reopen()
	p.writing <- struct{}{}
	err = p.log.RollIfDue(now.UnixMilli())
	if err == nil && p.State().Settled { // leading, and knowing what is committed
		removed, err = p.log.Retain(now.UnixMilli(), p.State().HighWatermark)
	}
	p.mu.Lock()
	if start := p.log.Start(); start != p.core.logStart {
		p.core.cut(start)
		p.publishLocked()
	}
	p.mu.Unlock()
	<-p.writing
	if err != nil && errors.Is(err, commitlog.ErrFailed) {
		p.stop(fmt.Errorf("%s: %w: %w", p, ErrStorageFailed, err))
	}
	p.deliver()
	return removed, err
}
