package record

import (
	"fmt"
	"unicode/utf8"
)

// A HeaderKV is one header of a record to be written.
type HeaderKV struct {
	// Key is not empty and valid UTF-8.
	Key string
	// Value is nil when absent; absent and empty differ.
	Value []byte
}

// A Builder makes a Batch from records. It owns its buffers and reuses them: a Batch it made is good until its next Reset.
// It is for one goroutine at a time.
type Builder struct {
	codec *Codec
	lim   Limits

	// buf has PrefixMax bytes for the prefix, then the record set so far.
	buf []byte
	// packed is the same with the compressed set.
	packed []byte
	// Invariant: count == 0 exactly when len(buf) == PrefixMax.
	count                  int
	base, minTime, maxTime int64
}

// NewBuilder returns an empty Builder that compresses with codec and keeps to lim.
func NewBuilder(codec *Codec, lim Limits) *Builder {
	b := &Builder{codec: codec, lim: lim.withDefaults()}
	b.Reset()
	return b
}

// Reset empties the builder, for the next batch. It ends the life of the batch that Finish returned.
func (b *Builder) Reset() {
	if cap(b.buf) < PrefixMax {
		b.buf = make([]byte, PrefixMax, 1024)
	}
	b.buf = b.buf[:PrefixMax]
	b.count, b.base, b.minTime, b.maxTime = 0, 0, 0, 0
}

// Grow makes room for records of n bytes altogether, in an empty builder.
func (b *Builder) Grow(n int) {
	if b.count == 0 && n <= MaxFrameSize && cap(b.buf) < PrefixMax+n {
		b.buf = make([]byte, PrefixMax, PrefixMax+n)
	}
}

// Cap returns how many bytes of memory its buffers take.
func (b *Builder) Cap() int { return cap(b.buf) + cap(b.packed) }

// Count returns how many records have been added.
func (b *Builder) Count() int { return b.count }

// Size returns how many bytes the frame would take now, uncompressed.
func (b *Builder) Size() int { return frameSize(len(b.buf) - PrefixMax) }

// Add adds a record and copies it. A nil key or value is absent, an empty one is empty. With an error nothing is added:
// ErrTooLarge when the record alone is over its limit, ErrInvalidRecord for a bad header or time, or a missing key where
// keys are required, and ErrBatchFull when it would fit into the next batch.
func (b *Builder) Add(key, value []byte, headers []HeaderKV, timestampMs int64) error {
	base := b.base
	if b.count == 0 {
		base = timestampMs
	}
	delta := timestampMs - base
	if (timestampMs < base) != (delta < 0) {
		return b.invalid("its time %d is too far from that of the first record of the batch, %d", timestampMs, base)
	}
	if key == nil && b.lim.RequireKeys {
		return b.invalid("it has no key, and every record of a compacted topic needs one (an empty key is a key)")
	}
	for i, h := range headers {
		if h.Key == "" || !utf8.ValidString(h.Key) {
			return b.invalid("the key of its header %d is empty or not valid UTF-8", i)
		}
	}
	size := recordSize(key, value, headers, delta)
	if size > b.lim.MaxRecordBytes {
		return tooLargeRecord(b.count, -1, size, b.lim.MaxRecordBytes)
	}
	payload := len(b.buf) - PrefixMax + 1 + uvarintSize(uint64(size)) + size
	if frame := frameSize(payload); b.count == b.lim.MaxRecords || frame > b.lim.MaxBatchBytes {
		if b.count == 0 {
			return tooLargeRecord(b.count, -1, frame, b.lim.MaxBatchBytes)
		}
		return fmt.Errorf("%w: it has %d records in %d bytes", ErrBatchFull, b.count, b.Size())
	}
	b.buf = appendRecord(b.buf, size, key, value, headers, delta)
	if b.count == 0 {
		b.base, b.minTime, b.maxTime = base, timestampMs, timestampMs
	}
	b.minTime, b.maxTime = min(b.minTime, timestampMs), max(b.maxTime, timestampMs)
	b.count++
	return nil
}

func (b *Builder) invalid(format string, args ...any) error {
	return &BatchError{Kind: ErrInvalidRecord, Record: b.count, Position: -1, What: fmt.Sprintf(format, args...)}
}

// Finish returns the batch of the records added since Reset. The producer's fields and Transactional are the caller's to
// set. A set that does not get smaller by compression is left uncompressed, and the batch says so. The errors are
// ErrUnsupportedCompression, and ErrInvalidRecord without records.
func (b *Builder) Finish(compression Compression, level int) (Batch, error) {
	if b.count == 0 {
		return Batch{}, b.invalid("a batch without records")
	}
	batch := Batch{
		Header: Header{
			Format:          Format,
			LastOffsetDelta: uint32(b.count - 1),
			RecordCount:     uint32(b.count),
			BaseTimestampMs: b.base,
			MaxTimestampMs:  b.maxTime,
			Compression:     CompressionNone,
			BaseSequence:    NoSequence,
		},
		MinTimestampMs: b.minTime,
		buf:            b.buf,
		start:          PrefixMax,
		end:            len(b.buf),
	}
	if err := CheckLevel(compression, level); err != nil {
		return Batch{}, err
	}
	if compression != CompressionNone {
		if cap(b.packed) < PrefixMax {
			b.packed = make([]byte, PrefixMax, len(b.buf))
		}
		packed, err := b.codec.Compress(b.packed[:PrefixMax], compression, level, b.buf[PrefixMax:])
		if err != nil {
			return Batch{}, err
		}
		b.packed = packed
		if len(packed) < len(b.buf) {
			batch.Compression = compression
			batch.buf, batch.end = packed, len(packed)
		}
	}
	batch.PayloadCRC = PayloadCRC(batch.Payload())
	return batch, nil
}

// recordSize is the size of the serialized Record.
func recordSize(key, value []byte, headers []HeaderKV, delta int64) int {
	n := optionalSize(key) + optionalSize(value)
	for i := range headers {
		n += bytesSize(headerSize(&headers[i]))
	}
	if delta != 0 {
		n += 1 + uvarintSize(zigzag(delta))
	}
	return n
}

func headerSize(h *HeaderKV) int { return bytesSize(len(h.Key)) + optionalSize(h.Value) }

// bytesSize is the size of a field of n bytes with a one-byte tag.
func bytesSize(n int) int { return 1 + uvarintSize(uint64(n)) + n }

func optionalSize(b []byte) int {
	if b == nil {
		return 0
	}
	return bytesSize(len(b))
}

// appendRecord appends the record with its tag and its length, which is size.
func appendRecord(dst []byte, size int, key, value []byte, headers []HeaderKV, delta int64) []byte {
	dst = appendUvarint(append(dst, tagRecord), uint64(size))
	dst = appendOptional(dst, tagKey, key)
	dst = appendOptional(dst, tagValue, value)
	for i := range headers {
		h := &headers[i]
		dst = appendUvarint(append(dst, tagHeaders), uint64(headerSize(h)))
		dst = appendUvarint(append(dst, tagHeaderKey), uint64(len(h.Key)))
		dst = append(dst, h.Key...)
		dst = appendOptional(dst, tagHeaderValue, h.Value)
	}
	if delta != 0 {
		dst = appendUvarint(append(dst, tagTimestamp), zigzag(delta))
	}
	return dst
}

func appendOptional(dst []byte, tag byte, b []byte) []byte {
	if b == nil {
		return dst
	}
	return append(appendUvarint(append(dst, tag), uint64(len(b))), b...)
}

func appendUvarint(dst []byte, v uint64) []byte {
	for v >= 0x80 {
		dst = append(dst, byte(v)|0x80)
		v >>= 7
	}
	return append(dst, byte(v))
}
