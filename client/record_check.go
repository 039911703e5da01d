package client

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/record"
)

// localError is an error of ours that a server would have given too.
func localError(r runnelv1.ErrorReason, format string, args ...any) *Error {
	return &Error{Reason: reasonName(r), reason: r, Message: fmt.Sprintf(format, args...)}
}

// checkRecord refuses what no broker would take.
func checkRecord(r *Record) error {
	if r.Topic == "" {
		return localError(runnelv1.ErrorReason_ERROR_REASON_INVALID_TOPIC_NAME, "the record names no topic")
	}
	for i := range r.Headers {
		if h := &r.Headers[i]; h.Key == "" || !utf8.ValidString(h.Key) {
			return localError(runnelv1.ErrorReason_ERROR_REASON_INVALID_RECORD, "the name of header %d, %q, is empty or not valid UTF-8", i, h.Key)
		}
	}
	return nil
}

// maxTopicName is the most bytes of a topic's name.
const maxTopicName = 249

// checkTopic refuses names that no topic has. It comes before anything is asked
// about one: the whole question would fail for it, also what it says of others.
func checkTopic(name string) error {
	allowed := func(c rune) bool {
		return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-'
	}
	if name != "" && len(name) <= maxTopicName && name != "." && name != ".." &&
		strings.IndexFunc(name, func(c rune) bool { return !allowed(c) }) < 0 {
		return nil
	}
	return localError(runnelv1.ErrorReason_ERROR_REASON_INVALID_TOPIC_NAME,
		"no topic is named %.260q: want 1 to %d of a-z A-Z 0-9 . _ -, and neither . nor ..", name, maxTopicName)
}

// recordError turns what a Builder says of a record into one of ours.
func recordError(err error) error {
	r := runnelv1.ErrorReason_ERROR_REASON_INVALID_RECORD
	if errors.Is(err, record.ErrTooLarge) {
		r = runnelv1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE
	}
	e := localError(r, "%v", err)
	if be, ok := errors.AsType[*record.BatchError](err); ok {
		e.Metadata = be.Metadata()
	}
	return e
}

// maxTimestampSize is the most bytes a record's time takes: a tag and a varint.
// The first record of a batch has none.
const maxTimestampSize = 11

// recordSize is the size of a record as the limits count it: the serialized
// Record, before compression, without its time.
func recordSize(r *Record) int {
	n := 0
	if r.Key != nil {
		n += fieldSize(len(r.Key))
	}
	if r.Value != nil {
		n += fieldSize(len(r.Value))
	}
	for i := range r.Headers {
		h := fieldSize(len(r.Headers[i].Key))
		if r.Headers[i].Value != nil {
			h += fieldSize(len(r.Headers[i].Value))
		}
		n += fieldSize(h)
	}
	return n
}

// storedSize is recordSize of a record in a batch.
func storedSize(r *record.Record) int {
	n := 0
	if r.Key != nil {
		n += fieldSize(len(r.Key))
	}
	if r.Value != nil {
		n += fieldSize(len(r.Value))
	}
	if !r.HasHeaders() {
		return n
	}
	for hs := r.Headers(); hs.Next(); {
		h := fieldSize(len(hs.Key()))
		if hs.Value() != nil {
			h += fieldSize(len(hs.Value()))
		}
		n += fieldSize(h)
	}
	return n
}

// roomFor is the most that a record of that recordSize takes in a batch.
func roomFor(size int) int { return fieldSize(size + maxTimestampSize) }

// fieldSize is the size of a length-delimited field with a one-byte tag.
func fieldSize(n int) int {
	size := 2 + n
	for v := n >> 7; v > 0; v >>= 7 {
		size++
	}
	return size
}

func tooLarge(size, most int) error {
	e := localError(runnelv1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE,
		"a record of %d bytes is over the topic's max.message.bytes of %d (key, value, headers and their framing count, before compression): "+
			"make the record smaller, or raise the limit, up to %d", size, most, record.MaxRecordSize)
	e.Metadata = map[string]string{"size": strconv.Itoa(size), "maxBytes": strconv.Itoa(most)}
	return e
}
