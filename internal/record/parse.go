package record

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Field numbers of RecordBatch.
const (
	fieldHeaderCRC         = 1
	fieldFormat            = 2
	fieldPayloadCRC        = 3
	fieldLastOffsetDelta   = 5
	fieldRecordCount       = 6
	fieldBaseTimestamp     = 8
	fieldCompression       = 11
	fieldTransactional     = 13
	fieldControl           = 14
	fieldProducerID        = 15
	fieldProducerEpoch     = 16
	fieldBaseSequence      = 17
	fieldDeleteHorizon     = 18
	fieldRecords           = 32
	fieldCompressedRecords = 33
)

// Wire types.
const (
	wireVarint  = 0
	wireFixed64 = 1
	wireBytes   = 2
	wireFixed32 = 5
)

// A Validator judges what producers send. It is safe for concurrent use.
type Validator struct {
	codec *Codec
	// sets holds the buffers for decompressed sets; taking one is the right to decompress.
	sets chan []byte
}

// NewValidator returns a Validator that decompresses with codec, at most parallel batches at a time, so that no flood of
// compressed batches takes more than parallel times Limits.MaxDecompressedBytes. Others wait their turn.
func NewValidator(codec *Codec, parallel int) *Validator {
	v := &Validator{codec: codec, sets: make(chan []byte, max(parallel, 1))}
	for range cap(v.sets) {
		v.sets <- nil
	}
	return v
}

// ParseBatch reads the serialized RecordBatch message at buf[start:end] and holds it to the profile for producers. The
// batch uses buf: its payload stays where it is, and Seal writes into the PrefixMax bytes before it, which the caller
// provides (start >= PrefixMax) and no longer needs by then.
//
// In the message itself, fields may come in any order and all but the payload may be absent, but unknown ones, and any
// twice, are refused. What is given and belongs to the leader is ignored; what is given and can be verified must agree. The
// payload must be canonical: see the package comment.
//
// The errors are *BatchError with the kinds ErrCorruptBatch, ErrTooLarge, ErrUnsupportedCompression and ErrInvalidRecord.
func (v *Validator) ParseBatch(buf []byte, start, end int, lim Limits) (Batch, error) {
	if start < PrefixMax || end < start || end > len(buf) {
		panic(fmt.Sprintf("record: batch at [%d:%d] of %d bytes, want %d before it", start, end, len(buf), PrefixMax))
	}
	lim = lim.withDefaults()
	m, err := parseMessage(buf[start:end])
	if err != nil {
		return Batch{}, err
	}
	b := Batch{buf: buf, start: start + m.payloadStart, end: start + m.payloadEnd}
	if err := m.fill(&b); err != nil {
		return Batch{}, err
	}
	if size := b.FrameSize(); size > lim.MaxBatchBytes {
		return Batch{}, &BatchError{
			Kind: ErrTooLarge, Record: -1, Position: -1, Size: size, Limit: lim.MaxBatchBytes,
			What: fmt.Sprintf("the batch takes %d bytes as stored, the limit is %d: send smaller batches", size, lim.MaxBatchBytes),
		}
	}
	payload := b.Payload()
	crc := PayloadCRC(payload)
	if m.has(fieldPayloadCRC) && crc != b.PayloadCRC {
		return Batch{}, corruptf(m.payloadStart, "the payload has CRC32C %08x, payload_crc32c says %08x", crc, b.PayloadCRC)
	}
	b.PayloadCRC = crc
	facts, err := v.scan(&b, payload, lim)
	if err != nil {
		return Batch{}, err
	}
	if err := m.agree(&b, facts); err != nil {
		return Batch{}, err
	}
	b.RecordCount = uint32(facts.count)
	b.LastOffsetDelta = facts.last
	b.MinTimestampMs, b.MaxTimestampMs = facts.minTimestamp, facts.maxTimestamp
	return b, nil
}

// scan decompresses the payload if need be and scans it.
func (v *Validator) scan(b *Batch, payload []byte, lim Limits) (setFacts, error) {
	if b.Compression == CompressionNone {
		return scanSet(payload, b.BaseTimestampMs, &lim)
	}
	scratch := <-v.sets
	defer func() {
		if cap(scratch) > scratchKept {
			scratch = nil
		}
		v.sets <- scratch
	}()
	set, err := v.codec.Decompress(scratch, b.Compression, payload, lim.MaxDecompressedBytes)
	if err != nil {
		return setFacts{}, err
	}
	scratch = set
	return scanSet(set, b.BaseTimestampMs, &lim)
}

// A message is a parsed RecordBatch message. Positions count from its first byte.
type message struct {
	seen                     uint64 // bit n: field n is there
	payloadStart, payloadEnd int
	// values by field number, for fields below 19; as varint or little-endian bits.
	values [fieldDeleteHorizon + 1]uint64
}

func (m *message) has(field int) bool { return m.seen>>field&1 != 0 }

// wireTypes of the fields of RecordBatch below 19.
//
//nolint:gochecknoglobals // immutable
var wireTypes = [fieldDeleteHorizon + 1]uint8{
	1: wireFixed32, 2: wireVarint, 3: wireFixed32, 4: wireFixed64, 5: wireFixed32, 6: wireFixed32, 7: wireFixed64,
	8: wireFixed64, 9: wireFixed64, 10: wireFixed64, 11: wireVarint, 12: wireVarint, 13: wireVarint, 14: wireVarint,
	15: wireFixed64, 16: wireFixed64, 17: wireFixed64, 18: wireFixed64,
}

// parseMessage finds the fields of a RecordBatch message and does not look into the payload.
func parseMessage(b []byte) (message, error) {
	var m message
	for pos := 0; pos < len(b); {
		at := pos
		tag, n := uvarint(b[pos:])
		if n == 0 {
			return m, corruptf(at, "a field's tag is cut off or too long")
		}
		pos += n
		if tag>>3 == 0 || tag>>3 > fieldCompressedRecords || (tag>>3 > fieldDeleteHorizon && tag>>3 < fieldRecords) {
			return m, corruptf(at, "unknown field %d: want a RecordBatch as record.proto describes it", tag>>3)
		}
		number, wire := int(tag>>3), uint8(tag&7)
		if m.has(number) {
			return m, corruptf(at, "field %d comes twice", number)
		}
		m.seen |= 1 << number
		if number >= fieldRecords {
			if wire != wireBytes {
				return m, corruptf(at, "field %d has wire type %d, want %d", number, wire, wireBytes)
			}
			size, n := uvarint(b[pos:])
			if n == 0 || size > uint64(len(b)-pos-n) {
				return m, corruptf(at, "the payload's length is cut off or goes beyond the batch")
			}
			m.payloadStart = pos + n
			m.payloadEnd = m.payloadStart + int(size)
			pos = m.payloadEnd
			continue
		}
		value, n, err := scalar(b[pos:], number, wire)
		if err != nil {
			return m, corruptf(at, "%v", err)
		}
		m.values[number] = value
		pos += n
	}
	switch {
	case m.has(fieldRecords) && m.has(fieldCompressedRecords):
		return m, corruptf(-1, "both records and compressed_records are set: want exactly one")
	case !m.has(fieldRecords) && !m.has(fieldCompressedRecords):
		return m, corruptf(-1, "neither records nor compressed_records is set: want exactly one")
	}
	return m, nil
}

// scalar reads the value of a field below 19.
func scalar(b []byte, number int, wire uint8) (value uint64, size int, _ error) {
	if wire != wireTypes[number] {
		return 0, 0, fmt.Errorf("field %d has wire type %d, want %d", number, wire, wireTypes[number])
	}
	switch wire {
	case wireFixed32:
		if len(b) >= 4 {
			return uint64(binary.LittleEndian.Uint32(b)), 4, nil
		}
	case wireFixed64:
		if len(b) >= 8 {
			return binary.LittleEndian.Uint64(b), 8, nil
		}
	default:
		if v, n := uvarint(b); n > 0 {
			return v, n, nil
		}
	}
	return 0, 0, fmt.Errorf("field %d is cut off", number)
}

// fill takes over what the producer decides, and refuses what it may not say.
func (m *message) fill(b *Batch) error {
	v := &m.values
	if m.has(fieldFormat) && v[fieldFormat] != Format {
		return corruptf(-1, "format %d is not known here: want %d, or leave it out", v[fieldFormat], Format)
	}
	b.Format = Format
	b.PayloadCRC = uint32(v[fieldPayloadCRC])
	b.BaseTimestampMs = int64(v[fieldBaseTimestamp])
	b.Transactional = v[fieldTransactional] != 0
	if v[fieldControl] != 0 {
		return corruptf(-1, "control is true: only brokers write transaction markers")
	}
	c := v[fieldCompression]
	switch {
	case c >= compressions:
		return &BatchError{
			Kind: ErrUnsupportedCompression, Record: -1, Position: -1, Compression: Compression(min(c, math.MaxUint8)),
			What: fmt.Sprintf("compression %d is not known here: want none, gzip, snappy, lz4 or zstd", c),
		}
	case m.has(fieldRecords) && c > uint64(CompressionNone):
		return corruptf(-1, "compression is %s but records is set: put the compressed record set into compressed_records", Compression(c))
	case m.has(fieldCompressedRecords) && c <= uint64(CompressionNone):
		return corruptf(-1, "compressed_records is set but compression is none or absent: say how it is compressed")
	}
	b.Compression = max(Compression(c), CompressionNone)
	return m.fillProducer(b)
}

// fillProducer takes over the fields of an idempotent producer: all, or none.
func (m *message) fillProducer(b *Batch) error {
	v := &m.values
	id, epoch, sequence := int64(v[fieldProducerID]), int64(v[fieldProducerEpoch]), int64(v[fieldBaseSequence])
	if !m.has(fieldBaseSequence) {
		sequence = int64(NoSequence)
	}
	switch {
	case id == 0 && (epoch != 0 || sequence != int64(NoSequence)):
		return corruptf(-1, "producer_epoch or base_sequence is set without a producer_id")
	case id == 0 && b.Transactional:
		return corruptf(-1, "transactional is true without a producer_id")
	case id != 0 && (id < 0 || epoch < 0 || sequence < 0):
		return corruptf(-1, "with a producer_id, it, producer_epoch and base_sequence must all be set and not negative")
	}
	b.ProducerID, b.ProducerEpoch, b.BaseSequence = ProducerID(id), ProducerEpoch(epoch), Sequence(sequence)
	return nil
}

// agree compares what the producer claims with what was counted.
func (m *message) agree(b *Batch, facts setFacts) error {
	v := &m.values
	switch {
	case m.has(fieldRecordCount) && v[fieldRecordCount] != uint64(facts.count):
		return corruptf(-1, "record_count says %d, the record set has %d", v[fieldRecordCount], facts.count)
	case m.has(fieldLastOffsetDelta) && v[fieldLastOffsetDelta] != uint64(facts.last):
		return corruptf(-1, "last_offset_delta says %d, the last record's is %d", v[fieldLastOffsetDelta], facts.last)
	case b.ProducerID != 0 && b.BaseSequence >= math.MaxInt64-Sequence(facts.last):
		return corruptf(-1, "base_sequence %d leaves no room for a last_offset_delta of %d", b.BaseSequence, facts.last)
	}
	return nil
}
