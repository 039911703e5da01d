package commitlog

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// errRetry says that the log changed under a reader, which looks again.
var errRetry = errors.New("the log changed under a read")

// Read copies whole frames into dst: those that hold the offsets from from up
// to, but without, end, as far as there are some, they fit, and they are in
// one segment. The first frame may begin before from, and the last one reach
// beyond end. It returns how many bytes it copied, 0 when from is the log's
// end or not below end.
//
// Each frame's header was verified, its payload was not. The errors are
// ErrOutOfRange, ErrShortBuffer, ErrCorrupt, ErrUnknownFormat, ErrTooManyFiles,
// ErrFailed and ErrClosed. What the disk does not give back is damage, too. Damage
// behind sound frames shows in the next call.
func (l *Log) Read(dst []byte, from, end record.Offset) (n int, err error) {
	err = l.retry(func() error {
		n, err = l.read(dst, from, end)
		return err
	})
	return n, l.found(err)
}

// retry repeats a read for as long as the log changes under it: every change
// that causes a repetition is done when the next try begins.
func (l *Log) retry(read func() error) error {
	for {
		cuts := l.cuts.Load()
		err := read()
		select {
		case <-l.failed.Done():
			return l.failed.Err() // nothing positive any more
		default:
		}
		switch {
		case l.closed.Load() && err != nil:
			return ErrClosed
		case l.cuts.Load() != cuts, errors.Is(err, errRetry), errors.Is(err, errGone):
			// What was read may be of two histories, a removed file, or none.
			continue
		case vfs.IsTooManyFiles(err):
			return fmt.Errorf("%w: %w", ErrTooManyFiles, err)
		default:
			return err
		}
	}
}

func (l *Log) read(dst []byte, from, end record.Offset) (int, error) {
	cuts := l.cuts.Load()
	logEnd := l.End()
	v := l.view.Load()
	if from < v.start || from > logEnd {
		return 0, &RangeError{Offset: from, LogStart: v.start, End: logEnd}
	}
	end = min(end, logEnd)
	for _, r := range v.damage {
		if from < r.From {
			end = min(end, r.From)
			break
		}
		if from < r.To {
			return 0, &CorruptError{
				Path: v.segments[v.find(from)].file.path, Offset: from, NextOffset: r.To, What: "found at recovery",
			}
		}
	}
	if from >= end {
		return 0, nil
	}
	for i := v.find(from); i < len(v.segments); i++ {
		n, through, err := l.readSegment(v, i, dst, from, end, cuts)
		if n > 0 || err != nil || !through {
			return n, err
		}
		if i+1 == len(v.segments) || from >= v.segments[i+1].base {
			continue
		}
		if l.End() < logEnd {
			return 0, errRetry // a truncation is under way, which lowers the end before the sizes
		}
		// A segment is made at the end of the one before it: that one has lost its end, or one between them is gone.
		return 0, l.corruptError(v, i, v.segments[i].size.Load(), from, "no segment has them")
	}
	return 0, nil
}

// find returns the index of the segment that has offset.
func (v *view) find(offset record.Offset) int {
	i := len(v.segments) - 1
	for i > 0 && v.segments[i].base > offset {
		i--
	}
	return i
}

// readSegment is Read in one segment. n is 0 when it has nothing in the range,
// and through says that it has nothing after it either.
func (l *Log) readSegment(v *view, i int, dst []byte, from, end record.Offset, cuts uint64) (n int, through bool, err error) {
	s := v.segments[i]
	f, err := s.file.acquire()
	if err != nil {
		return 0, false, l.unopened(err, v, i)
	}
	defer s.file.release()

	size := s.size.Load()
	pos, hinted := s.hints.find(from, cuts)
	if !hinted || len(dst) < record.PrefixMax {
		scan := scanner{file: f, size: size}
		var need int
		pos, need, err = l.locate(v, i, &scan, from, end)
		if err != nil || need == 0 {
			return 0, pos < 0, err
		}
		if need > len(dst) {
			return 0, false, &ShortBufferError{Need: need}
		}
	}
	if pos > size {
		return 0, false, errRetry
	}
	got, rerr := f.ReadAt(dst[:min(int64(len(dst)), size-pos)], pos)
	n, next, err := l.trim(v, i, dst[:got], pos, size, from, end)
	if rerr != nil && !errors.Is(rerr, io.EOF) && n == 0 && !errors.Is(err, ErrCorrupt) {
		return 0, false, l.unreadable(&readError{pos, rerr}, v, i, from)
	}
	if err == nil && n > 0 {
		s.hints.put(next, pos+int64(n), cuts)
	}
	return n, pos == size, err
}

// locate finds the first frame of segment i that reaches from, and its size,
// which is 0 when there is none below end; pos is -1 when there is none at all.
func (l *Log) locate(v *view, i int, scan *scanner, from, end record.Offset) (pos int64, size int, err error) {
	s := v.segments[i]
	_ = s.learn(l) // for what it finds out about the index; the read says what else is wrong
	e, err := s.find(l, scan, func(e entry) bool { return e.offset <= from })
	if err != nil {
		return 0, 0, err
	}
	next := e.offset
	for pos = e.pos; ; {
		fr, verdict, err := scan.frame(pos)
		if err != nil {
			return 0, 0, l.unreadable(err, v, i, max(next, from))
		}
		switch verdict {
		case record.OK, record.CorruptEnvelope:
		case record.End:
			return -1, 0, nil
		default:
			return 0, 0, l.corrupt(v, i, pos, max(next, from), verdict)
		}
		if fr.Header.NextOffset() > from {
			if fr.Header.BaseOffset >= end {
				return pos, 0, nil
			}
			if fr.Header.BaseOffset <= from {
				err = l.checkIndex(s, e, pos)
			}
			return pos, fr.Size, err
		}
		next = fr.Header.NextOffset()
		pos += int64(fr.Size)
	}
}

// checkIndex makes an index anew that lacks an entry it should have had for a
// batch between e and pos. The read goes on meanwhile, it only took longer.
func (l *Log) checkIndex(s *segment, e entry, pos int64) error {
	state := s.index.state.Load()
	if s == l.view.Load().active() || pos-e.pos < int64(state.interval) {
		return nil
	}
	return s.remakeIndex(l)
}

// trim returns how many bytes of b, read at pos of segment i, are whole frames
// that begin below end, and the offset after them. The envelopes of sound
// frames are repaired in b.
func (l *Log) trim(v *view, i int, b []byte, pos, size int64, from, end record.Offset) (n int, next record.Offset, err error) {
	next = from
	for n < len(b) {
		at := pos + int64(n)
		f, verdict := record.ParseFrame(b[n:], size-at, record.MaxFrameSize)
		if verdict == record.NeedMore && n == 0 {
			return 0, 0, &ShortBufferError{Need: record.PrefixMax}
		}
		if verdict == record.NeedMore {
			break
		}
		if verdict == record.CorruptEnvelope && f.Size <= len(b)-n {
			if verdict = confirm(b[n+f.Size:], size-at-int64(f.Size)); verdict == record.OK {
				copy(b[n:], f.AppendEnvelope(nil))
			}
		}
		if verdict != record.OK && n > 0 {
			break // the next read says it
		}
		if verdict != record.OK {
			return 0, 0, l.corrupt(v, i, at, from, verdict)
		}
		if f.Header.BaseOffset >= end {
			break
		}
		if f.Size > len(b)-n {
			if n == 0 {
				return 0, 0, &ShortBufferError{Need: f.Size}
			}
			break
		}
		n += f.Size
		next = f.Header.NextOffset()
	}
	return n, next, nil
}

// confirm judges whether a frame whose envelope is damaged may be believed: by
// what follows it, as far as that was read.
func confirm(b []byte, remaining int64) record.Verdict {
	switch _, v := record.ParseFrame(b, remaining, record.MaxFrameSize); v {
	case record.OK, record.End, record.NeedMore, record.CorruptEnvelope:
		return record.OK
	default:
		return record.CorruptHeader
	}
}

// corrupt is the error for a bad frame at pos of segment i, where offset
// should be.
func (l *Log) corrupt(v *view, i int, pos int64, offset record.Offset, verdict record.Verdict) error {
	if verdict == record.UnknownFormat {
		return fmt.Errorf("%s at byte %d: %w", v.segments[i].file.path, pos, ErrUnknownFormat)
	}
	return l.corruptError(v, i, pos, offset, verdict.String())
}

// corruptError says where to go on: at the next index entry, the next segment,
// or the end.
func (l *Log) corruptError(v *view, i int, pos int64, offset record.Offset, what string) *CorruptError {
	s := v.segments[i]
	next := l.End()
	if i+1 < len(v.segments) {
		next = v.segments[i+1].base
	}
	if e, ok, err := s.index.after(pos); err == nil && ok && e.offset > offset {
		next = min(next, e.offset)
	}
	return &CorruptError{Path: s.file.path, Position: pos, Offset: offset, NextOffset: max(next, offset), What: what}
}

// hintSlots is how many readers that read on and on a segment remembers.
const hintSlots = 8

// hints remember where reads of a segment ended, so that the next one of the
// same reader needs no search.
type hints [hintSlots]atomic.Pointer[hint]

// A hint is immutable.
type hint struct {
	offset record.Offset
	pos    int64
	cuts   uint64 // it is good for as long as the log was not cut since
}

func slotOf(offset record.Offset) uint64 { return uint64(offset) * 0x9E3779B97F4A7C15 >> 61 }

func (h *hints) find(offset record.Offset, cuts uint64) (pos int64, ok bool) {
	if p := h[slotOf(offset)].Load(); p != nil && p.offset == offset && p.cuts == cuts {
		return p.pos, true
	}
	return 0, false
}

func (h *hints) put(offset record.Offset, pos int64, cuts uint64) {
	h[slotOf(offset)].Store(&hint{offset, pos, cuts})
}
