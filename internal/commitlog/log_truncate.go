package commitlog

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// resetName is the new segment of a reset that is under way.
const resetName = "reset" + vfs.TempSuffix

// TruncateTo drops every batch that has a record at o or after it, and the
// leader epochs that begin there, durably. So the log's end is o or, when o
// was inside a batch or a gap, below it. It is ErrOutOfRange below the log
// start: only a Reset goes there. At or beyond the end only epochs are
// dropped: a leadership without a record leaves one that must not stay.
func (l *Log) TruncateTo(o record.Offset) error {
	l.writing.take()
	defer l.writing.give()

	if err := l.usable(); err != nil {
		return err
	}
	if start := l.Start(); o < start {
		return &RangeError{Offset: o, LogStart: start, End: l.End()}
	}
	if o < l.End() {
		if err := l.cutTo(o); err != nil {
			return fmt.Errorf("truncate %s to %d: %w", l.dir, o, err)
		}
	}
	list := l.epochs.Load().cut(min(o, l.End()))
	if len(list) != len(*l.epochs.Load()) {
		l.epochs.Store(&list)
	}
	l.checkpointing.take()
	defer l.checkpointing.give()
	end := int64(l.End())
	l.purgedTo.Store(min(l.purgedTo.Load(), end))
	l.cleanedTo.Store(min(l.cleanedTo.Load(), end))
	return l.checkpointLocked()
}

// cutTo cuts the log at the first batch that reaches o. It REQUIRES the
// writing turn. All that can fail for want of room or file descriptors comes
// before the first change.
func (l *Log) cutTo(o record.Offset) error {
	// Whatever is synced from here on is synced by this function.
	l.syncing.take()
	defer l.syncing.give()

	v := l.view.Load()
	keep := len(v.segments) - 1
	for keep > 0 && v.segments[keep].base >= o {
		keep--
	}
	last := v.segments[keep]
	f, err := last.file.acquire() // kept: it becomes the active segment
	if err != nil {
		return l.check(l.found(l.unopened(err, v, keep)))
	}
	c, err := l.cutPlace(last, f, o)
	err = l.found(l.unreadable(err, v, keep, last.base))
	if err == nil {
		err = l.prepareProducers(max(c.end, v.start))
	}
	if err == nil {
		err = l.prepareCut(v, max(c.end, v.start))
	}
	if err != nil {
		last.file.release()
		return err
	}
	err = l.carryOut(v, keep, c)
	l.producers.stale = l.producers.stale && err != nil
	return err
}

// A cutPlace is where a segment is cut.
type cutPlace struct {
	pos int64
	// end is the log's end after the cut.
	end record.Offset
	// maxTimestamp is that of what stays, firstAppend its first append time,
	// and lastAppend not below its last.
	maxTimestamp, firstAppend, lastAppend int64
}

// cutPlace returns where in s the first batch that reaches o begins.
func (l *Log) cutPlace(s *segment, f vfs.File, o record.Offset) (cutPlace, error) {
	scan := scanner{file: f, size: s.size.Load()}
	first, _, err := scan.frame(0)
	if err != nil {
		return cutPlace{}, err
	}
	e, err := s.find(l, &scan, func(e entry) bool { return e.offset < o })
	if err != nil {
		return cutPlace{}, err
	}
	c, err := scanTo(&scan, e, o)
	if err == nil && c.pos == e.pos && c.pos > 0 {
		// The batch of the entry goes too: where the one before it ends is
		// known only from there.
		at := c.pos
		if e, err = s.find(l, &scan, func(e entry) bool { return e.pos < at }); err == nil {
			c, err = scanTo(&scan, e, o)
		}
	}
	if c.pos > 0 {
		c.firstAppend = first.Header.AppendTimeMs
	}
	return c, err
}

// scanTo walks from the batch of e to the first one that reaches o, or to
// where the segment ends or is damaged.
func scanTo(scan *scanner, e entry, o record.Offset) (cutPlace, error) {
	c := cutPlace{pos: e.pos, end: e.offset, maxTimestamp: e.maxTimestamp}
	for {
		fr, v, err := scan.frame(c.pos)
		if err != nil {
			return c, err
		}
		h := &fr.Header
		whole := v == record.OK || v == record.CorruptEnvelope
		if whole {
			c.lastAppend = h.AppendTimeMs
		}
		if !whole || h.NextOffset() > o {
			return c, nil
		}
		c.end = h.NextOffset()
		c.maxTimestamp = max(c.maxTimestamp, timestamp(h))
		c.pos += int64(fr.Size)
	}
}

// prepareCut makes it durable that the log may end at end.
func (l *Log) prepareCut(v *view, end record.Offset) error {
	if err := l.lower(end); err != nil {
		return err
	}
	// A crash after this one leaves damage that is not written down, but at
	// or above the recovery point, where it is cut.
	if left := clampRanges(v.damage, v.start, end); len(left) != len(v.damage) {
		return l.check(writeDamage(l.fs, l.dir, left))
	}
	return nil
}

// carryOut cuts the segment at index keep of v, whose file is acquired, and
// removes those after it.
func (l *Log) carryOut(v *view, keep int, c cutPlace) error {
	last := v.segments[keep]
	end := max(c.end, v.start)
	// Readers first: the end, then sizes, then the count of cuts, then bytes.
	l.setEnd(end)
	last.size.Store(c.pos)
	last.maxTimestamp.Store(c.maxTimestamp)
	last.firstAppend.Store(c.firstAppend)
	last.lastAppend.Store(c.lastAppend)
	last.next.Store(int64(c.end))
	last.known.Store(true)
	l.view.Store(&view{
		segments: v.segments[: keep+1 : keep+1], start: v.start, damage: clampRanges(v.damage, v.start, end),
	})
	l.cuts.Add(1)

	l.mu.Lock()
	held := l.unsynced
	l.unsynced = []*segment{last}
	l.mu.Unlock()
	for _, h := range held {
		if h.base < last.base {
			// It stays, and nothing else will sync it.
			if err := l.syncSegment(h, true); err != nil {
				return l.failed.Set(err)
			}
		}
		h.file.release()
	}
	if err := l.unlink(v.segments[keep+1:]); err != nil {
		return err
	}
	// Their absence is durable with that of the segments, before another batch
	// can have one of their offsets.
	if err := l.dropProducers(func(s snapshot) bool { return s.at > end }); err != nil {
		return err
	}
	if err := l.shortenSegment(last, c.pos); err != nil {
		return err
	}
	l.durable.Store(int64(end))
	return nil
}

// lower makes it durable that nothing at or above end counts as durable or
// committed any more, before the first byte of it goes: a crash between the
// two must not look like a loss.
func (l *Log) lower(end record.Offset) error {
	l.durable.Store(min(l.durable.Load(), int64(end)))
	l.highWatermark.Store(min(l.highWatermark.Load(), int64(end)))
	l.checkpointing.take()
	defer l.checkpointing.give()
	if err := l.lowerDirty(end); err != nil {
		return err
	}
	return l.checkpointLocked()
}

// unlink removes segments that the view has no more, newest first, so that a
// crash leaves no hole. It does not sync the directory.
func (l *Log) unlink(segments []*segment) error {
	for _, s := range slices.Backward(segments) {
		s.retire()
		for _, path := range []string{s.index.file.path, s.file.path} {
			if err := l.fs.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return l.check(err)
			}
		}
	}
	return nil
}

// shortenSegment cuts the file of s, and its index, durably, and the removal
// of the segments after it with them. The file is open.
func (l *Log) shortenSegment(s *segment, pos int64) error {
	err := s.index.cut(pos)
	if errors.Is(err, errBadIndex) || vfs.IsTransient(err) {
		// From the frames that stay, in memory; the file is made anew.
		if err = s.remakeIndex(l); err == nil {
			err = s.index.cut(pos)
		}
	}
	if err != nil {
		return l.failed.Set(err)
	}
	f, err := s.file.acquire()
	if err != nil {
		return l.failed.Set(err)
	}
	defer s.file.release()

	if err := f.Truncate(pos); err != nil {
		return l.failed.Set(err)
	}
	if err := f.Sync(); err != nil {
		return l.failed.Set(err)
	}
	return l.failed.Set(l.fs.SyncDir(l.dir))
}

// Reset drops everything, durably: the log is empty, begins and ends at
// logStart, and epoch is the only leader epoch it knows. The high watermark is
// logStart, nothing is damaged and nothing suspect any more. Files that were
// set aside go too.
func (l *Log) Reset(logStart record.Offset, epoch record.Epoch) error {
	if logStart < 0 || epoch < 0 {
		return fmt.Errorf("reset %s to offset %d in epoch %d: neither may be negative", l.dir, logStart, epoch)
	}
	l.writing.take()
	defer l.writing.give()

	if err := l.usable(); err != nil {
		return err
	}
	if err := l.reset(logStart, epoch); err != nil {
		return fmt.Errorf("reset %s to %d: %w", l.dir, logStart, err)
	}
	return nil
}

func (l *Log) reset(logStart record.Offset, epoch record.Epoch) error {
	l.syncing.take()
	defer l.syncing.give()

	// The new segment comes first, under another name, so that nothing after
	// the first change can fail for want of room or file descriptors.
	v := l.view.Load()
	s := newSegment(l.fs, l.dir, logStart, l.config.Load().IndexIntervalBytes, l.idle)
	temp := l.path(resetName)
	f, err := emptyFile(l.fs, temp)
	if err != nil {
		return l.check(err)
	}
	s.file.adopt(f)
	s.known.Store(true)
	// A crash from here on leaves a prefix of the log, or an empty one at the
	// old start.
	if err := l.lower(v.start); err != nil {
		s.retire()
		s.file.release()
		return err
	}
	list := epochList{{epoch, logStart}}
	l.epochs.Store(&list)
	l.setEnd(logStart)
	l.view.Store(&view{segments: []*segment{s}, start: logStart})
	l.cuts.Add(1)
	l.mu.Lock()
	held := l.unsynced
	l.unsynced = []*segment{s}
	l.mu.Unlock()
	for _, h := range held {
		h.file.release()
	}
	if err := l.unlink(v.segments); err != nil {
		return err
	}
	if err := l.dropProducers(func(snapshot) bool { return true }); err != nil {
		return err
	}
	if p := &l.producers; p.owner != nil {
		p.owner.Reset()
		p.stale, p.since = false, 0
	}
	if err := l.removeKept(); err != nil {
		return err
	}
	if err := l.failed.Set(l.fs.SyncDir(l.dir)); err != nil {
		return err
	}
	if err := l.failed.Set(l.fs.Rename(temp, s.file.path)); err != nil {
		return err
	}
	if err := s.index.flush(); err != nil && !vfs.IsTransient(err) {
		return l.failed.Set(err)
	}
	if err := l.failed.Set(l.fs.SyncDir(l.dir)); err != nil {
		return err
	}
	l.highWatermark.Store(int64(logStart))
	l.durable.Store(int64(logStart))
	return l.forget()
}

// forget writes down that nothing is known of what a reset removed.
func (l *Log) forget() error {
	l.checkpointing.take()
	defer l.checkpointing.give()

	l.kept.suspicion = NotSuspect
	if err := l.lowerDirty(0); err != nil { // nothing is appended before
		return err
	}
	l.purgedTo.Store(0)
	l.cleanedTo.Store(0)
	return l.checkpointLocked()
}

// emptyFile returns an empty file of the given name.
func emptyFile(fsys vfs.FS, name string) (vfs.File, error) {
	f, err := fsys.OpenOrCreate(name)
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// removeKept removes the damage file and what was set aside.
func (l *Log) removeKept() error {
	entries, err := l.fs.ReadDir(l.dir)
	if err != nil {
		return l.failed.Set(err)
	}
	for _, e := range entries {
		if e.IsDir || (e.Name != damageName && !isKept(e.Name)) {
			continue
		}
		if err := l.fs.Remove(l.path(e.Name)); err != nil {
			return l.check(err)
		}
	}
	return nil
}
