package rpc

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/rpcerr"
	"github.com/runnelmq/runnel/internal/wire"
)

// What LogService itself refuses; the rest comes from below.
var (
	errLogRequest   = errors.New("invalid request")
	errUnsupported  = errors.New("unsupported")
	errTimestamp    = errors.New("invalid timestamp")
	errTopicSystem  = errors.New("internal topic")
	errNotInTime    = errors.New("timed out before anything was stored")
	errLogTruncated = errors.New("log truncated")
	errStreamEnded  = errors.New("the broker ends this stream as planned: open another one")
)

// LogRules says how the errors of LogService cross the wire, for those that the
// packages below do not declare.
func LogRules() []rpcerr.Rule {
	return []rpcerr.Rule{
		{Err: errLogRequest, Code: codes.InvalidArgument, Reason: runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
		{Err: wire.ErrMalformed, Code: codes.InvalidArgument, Reason: runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
		{Err: errUnsupported, Code: codes.Unimplemented, Reason: runnelv1.ErrorReason_ERROR_REASON_UNSUPPORTED},
		{Err: errTimestamp, Code: codes.InvalidArgument, Reason: runnelv1.ErrorReason_ERROR_REASON_INVALID_TIMESTAMP},
		{Err: errTopicSystem, Code: codes.FailedPrecondition, Reason: runnelv1.ErrorReason_ERROR_REASON_TOPIC_INTERNAL},
		{Err: errNotInTime, Code: codes.DeadlineExceeded, Reason: runnelv1.ErrorReason_ERROR_REASON_TIMEOUT},
		{Err: errLogTruncated, Code: codes.DataLoss, Reason: runnelv1.ErrorReason_ERROR_REASON_LOG_TRUNCATED},
		{Err: errStreamEnded, Code: codes.Unavailable, Reason: runnelv1.ErrorReason_ERROR_REASON_SHUTTING_DOWN},
		{Err: record.ErrCorruptBatch, Code: codes.InvalidArgument, Reason: runnelv1.ErrorReason_ERROR_REASON_CORRUPT_BATCH},
		{Err: record.ErrTooLarge, Code: codes.InvalidArgument, Reason: runnelv1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE},
		{Err: record.ErrUnsupportedCompression, Code: codes.InvalidArgument, Reason: runnelv1.ErrorReason_ERROR_REASON_UNSUPPORTED_COMPRESSION},
		{Err: record.ErrInvalidRecord, Code: codes.InvalidArgument, Reason: runnelv1.ErrorReason_ERROR_REASON_INVALID_RECORD},
	}
}

// A logError is one of the sentinels above with a text and facts.
type logError struct {
	kind  error
	text  string
	facts map[string]string
}

// Error implements error.
func (e *logError) Error() string { return e.text }

// Unwrap returns the sentinel.
func (e *logError) Unwrap() error { return e.kind }

// Metadata implements rpcerr.Metadata.
func (e *logError) Metadata() map[string]string { return e.facts }

// refuse says what is wrong with a request, and what to do.
func refuse(format string, args ...any) error {
	return &logError{kind: errLogRequest, text: fmt.Sprintf(format, args...)}
}

func decimal[I ~int64 | ~int32 | ~int](v I) string { return strconv.FormatInt(int64(v), 10) }

// timestampError says that a record's time is out of the topic's bounds.
func timestampError(ms, nowMs int64, format string, args ...any) error {
	return &logError{
		kind: errTimestamp, text: fmt.Sprintf(format, args...),
		facts: map[string]string{"timestampMs": decimal(ms), "nowMs": decimal(nowMs)},
	}
}

// truncatedError says that the log no longer holds what a reader had read.
func truncatedError(part *partition.Partition, epoch record.Epoch, end record.Offset) error {
	return &logError{
		kind:  errLogTruncated,
		text:  fmt.Sprintf("%s: the log no longer holds what was read before: it agrees up to offset %d only", part, end),
		facts: map[string]string{"divergingEpoch": decimal(epoch), "endOffset": decimal(end)},
	}
}

// uncertainError adds the offset to an outcome that is unknown.
type uncertainError struct {
	cause error
	base  record.Offset
	after time.Duration // waited in vain; 0: something else went wrong
}

// Error implements error.
func (e *uncertainError) Error() string {
	if e.after > 0 {
		return fmt.Sprintf("appended at offset %d, but not committed within %s: it may stay or not; only an idempotent producer can send it again without risk of a duplicate", e.base, e.after)
	}
	return fmt.Sprintf("appended at offset %d: %s", e.base, e.cause)
}

// Unwrap returns what happened.
func (e *uncertainError) Unwrap() error { return e.cause }

// Metadata implements rpcerr.Metadata.
func (e *uncertainError) Metadata() map[string]string {
	return map[string]string{"baseOffset": decimal(e.base)}
}
