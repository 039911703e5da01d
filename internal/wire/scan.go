package wire

import (
	"errors"
	"fmt"
	"math"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// ErrMalformed means that bytes are not the message they should be.
var ErrMalformed = errors.New("malformed message")

// A scanner walks the fields of one message without copying any.
type scanner struct {
	b   []byte
	pos int // of the next field
	end int

	num   protowire.Number
	typ   protowire.Type
	value uint64 // of a varint or fixed-width field
	start int    // of the content of a length-delimited field
	stop  int
	err   error
}

func scan(b []byte, start, end int) scanner { return scanner{b: b, pos: start, end: end} }

// next steps to the next field. At the end, and at the first thing that is
// wrong, it returns false; err tells which.
func (s *scanner) next() bool {
	if s.err != nil || s.pos >= s.end {
		return false
	}
	b := s.b[:s.end]
	num, typ, n := protowire.ConsumeTag(b[s.pos:])
	if n < 0 {
		return s.fail("a field tag", n)
	}
	if num > protowire.MaxValidNumber {
		return s.fail("a field tag", -1)
	}
	s.num, s.typ = num, typ
	at := s.pos + n
	switch typ {
	case protowire.VarintType:
		s.value, n = protowire.ConsumeVarint(b[at:])
	case protowire.BytesType:
		var size uint64
		size, n = protowire.ConsumeVarint(b[at:])
		if n >= 0 {
			if size > uint64(s.end-at-n) {
				s.pos = at
				return s.fail(fmt.Sprintf("field %d", num), -1)
			}
			s.start, s.stop = at+n, at+n+int(size) //nolint:gosec // bounded by the message above
			n += int(size)                         //nolint:gosec // as above
		}
	case protowire.Fixed32Type:
		var v uint32
		v, n = protowire.ConsumeFixed32(b[at:])
		s.value = uint64(v)
	case protowire.Fixed64Type:
		s.value, n = protowire.ConsumeFixed64(b[at:])
	default:
		n = protowire.ConsumeFieldValue(num, typ, b[at:])
	}
	if n < 0 {
		return s.fail(fmt.Sprintf("field %d", num), n)
	}
	s.pos = at + n
	return true
}

func (s *scanner) fail(what string, code int) bool {
	s.err = fmt.Errorf("%w: byte %d: %s: %w", ErrMalformed, s.pos, what, protowire.ParseError(code))
	return false
}

// is reports whether the present field is num with type typ. A known number
// with another type is an unknown field, as in every Protobuf parser.
func (s *scanner) is(num protowire.Number, typ protowire.Type) bool {
	return s.num == num && s.typ == typ
}

// text checks that the present field is valid UTF-8, as its string must be.
func (s *scanner) text(name string) []byte {
	v := s.b[s.start:s.stop]
	if !utf8.Valid(v) && s.err == nil {
		s.err = fmt.Errorf("%w: %s is not valid UTF-8", ErrMalformed, name)
	}
	return v
}

// duration adds the Duration message at the present field to what came before,
// as Protobuf merges messages that occur twice.
func (s *scanner) duration(seconds *int64, nanos *int32) {
	in := scan(s.b, s.start, s.stop)
	for in.next() {
		switch {
		case in.is(1, protowire.VarintType):
			*seconds = int64(in.value) //nolint:gosec // int64 as Protobuf carries it
		case in.is(2, protowire.VarintType):
			*nanos = int32(in.value) //nolint:gosec // as above
		}
	}
	if s.err == nil {
		s.err = in.err
	}
}

// toDuration returns the duration, at the bound when it does not fit.
func toDuration(seconds int64, nanos int32) time.Duration {
	const most = math.MaxInt64 / int64(time.Second)
	switch {
	case seconds >= most:
		return math.MaxInt64
	case seconds <= -most:
		return math.MinInt64
	}
	return time.Duration(seconds)*time.Second + time.Duration(nanos)
}
