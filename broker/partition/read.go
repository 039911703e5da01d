package partition

import (
	"errors"
	"fmt"
	"time"

	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/record"
)

// Read copies stored batches that hold offsets of [from, end) into dst, whole
// ones, the first of which may begin before from; n is 0 when there is nothing.
// end is at most the high watermark. Errors: OutOfRangeError, CorruptError,
// ErrShortBuffer, and why the partition can't be served.
func (p *Partition) Read(dst []byte, from, end record.Offset) (n int, err error) {
	st := p.state.Load()
	if st.Err != nil {
		return 0, st.Err
	}
	if err := p.CheckOffset(from); err != nil {
		return 0, err
	}
	if end = min(end, st.HighWatermark); from >= end {
		return 0, nil
	}
	n, err = p.log.Read(dst, from, end)
	if err != nil {
		return 0, p.elsewhere(p.readFailed(from, err))
	}
	return n, nil
}

// EpochAt returns the leader epoch in which the record at off was appended, also
// when retention or compaction has removed it, or [commitlog.NoEpoch] when the log
// does not know.
func (p *Partition) EpochAt(off record.Offset) record.Epoch { return p.log.EpochAt(off) }

// EpochEnd answers where leader epoch e ends in this log: see
// [commitlog.Log.EpochEnd].
func (p *Partition) EpochEnd(e record.Epoch) (epoch record.Epoch, end record.Offset) {
	return p.log.EpochEnd(e)
}

// elsewhere makes ErrMoving of damage in the log of a leader that others can
// replace: it has asked to be, and they have what it lacks. When that comes to
// nothing for as long as a follower may lag, the damage is told.
//
// Who was replaced while it read, and may be filling its log anew by now, says
// who leads, and nothing of what it met.
func (p *Partition) elsewhere(err error) error {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()

	if st := p.state.Load(); st.Err != nil {
		return st.Err
	}
	if !errors.Is(err, ErrLogCorrupt) || len(p.core.committed) < 2 {
		return err
	}
	if p.hurt.epoch != p.core.epoch {
		p.hurt = hurt{p.core.epoch, now}
	}
	if now.Sub(p.hurt.since) > p.core.lag.max {
		return err
	}
	return fmt.Errorf("%s: %w: this copy is damaged, and another one takes its place: try again", p, ErrMoving)
}

// A hurt leader is one that found damage in its log: in which epoch, and when.
type hurt struct {
	epoch record.Epoch
	since time.Time
}

// CheckOffset says why reading can't begin at an offset: OutOfRangeError, where
// this leader knows that, else the error of End. Who lacks records that a newer
// leader has served, or an older one has committed, must not tell a reader that
// its place is gone.
func (p *Partition) CheckOffset(off record.Offset) error {
	st := p.state.Load()
	switch {
	case st.Err != nil:
		return st.Err
	case off >= st.LogStart && off <= st.LogEnd:
		return nil
	case off < st.LogStart:
		return outOfRange(st, off) // a log start never falls
	}
	if _, err := p.End(); err != nil {
		return err
	}
	return outOfRange(st, off)
}

func outOfRange(st *State, off record.Offset) error {
	return &OutOfRangeError{Offset: off, LogStart: st.LogStart, HighWatermark: st.HighWatermark, LogEnd: st.LogEnd}
}

func (p *Partition) readFailed(from record.Offset, err error) error {
	if c, ok := errors.AsType[*commitlog.CorruptError](err); ok {
		p.host.metrics.corrupt.Inc()
		return &CorruptError{Topic: p.Topic().Name, Partition: p.number, Path: c.Path, Position: c.Position, From: c.Offset, Next: c.NextOffset, Err: c.Err}
	}
	switch {
	case errors.Is(err, commitlog.ErrShortBuffer):
		return err
	case errors.Is(err, commitlog.ErrOutOfRange):
		// Records were removed meanwhile, which the state may not say yet.
		st := *p.state.Load()
		st.LogStart = max(st.LogStart, p.log.Start())
		return outOfRange(&st, from)
	case errors.Is(err, commitlog.ErrClosed):
		return fmt.Errorf("%s: %w", p, ErrDeleted)
	case errors.Is(err, commitlog.ErrTooManyFiles):
		return fmt.Errorf("%s: %w: try again", p, ErrNoDescriptors)
	case errors.Is(err, commitlog.ErrFailed):
		return fmt.Errorf("%s: %w: %w", p, ErrStorageFailed, err)
	}
	return fmt.Errorf("read %s at %d: %w", p, from, err)
}

// Damaged notes that a reader found the payload of the offsets from from up to
// next damaged, and returns damage, or ErrMoving when another broker is about to
// have what this one lacks.
func (p *Partition) Damaged(from, next record.Offset, what string, damage error) error {
	p.host.metrics.corrupt.Inc()
	p.log.NoteDamage(from, next, what)
	return p.elsewhere(damage)
}

// OffsetForTime finds the first committed record whose time is at or after ms.
// That there is none is an answer only of a settled, confirmed leader; else it
// is the error of End.
func (p *Partition) OffsetForTime(ms int64) (off record.Offset, tsMs int64, found bool, err error) {
	st := p.State()
	if st.Err != nil {
		return 0, 0, false, st.Err
	}
	off, tsMs, found, err = p.log.OffsetForTime(ms, st.HighWatermark)
	if err != nil {
		return 0, 0, false, p.elsewhere(p.readFailed(st.LogStart, err))
	}
	if !found {
		_, err = p.End()
	}
	return off, tsMs, found, err
}

func (p *Partition) changeFailed(what string, err error) error {
	switch {
	case errors.Is(err, commitlog.ErrFailed):
		err = fmt.Errorf("%s: %w: %w", p, ErrStorageFailed, err)
		p.stop(err)
		return err
	case errors.Is(err, commitlog.ErrStorageFull):
		return p.full(p.host.disk().Free)
	case errors.Is(err, commitlog.ErrTooManyFiles):
		return fmt.Errorf("%s: %w: try again", p, ErrNoDescriptors)
	case errors.Is(err, commitlog.ErrClosed):
		return fmt.Errorf("%s: %w", p, ErrDeleted)
	}
	return fmt.Errorf("%s %s: %w", what, p, err)
}

// PurgedTo returns the offset at and above which no tombstone was ever removed
// by compaction. Whoever reads a compacted partition from its start, and finds it
// higher than before, may have missed that a key was deleted.
func (p *Partition) PurgedTo() record.Offset { return p.log.PurgedTo() }

// Place says how old the first committed record at or after an offset is, and
// how much of the log lies behind it. Errors are those of Read.
func (p *Partition) Place(from record.Offset) (commitlog.Place, error) {
	st := p.state.Load()
	if st.Err != nil {
		return commitlog.Place{}, st.Err
	}
	if from >= st.HighWatermark {
		return commitlog.Place{}, nil
	}
	got, err := p.log.Place(from, st.HighWatermark)
	if err != nil {
		return got, p.elsewhere(p.readFailed(from, err))
	}
	return got, nil
}
