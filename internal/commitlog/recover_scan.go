package commitlog

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// trust takes the checkpoint's word, as after an orderly shutdown: of the last
// segment only the headers after its last index entry are read. It reports
// whether they bear the checkpoint out.
func (r *recovery) trust() (bool, error) {
	if len(r.segments) == 0 {
		return false, nil
	}
	s := r.segments[len(r.segments)-1]
	if s.base > r.kept.recoveryPoint || r.segments[0].base > r.kept.logStart {
		return false, nil
	}
	e := r.peekIndex(s)
	r.start(s, e)
	pos := e.pos
	err := r.walk(s, e.pos, func(at int64, f *record.Frame) bool {
		if at == e.pos && at > 0 && f.Header.BaseOffset != e.offset {
			return false
		}
		s.note(&f.Header, at, f.Size)
		r.next, pos = f.Header.NextOffset(), at+int64(f.Size)
		return true
	})
	if err != nil {
		return false, err
	}
	if pos == 0 {
		r.next = s.base
	}
	if pos != r.fileSize[s] || max(r.next, r.kept.logStart) != r.kept.recoveryPoint {
		r.forget(s)
		return false, nil
	}
	if err := r.firstAppend(s); err != nil {
		return false, err
	}
	s.known.Store(true)
	return true, nil
}

// start makes s as if only what is before e was known of it.
func (r *recovery) start(s *segment, e entry) {
	s.size.Store(e.pos)
	s.maxTimestamp.Store(e.maxTimestamp)
	s.next.Store(int64(e.offset))
	r.next = e.offset
}

// forget undoes what trust learnt of s.
func (r *recovery) forget(s *segment) {
	s.size.Store(r.fileSize[s])
	s.maxTimestamp.Store(noTimestamp)
	st := s.index.state.Load()
	s.index.load(st.interval, st.disk, 0)
	if !st.made {
		s.index.replace(st.interval, nil, 0)
	}
}

// firstAppend reads the append time of the segment's first batch, unless the
// scan began there.
func (r *recovery) firstAppend(s *segment) error {
	if s.firstAppend.Load() != 0 || s.size.Load() == 0 {
		return nil
	}
	f, err := s.file.acquire()
	if err != nil {
		return err
	}
	defer s.file.release()

	scan := scanner{file: f, size: r.fileSize[s], single: true}
	fr, v, err := scan.frame(0)
	r.l.bytesRead.Add(scan.bytesRead)
	if v == record.OK {
		s.firstAppend.Store(fr.Header.AppendTimeMs)
	}
	return err
}

// peekIndex returns the last entry of the index of s, and reads no more of it
// than that.
func (r *recovery) peekIndex(s *segment) entry {
	n := s.index.state.Load().disk
	if f, err := s.index.file.acquire(); err == nil {
		defer s.index.file.release()

		var b [indexHeaderSize]byte
		_, err := f.ReadAt(b[:], 0)
		interval, bad := parseIndexHeader(b[:], s.base)
		e := s.index.first()
		if err == nil && bad == nil && n > 0 {
			e, bad = readEntry(f, s.base, n-1)
		}
		r.l.bytesRead.Add(2 * indexEntrySize)
		if err == nil && bad == nil && (n == 0 || e.pos < r.fileSize[s]) {
			s.index.load(interval, n, e.pos)
			return e
		}
	}
	return r.lastEntry(s, unknownMark)
}

// lastEntry reads the index of s and returns the last of its entries that is
// below offset. The index goes on after that one. An index that cannot be
// believed is begun anew.
func (r *recovery) lastEntry(s *segment, offset record.Offset) entry {
	interval, entries, err := r.readIndex(s)
	if err != nil {
		s.index.replace(r.l.config.Load().IndexIntervalBytes, nil, 0)
		if s.base < r.kept.recoveryPoint {
			r.event(EventIndexRebuilt, filepath.Base(s.index.file.path), 0, err.Error())
		}
		return s.index.first()
	}
	n := 0
	for n < len(entries) && entries[n].offset < offset && entries[n].pos < r.fileSize[s] {
		n++
	}
	if n == 0 {
		s.index.load(interval, 0, 0)
		return s.index.first()
	}
	s.index.load(interval, n, entries[n-1].pos)
	return entries[n-1]
}

// readIndex reads the whole index of s, or what of it can be believed.
func (r *recovery) readIndex(s *segment) (interval int, entries []entry, err error) {
	b, err := vfs.ReadFile(r.l.fs, s.index.file.path)
	if err != nil {
		return 0, nil, err
	}
	r.l.bytesRead.Add(int64(len(b)))
	interval, entries, whole, err := parseIndex(b, s.base)
	if err == nil && !whole {
		r.event(EventIndexRebuilt, filepath.Base(s.index.file.path), int64(indexHeaderSize+len(entries)*indexEntrySize), "from here on")
	}
	return interval, entries, err
}

// scan reads all that may not be durable: every batch at or above the recovery
// point, its payload too, and the few before it that the index does not skip.
func (r *recovery) scan() error {
	r.next = r.kept.logStart
	if len(r.segments) == 0 {
		return nil
	}
	from := 0
	if r.mark != unknownMark {
		// A segment that ends at the mark is looked at too: its index was
		// synced only together with what comes after.
		for from+1 < len(r.segments) && r.segments[from+1].base < r.mark {
			from++
		}
	}
	if first := r.segments[0].base; first > r.kept.logStart && !r.bridge(0, first) {
		return nil
	}
	for i := from; i < len(r.segments); i++ {
		s := r.segments[i]
		if i > from && s.base != r.next && !r.bridge(i, s.base) {
			return nil
		}
		e := s.index.first()
		if i == from && r.mark != unknownMark {
			e = r.lastEntry(s, r.mark)
		} else {
			s.index.replace(r.l.config.Load().IndexIntervalBytes, nil, 0)
		}
		more, err := r.scanSegment(i, e)
		if err != nil || !more {
			return err
		}
	}
	return nil
}

// bridge judges a hole from next to the segment at index i, which begins at
// base: below the mark it is damage, at or above it the log is cut. It reports
// whether the scan goes on there.
func (r *recovery) bridge(i int, base record.Offset) bool {
	switch {
	case base < r.next:
		// It overlaps what is before it. Nothing of ours writes that.
		r.drop(i, "overlaps the segment before it")
		if r.belowMark() && r.mark != unknownMark {
			r.lose(r.mark, r.segments[i], 0, "overlap")
		}
		return false
	case r.belowMark() && base <= r.mark:
		r.lose(base, r.segments[i], 0, "the batches before this segment are missing")
		return true
	case r.belowMark():
		r.lose(r.mark, r.segments[i], 0, "the batches before this segment are missing")
		fallthrough
	default:
		r.drop(i, "the batches before it are missing")
		return false
	}
}

// belowMark reports whether the log has offsets that should be durable where
// the scan is. What is below the log start need not be.
func (r *recovery) belowMark() bool { return max(r.next, r.kept.logStart) < r.mark }

// drop gives up the segments from index i on.
func (r *recovery) drop(i int, why string) {
	for _, s := range r.segments[i:] {
		if size := r.fileSize[s]; size > 0 {
			r.report.TornBytes += size
			r.report.Spoiled = true
			r.event(EventTailCut, filepath.Base(s.file.path), 0, fmt.Sprintf("%d bytes: %s", size, why))
		}
	}
	r.aside = append(r.aside, r.segments[i:]...)
	r.segments = r.segments[:i]
}

// lose writes down that the offsets from next up to to are damaged.
func (r *recovery) lose(to record.Offset, s *segment, pos int64, what string) {
	r.damage = addRange(r.damage, Range{r.next, to})
	r.event(EventDamage, filepath.Base(s.file.path), pos, fmt.Sprintf("offsets %d to %d: %s", r.next, to-1, what))
	r.next = to
}

// scanSegment reads segment i from the batch of e on. It reports whether the
// log may go on in the next segment.
func (r *recovery) scanSegment(i int, e entry) (more bool, err error) {
	s := r.segments[i]
	f, err := s.file.acquire()
	if err != nil {
		return false, err
	}
	defer s.file.release()

	scan := scanner{file: f, size: r.fileSize[s], payloads: true}
	defer func() { r.l.bytesRead.Add(scan.bytesRead) }()
	if fr, v, err := scan.frame(e.pos); err == nil && e.pos > 0 && v == record.OK && fr.Header.BaseOffset != e.offset {
		// The index lies: without it.
		s.index.replace(r.l.config.Load().IndexIntervalBytes, nil, 0)
		r.event(EventIndexRebuilt, filepath.Base(s.index.file.path), 0, "an entry does not match")
		e = s.index.first()
	}
	r.start(s, e)
	r.dirty = append(r.dirty, s)
	for pos := e.pos; ; {
		fr, v, err := scan.frame(pos)
		if err != nil {
			return false, err
		}
		if v == record.UnknownFormat {
			return false, fmt.Errorf("%s at byte %d: %w", s.file.path, pos, ErrUnknownFormat)
		}
		if v == record.End {
			s.known.Store(true)
			return true, r.firstAppend(s)
		}
		if why := r.misplaced(&fr, v, s, pos); why != "" {
			next, ok, err := r.bad(i, &scan, pos, &fr, v, why)
			if err != nil || !ok {
				return false, errors.Join(err, r.firstAppend(s))
			}
			pos = next
			continue
		}
		if v == record.CorruptEnvelope {
			r.envelopes = append(r.envelopes, envelope{s, pos, fr.AppendEnvelope(nil)})
			r.event(EventEnvelopeRepaired, filepath.Base(s.file.path), pos, fmt.Sprintf("offset %d", fr.Header.BaseOffset))
		}
		r.admit(s, &fr, pos)
		pos += int64(fr.Size)
	}
}

// admit takes a sound frame over.
func (r *recovery) admit(s *segment, f *record.Frame, pos int64) {
	h := &f.Header
	s.note(h, pos, f.Size)
	r.next, r.epoch = h.NextOffset(), h.LeaderEpoch
	r.epochs = r.epochs.observe(h.LeaderEpoch, max(h.BaseOffset, r.kept.logStart))
}

// misplaced says why a frame cannot be part of the log, "" when it can.
func (r *recovery) misplaced(f *record.Frame, v record.Verdict, s *segment, pos int64) string {
	h := &f.Header
	switch {
	case v != record.OK && v != record.CorruptEnvelope:
		return v.String()
	case h.LeaderEpoch < r.epoch:
		return fmt.Sprintf("leader epoch %d after %d", h.LeaderEpoch, r.epoch)
	case h.BaseOffset >= r.next:
		return ""
	case pos == 0 && s == r.segments[0] && h.NextOffset() > s.base:
		return "" // the first batch after a reset
	default:
		return fmt.Sprintf("base offset %d, expected %d", h.BaseOffset, r.next)
	}
}

// bad judges what cannot be part of the log at pos of segment i. Below the
// mark it is damage, and next is where the log goes on; at or above it the log
// ends here.
func (r *recovery) bad(i int, scan *scanner, pos int64, f *record.Frame, v record.Verdict, why string) (next int64, more bool, err error) {
	s := r.segments[i]
	if r.belowMark() {
		e, found, err := r.goOn(i, scan, pos, f, v)
		if err != nil {
			return 0, false, err
		}
		if found && e.offset <= r.mark && e.offset > r.next {
			r.lose(e.offset, s, pos, why)
			s.size.Store(e.pos)
			return e.pos, true, nil
		}
		if r.mark != unknownMark {
			// Nothing durable can be reached any more. The file stays as it
			// is, and the log goes on in another.
			r.endDamaged(i, pos, why)
			return 0, false, nil
		}
	}
	torn := r.fileSize[s] - pos
	r.report.TornBytes += torn
	r.report.Spoiled = r.report.Spoiled || v != record.Torn
	r.event(EventTailCut, filepath.Base(s.file.path), pos, fmt.Sprintf("%d bytes: %s", torn, why))
	r.cut = s
	s.known.Store(true)
	r.drop(i+1, "the batches before it were cut")
	return 0, false, nil
}

// endDamaged ends the log at the mark, in a new segment, because what is below
// it in segment i is damaged to the end.
func (r *recovery) endDamaged(i int, pos int64, why string) {
	r.lose(r.mark, r.segments[i], pos, why)
	r.drop(i+1, "the batches before it are damaged")
	r.fresh = true
}

// goOn finds the first frame after the bad one at pos: right after it when its
// header is sound, else at an entry of the index.
func (r *recovery) goOn(i int, scan *scanner, pos int64, f *record.Frame, v record.Verdict) (entry, bool, error) {
	s := r.segments[i]
	if v == record.CorruptPayload && f.Header.BaseOffset >= r.next {
		return entry{offset: f.Header.NextOffset(), pos: pos + int64(f.Size)}, true, nil
	}
	_, entries, _ := r.readIndex(s)
	for _, e := range entries {
		if e.pos <= pos {
			continue
		}
		fr, v, err := scan.frame(e.pos)
		if err != nil {
			return entry{}, false, err
		}
		if v == record.OK && fr.Header.BaseOffset == e.offset {
			return e, true, nil
		}
	}
	if i+1 < len(r.segments) {
		// All that is left of this one is lost; the hole is judged there.
		return entry{offset: r.segments[i+1].base, pos: r.fileSize[s]}, true, nil
	}
	return entry{}, false, nil
}
