package wire

import (
	"fmt"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/runnelmq/runnel/internal/record"
)

// A Record is one record of a request: of the kind ProduceRecord or
// ProduceTextRecord. Nil keys and values are absent; empty ones are not nil.
// Its slices, and the keys of its headers, point into the request: they change
// when its buffer does. Headers is reused by the next record.
type Record struct {
	Key, Value []byte
	Headers    []record.HeaderKV
	// Seconds and Nanos are the timestamp, when HasTimestamp.
	Seconds      int64
	Nanos        int32
	HasTimestamp bool
}

// TimestampMs returns the timestamp in Unix milliseconds. It is false for one
// that is no google.protobuf.Timestamp, or beyond an int64 of milliseconds.
func (r *Record) TimestampMs() (int64, bool) {
	const most = 1<<63/1000 - 1
	if r.Seconds > most || r.Seconds < -most || r.Nanos < 0 || r.Nanos > 999_999_999 {
		return 0, false
	}
	return r.Seconds*1000 + int64(r.Nanos)/1_000_000, true
}

// A Records walks the records of a request, of the one kind it has, in order.
type Records struct {
	s     scanner
	want  protowire.Number
	index int
	err   error
	rec   Record
}

// Reset begins with the first of r's records.
func (it *Records) Reset(r *ProduceRequest) {
	want := protowire.Number(produceRecords)
	if r.TextRecords > 0 {
		want = produceTextRecords
	}
	*it = Records{s: scan(r.buf, r.start, r.end), want: want, index: -1, rec: Record{Headers: it.rec.Headers[:0]}}
}

// Next steps to the next record, and is false at the end or when it is
// malformed; see Err.
func (it *Records) Next() bool {
	for it.err == nil && it.s.next() {
		if !it.s.is(it.want, protowire.BytesType) {
			continue
		}
		it.index++
		it.read(it.s.start, it.s.stop)
		return it.err == nil
	}
	if it.err == nil {
		it.err = it.s.err
	}
	return false
}

// Record returns the present record. It is valid until the next call of Next.
func (it *Records) Record() *Record { return &it.rec }

// Place returns where the present record is in the buffer, for ReadAt.
func (it *Records) Place() (start, end int) { return it.s.start, it.s.stop }

// ReadAt makes the record at a place that was returned before the present one.
func (it *Records) ReadAt(start, end int) *Record {
	it.read(start, end)
	return &it.rec
}

// Err returns what was wrong with the records, and with which.
func (it *Records) Err() error { return it.err }

func (it *Records) read(start, end int) {
	it.rec = Record{Headers: it.rec.Headers[:0]}
	s := scan(it.s.b, start, end)
	for s.next() {
		if s.typ != protowire.BytesType {
			continue
		}
		switch s.num {
		case 1:
			it.rec.Key = it.field(&s, "key")
		case 2:
			it.rec.Value = it.field(&s, "value")
		case 3:
			it.header(&s)
		case 4:
			it.rec.HasTimestamp = true
			s.duration(&it.rec.Seconds, &it.rec.Nanos)
		default: // unknown
		}
	}
	if s.err != nil && it.err == nil {
		it.err = fmt.Errorf("record %d: %w", it.index, s.err)
	}
}

// field returns the present field, which must be text in a text record.
func (it *Records) field(s *scanner, name string) []byte {
	if it.want == produceTextRecords {
		return s.text(name)
	}
	return s.b[s.start:s.stop]
}

// header adds a header. In text records they are entries of a map: there the
// value is never absent and the last of equal names wins.
func (it *Records) header(s *scanner) {
	isText := it.want == produceTextRecords
	var h record.HeaderKV
	if isText {
		h.Value = s.b[s.start:s.start]
	}
	in := scan(s.b, s.start, s.stop)
	for in.next() {
		switch {
		case in.is(1, protowire.BytesType):
			h.Key = view(in.text("header key"))
		case in.is(2, protowire.BytesType):
			h.Value = it.field(&in, "header value")
		}
	}
	if in.err != nil {
		if s.err == nil {
			s.err = in.err
		}
		return
	}
	if isText {
		for i := range it.rec.Headers {
			if it.rec.Headers[i].Key == h.Key {
				it.rec.Headers[i].Value = h.Value
				return
			}
		}
	}
	it.rec.Headers = append(it.rec.Headers, h)
}

// view returns b as a string without copying it: a header key is copied into a
// batch or looked at, never kept.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) } //nolint:gosec // see above
