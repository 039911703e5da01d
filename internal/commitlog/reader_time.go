package commitlog

import (
	"errors"
	"fmt"

	"github.com/runnelmq/runnel/internal/record"
)

// OffsetForTime returns the smallest offset, from the log start up to but
// without end, whose record's timestamp is ms or later, and that timestamp,
// in Unix milliseconds. Timestamps need not be in order. found is false when
// there is none. Where records before the answer are gone or damaged, and one
// of them could have been it, the error is a [CorruptError] that says where
// sound ones go on. The other errors are those of Read.
func (l *Log) OffsetForTime(ms int64, end record.Offset) (off record.Offset, tsMs int64, found bool, err error) {
	err = l.retry(func() error {
		off, tsMs, found, err = l.offsetForTime(ms, end)
		return err
	})
	return off, tsMs, found, l.found(err)
}

func (l *Log) offsetForTime(ms int64, end record.Offset) (off record.Offset, tsMs int64, found bool, err error) {
	end = min(end, l.End())
	v := l.view.Load()
	if v.start >= end {
		return 0, 0, false, nil
	}
	q := timeQuery{ms: ms, start: v.start, end: end}
	for i, s := range v.segments {
		if s.base >= end {
			break
		}
		if err := s.learn(l); err != nil {
			return 0, 0, false, l.unlearned(err, v, i)
		}
		if s.maxTimestamp.Load() >= ms {
			off, tsMs, found, err = l.searchTime(v, i, &q)
			if found || err != nil {
				break
			}
			// Its late record is below the log start, or not below the end.
		}
		if err := l.hole(v, i, end); err != nil {
			return 0, 0, false, err
		}
	}
	if err != nil {
		return 0, 0, false, err
	}
	if found {
		end = off
	}
	if err := v.damagedBefore(end); err != nil {
		return 0, 0, false, err
	}
	return off, tsMs, found, nil
}

// hole is the error for offsets below end that should follow segment i, and are
// in no segment.
func (l *Log) hole(v *view, i int, end record.Offset) error {
	next := max(record.Offset(v.segments[i].next.Load()), v.start)
	if i+1 == len(v.segments) || next >= v.segments[i+1].base || next >= end {
		return nil
	}
	if l.End() < end {
		return errRetry // a truncation is under way, which lowers the end before the rest
	}
	return l.corruptError(v, i, v.segments[i].size.Load(), next, "no segment has them")
}

// damagedBefore is the error for offsets below end that recovery could not
// read: nobody knows their times.
func (v *view) damagedBefore(end record.Offset) error {
	for _, r := range v.damage {
		if from := max(r.From, v.start); from < min(r.To, end) {
			return &CorruptError{Path: v.segments[v.find(from)].file.path, Offset: from, NextOffset: r.To, What: "found at recovery"}
		}
	}
	return nil
}

type timeQuery struct {
	ms         int64
	start, end record.Offset
	records    record.Iterator
}

// searchTime looks for the query's record in segment i.
func (l *Log) searchTime(v *view, i int, q *timeQuery) (off record.Offset, tsMs int64, found bool, err error) {
	s := v.segments[i]
	f, err := s.file.acquire()
	if err != nil {
		return 0, 0, false, l.unopened(err, v, i)
	}
	defer s.file.release()

	scan := scanner{file: f, size: s.size.Load()}
	e, err := s.find(l, &scan, func(e entry) bool { return e.maxTimestamp < q.ms })
	if err != nil {
		return 0, 0, false, err
	}
	next := e.offset
	for pos := e.pos; ; {
		fr, verdict, err := scan.frame(pos)
		if err != nil {
			return 0, 0, false, l.unreadable(err, v, i, next)
		}
		h := &fr.Header
		switch {
		case verdict == record.End:
			return 0, 0, false, nil
		case verdict != record.OK && verdict != record.CorruptEnvelope:
			return 0, 0, false, l.corrupt(v, i, pos, next, verdict)
		case h.BaseOffset >= q.end:
			return 0, 0, false, nil
		case h.LastOffset() >= q.start && timestamp(h) >= q.ms:
			payload, err := scan.payload(pos, &fr)
			if err != nil {
				return 0, 0, false, l.unreadable(err, v, i, next)
			}
			off, tsMs, found, err = q.inBatch(h, payload)
			if errors.Is(err, record.ErrCorruptBatch) {
				err = &CorruptError{
					Path: s.file.path, Position: pos, Offset: h.BaseOffset, NextOffset: h.NextOffset(), What: err.Error(),
				}
			}
			if found || err != nil {
				return off, tsMs, found, err
			}
		}
		next = h.NextOffset()
		pos += int64(fr.Size)
	}
}

// inBatch looks for the query's record in one batch.
func (q *timeQuery) inBatch(h *record.Header, payload []byte) (off record.Offset, tsMs int64, found bool, err error) {
	if err := record.VerifyPayload(*h, payload); err != nil {
		return 0, 0, false, err
	}
	q.records.Reset(*h, payload)
	for q.records.Next() {
		r := q.records.Record()
		if r.Offset >= q.end {
			break
		}
		if r.Offset >= q.start && r.TimestampMs >= q.ms {
			return r.Offset, r.TimestampMs, true, nil
		}
	}
	if err := q.records.Err(); err != nil {
		return 0, 0, false, fmt.Errorf("batch at offset %d: %w", h.BaseOffset, err)
	}
	return 0, 0, false, nil
}
