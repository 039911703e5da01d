package record

import (
	"math"
	"unicode/utf8"
)

// Tags of the fields inside a record set. All take one byte.
const (
	tagRecord      = 0x0A // RecordSet.records
	tagKey         = 0x0A // Record.key
	tagValue       = 0x12 // Record.value
	tagHeaders     = 0x1A // Record.headers
	tagTimestamp   = 0x20 // Record.timestamp_delta_ms
	tagOffset      = 0x28 // Record.offset_delta
	tagHeaderKey   = 0x0A // Header.key
	tagHeaderValue = 0x12 // Header.value
)

// A fault is a clause of the strict profile that a record breaks. It is a number so that finding none allocates nothing.
type fault uint8

const (
	noFault fault = iota
	faultSetTag
	faultRecordLength
	faultFieldLength
	faultFieldOrder
	faultWireType
	faultUnknownField
	faultHeaderKeyMissing
	faultHeaderKeyEmpty
	faultHeaderKeyText
	faultHeaderField
	faultTimestamp
	faultTimestampZero
	faultOffset
)

// String says what is wrong and what is wanted.
func (f fault) String() string {
	switch f {
	case faultSetTag:
		return "want a record (tag 0A): a record set has no other field"
	case faultRecordLength:
		return "the record's length is cut off, not a minimal varint, or goes beyond the record set"
	case faultFieldLength:
		return "a field's length is cut off, not a minimal varint, or goes beyond its record"
	case faultFieldOrder:
		return "a field comes twice or out of order: want key, value, headers, timestamp_delta_ms, offset_delta, each at most once but headers"
	case faultWireType:
		return "a field has another wire type than record.proto gives it"
	case faultUnknownField:
		return "an unknown field, or a tag of more than one byte: a record has fields 1 to 5 only"
	case faultHeaderKeyMissing:
		return "a header without a key"
	case faultHeaderKeyEmpty:
		return "a header with an empty key"
	case faultHeaderKeyText:
		return "a header key that is not valid UTF-8: put bytes into the header's value"
	case faultHeaderField:
		return "a header may have a key, then at most one value, and nothing else"
	case faultTimestamp:
		return "timestamp_delta_ms is cut off or not a minimal varint"
	case faultTimestampZero:
		return "timestamp_delta_ms is written although it is 0: leave it out, as proto3 serializers do"
	case faultOffset:
		return "offset_delta is cut off, not a minimal varint, or over 4294967295"
	default:
		return "no fault"
	}
}

// A rawRecord is one record as its set holds it. Its slices point into the set.
type rawRecord struct {
	key, value []byte // nil when absent
	headers    []byte // the consecutive headers fields, tags included
	delta      int64  // timestamp_delta_ms
	offset     uint32 // offset_delta, if hasOffset
	hasOffset  bool
	size       int // of the serialized Record
}

// decode reads the record that begins at set[pos] and holds it to the strict profile. Next is where the record after it
// begins, or where the fault is.
func (r *rawRecord) decode(set []byte, pos int) (next int, _ fault) {
	*r = rawRecord{}
	if set[pos] != tagRecord {
		return pos, faultSetTag
	}
	i, end, ok := field(set, pos+1)
	if !ok {
		return pos + 1, faultRecordLength
	}
	r.size = end - i
	b := set[:end]
	if i < end && b[i] == tagKey {
		from, to, ok := field(b, i+1)
		if !ok {
			return i, faultFieldLength
		}
		r.key, i = b[from:to:to], to
	}
	if i < end && b[i] == tagValue {
		from, to, ok := field(b, i+1)
		if !ok {
			return i, faultFieldLength
		}
		r.value, i = b[from:to:to], to
	}
	if i < end {
		// Most records end with their value, or with a timestamp.
		var f fault
		if i, f = r.decodeRest(b, i); f != noFault {
			return i, f
		}
	}
	return i, noFault
}

// decodeRest reads what follows the value up to the end of b.
func (r *rawRecord) decodeRest(b []byte, i int) (next int, _ fault) {
	if b[i] == tagHeaders {
		start := i
		for i < len(b) && b[i] == tagHeaders {
			from, to, ok := field(b, i+1)
			if !ok {
				return i, faultFieldLength
			}
			if f := checkHeader(b[from:to]); f != noFault {
				return i, f
			}
			i = to
		}
		r.headers = b[start:i:i]
	}
	if i < len(b) && b[i] == tagTimestamp {
		v, n := minimalUvarint(b[i+1:])
		if n == 0 {
			return i, faultTimestamp
		}
		if v == 0 {
			return i, faultTimestampZero
		}
		r.delta, i = unzigzag(v), i+1+n
	}
	if i < len(b) && b[i] == tagOffset {
		v, n := minimalUvarint(b[i+1:])
		if n == 0 || v > math.MaxUint32 {
			return i, faultOffset
		}
		r.offset, r.hasOffset, i = uint32(v), true, i+1+n
	}
	if i < len(b) {
		return i, strayField(b[i])
	}
	return i, noFault
}

// strayField says why a field with the given tag cannot stand where it stands.
func strayField(tag byte) fault {
	switch tag {
	case tagKey, tagValue, tagHeaders, tagTimestamp, tagOffset:
		return faultFieldOrder
	}
	if number := tag >> 3; tag < 0x80 && number >= 1 && number <= 5 {
		return faultWireType
	}
	return faultUnknownField
}

// field reads the length at b[i] and returns where that many bytes begin and end. It is false when the length is not a
// minimal varint of at most lengthMax bytes, or goes beyond b.
func field(b []byte, i int) (from, to int, ok bool) {
	if i < len(b) && b[i] < 0x80 {
		from = i + 1
		to = from + int(b[i])
		return from, to, to <= len(b)
	}
	return longField(b, i)
}

func longField(b []byte, i int) (from, to int, ok bool) {
	size, n := length(b[i:])
	from = i + n
	return from, from + size, n > 0 && size <= len(b)-from
}

// checkHeader holds one serialized Header to the strict profile.
func checkHeader(b []byte) fault {
	if len(b) == 0 || b[0] != tagHeaderKey {
		return faultHeaderKeyMissing
	}
	from, to, ok := field(b, 1)
	switch {
	case !ok:
		return faultFieldLength
	case from == to:
		return faultHeaderKeyEmpty
	case !utf8.Valid(b[from:to]):
		return faultHeaderKeyText
	case to == len(b):
		return noFault
	case b[to] != tagHeaderValue:
		return faultHeaderField
	}
	_, end, ok := field(b, to+1)
	switch {
	case !ok:
		return faultFieldLength
	case end != len(b):
		return faultHeaderField
	}
	return noFault
}

// splitHeader returns the key and value (nil when absent) of the first header in b, which decode has accepted, and what
// follows it.
func splitHeader(b []byte) (key, value, rest []byte) {
	from, end, _ := field(b, 1)
	header := b[from:end]
	from, to, _ := field(header, 1)
	key = header[from:to:to]
	if to < len(header) {
		from, to, _ = field(header, to+1)
		value = header[from:to:to]
	}
	return key, value, b[end:]
}
