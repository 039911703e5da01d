package commitlog

import "github.com/runnelmq/runnel/internal/record"

// A Place is what the log knows of an offset without reading its record.
type Place struct {
	// AppendTimeMs is when the batch was appended that holds the first record at
	// or after the offset, Unix milliseconds, if Found.
	AppendTimeMs int64
	Found        bool
	// BytesAfter is how much of the log lies there and behind.
	BytesAfter int64
}

// Place finds the first record at or after from, or at the log start when that
// is higher, if it is below end. The errors are those of Read.
func (l *Log) Place(from, end record.Offset) (p Place, err error) {
	err = l.retry(func() error {
		p, err = l.place(from, end)
		return err
	})
	return p, l.found(err)
}

func (l *Log) place(from, end record.Offset) (p Place, err error) {
	logEnd := l.End()
	v := l.view.Load()
	from, end = max(from, v.start), min(end, logEnd)
	if from >= logEnd {
		return p, nil
	}
	for i := v.find(from); i < len(v.segments); i++ {
		got, over, err := l.placeIn(v, i, from, end)
		if err != nil {
			return p, err
		}
		if p.BytesAfter == 0 {
			p.BytesAfter = got.BytesAfter
		}
		if p.AppendTimeMs, p.Found = got.AppendTimeMs, got.Found; p.Found || over {
			break
		}
	}
	return p, nil
}

// placeIn is place in one segment. over says that what follows is not below end.
func (l *Log) placeIn(v *view, i int, from, end record.Offset) (p Place, over bool, err error) {
	s := v.segments[i]
	f, err := s.file.acquire()
	if err != nil {
		return p, false, l.unopened(err, v, i)
	}
	defer s.file.release()

	size := s.size.Load()
	scan := scanner{file: f, size: size}
	pos, frame, err := l.locate(v, i, &scan, from, end)
	if err != nil || pos < 0 {
		return p, false, err
	}
	p.BytesAfter = size - pos
	for _, later := range v.segments[i+1:] {
		p.BytesAfter += later.size.Load()
	}
	for frame > 0 {
		fr, verdict, err := scan.frame(pos)
		if err != nil {
			return p, false, l.unreadable(err, v, i, from)
		}
		switch verdict {
		case record.OK, record.CorruptEnvelope:
		case record.End: // what there was is emptied
			return p, false, nil
		default:
			return p, false, l.corrupt(v, i, pos, from, verdict)
		}
		if fr.Header.BaseOffset >= end {
			break
		}
		if fr.Header.RecordCount > 0 {
			p.AppendTimeMs, p.Found = fr.Header.AppendTimeMs, true
			return p, false, nil
		}
		pos += int64(fr.Size)
	}
	return p, true, nil
}
