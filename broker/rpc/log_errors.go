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
	"github.com/runnelmq/runnel/internal/refusal"
	"github.com/runnelmq/runnel/internal/rpcerr"
	"github.com/runnelmq/runnel/internal/wire"
)

// What LogService itself refuses; the rest comes from below.
var (
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

func decimal[I ~int64 | ~int32 | ~int](v I) string { return strconv.FormatInt(int64(v), 10) }

// timestampError says that a record's time is out of the topic's bounds.
func timestampError(ms, nowMs int64, format string, args ...any) error {
	return refusal.New(errTimestamp, map[string]string{"timestampMs": decimal(ms), "nowMs": decimal(nowMs)}, format, args...)
}

// fencedEpoch says that the reader of a partition knows an older leader epoch than there is.
func fencedEpoch[E ~int32 | ~int64](part string, is, known E) error {
	return refusal.New(partition.ErrFencedEpoch, map[string]string{"leaderEpoch": decimal(is)},
		"%s: the leader epoch is %d, not %d: refresh, and say what was read last in last_epoch", part, is, known)
}

// truncatedError says that the log no longer holds what a reader had read.
func truncatedError(part *partition.Partition, epoch record.Epoch, end record.Offset) error {
	return refusal.New(errLogTruncated, map[string]string{"divergingEpoch": decimal(epoch), "endOffset": decimal(end)},
		"%s: the log no longer holds what was read before: it agrees up to offset %d only", part, end)
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
