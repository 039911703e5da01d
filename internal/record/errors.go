package record

import (
	"errors"
	"fmt"
	"strconv"
)

// The kinds of refusal. Every error of this package is one of them by errors.Is.
var (
	// ErrCorruptBatch means that the bytes are not a batch as record.proto describes it, or that a checksum or a count
	// does not match.
	ErrCorruptBatch = errors.New("corrupt batch")
	// ErrTooLarge means that a record, a batch or a decompressed record set is over its limit.
	ErrTooLarge = errors.New("too large")
	// ErrUnsupportedCompression means that the compression, or an option of it, is not taken.
	ErrUnsupportedCompression = errors.New("unsupported compression")
	// ErrInvalidRecord means that a record is well-formed but not allowed here.
	ErrInvalidRecord = errors.New("invalid record")
	// ErrBatchFull means that a Builder has no room left for a record that would fit into an empty batch.
	ErrBatchFull = errors.New("batch is full")
)

// A BatchError says what is wrong with a batch, and where. Its text never holds bytes of the batch.
type BatchError struct {
	// Kind is one of the sentinels of this package.
	Kind error
	// Record is the index of the record in its set, or -1 when it is about the batch as a whole.
	Record int
	// Position is where in the record set, uncompressed, or in the RecordBatch message when Record is -1; -1 when it has
	// no place.
	Position int
	// Size and Limit are set with ErrTooLarge: bytes, or records when Records is true.
	Size, Limit int
	Records     bool
	// Compression is set with ErrUnsupportedCompression.
	Compression Compression
	// What is wrong, for people.
	What string
}

// Error says what, where, and what is wanted instead.
func (e *BatchError) Error() string {
	where := ""
	switch {
	case e.Record >= 0 && e.Position >= 0:
		where = fmt.Sprintf("record %d, at byte %d of the record set: ", e.Record, e.Position)
	case e.Record >= 0:
		where = fmt.Sprintf("record %d: ", e.Record)
	case e.Position >= 0:
		where = fmt.Sprintf("at byte %d of the batch: ", e.Position)
	}
	return e.Kind.Error() + ": " + where + e.What
}

// Unwrap returns the kind.
func (e *BatchError) Unwrap() error { return e.Kind }

// Metadata returns the facts for the caller of the API, by lowerCamelCase name.
func (e *BatchError) Metadata() map[string]string {
	m := map[string]string{}
	if e.Record >= 0 {
		m["recordIndex"] = strconv.Itoa(e.Record)
	}
	if errors.Is(e.Kind, ErrTooLarge) {
		limit := "maxBytes"
		if e.Records {
			limit = "maxRecords"
		}
		m["size"] = strconv.Itoa(e.Size)
		m[limit] = strconv.Itoa(e.Limit)
	}
	if errors.Is(e.Kind, ErrUnsupportedCompression) {
		m["compression"] = e.Compression.String()
	}
	return m
}

// corruptf is an ErrCorruptBatch about the batch as a whole.
func corruptf(position int, format string, args ...any) error {
	return &BatchError{Kind: ErrCorruptBatch, Record: -1, Position: position, What: fmt.Sprintf(format, args...)}
}
