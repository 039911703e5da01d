// Package record is the stored and transmitted form of records: frames, batches, their checksums and their compression.
//
// # Words
//
// A record set is the payload of a batch: the serialized runnel.v1.RecordSet message. A batch is a header and one
// payload, compressed or not. A frame is a batch as a segment file and a fetch response hold it: the tag and length of
// field 1 of runnel.v1.Segment, then the batch. So a file of frames is one serialized Segment message.
//
//	outer tag 0A | outer length | header, 114 bytes | payload tag 82 02 or 8A 02 | payload length | payload
//	             1–4 bytes        fields 1 to 18                                     1–4 bytes
//	`------------------------- at most PrefixMax bytes -------------------------------------------'
//
// The header CRC covers everything from the end of its own field to the first byte of the payload's content, the payload
// CRC covers the payload's content. So both are verified apart, the first in constant time.
//
// # Canonical bytes
//
// What is stored is canonical: minimal varints, fields in number order, nothing written that proto3 would leave out. A
// program that has nothing but generated stubs can therefore decode a batch, serialize its parts again, and verify both
// checksums. ParseBatch holds producers to that for the payload and writes the header itself.
//
// # Which bytes the limits count
//
// Limits.MaxRecordBytes counts one serialized Record message: key, value, headers and their framing, uncompressed, its own
// tag and length left out. Limits.MaxBatchBytes counts the whole frame as stored, the payload compressed when it is
// compressed. Limits.MaxDecompressedBytes counts the record set after decompression.
//
// Nothing in this package starts a goroutine or keeps state between calls, but for the reused buffers of the types that say
// so. Numbers, order and widths are frozen by golden files.
package record

// Offset is the place of a record in its partition. The first is 0.
type Offset int64

// Epoch is a leader epoch.
type Epoch int64

// ProducerID identifies an idempotent producer; 0 means none.
type ProducerID int64

// ProducerEpoch fences older incarnations of a ProducerID.
type ProducerEpoch int64

// Sequence numbers the records of one producer in one partition; -1 without a producer id.
type Sequence int64

// NoSequence is the base sequence of a batch without a producer id.
const NoSequence Sequence = -1

// Format is the layout this package writes. It reads no other.
const Format = 1

// Hard caps. They keep every answer below the 4 MiB that each gRPC runtime takes by default.
const (
	// MaxFrameSize is the largest frame a log may hold, in bytes. Pass it to ParseFrame, and not a topic's own limit,
	// which may have been larger when the frame was written.
	MaxFrameSize = 3840 << 10
	// MaxRecordSize is the largest value Limits.MaxRecordBytes may have.
	MaxRecordSize = 3584 << 10
	// MaxDecompressedSize is the largest value Limits.MaxDecompressedBytes may have, in bytes, and what an Iterator takes:
	// lowering the limit must not make stored batches unreadable.
	MaxDecompressedSize = 256 << 20
)

// Defaults of Limits.
const (
	// DefaultMaxRecordBytes is 1 MiB.
	DefaultMaxRecordBytes = 1 << 20
	// DefaultMaxRecords is how many records a batch may have.
	DefaultMaxRecords = 100_000
	// DefaultMaxDecompressedBytes is 32 MiB.
	DefaultMaxDecompressedBytes = 32 << 20
)

// Limits are what a batch is held to. A zero field stands for its default.
type Limits struct {
	// MaxRecordBytes is the largest serialized Record, uncompressed. Default DefaultMaxRecordBytes.
	MaxRecordBytes int
	// MaxBatchBytes is the largest frame as stored. Default and cap MaxFrameSize.
	MaxBatchBytes int
	// MaxRecords is how many records one batch may have. Default DefaultMaxRecords.
	MaxRecords int
	// MaxDecompressedBytes is how large a compressed record set may become. Default DefaultMaxDecompressedBytes.
	MaxDecompressedBytes int
	// RequireKeys refuses records without a key, as a compacted topic must. An empty key is a key.
	RequireKeys bool
}

// withDefaults returns l with its zero fields filled in and the caps applied.
func (l Limits) withDefaults() Limits {
	if l.MaxRecordBytes == 0 {
		l.MaxRecordBytes = DefaultMaxRecordBytes
	}
	if l.MaxBatchBytes == 0 {
		l.MaxBatchBytes = MaxFrameSize
	}
	if l.MaxRecords == 0 {
		l.MaxRecords = DefaultMaxRecords
	}
	if l.MaxDecompressedBytes == 0 {
		l.MaxDecompressedBytes = DefaultMaxDecompressedBytes
	}
	l.MaxRecordBytes = min(l.MaxRecordBytes, MaxRecordSize)
	l.MaxBatchBytes = min(l.MaxBatchBytes, MaxFrameSize)
	l.MaxDecompressedBytes = min(l.MaxDecompressedBytes, MaxDecompressedSize)
	return l
}
