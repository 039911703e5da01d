package rpc

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/controller/active"
	"github.com/runnelmq/runnel/controller/mirror"
	"github.com/runnelmq/runnel/controller/placement"
	"github.com/runnelmq/runnel/controller/sessions"
	"github.com/runnelmq/runnel/controller/state"
	"github.com/runnelmq/runnel/controller/store"
	"github.com/runnelmq/runnel/internal/refusal"
	"github.com/runnelmq/runnel/internal/rpcerr"
	"github.com/runnelmq/runnel/internal/topicconfig"
)

// ErrNotActive is what every NotActiveError is.
var ErrNotActive = errors.New("not the active controller")

// ErrStopping is returned while this controller ends.
var ErrStopping = errors.New("the controller is shutting down")

// ErrFlooded ends a session whose messages come faster than they can be done.
var ErrFlooded = errors.New("too many messages of this broker wait to be done: register again")

// A NotActiveError says who is the active controller.
type NotActiveError struct {
	Address    string // host:port; "" when nobody is known to be
	Controller string // its incarnation
}

func (e *NotActiveError) Error() string {
	if e.Address == "" {
		return "this controller is not the active one, and at present there is none: try again"
	}
	return fmt.Sprintf("this controller is not the active one: go to %s", e.Address)
}

// Is makes every NotActiveError an ErrNotActive.
func (*NotActiveError) Is(target error) bool { return target == ErrNotActive }

// Metadata implements rpcerr.Metadata.
func (e *NotActiveError) Metadata() map[string]string {
	return map[string]string{"address": e.Address, "controller": e.Controller}
}

// Rules is the one table that says how this controller's errors cross the wire. The first match counts: what is unknown stands
// before its causes, so that NOT_CONTROLLER means that nothing was changed.
func Rules() []rpcerr.Rule {
	return []rpcerr.Rule{
		{Err: state.ErrInvalidRequest, Code: codes.InvalidArgument, Reason: runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
		{Err: state.ErrInvalidName, Code: codes.InvalidArgument, Reason: runnelv1.ErrorReason_ERROR_REASON_INVALID_TOPIC_NAME},
		{Err: state.ErrInvalidPartitions, Code: codes.InvalidArgument, Reason: runnelv1.ErrorReason_ERROR_REASON_INVALID_PARTITIONS},
		{Err: state.ErrInvalidFactor, Code: codes.InvalidArgument, Reason: runnelv1.ErrorReason_ERROR_REASON_INVALID_REPLICATION_FACTOR},
		{Err: placement.ErrTooFewBrokers, Code: codes.InvalidArgument, Reason: runnelv1.ErrorReason_ERROR_REASON_INVALID_REPLICATION_FACTOR},
		{Err: topicconfig.ErrInvalid, Code: codes.InvalidArgument, Reason: runnelv1.ErrorReason_ERROR_REASON_INVALID_CONFIG},
		{Err: state.ErrTopicExists, Code: codes.AlreadyExists, Reason: runnelv1.ErrorReason_ERROR_REASON_TOPIC_EXISTS},
		{Err: state.ErrTopicNotFound, Code: codes.NotFound, Reason: runnelv1.ErrorReason_ERROR_REASON_TOPIC_NOT_FOUND},
		{Err: state.ErrPartitionNotFound, Code: codes.NotFound, Reason: runnelv1.ErrorReason_ERROR_REASON_PARTITION_NOT_FOUND},
		{Err: state.ErrTopicIDMismatch, Code: codes.FailedPrecondition, Reason: runnelv1.ErrorReason_ERROR_REASON_TOPIC_ID_MISMATCH},
		{Err: state.ErrTopicInternal, Code: codes.FailedPrecondition, Reason: runnelv1.ErrorReason_ERROR_REASON_TOPIC_INTERNAL},
		{Err: state.ErrDuplicateBroker, Code: codes.AlreadyExists, Reason: runnelv1.ErrorReason_ERROR_REASON_DUPLICATE_BROKER},
		{Err: state.ErrClusterMismatch, Code: codes.FailedPrecondition, Reason: runnelv1.ErrorReason_ERROR_REASON_CLUSTER_MISMATCH},
		{Err: state.ErrFeatureLevel, Code: codes.Unimplemented, Reason: runnelv1.ErrorReason_ERROR_REASON_UNSUPPORTED},
		{Err: state.ErrStaleBrokerEpoch, Code: codes.Aborted, Reason: runnelv1.ErrorReason_ERROR_REASON_STALE_BROKER_EPOCH},
		{Err: sessions.ErrReplaced, Code: codes.Aborted, Reason: runnelv1.ErrorReason_ERROR_REASON_STALE_BROKER_EPOCH},
		{Err: sessions.ErrSilent, Code: codes.Aborted, Reason: runnelv1.ErrorReason_ERROR_REASON_STALE_BROKER_EPOCH},
		{Err: sessions.ErrUncertain, Code: codes.Aborted, Reason: runnelv1.ErrorReason_ERROR_REASON_STALE_BROKER_EPOCH},
		{Err: mirror.ErrLagging, Code: codes.Aborted, Reason: runnelv1.ErrorReason_ERROR_REASON_STALE_BROKER_EPOCH},
		{Err: ErrFlooded, Code: codes.Aborted, Reason: runnelv1.ErrorReason_ERROR_REASON_STALE_BROKER_EPOCH},
		{Err: ErrStopping, Code: codes.Unavailable, Reason: runnelv1.ErrorReason_ERROR_REASON_SHUTTING_DOWN},
		{Err: store.ErrUnknown, Code: codes.Unavailable, Reason: runnelv1.ErrorReason_ERROR_REASON_CONTROLLER_UNAVAILABLE, OutcomeUnknown: true},
		{Err: ErrNotActive, Code: codes.FailedPrecondition, Reason: runnelv1.ErrorReason_ERROR_REASON_NOT_CONTROLLER},
		{Err: active.ErrEnded, Code: codes.FailedPrecondition, Reason: runnelv1.ErrorReason_ERROR_REASON_NOT_CONTROLLER},
		{Err: store.ErrFenced, Code: codes.FailedPrecondition, Reason: runnelv1.ErrorReason_ERROR_REASON_NOT_CONTROLLER},
		{Err: store.ErrConflict, Code: codes.Aborted, Reason: runnelv1.ErrorReason_ERROR_REASON_CONFLICT},
		{Err: state.ErrNoProducerIDs, Code: codes.ResourceExhausted, Reason: runnelv1.ErrorReason_ERROR_REASON_OVERLOADED},
		{Err: store.ErrFull, Code: codes.ResourceExhausted, Reason: runnelv1.ErrorReason_ERROR_REASON_METADATA_STORE_FULL, OutcomeUnknown: true},
	}
}

// invalid is a refusal of a request's form.
func invalid(format string, args ...any) error {
	return refusal.New(state.ErrInvalidRequest, nil, format, args...)
}
