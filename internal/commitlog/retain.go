package commitlog

import (
	"errors"
	"time"

	"github.com/runnelmq/runnel/internal/record"
)

// clockJump is how far the wall clock may move against the monotonic one
// between two retention passes.
const clockJump = time.Hour

// DeleteBefore raises the log start to o, durably, and removes the segments
// that are wholly below it. The log start may be inside a batch: readers get
// the whole batch and skip. An o at or below the start changes nothing; one
// above the end is ErrOutOfRange. The end never changes, also when nothing is
// left.
func (l *Log) DeleteBefore(o record.Offset) error {
	l.writing.take()
	defer l.writing.give()

	if err := l.usable(); err != nil {
		return err
	}
	_, err := l.deleteBefore(o)
	return err
}

// Retain removes the oldest segments that retention lets go, and returns how
// many. A segment goes when all of it is below hw, and either
//
//   - its newest batch was appended more than [Config.RetentionTime] before
//     nowMs (at exactly that age it stays), or
//   - what is left without it has at least [Config.RetentionBytes].
//
// By time the active segment goes too: a new one is made first. Only append
// times count, never a record's own timestamp or a file's. A second pass with
// the same clock removes nothing.
//
// It is ErrClockJumped, and nothing is removed, when nowMs has moved by more
// than an hour against the monotonic clock since the last pass.
func (l *Log) Retain(nowMs int64, hw record.Offset) (removed int, err error) {
	l.writing.take()
	defer l.writing.give()

	if err := l.usable(); err != nil {
		return 0, err
	}
	if err := l.writer.clocks.judge(nowMs, l.now()); err != nil {
		return 0, err
	}
	start, err := l.retainedFrom(nowMs, min(hw, l.End()))
	if err != nil {
		return 0, err
	}
	if start <= l.Start() {
		return 0, nil
	}
	return l.deleteBefore(start)
}

// retainedFrom returns the offset below which retention lets all go.
func (l *Log) retainedFrom(nowMs int64, hw record.Offset) (record.Offset, error) {
	cfg := l.config.Load()
	v := l.view.Load()
	start, left := v.start, l.Size()
	for i, s := range v.segments {
		active := i == len(v.segments)-1
		next := l.End()
		if !active {
			next = v.segments[i+1].base
		}
		size := s.size.Load()
		if next > hw || size == 0 {
			break
		}
		tooMuch := !active && cfg.RetentionBytes >= 0 && left-size >= cfg.RetentionBytes
		tooOld := false
		if !tooMuch && cfg.RetentionTime >= 0 {
			last, err := l.lastAppendOf(v, i)
			if err != nil {
				return start, err
			}
			tooOld = isOld(last, nowMs, cfg.RetentionTime)
		}
		if !tooMuch && !tooOld {
			break
		}
		start, left = next, left-size
	}
	return start, nil
}

// lastAppendOf returns the append time of the newest batch of segment i. Of a
// segment that can't be read it is that of the next one's first batch, which is
// not older: what is damaged must not stay for ever. It REQUIRES the writing turn.
func (l *Log) lastAppendOf(v *view, i int) (int64, error) {
	s := v.segments[i]
	err := s.learn(l)
	if err == nil {
		return s.lastAppend.Load(), nil
	}
	err = l.found(l.unlearned(err, v, i))
	if !errors.Is(err, ErrCorrupt) || i+1 == len(v.segments) {
		return 0, err
	}
	next := v.segments[i+1]
	if next.size.Load() == 0 {
		return l.writer.lastAppendMs, nil
	}
	if next.learn(l) != nil {
		return l.lastAppendOf(v, i+1)
	}
	return next.firstAppend.Load(), nil
}

// deleteBefore is DeleteBefore. It REQUIRES the writing turn.
func (l *Log) deleteBefore(o record.Offset) (removed int, err error) {
	v := l.view.Load()
	if o > l.End() {
		return 0, &RangeError{Offset: o, LogStart: v.start, End: l.End()}
	}
	if o <= v.start {
		return 0, nil
	}
	if o == l.End() && v.active().size.Load() > 0 {
		// The name of the new, empty segment keeps the next offset.
		if err := l.rollLocked(); err != nil {
			return 0, err
		}
		v = l.view.Load()
	}
	// The log start must not be above what is durable, nor the new segment's
	// entry be missing.
	if err := l.syncOnce(); err != nil {
		return 0, err
	}
	first := 0
	for first+1 < len(v.segments) && v.segments[first+1].base <= o {
		first++
	}
	gone := v.segments[:first]
	if first > 0 {
		if err := l.keepProducers(v.segments[first].base); err != nil {
			return 0, err
		}
	}
	if err := l.raiseStart(&view{
		segments: v.segments[first:], start: o, damage: clampRanges(v.damage, o, maxOffset),
	}); err != nil {
		return 0, err
	}
	if err := l.unlink(gone); err != nil {
		return 0, err
	}
	base := v.segments[first].base
	return len(gone), l.dropProducers(func(s snapshot) bool { return s.at < base })
}

// raiseStart makes a higher log start durable and then shows it. Only after
// that may files go: the other way round a crash would leave a log that misses
// its beginning. On an error nothing has changed.
func (l *Log) raiseStart(next *view) error {
	l.checkpointing.take()
	defer l.checkpointing.give()

	if err := l.checkpointFrom(next.start); err != nil {
		return err
	}
	l.view.Store(next)
	// The next checkpoint writes the shorter list: until the log start is
	// durable the whole one is needed.
	if list := l.epochs.Load().trim(next.start); len(list) != len(*l.epochs.Load()) {
		l.epochs.Store(&list)
	}
	return nil
}
