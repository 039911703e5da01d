package commitlog

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// Names of a segment's files: the base offset in 20 digits, and one of these.
const (
	logSuffix   = ".log"
	indexSuffix = ".index"
	// keptSuffix ends the names of bytes that were cut or set aside. Nothing
	// reads them, and only a reset or the removal of the partition deletes
	// them.
	keptSuffix = ".torn"
)

func segmentName(base record.Offset, suffix string) string {
	return fmt.Sprintf("%020d%s", base, suffix)
}

// parseSegmentName returns the base offset of a segment file.
func parseSegmentName(name, suffix string) (record.Offset, bool) {
	digits, ok := strings.CutSuffix(name, suffix)
	if !ok || len(digits) != 20 {
		return 0, false
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || digits[0] == '+' {
		return 0, false
	}
	return record.Offset(n), true
}

// A segment is one file of frames, and its index.
type segment struct {
	// base is the offset the file is named by: the log's end when it was
	// made. No record of it is below, but those of the first batch after a
	// reset.
	base  record.Offset
	file  *handle
	index *index
	hints hints

	// size is how many bytes of the file are whole frames of the log. The
	// writer raises it before the log's end, and lowers it after.
	size atomic.Int64
	// maxTimestamp is the largest timestamp of its records; noTimestamp
	// without any. It is right for what is below a size read before it.
	maxTimestamp atomic.Int64
	// next is the offset after its last record, its base without any.
	next atomic.Int64
	// firstAppend and lastAppend are the append times of its first and last
	// batch, in Unix milliseconds.
	firstAppend, lastAppend atomic.Int64
	// known says that the four above are: a sealed segment's are read when
	// they are needed.
	known atomic.Bool
}

func newSegment(fsys vfs.FS, dir string, base record.Offset, interval int, idle *IdleFiles) *segment {
	s := &segment{
		base:  base,
		file:  &handle{fs: fsys, path: filepath.Join(dir, segmentName(base, logSuffix)), idle: idle},
		index: newIndex(fsys, filepath.Join(dir, segmentName(base, indexSuffix)), base, interval, idle),
	}
	s.maxTimestamp.Store(noTimestamp)
	s.next.Store(int64(base))
	return s
}

// note takes a whole frame at pos, the segment's end, into account. Only the
// log's writer, or its recovery, calls it. It reports whether the index should
// be written.
func (s *segment) note(h *record.Header, pos int64, size int) (full bool) {
	full = s.index.note(h.BaseOffset, pos, s.maxTimestamp.Load())
	if t := timestamp(h); t > s.maxTimestamp.Load() {
		s.maxTimestamp.Store(t)
	}
	if pos == 0 {
		s.firstAppend.Store(h.AppendTimeMs)
	}
	s.lastAppend.Store(h.AppendTimeMs)
	s.next.Store(int64(h.NextOffset()))
	s.size.Store(pos + int64(size))
	return full
}

// learn makes the times of a sealed segment known: what is not in the index
// it reads from the few frames after the last entry. If they are not few the
// index lacks entries, and is made anew.
func (s *segment) learn(l *Log) error {
	if s.known.Load() {
		return nil
	}
	f, err := s.file.acquire()
	if err != nil {
		return err
	}
	defer s.file.release()

	scan := scanner{file: f, size: s.size.Load()}
	first, _, err := scan.frame(0)
	if err != nil {
		return err
	}
	if err := s.index.readHeader(); errors.Is(err, errBadIndex) {
		if err := s.remakeIndex(l); err != nil {
			return err
		}
	}
	e, err := s.find(l, &scan, func(entry) bool { return true })
	if err != nil {
		return err
	}
	maxTimestamp, lastAppend, next, lacking := e.maxTimestamp, first.Header.AppendTimeMs, e.offset, false
	interval := int64(s.index.state.Load().interval)
	for pos := e.pos; ; {
		fr, v, err := scan.frame(pos)
		if err != nil {
			return err
		}
		if v != record.OK && v != record.CorruptEnvelope {
			break
		}
		lacking = lacking || pos-e.pos >= interval
		maxTimestamp = max(maxTimestamp, timestamp(&fr.Header))
		lastAppend = max(lastAppend, fr.Header.AppendTimeMs)
		next = fr.Header.NextOffset()
		pos += int64(fr.Size)
	}
	if lacking {
		if err := s.remakeIndex(l); err != nil {
			return err
		}
	}
	s.firstAppend.Store(first.Header.AppendTimeMs)
	s.maxTimestamp.Store(maxTimestamp)
	s.lastAppend.Store(lastAppend)
	s.next.Store(int64(next))
	s.known.Store(true)
	return nil
}

// find is index.search, with an index that cannot be believed made anew.
func (s *segment) find(l *Log, scan *scanner, before func(entry) bool) (entry, error) {
	e, err := s.index.search(before)
	if err == nil {
		err = s.verify(scan, e)
	}
	if !errors.Is(err, errBadIndex) {
		return e, err
	}
	if err := s.remakeIndex(l); err != nil {
		return entry{}, err
	}
	e, err = s.index.search(before)
	if errors.Is(err, errBadIndex) {
		return s.index.first(), nil // slow, and right
	}
	return e, err
}

// verify checks that the batch of an entry is where the entry says. Damage
// there is the segment's and not the index's fault.
func (s *segment) verify(scan *scanner, e entry) error {
	if e.pos == 0 {
		return nil
	}
	if e.pos >= s.size.Load() {
		return errBadIndex
	}
	fr, v, err := scan.frame(e.pos)
	if errors.As(err, new(*readError)) {
		return nil
	}
	if err == nil && v == record.OK && fr.Header.BaseOffset != e.offset {
		err = errBadIndex
	}
	return err
}

// remakeIndex makes the index from the frames, in memory; the next checkpoint
// writes it.
func (s *segment) remakeIndex(l *Log) error {
	f, err := s.file.acquire()
	if err != nil {
		return err
	}
	defer s.file.release()

	interval := l.config.Load().IndexIntervalBytes
	scan := scanner{file: f, size: s.size.Load()}
	var entries []entry
	last, pos, maxTimestamp := int64(0), int64(0), int64(noTimestamp)
	for {
		fr, v, err := scan.frame(pos)
		if errors.As(err, new(*readError)) {
			break // as for bytes that are bad: who reads there finds it
		}
		if err != nil {
			return err
		}
		if v != record.OK && v != record.CorruptEnvelope {
			break
		}
		if pos-last >= int64(interval) {
			entries = append(entries, entry{fr.Header.BaseOffset, pos, maxTimestamp})
			last = pos
		}
		maxTimestamp = max(maxTimestamp, timestamp(&fr.Header))
		pos += int64(fr.Size)
	}
	s.index.replace(interval, entries, pos)
	l.bytesRead.Add(scan.bytesRead)
	l.event(Event{Kind: EventIndexRebuilt, Path: s.index.file.path, Detail: fmt.Sprintf("%d entries", len(entries))})
	return nil
}

// retire refuses new readers; files that readers have open stay readable to
// them after they were unlinked.
func (s *segment) retire() {
	s.file.retire()
	s.index.file.retire()
}
