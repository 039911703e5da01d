// Package rpc is the broker's counter: it turns requests into calls and errors
// into statuses, and decides nothing itself.
package rpc

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/broker/producer"
	"github.com/runnelmq/runnel/broker/router"
	"github.com/runnelmq/runnel/internal/refusal"
	"github.com/runnelmq/runnel/internal/rpcerr"
	"github.com/runnelmq/runnel/internal/topicconfig"
)

// What only a controller says: its answers pass through brokers, as errors of
// these kinds.
var (
	errTopicExists       = errors.New("topic exists")
	errInvalidPartitions = errors.New("invalid partition count")
	errInvalidFactor     = errors.New("invalid replication factor")
	errNotController     = errors.New("not the active controller")
	errStaleBrokerEpoch  = errors.New("stale broker epoch")
	errConflict          = errors.New("the object changed meanwhile")
	errStoreFull         = errors.New("the metadata store takes no writes")
	errInternal          = errors.New("internal error of the controller")
)

// What the broker's own services refuse.
var (
	errRequest    = errors.New("invalid request")
	errUnasked    = errors.New("no controller could be asked")
	errInflight   = errors.New("too many requests are unanswered")
	errOverloaded = errors.New("no resources to spare")
)

// Rules says how every error of the broker crosses the wire. The first match
// counts: what is uncertain stands before its causes.
func Rules() []rpcerr.Rule {
	const (
		internal   = runnelv1.ErrorReason_ERROR_REASON_INTERNAL
		unknownOut = true
	)
	own := []rpcerr.Rule{
		{Err: partition.ErrCommitUncertain, Code: codes.DeadlineExceeded, Reason: runnelv1.ErrorReason_ERROR_REASON_COMMIT_UNCERTAIN, OutcomeUnknown: unknownOut},

		{Err: partition.ErrNotLeader, Code: codes.FailedPrecondition, Reason: runnelv1.ErrorReason_ERROR_REASON_NOT_LEADER},
		{Err: partition.ErrNoLeader, Code: codes.Unavailable, Reason: runnelv1.ErrorReason_ERROR_REASON_NO_LEADER},
		{Err: partition.ErrFencedEpoch, Code: codes.FailedPrecondition, Reason: runnelv1.ErrorReason_ERROR_REASON_FENCED_LEADER_EPOCH},
		{Err: partition.ErrUnknownEpoch, Code: codes.Unavailable, Reason: runnelv1.ErrorReason_ERROR_REASON_STALE_METADATA},
		{Err: partition.ErrUnconfirmed, Code: codes.Unavailable, Reason: runnelv1.ErrorReason_ERROR_REASON_LEADER_UNCONFIRMED},
		{Err: partition.ErrMoving, Code: codes.Unavailable, Reason: runnelv1.ErrorReason_ERROR_REASON_MOVING},
		{Err: partition.ErrNotEnoughReplicas, Code: codes.Unavailable, Reason: runnelv1.ErrorReason_ERROR_REASON_NOT_ENOUGH_REPLICAS},
		{Err: partition.ErrOffsetOutOfRange, Code: codes.OutOfRange, Reason: runnelv1.ErrorReason_ERROR_REASON_OFFSET_OUT_OF_RANGE},
		{Err: partition.ErrOffsetNotAvailable, Code: codes.Unavailable, Reason: runnelv1.ErrorReason_ERROR_REASON_OFFSET_NOT_AVAILABLE},
		{Err: partition.ErrTooLarge, Code: codes.InvalidArgument, Reason: runnelv1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE},
		{Err: partition.ErrLogCorrupt, Code: codes.DataLoss, Reason: runnelv1.ErrorReason_ERROR_REASON_LOG_CORRUPT},
		{Err: partition.ErrStorageFull, Code: codes.ResourceExhausted, Reason: runnelv1.ErrorReason_ERROR_REASON_STORAGE_FULL, RetryAfter: storageFullRetry},
		{Err: partition.ErrStorageFailed, Code: codes.Unavailable, Reason: runnelv1.ErrorReason_ERROR_REASON_STORAGE_FAILED},
		{Err: partition.ErrNoDescriptors, Code: codes.ResourceExhausted, Reason: runnelv1.ErrorReason_ERROR_REASON_OVERLOADED, RetryAfter: overloadedRetry},
		{Err: errOverloaded, Code: codes.ResourceExhausted, Reason: runnelv1.ErrorReason_ERROR_REASON_OVERLOADED, RetryAfter: overloadedRetry},
		{Err: errInflight, Code: codes.ResourceExhausted, Reason: runnelv1.ErrorReason_ERROR_REASON_TOO_MANY_INFLIGHT, RetryAfter: overloadedRetry},
		{Err: partition.ErrDeleted, Code: codes.NotFound, Reason: runnelv1.ErrorReason_ERROR_REASON_TOPIC_NOT_FOUND},
		{Err: partition.ErrShuttingDown, Code: codes.Unavailable, Reason: runnelv1.ErrorReason_ERROR_REASON_SHUTTING_DOWN},

		{Err: producer.ErrOutOfOrder, Code: codes.FailedPrecondition, Reason: runnelv1.ErrorReason_ERROR_REASON_OUT_OF_ORDER_SEQUENCE},
		{Err: producer.ErrStateLost, Code: codes.FailedPrecondition, Reason: runnelv1.ErrorReason_ERROR_REASON_PRODUCER_STATE_LOST, OutcomeUnknown: unknownOut},
		{Err: producer.ErrFenced, Code: codes.FailedPrecondition, Reason: runnelv1.ErrorReason_ERROR_REASON_FENCED_PRODUCER},
		{Err: producer.ErrOverlap, Code: codes.InvalidArgument, Reason: runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
		{Err: producer.ErrTooMany, Code: codes.ResourceExhausted, Reason: runnelv1.ErrorReason_ERROR_REASON_OVERLOADED, RetryAfter: overloadedRetry},

		{Err: metadata.ErrInvalidName, Code: codes.InvalidArgument, Reason: runnelv1.ErrorReason_ERROR_REASON_INVALID_TOPIC_NAME},
		{Err: metadata.ErrInvalidID, Code: codes.InvalidArgument, Reason: runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
		{Err: metadata.ErrTopicNotFound, Code: codes.NotFound, Reason: runnelv1.ErrorReason_ERROR_REASON_TOPIC_NOT_FOUND},
		{Err: metadata.ErrPartitionNotFound, Code: codes.NotFound, Reason: runnelv1.ErrorReason_ERROR_REASON_PARTITION_NOT_FOUND},
		{Err: metadata.ErrTopicIDMismatch, Code: codes.FailedPrecondition, Reason: runnelv1.ErrorReason_ERROR_REASON_TOPIC_ID_MISMATCH},
		{Err: metadata.ErrStale, Code: codes.Unavailable, Reason: runnelv1.ErrorReason_ERROR_REASON_STALE_METADATA},
		{Err: metadata.ErrClusterMismatch, Code: codes.FailedPrecondition, Reason: runnelv1.ErrorReason_ERROR_REASON_CLUSTER_MISMATCH},
		{Err: metadata.ErrDuplicateBroker, Code: codes.AlreadyExists, Reason: runnelv1.ErrorReason_ERROR_REASON_DUPLICATE_BROKER},
		{Err: metadata.ErrNoController, Code: codes.Unavailable, Reason: runnelv1.ErrorReason_ERROR_REASON_CONTROLLER_UNAVAILABLE, OutcomeUnknown: unknownOut},
		{Err: errUnasked, Code: codes.Unavailable, Reason: runnelv1.ErrorReason_ERROR_REASON_CONTROLLER_UNAVAILABLE},
		{Err: topicconfig.ErrInvalid, Code: codes.InvalidArgument, Reason: runnelv1.ErrorReason_ERROR_REASON_INVALID_CONFIG},

		{Err: errRequest, Code: codes.InvalidArgument, Reason: runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
		{Err: errTopicExists, Code: codes.AlreadyExists, Reason: runnelv1.ErrorReason_ERROR_REASON_TOPIC_EXISTS},
		{Err: errInvalidPartitions, Code: codes.InvalidArgument, Reason: runnelv1.ErrorReason_ERROR_REASON_INVALID_PARTITIONS},
		{Err: errInvalidFactor, Code: codes.InvalidArgument, Reason: runnelv1.ErrorReason_ERROR_REASON_INVALID_REPLICATION_FACTOR},
		{Err: errNotController, Code: codes.FailedPrecondition, Reason: runnelv1.ErrorReason_ERROR_REASON_NOT_CONTROLLER},
		{Err: errStaleBrokerEpoch, Code: codes.Aborted, Reason: runnelv1.ErrorReason_ERROR_REASON_STALE_BROKER_EPOCH},
		{Err: errConflict, Code: codes.Aborted, Reason: runnelv1.ErrorReason_ERROR_REASON_CONFLICT},
		{Err: errStoreFull, Code: codes.ResourceExhausted, Reason: runnelv1.ErrorReason_ERROR_REASON_METADATA_STORE_FULL},
		{Err: errInternal, Code: codes.Internal, Reason: internal, OutcomeUnknown: unknownOut},
	}
	return slices.Concat(own, LogRules(), groupRules(), router.Rules())
}

// An errorTable spells errors inside answers, and logs those that it does not
// know under an id the caller gets to see.
type errorTable struct {
	rules []rpcerr.Rule
	log   zerolog.Logger
}

func newErrorTable(log zerolog.Logger) errorTable { return errorTable{rules: Rules(), log: log} }

// item returns err as the error of one item; nil for nil.
func (e errorTable) item(err error) *runnelv1.ItemError {
	if !rpcerr.Known(e.rules, err) {
		traced := &rpcerr.TracedError{RequestID: rand.Text(), Err: err}
		e.log.Error().Str("request_id", traced.RequestID).Err(err).Msg("an item failed with an unexpected error")
		err = traced
	}
	return rpcerr.Item(e.rules, err)
}

// upstream turns an error of a call to a controller into one of ours. Its
// status must not pass for this broker's own: it may speak of the connection
// between the two.
func (e errorTable) upstream(err error) error {
	info := rpcerr.Info(err)
	if info == nil {
		return fmt.Errorf("%w or it broke off: look whether the change was made before you ask again", metadata.ErrNoController)
	}
	reason := rpcerr.Reason(err)
	if reason == runnelv1.ErrorReason_ERROR_REASON_NOT_CONTROLLER {
		return fmt.Errorf("%w: another one is taking over, try again", metadata.ErrNoController)
	}
	for _, r := range e.rules {
		if r.Reason == reason {
			return &refusal.Error{Kind: r.Err, Text: status.Convert(err).Message(), Facts: info.GetMetadata()}
		}
	}
	return fmt.Errorf("%w: %w", errInternal, err)
}

// invalid says what is wrong with a request, and what to do.
func invalid(format string, args ...any) error {
	return refusal.New(errRequest, nil, format, args...)
}

// When to try again after a refusal for want of resources. In a cluster another
// broker leads soon after a disk is full.
const (
	storageFullRetry = time.Second
	overloadedRetry  = time.Second
)
