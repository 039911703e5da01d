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
	err := p.log.Sync()
	p.host.metrics.flush.Observe(time.Since(start).Seconds())
	if err != nil && !errors.Is(err, commitlog.ErrClosed) {
		p.stop(fmt.Errorf("%s: %w: %w", p, ErrStorageFailed, err))
	}
	p.mu.Lock()
	again := p.flusher == dirty && err == nil
	p.flusher = clean
	if err == nil && p.core.synced(p.log.Durable()) {
		p.publishLocked()
	}
	if again {
		p.flushLocked()
	}
	p.mu.Unlock()
	p.deliver()
}

// maintain rolls and retains, as a leader. It says what retention removed.
func (p *Partition) maintain(now time.Time) (removed int, err error) {
	if !p.State().Settled { // not leading, or not knowing yet what is committed
		return 0, nil
	}
	p.writing <- struct{}{}
	err = p.log.RollIfDue(now.UnixMilli())
	if err == nil {
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
