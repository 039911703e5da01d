package rpc

import (
	"google.golang.org/grpc/codes"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/coordinator"
	"github.com/runnelmq/runnel/broker/group"
	"github.com/runnelmq/runnel/internal/rpcerr"
)

// groupRules says how the errors of consumer groups cross the wire.
func groupRules() []rpcerr.Rule {
	return []rpcerr.Rule{
		{Err: group.ErrNotFound, Code: codes.NotFound, Reason: runnelv1.ErrorReason_ERROR_REASON_GROUP_NOT_FOUND},
		{Err: group.ErrNotEmpty, Code: codes.FailedPrecondition, Reason: runnelv1.ErrorReason_ERROR_REASON_GROUP_NOT_EMPTY},
		{Err: group.ErrInvalidID, Code: codes.InvalidArgument, Reason: runnelv1.ErrorReason_ERROR_REASON_INVALID_GROUP},
		{Err: group.ErrInvalidSubscription, Code: codes.InvalidArgument, Reason: runnelv1.ErrorReason_ERROR_REASON_INVALID_SUBSCRIPTION},
		{Err: group.ErrUnknownMember, Code: codes.Aborted, Reason: runnelv1.ErrorReason_ERROR_REASON_UNKNOWN_MEMBER},
		{Err: group.ErrFencedMember, Code: codes.Aborted, Reason: runnelv1.ErrorReason_ERROR_REASON_FENCED_MEMBER},
		{Err: group.ErrFencedMemberEpoch, Code: codes.Aborted, Reason: runnelv1.ErrorReason_ERROR_REASON_FENCED_MEMBER_EPOCH},
		{Err: group.ErrStaleAssignment, Code: codes.Aborted, Reason: runnelv1.ErrorReason_ERROR_REASON_STALE_ASSIGNMENT},
		{Err: group.ErrNotCoordinator, Code: codes.FailedPrecondition, Reason: runnelv1.ErrorReason_ERROR_REASON_NOT_COORDINATOR},
		{Err: group.ErrLoading, Code: codes.Unavailable, Reason: runnelv1.ErrorReason_ERROR_REASON_COORDINATOR_LOADING},
		{Err: group.ErrFull, Code: codes.ResourceExhausted, Reason: runnelv1.ErrorReason_ERROR_REASON_GROUP_FULL, RetryAfter: overloadedRetry},
		{Err: group.ErrUnreadable, Code: codes.DataLoss, Reason: runnelv1.ErrorReason_ERROR_REASON_GROUP_STATE_UNREADABLE},
		{Err: coordinator.ErrTimeout, Code: codes.DeadlineExceeded, Reason: runnelv1.ErrorReason_ERROR_REASON_TIMEOUT},
		{Err: coordinator.ErrShift, Code: codes.InvalidArgument, Reason: runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
	}
}
