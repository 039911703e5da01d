package commitlog

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// Appended says where a batch went.
type Appended struct {
	// Base and Last are the offsets of its first and last record.
	Base, Last record.Offset
	// AppendTimeMs is its append time, in Unix milliseconds.
	AppendTimeMs int64
}

// Append stores a batch at the log's end, as one of leader epoch epoch. The
// batch is in the page cache when it returns: see [Log.Sync]. Its append time
// is the clock's, and never below that of the batch before.
//
// ErrStorageFull and ErrTooManyFiles mean that nothing was stored and that the
// call may be made again; ErrFailed that it is not known what was.
func (l *Log) Append(b *record.Batch, epoch record.Epoch, tt record.TimestampType) (Appended, error) {
	l.writing.take()
	defer l.writing.give()

	if err := l.usable(); err != nil {
		return Appended{}, err
	}
	if err := l.freshProducers(); err != nil {
		return Appended{}, err
	}
	cfg := l.config.Load()
	size := b.FrameSize()
	if size > cfg.MaxBatchBytes {
		return Appended{}, fmt.Errorf("%w: %d bytes as stored, at most %d", ErrTooLarge, size, cfg.MaxBatchBytes)
	}
	base := l.End()
	if base > maxOffset-record.Offset(b.LastOffsetDelta)-1 {
		return Appended{}, fmt.Errorf("%w: the log is at offset %d, the last there is", ErrTooLarge, base)
	}
	appendTime := max(l.now().UnixMilli(), l.writer.lastAppendMs)
	if err := l.rollFor(int64(size), appendTime, cfg); err != nil {
		return Appended{}, err
	}
	if err := l.startEpochLocked(epoch, base); err != nil {
		return Appended{}, err
	}
	frame := b.Seal(base, epoch, appendTime, tt)
	s := l.view.Load().active()
	pos := s.size.Load()
	if err := l.write(s, frame, pos); err != nil {
		return Appended{}, err
	}
	l.admit(s, &b.Header, pos, len(frame))
	return Appended{Base: base, Last: b.LastOffset(), AppendTimeMs: appendTime}, nil
}

// AppendFrames stores frames as they came from a leader: whole frames, in
// their order, sound in header and payload, at offsets from the log's end on
// (gaps are legal) and in leader epochs that do not go back. Only in an empty
// log may the first one begin below the end, if it reaches it. ErrBadFrames
// means that nothing was stored. After another error the frames below next
// are.
func (l *Log) AppendFrames(frames []byte) (next record.Offset, err error) {
	l.writing.take()
	defer l.writing.give()

	if err := l.usable(); err != nil {
		return l.End(), err
	}
	if err := l.freshProducers(); err != nil {
		return l.End(), err
	}
	if err := l.checkFrames(frames); err != nil {
		return l.End(), err
	}
	cfg := l.config.Load()
	for len(frames) > 0 {
		n, err := l.appendRun(frames, cfg)
		if err != nil {
			return l.End(), err
		}
		frames = frames[n:]
	}
	return l.End(), nil
}

// checkFrames judges what AppendFrames was given.
func (l *Log) checkFrames(frames []byte) error {
	v := l.view.Load()
	next, epoch := l.End(), l.epochs.Load().last()
	for at := 0; at < len(frames); {
		f, verdict := record.CheckFrame(frames[at:], record.MaxFrameSize)
		if verdict != record.OK {
			return fmt.Errorf("%w: at byte %d of %d: %s", ErrBadFrames, at, len(frames), verdict)
		}
		h := &f.Header
		below := h.BaseOffset < next
		if below && at == 0 && next == v.start && h.NextOffset() > next {
			below = false // the first batch after a reset
		}
		if below || h.LeaderEpoch < epoch {
			return fmt.Errorf("%w: at byte %d: offset %d in epoch %d, after offset %d in epoch %d",
				ErrBadFrames, at, h.BaseOffset, h.LeaderEpoch, next-1, epoch)
		}
		next, epoch = h.NextOffset(), h.LeaderEpoch
		at += f.Size
	}
	return nil
}

// appendRun writes the first of the checked frames: as many as go into one
// segment, with one write.
func (l *Log) appendRun(frames []byte, cfg *Config) (n int, err error) {
	first, _ := record.ParseFrame(frames, int64(len(frames)), record.MaxFrameSize)
	if err := l.rollFor(int64(first.Size), first.Header.AppendTimeMs, cfg); err != nil {
		return 0, err
	}
	s := l.view.Load().active()
	pos := s.size.Load()
	var run []record.Frame
	for n < len(frames) {
		f, _ := record.ParseFrame(frames[n:], int64(len(frames)-n), record.MaxFrameSize)
		if n > 0 && l.isDue(s, pos+int64(n), int64(f.Size), f.Header.AppendTimeMs, cfg) {
			break
		}
		run = append(run, f)
		n += f.Size
	}
	if err := l.write(s, frames[:n], pos); err != nil {
		return 0, err
	}
	for i := range run {
		h := &run[i].Header
		if list := *l.epochs.Load(); h.LeaderEpoch > list.last() {
			list = list.begin(h.LeaderEpoch, max(h.BaseOffset, l.Start()))
			l.epochs.Store(&list)
		}
		l.admit(s, h, pos, run[i].Size)
		pos += int64(run[i].Size)
	}
	return n, nil
}

// admit makes a frame that was written at pos part of the log.
func (l *Log) admit(s *segment, h *record.Header, pos int64, size int) {
	if s.note(h, pos, size) {
		// Entries that cannot be written stay in memory; a disk that is worse
		// than full has failed the root, and every later call says so.
		_ = l.check(s.index.flush())
	}
	l.writer.lastAppendMs = max(l.writer.lastAppendMs, h.AppendTimeMs)
	l.setEnd(h.NextOffset())
	l.applyProducers(h, size)
}

// write puts b at pos, the segment's end, or leaves the segment as it was.
func (l *Log) write(s *segment, b []byte, pos int64) error {
	f, err := s.file.acquire() // it is open: the log holds it
	if err != nil {
		return l.check(err)
	}
	defer s.file.release()

	n, err := f.WriteAt(b, pos)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	if err == nil {
		return l.failed.Err()
	}
	if errors.Is(err, io.ErrShortWrite) {
		err = fmt.Errorf("%w: %d of %d bytes went to %s", ErrStorageFull, n, len(b), s.file.path)
	}
	if err = l.check(err); errors.Is(err, ErrFailed) {
		return err
	}
	// What was written of it must be gone before something else is written
	// there, and must not come back after a power cut.
	if undo := f.Truncate(pos); undo != nil {
		return l.failed.Set(undo)
	}
	if undo := f.Sync(); undo != nil {
		return l.failed.Set(undo)
	}
	return err
}

// isDue reports whether a batch does not go into s, of size bytes so far.
func (l *Log) isDue(s *segment, size, batch, appendTime int64, cfg *Config) bool {
	if size == 0 {
		return false
	}
	return size+batch > cfg.SegmentBytes || isOld(s.firstAppend.Load(), appendTime, cfg.SegmentAge)
}

// isOld is the one rule for ages, for rolling and for retention alike: a thing
// is old when its age is more than the limit, not yet when it is the limit.
func isOld(sinceMs, nowMs int64, limit time.Duration) bool {
	return nowMs-sinceMs > limit.Milliseconds()
}

// rollFor rolls the active segment if a batch of the given size and append
// time is to begin a new one.
func (l *Log) rollFor(size, appendTime int64, cfg *Config) error {
	s := l.view.Load().active()
	if !l.isDue(s, s.size.Load(), size, appendTime, cfg) {
		return nil
	}
	return l.rollLocked()
}

// RollIfDue rolls the active segment when it is older than [Config.SegmentAge].
func (l *Log) RollIfDue(nowMs int64) error {
	l.writing.take()
	defer l.writing.give()

	if err := l.usable(); err != nil {
		return err
	}
	return l.rollFor(0, nowMs, l.config.Load())
}

// Roll seals the active segment and begins a new one at the log's end. An
// empty segment is not rolled.
func (l *Log) Roll() error {
	l.writing.take()
	defer l.writing.give()

	if err := l.usable(); err != nil {
		return err
	}
	if l.view.Load().active().size.Load() == 0 {
		return nil
	}
	return l.rollLocked()
}

// rollLocked makes a new active segment. It REQUIRES the writing turn. Nothing
// has changed after an error that is not ErrFailed.
func (l *Log) rollLocked() error {
	v := l.view.Load()
	sealed := v.active()
	if err := sealed.index.flush(); err != nil {
		// Entries that a full disk does not take stay in memory.
		if err = l.check(err); errors.Is(err, ErrFailed) {
			return err
		}
	}
	s, err := l.createSegment(l.End())
	if err != nil {
		return err
	}
	sealed.known.Store(true)
	next := *v
	next.segments = slices.Concat(v.segments, []*segment{s})
	l.view.Store(&next)
	return l.saveProducers(false)
}

// createSegment makes an empty segment and holds its file. A leftover of its
// name is adopted when it is empty, and set aside when it is not.
func (l *Log) createSegment(base record.Offset) (*segment, error) {
	s := newSegment(l.fs, l.dir, base, l.config.Load().IndexIntervalBytes, l.idle)
	f, err := s.file.create()
	if err != nil {
		return nil, l.check(err)
	}
	size, err := f.Size()
	if err == nil && size > 0 {
		s.retire()
		s.file.release()
		if err := l.setAside(segmentName(base, logSuffix), size); err != nil {
			return nil, err
		}
		return l.createSegment(base)
	}
	if err == nil {
		// With its header, so that one that is missing is one that was lost.
		if err = s.index.flush(); vfs.IsTransient(err) {
			err = nil
		}
	}
	if err != nil {
		s.retire()
		s.file.release()
		return nil, l.check(err)
	}
	s.known.Store(true)
	l.hold(s)
	return s, nil
}

// setAside renames a file of the log's directory to a name that nothing reads.
func (l *Log) setAside(name string, size int64) error {
	to, err := freeName(l.fs, l.dir, name+keptSuffix)
	if err != nil {
		return err
	}
	if err := l.check(l.fs.Rename(l.path(name), l.path(to))); err != nil {
		return err
	}
	l.event(Event{Kind: EventSetAside, Path: l.path(to), Detail: fmt.Sprintf("%d bytes", size)})
	return nil
}
