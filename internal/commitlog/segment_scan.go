package commitlog

import (
	"errors"
	"io"

	"github.com/runnelmq/runnel/internal/record"
)

// Sizes of a scanner's window: one page when only headers are wanted, so that
// a jump over a large batch reads little, and more when every byte is.
const (
	headerWindow  = 4 << 10
	payloadWindow = 256 << 10
)

// A scanner judges the frames of a segment file one by one.
type scanner struct {
	file io.ReaderAt
	// size is where the file ends, as far as the scanner is concerned.
	size int64
	// payloads makes it check payloads too.
	payloads bool
	// single says that one header is wanted, and nothing is read ahead.
	single bool
	// bytesRead counts what was read from the file.
	bytesRead int64

	buf []byte // the window: its bytes are those of the file from at on
	at  int64
}

// frame judges what begins at pos.
func (s *scanner) frame(pos int64) (record.Frame, record.Verdict, error) {
	b, err := s.window(pos, record.PrefixMax)
	if err != nil {
		return record.Frame{}, 0, err
	}
	f, v := record.ParseFrame(b, s.size-pos, record.MaxFrameSize)
	if v == record.CorruptEnvelope {
		if v, err = s.judgeEnvelope(pos, &f); err != nil {
			return record.Frame{}, 0, err
		}
	}
	if (v != record.OK && v != record.CorruptEnvelope) || !s.payloads {
		return f, v, nil
	}
	b, err = s.window(pos, f.Size)
	if err != nil {
		return record.Frame{}, 0, err
	}
	if record.PayloadCRC(f.Payload(b)) != f.Header.PayloadCRC {
		if v == record.CorruptEnvelope {
			return record.Frame{}, record.CorruptHeader, nil
		}
		return f, record.CorruptPayload, nil
	}
	return f, v, nil
}

// judgeEnvelope says whether a frame that only its header vouches for may be
// repaired: when another frame, or the end of the file, is where it ends.
func (s *scanner) judgeEnvelope(pos int64, f *record.Frame) (record.Verdict, error) {
	next := pos + int64(f.Size)
	b, err := s.window(next, record.PrefixMax)
	if err != nil {
		return 0, err
	}
	switch _, v := record.ParseFrame(b, s.size-next, record.MaxFrameSize); v {
	case record.OK, record.End, record.CorruptEnvelope:
		return record.CorruptEnvelope, nil
	default:
		*f = record.Frame{}
		return record.CorruptHeader, nil
	}
}

// payload returns the payload of the frame at pos, good until the next call.
func (s *scanner) payload(pos int64, f *record.Frame) ([]byte, error) {
	b, err := s.window(pos, f.Size)
	if err != nil {
		return nil, err
	}
	return f.Payload(b), nil
}

// window returns at least n bytes of the file at pos, fewer where it ends.
func (s *scanner) window(pos int64, n int) ([]byte, error) {
	n = int(max(0, min(int64(n), s.size-pos)))
	if pos >= s.at && pos+int64(n) <= s.at+int64(len(s.buf)) {
		return s.buf[pos-s.at:], nil
	}
	want := headerWindow
	switch {
	case s.payloads:
		want = payloadWindow
	case s.single:
		want = 0
	}
	want = int(max(int64(n), min(int64(want), s.size-pos)))
	if cap(s.buf) < want {
		s.buf = make([]byte, want)
	}
	got, err := s.file.ReadAt(s.buf[:want], pos)
	s.bytesRead += int64(got)
	s.buf, s.at = s.buf[:got], pos
	if err != nil && !errors.Is(err, io.EOF) && got < n {
		s.buf = s.buf[:0]
		return nil, &readError{pos, err}
	}
	if got < n {
		// Shorter than was said: the file was cut meanwhile.
		s.size = pos + int64(got)
	}
	return s.buf, nil
}

// timestamp is the largest timestamp of a batch's records, noTimestamp when
// compaction has left none.
func timestamp(h *record.Header) int64 {
	if h.RecordCount == 0 {
		return noTimestamp
	}
	if h.TimestampType == record.LogAppendTime {
		return h.AppendTimeMs
	}
	return h.MaxTimestampMs
}
