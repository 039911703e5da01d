package record

import (
	"encoding/binary"
	"hash/crc32"
	"math"
)

// HeaderSize is the size of a stored header: fields 1 to 18 of RecordBatch with their tags.
const HeaderSize = 114

// Sizes around a payload. Lengths take at most four bytes because no frame is over MaxFrameSize.
const (
	lengthMax      = 4 // of a varint below 1<<28
	payloadTagSize = 2
	// PrefixMax is the most bytes a frame can have before its payload: outer tag and length, header, payload tag and length.
	PrefixMax = 1 + lengthMax + HeaderSize + payloadTagSize + lengthMax
)

// Places of the values in a stored header; each has its tag right before it.
const (
	posHeaderCRC       = 1
	posFormat          = 6
	posPayloadCRC      = 8
	posBaseOffset      = 13
	posLastOffsetDelta = 22
	posRecordCount     = 27
	posLeaderEpoch     = 32
	posBaseTimestamp   = 41
	posMaxTimestamp    = 50
	posAppendTime      = 59
	posCompression     = 68
	posTimestampType   = 70
	posTransactional   = 72
	posControl         = 74
	posProducerID      = 76
	posProducerEpoch   = 86
	posBaseSequence    = 96
	posDeleteHorizon   = 106
	// coveredFrom is where the header CRC begins to count.
	coveredFrom = posHeaderCRC + 4
)

const outerTag = 0x0A // Segment.batches and FetchResponse.batches: field 1, length-delimited

// headerTags are the tag bytes of a stored header at their places, as (position, value) pairs.
//
//nolint:gochecknoglobals // immutable
var headerTags = [...][2]byte{
	{0, 0x0D},
	{5, 0x10},
	{7, 0x1D},
	{12, 0x21},
	{21, 0x2D},
	{26, 0x35},
	{31, 0x39},
	{40, 0x41},
	{49, 0x49},
	{58, 0x51},
	{67, 0x58},
	{69, 0x60},
	{71, 0x68},
	{73, 0x70},
	{75, 0x79},
	{84, 0x81},
	{85, 0x01},
	{94, 0x89},
	{95, 0x01},
	{104, 0x91},
	{105, 0x01},
}

//nolint:gochecknoglobals // immutable
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A Header is what a frame says about its batch. See record.proto for the meaning of each field.
type Header struct {
	// HeaderCRC is over the stored bytes from the end of its own field to the first byte of the payload's content.
	HeaderCRC uint32
	// PayloadCRC is over the payload's content, compressed when it is compressed.
	PayloadCRC uint32
	// Format is always Format in a header this package returns.
	Format uint8
	// BaseOffset is the offset of the first record the batch was written with.
	BaseOffset Offset
	// LastOffsetDelta is the last offset minus BaseOffset, as written: compaction does not lower it.
	LastOffsetDelta uint32
	// RecordCount is how many records the payload holds. Invariant: RecordCount <= LastOffsetDelta+1.
	RecordCount uint32
	// LeaderEpoch is the epoch in which the batch was appended.
	LeaderEpoch Epoch
	// BaseTimestampMs is what the records' timestamp deltas count from, in Unix milliseconds.
	BaseTimestampMs int64
	// MaxTimestampMs is the largest record timestamp as the producer gave them, in Unix milliseconds.
	MaxTimestampMs int64
	// AppendTimeMs is the leader's clock at append, in Unix milliseconds.
	AppendTimeMs  int64
	Compression   Compression
	TimestampType TimestampType
	// Transactional is true when the batch belongs to a transaction.
	Transactional bool
	// Control is true for a transaction marker.
	Control bool
	// ProducerID is 0 without one; then ProducerEpoch is 0 and BaseSequence is NoSequence.
	ProducerID    ProducerID
	ProducerEpoch ProducerEpoch
	BaseSequence  Sequence
	// DeleteHorizonMs is when the tombstones and markers may go, in Unix milliseconds; 0 until compaction sets it.
	DeleteHorizonMs int64
}

// LastOffset returns the last offset the batch covers.
func (h Header) LastOffset() Offset { return h.BaseOffset + Offset(h.LastOffsetDelta) }

// NextOffset returns the offset after the batch.
func (h Header) NextOffset() Offset { return h.LastOffset() + 1 }

// putHeader writes h into b[:HeaderSize], all but the header CRC's value.
func putHeader(b []byte, h *Header) {
	_ = b[HeaderSize-1]
	for _, t := range headerTags {
		b[t[0]] = t[1]
	}
	b[posFormat] = Format
	binary.LittleEndian.PutUint32(b[posPayloadCRC:], h.PayloadCRC)
	putInt64(b[posBaseOffset:], int64(h.BaseOffset))
	binary.LittleEndian.PutUint32(b[posLastOffsetDelta:], h.LastOffsetDelta)
	binary.LittleEndian.PutUint32(b[posRecordCount:], h.RecordCount)
	putInt64(b[posLeaderEpoch:], int64(h.LeaderEpoch))
	putInt64(b[posBaseTimestamp:], h.BaseTimestampMs)
	putInt64(b[posMaxTimestamp:], h.MaxTimestampMs)
	putInt64(b[posAppendTime:], h.AppendTimeMs)
	b[posCompression] = byte(h.Compression)
	b[posTimestampType] = byte(h.TimestampType)
	b[posTransactional] = boolByte(h.Transactional)
	b[posControl] = boolByte(h.Control)
	putInt64(b[posProducerID:], int64(h.ProducerID))
	putInt64(b[posProducerEpoch:], int64(h.ProducerEpoch))
	putInt64(b[posBaseSequence:], int64(h.BaseSequence))
	putInt64(b[posDeleteHorizon:], h.DeleteHorizonMs)
}

// getHeader reads the values of a stored header. It checks nothing: see tagsMatch and Header.plausible.
func getHeader(b []byte) Header {
	_ = b[HeaderSize-1]
	return Header{
		HeaderCRC:       binary.LittleEndian.Uint32(b[posHeaderCRC:]),
		PayloadCRC:      binary.LittleEndian.Uint32(b[posPayloadCRC:]),
		Format:          b[posFormat],
		BaseOffset:      Offset(getInt64(b[posBaseOffset:])),
		LastOffsetDelta: binary.LittleEndian.Uint32(b[posLastOffsetDelta:]),
		RecordCount:     binary.LittleEndian.Uint32(b[posRecordCount:]),
		LeaderEpoch:     Epoch(getInt64(b[posLeaderEpoch:])),
		BaseTimestampMs: getInt64(b[posBaseTimestamp:]),
		MaxTimestampMs:  getInt64(b[posMaxTimestamp:]),
		AppendTimeMs:    getInt64(b[posAppendTime:]),
		Compression:     Compression(b[posCompression]),
		TimestampType:   TimestampType(b[posTimestampType]),
		Transactional:   b[posTransactional] != 0,
		Control:         b[posControl] != 0,
		ProducerID:      ProducerID(getInt64(b[posProducerID:])),
		ProducerEpoch:   ProducerEpoch(getInt64(b[posProducerEpoch:])),
		BaseSequence:    Sequence(getInt64(b[posBaseSequence:])),
		DeleteHorizonMs: getInt64(b[posDeleteHorizon:]),
	}
}

// tagsMatch reports whether b, the first bytes of a stored header, has every tag it is long enough for.
func tagsMatch(b []byte) bool {
	for _, t := range headerTags {
		if int(t[0]) >= len(b) {
			return true
		}
		if b[t[0]] != t[1] {
			return false
		}
	}
	return true
}

// smallValuesMatch reports whether the one-byte values that b, the first bytes of a stored header, is long enough for are
// among those that are ever written.
func smallValuesMatch(b []byte) bool {
	ok := func(pos int, lo, hi byte) bool { return pos >= len(b) || (b[pos] >= lo && b[pos] <= hi) }
	return ok(posFormat, Format, Format) &&
		ok(posCompression, byte(CompressionNone), compressions-1) &&
		ok(posTimestampType, byte(CreateTime), byte(LogAppendTime)) &&
		ok(posTransactional, 0, 1) && ok(posControl, 0, 1)
}

// plausible reports whether a header whose checksum is right says what a writer may say.
func (h Header) plausible(payloadSize int) bool {
	if h.BaseOffset < 0 || h.LeaderEpoch < 0 || h.BaseOffset > math.MaxInt64-Offset(h.LastOffsetDelta)-1 {
		return false
	}
	if uint64(h.RecordCount) > uint64(h.LastOffsetDelta)+1 {
		return false
	}
	if h.Compression == CompressionNone {
		return (payloadSize == 0) == (h.RecordCount == 0)
	}
	// An empty bytes field would vanish when a decoded batch is serialized again.
	return payloadSize > 0
}

func putInt64(b []byte, v int64) { binary.LittleEndian.PutUint64(b, uint64(v)) }

func getInt64(b []byte) int64 { return int64(binary.LittleEndian.Uint64(b)) }

func boolByte(v bool) byte {
	if v {
		return 1
	}
	return 0
}
