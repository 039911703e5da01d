package wire

import (
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/runnelmq/runnel/internal/record"
)

// Field numbers of runnel.v1.ConsumedRecord.
const (
	consumedOffset    = 1
	consumedTimestamp = 2
	consumedKey       = 3
	consumedValue     = 4
	consumedHeaders   = 5
	consumedKeyBytes  = 6 // of ConsumedTextRecord
	consumedValBytes  = 7 // of ConsumedTextRecord
)

// manyHeaders is the number of headers from which finding repeated names needs
// an index: without one a record of nothing but headers costs its size squared.
const manyHeaders = 16

// ElementSize returns how many bytes an element of FetchResponse.records or
// text_records takes whose message takes size.
func ElementSize(size int) int { return protowire.SizeTag(fetchedRecords) + protowire.SizeBytes(size) }

// AppendRecord appends r, of RecordSize size, as one element of
// FetchResponse.records.
func AppendRecord(b []byte, r *record.Record, size int) []byte {
	b = protowire.AppendTag(b, fetchedRecords, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(size)) //nolint:gosec // a length
	b = appendNumber(b, consumedOffset, int64(r.Offset))
	b = appendNumber(b, consumedTimestamp, r.TimestampMs)
	b = appendPresent(b, consumedKey, r.Key)
	b = appendPresent(b, consumedValue, r.Value)
	for it := r.Headers(); it.Next(); {
		b = protowire.AppendTag(b, consumedHeaders, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(sizePresent(it.Key())+sizePresent(it.Value()))) //nolint:gosec // a length
		b = appendPresent(b, 1, it.Key())
		b = appendPresent(b, 2, it.Value())
	}
	return b
}

// RecordSize returns how many bytes r takes as a ConsumedRecord.
func RecordSize(r *record.Record) int {
	size := sizeNumber(int64(r.Offset)) + sizeNumber(r.TimestampMs) + sizePresent(r.Key) + sizePresent(r.Value)
	for it := r.Headers(); it.Next(); {
		size += 1 + protowire.SizeBytes(sizePresent(it.Key())+sizePresent(it.Value()))
	}
	return size
}

// AppendTextRecord appends r, of TextRecordSize size, as one element of
// FetchResponse.text_records: what is not UTF-8 goes into the bytes fields, and
// such header values are left out.
func AppendTextRecord(b []byte, r *record.Record, size int) []byte {
	b = protowire.AppendTag(b, fetchedTextRecords, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(size)) //nolint:gosec // a length
	b = appendNumber(b, consumedOffset, int64(r.Offset))
	b = appendMillis(protowire.AppendTag(b, consumedTimestamp, protowire.BytesType), r.TimestampMs)
	b = appendPresent(b, textField(r.Key, consumedKey, consumedKeyBytes), r.Key)
	b = appendPresent(b, textField(r.Value, consumedValue, consumedValBytes), r.Value)
	textHeaders(r, func(key, value []byte) {
		b = protowire.AppendTag(b, consumedHeaders, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(sizePresent(key)+sizePresent(value))) //nolint:gosec // a length
		b = appendPresent(b, 1, key)
		b = appendPresent(b, 2, value)
	})
	return b
}

// TextRecordSize returns how many bytes r takes as a ConsumedTextRecord.
func TextRecordSize(r *record.Record) int {
	var stamp [24]byte
	size := sizeNumber(int64(r.Offset)) + 1 + len(appendMillis(stamp[:0], r.TimestampMs)) +
		sizePresent(r.Key) + sizePresent(r.Value)
	textHeaders(r, func(key, value []byte) {
		size += 1 + protowire.SizeBytes(sizePresent(key)+sizePresent(value))
	})
	return size
}

// textHeaders yields the headers a map of strings can hold: of repeated names
// the last, and that only when its value is UTF-8. An absent value is "".
func textHeaders(r *record.Record, yield func(key, value []byte)) {
	if !r.HasHeaders() {
		return
	}
	count := 0
	for it := r.Headers(); it.Next(); {
		count++
	}
	var last map[string]int
	if count > manyHeaders {
		last = make(map[string]int, count)
		i := 0
		for it := r.Headers(); it.Next(); i++ {
			last[string(it.Key())] = i
		}
	}
	i := 0
	for it := r.Headers(); it.Next(); i++ {
		if last != nil && last[string(it.Key())] != i || last == nil && repeated(it) {
			continue
		}
		if !utf8.Valid(it.Value()) {
			continue
		}
		value := it.Value()
		if value == nil {
			value = it.Key()[:0]
		}
		yield(it.Key(), value)
	}
}

// repeated reports whether the name of it's header comes again later.
func repeated(it record.HeaderIterator) bool {
	name := it.Key()
	for it.Next() {
		if string(it.Key()) == string(name) {
			return true
		}
	}
	return false
}

func textField(v []byte, text, raw protowire.Number) protowire.Number {
	if utf8.Valid(v) {
		return text
	}
	return raw
}

// appendNumber appends an optional int64 that is present. Its tag is one byte.
func appendNumber(b []byte, num protowire.Number, v int64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), uint64(v)) //nolint:gosec // as Protobuf carries it
}

func sizeNumber(v int64) int { return 1 + protowire.SizeVarint(uint64(v)) } //nolint:gosec // as above

// appendPresent appends an optional bytes field unless v is nil.
func appendPresent(b []byte, num protowire.Number, v []byte) []byte {
	if v == nil {
		return b
	}
	return protowire.AppendBytes(protowire.AppendTag(b, num, protowire.BytesType), v)
}

// sizePresent is for fields whose tag is one byte.
func sizePresent(v []byte) int {
	if v == nil {
		return 0
	}
	return 1 + protowire.SizeBytes(len(v))
}
