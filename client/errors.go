package client

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/wire"
)

// What the client itself refuses or reports.
var (
	// ErrOutcomeUnknown marks a write, or a change, of which it cannot be said
	// whether it took effect. Sending it again may do it twice.
	ErrOutcomeUnknown = errors.New("outcome unknown")
	// ErrClosed is returned by everything that was closed, and by records that
	// were not sent before that. They are not in the log.
	ErrClosed = errors.New("closed")
	// ErrBufferFull is returned by Produce when the producer's memory is used
	// up and [FailWhenFull] was chosen. Nothing was taken; try again later.
	ErrBufferFull = errors.New("the producer's buffer is full")
	// ErrDeliveryTimeout marks records that were not acknowledged within
	// [DeliveryTimeout]. Alone it means that they were never sent or always
	// refused; together with ErrOutcomeUnknown, that no answer came.
	ErrDeliveryTimeout = errors.New("delivery timeout")
	// ErrOrder marks records that were refused while later ones of their
	// partition were stored: sending them again would have changed the order.
	// They are not in the log.
	ErrOrder = errors.New("later records of the partition were stored meanwhile")
	// ErrUnreachable marks calls that found no broker to talk to.
	ErrUnreachable = errors.New("no broker can be reached")
	// ErrCorruptData is returned by a Reader for bytes that are not what was
	// stored: a checksum does not match, or a batch cannot be decoded.
	ErrCorruptData = errors.New("corrupt data")
	// ErrPartitionLost is about a partition that a Group has lost without being
	// asked to give it up: another member may have it by now. What is under way
	// of it is to be dropped; the next owner is given those records again.
	ErrPartitionLost = errors.New("the group has lost the partition: another member may have it")
	// ErrNoCommit is about a partition for which the group has committed nothing,
	// with [OnNoCommit] and [ResetFail].
	ErrNoCommit = errors.New("the group has committed nothing for the partition")
)

// What servers answer, one for each reason of the API that has one of its own
// to handle. errors.Is finds them; the comments of ErrorReason in
// error_reason.proto say what each means and what to do.
var (
	ErrInternal                 = reason(runnelv1.ErrorReason_ERROR_REASON_INTERNAL)
	ErrInvalidRequest           = reason(runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST)
	ErrUnsupported              = reason(runnelv1.ErrorReason_ERROR_REASON_UNSUPPORTED)
	ErrShuttingDown             = reason(runnelv1.ErrorReason_ERROR_REASON_SHUTTING_DOWN)
	ErrTimeout                  = reason(runnelv1.ErrorReason_ERROR_REASON_TIMEOUT)
	ErrUnauthenticated          = reason(runnelv1.ErrorReason_ERROR_REASON_UNAUTHENTICATED)
	ErrTopicNotFound            = reason(runnelv1.ErrorReason_ERROR_REASON_TOPIC_NOT_FOUND)
	ErrPartitionNotFound        = reason(runnelv1.ErrorReason_ERROR_REASON_PARTITION_NOT_FOUND)
	ErrTopicIDMismatch          = reason(runnelv1.ErrorReason_ERROR_REASON_TOPIC_ID_MISMATCH)
	ErrTopicExists              = reason(runnelv1.ErrorReason_ERROR_REASON_TOPIC_EXISTS)
	ErrInvalidTopicName         = reason(runnelv1.ErrorReason_ERROR_REASON_INVALID_TOPIC_NAME)
	ErrInvalidPartitions        = reason(runnelv1.ErrorReason_ERROR_REASON_INVALID_PARTITIONS)
	ErrInvalidReplicationFactor = reason(runnelv1.ErrorReason_ERROR_REASON_INVALID_REPLICATION_FACTOR)
	ErrInvalidConfig            = reason(runnelv1.ErrorReason_ERROR_REASON_INVALID_CONFIG)
	ErrTopicInternal            = reason(runnelv1.ErrorReason_ERROR_REASON_TOPIC_INTERNAL)
	ErrCorruptBatch             = reason(runnelv1.ErrorReason_ERROR_REASON_CORRUPT_BATCH)
	ErrRecordTooLarge           = reason(runnelv1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE)
	ErrUnsupportedCompression   = reason(runnelv1.ErrorReason_ERROR_REASON_UNSUPPORTED_COMPRESSION)
	ErrInvalidTimestamp         = reason(runnelv1.ErrorReason_ERROR_REASON_INVALID_TIMESTAMP)
	ErrInvalidRecord            = reason(runnelv1.ErrorReason_ERROR_REASON_INVALID_RECORD)
	ErrOffsetOutOfRange         = reason(runnelv1.ErrorReason_ERROR_REASON_OFFSET_OUT_OF_RANGE)
	ErrOffsetNotAvailable       = reason(runnelv1.ErrorReason_ERROR_REASON_OFFSET_NOT_AVAILABLE)
	ErrLogTruncated             = reason(runnelv1.ErrorReason_ERROR_REASON_LOG_TRUNCATED)
	ErrLogCorrupt               = reason(runnelv1.ErrorReason_ERROR_REASON_LOG_CORRUPT)
	ErrNotLeader                = reason(runnelv1.ErrorReason_ERROR_REASON_NOT_LEADER)
	ErrNoLeader                 = reason(runnelv1.ErrorReason_ERROR_REASON_NO_LEADER)
	ErrFencedLeaderEpoch        = reason(runnelv1.ErrorReason_ERROR_REASON_FENCED_LEADER_EPOCH)
	ErrLeaderUnconfirmed        = reason(runnelv1.ErrorReason_ERROR_REASON_LEADER_UNCONFIRMED)
	ErrMoving                   = reason(runnelv1.ErrorReason_ERROR_REASON_MOVING)
	ErrStaleMetadata            = reason(runnelv1.ErrorReason_ERROR_REASON_STALE_METADATA)
	ErrNotEnoughReplicas        = reason(runnelv1.ErrorReason_ERROR_REASON_NOT_ENOUGH_REPLICAS)
	ErrCommitUncertain          = reason(runnelv1.ErrorReason_ERROR_REASON_COMMIT_UNCERTAIN)
	ErrOutOfOrderSequence       = reason(runnelv1.ErrorReason_ERROR_REASON_OUT_OF_ORDER_SEQUENCE)
	ErrProducerStateLost        = reason(runnelv1.ErrorReason_ERROR_REASON_PRODUCER_STATE_LOST)
	ErrFencedProducer           = reason(runnelv1.ErrorReason_ERROR_REASON_FENCED_PRODUCER)
	ErrStorageFull              = reason(runnelv1.ErrorReason_ERROR_REASON_STORAGE_FULL)
	ErrStorageFailed            = reason(runnelv1.ErrorReason_ERROR_REASON_STORAGE_FAILED)
	ErrTooManyInflight          = reason(runnelv1.ErrorReason_ERROR_REASON_TOO_MANY_INFLIGHT)
	ErrOverloaded               = reason(runnelv1.ErrorReason_ERROR_REASON_OVERLOADED)
	ErrControllerUnavailable    = reason(runnelv1.ErrorReason_ERROR_REASON_CONTROLLER_UNAVAILABLE)
	ErrConflict                 = reason(runnelv1.ErrorReason_ERROR_REASON_CONFLICT)
	ErrMetadataStoreFull        = reason(runnelv1.ErrorReason_ERROR_REASON_METADATA_STORE_FULL)
	ErrGroupNotFound            = reason(runnelv1.ErrorReason_ERROR_REASON_GROUP_NOT_FOUND)
	ErrGroupNotEmpty            = reason(runnelv1.ErrorReason_ERROR_REASON_GROUP_NOT_EMPTY)
	ErrInvalidGroup             = reason(runnelv1.ErrorReason_ERROR_REASON_INVALID_GROUP)
	ErrInvalidSubscription      = reason(runnelv1.ErrorReason_ERROR_REASON_INVALID_SUBSCRIPTION)
	ErrUnknownMember            = reason(runnelv1.ErrorReason_ERROR_REASON_UNKNOWN_MEMBER)
	ErrFencedMember             = reason(runnelv1.ErrorReason_ERROR_REASON_FENCED_MEMBER)
	ErrFencedMemberEpoch        = reason(runnelv1.ErrorReason_ERROR_REASON_FENCED_MEMBER_EPOCH)
	ErrStaleAssignment          = reason(runnelv1.ErrorReason_ERROR_REASON_STALE_ASSIGNMENT)
	ErrNotCoordinator           = reason(runnelv1.ErrorReason_ERROR_REASON_NOT_COORDINATOR)
	ErrCoordinatorLoading       = reason(runnelv1.ErrorReason_ERROR_REASON_COORDINATOR_LOADING)
	ErrGroupFull                = reason(runnelv1.ErrorReason_ERROR_REASON_GROUP_FULL)
	ErrGroupStateUnreadable     = reason(runnelv1.ErrorReason_ERROR_REASON_GROUP_STATE_UNREADABLE)
)

// reasonPrefix is what the names of the enum have and reasons have not.
const reasonPrefix = "ERROR_REASON_"

// errorDomain is the ErrorInfo domain of our servers' errors.
const errorDomain = "runnel"

// A reasonError stands for all errors of one reason.
type reasonError runnelv1.ErrorReason

func (r reasonError) Error() string { return reasonName(runnelv1.ErrorReason(r)) }

func reason(r runnelv1.ErrorReason) error { return reasonError(r) }

func reasonName(r runnelv1.ErrorReason) string {
	if r == runnelv1.ErrorReason_ERROR_REASON_UNSPECIFIED {
		return ""
	}
	return strings.TrimPrefix(r.String(), reasonPrefix)
}

// An Error is what a server answered.
type Error struct {
	// Reason says what happened, for programs: NOT_LEADER. Empty when whatever
	// answered was not Runnel, such as a proxy.
	Reason string
	// Code is the gRPC status code of the failure.
	Code codes.Code
	// Message is for people.
	Message string
	// Metadata are facts by name, as listed at each ErrorReason; may be nil.
	Metadata map[string]string
	// OutcomeUnknown says that the request may or may not have taken effect.
	OutcomeUnknown bool
	// RetryAfter says when to try again; 0: as the caller likes.
	RetryAfter time.Duration

	reason runnelv1.ErrorReason
}

// Error returns the message, and the reason where it is not in there.
func (e *Error) Error() string {
	switch {
	case e.Message == "" && e.Reason != "":
		return e.Reason
	case e.Reason == "":
		return fmt.Sprintf("%s (%s)", e.Message, e.Code)
	}
	return fmt.Sprintf("%s (%s)", e.Message, e.Reason)
}

// Is reports whether target stands for the reason of e, or for an unknown
// outcome that e has.
func (e *Error) Is(target error) bool {
	if r, ok := target.(reasonError); ok {
		return e.reason == runnelv1.ErrorReason(r) && r != 0
	}
	return target == ErrOutcomeUnknown && e.OutcomeUnknown
}

// Int returns the fact of that name as a number; false when there is none.
func (e *Error) Int(name string) (int64, bool) {
	n, err := strconv.ParseInt(e.Metadata[name], 10, 64)
	return n, err == nil
}

// Reason returns the reason in err, such as "TOPIC_NOT_FOUND"; "" when it has
// none.
func Reason(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason
	}
	if r, ok := errors.AsType[reasonError](err); ok {
		return r.Error()
	}
	return ""
}

// Retriable reports whether the same call may succeed later and nothing of it
// took effect, so that trying again, after a pause, is safe. It is false for
// unknown outcomes.
func Retriable(err error) bool {
	if err == nil || errors.Is(err, ErrOutcomeUnknown) {
		return false
	}
	if u, ok := errors.AsType[*unreachableError](err); ok && u.distrust {
		return false
	}
	if errors.Is(err, ErrUnreachable) || errors.Is(err, ErrBufferFull) {
		return true
	}
	e, ok := errors.AsType[*Error](err)
	return ok && e.retriable()
}

// retriable is by reason; by code for reasons newer than this client.
func (e *Error) retriable() bool {
	switch e.reason {
	case runnelv1.ErrorReason_ERROR_REASON_SHUTTING_DOWN,
		runnelv1.ErrorReason_ERROR_REASON_TIMEOUT,
		runnelv1.ErrorReason_ERROR_REASON_OFFSET_NOT_AVAILABLE,
		runnelv1.ErrorReason_ERROR_REASON_NOT_LEADER,
		runnelv1.ErrorReason_ERROR_REASON_NO_LEADER,
		runnelv1.ErrorReason_ERROR_REASON_FENCED_LEADER_EPOCH,
		runnelv1.ErrorReason_ERROR_REASON_LEADER_UNCONFIRMED,
		runnelv1.ErrorReason_ERROR_REASON_MOVING,
		runnelv1.ErrorReason_ERROR_REASON_STALE_METADATA,
		runnelv1.ErrorReason_ERROR_REASON_NOT_ENOUGH_REPLICAS,
		runnelv1.ErrorReason_ERROR_REASON_STORAGE_FULL,
		runnelv1.ErrorReason_ERROR_REASON_STORAGE_FAILED,
		runnelv1.ErrorReason_ERROR_REASON_TOO_MANY_INFLIGHT,
		runnelv1.ErrorReason_ERROR_REASON_OVERLOADED,
		runnelv1.ErrorReason_ERROR_REASON_NOT_COORDINATOR,
		runnelv1.ErrorReason_ERROR_REASON_COORDINATOR_LOADING,
		runnelv1.ErrorReason_ERROR_REASON_GROUP_FULL:
		return true
	case runnelv1.ErrorReason_ERROR_REASON_CONTROLLER_UNAVAILABLE:
		return !e.OutcomeUnknown
	case runnelv1.ErrorReason_ERROR_REASON_INTERNAL,
		runnelv1.ErrorReason_ERROR_REASON_COMMIT_UNCERTAIN,
		runnelv1.ErrorReason_ERROR_REASON_METADATA_STORE_FULL:
		return false
	default:
		return e.Code == codes.Unavailable || e.Code == codes.ResourceExhausted
	}
}

// asError returns the answer of a server in err.
func asError(err error) (*Error, bool) { return errors.AsType[*Error](err) }

// itemError returns the error of an item of an answer; nil for none.
func itemError(it *runnelv1.ItemError) error {
	if it == nil {
		return nil
	}
	return &Error{
		Reason: reasonName(it.GetReason()), reason: it.GetReason(),
		Code: codes.Code(it.GetCode()), Message: it.GetMessage(), Metadata: it.GetMetadata(), //nolint:gosec // a small number
		// The details of an internal fault are the server's; nobody can say
		// how far the write had come.
		OutcomeUnknown: it.GetOutcomeUnknown() || it.GetReason() == runnelv1.ErrorReason_ERROR_REASON_INTERNAL,
		RetryAfter:     it.GetRetryAfter().AsDuration(),
	}
}

// rpcError turns what a call or a stream of gRPC ended with into one of ours.
func rpcError(err error) error {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	e := &Error{Code: st.Code(), Message: st.Message()}
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == errorDomain {
				e.Reason, e.Metadata = d.GetReason(), d.GetMetadata()
				e.reason = runnelv1.ErrorReason(runnelv1.ErrorReason_value[reasonPrefix+d.GetReason()])
			}
		case *errdetails.RetryInfo:
			e.RetryAfter = d.GetRetryDelay().AsDuration()
		}
	}
	if e.Reason != "" {
		e.OutcomeUnknown = e.reason == runnelv1.ErrorReason_ERROR_REASON_COMMIT_UNCERTAIN ||
			e.reason == runnelv1.ErrorReason_ERROR_REASON_CONTROLLER_UNAVAILABLE && e.Metadata["changed"] != "no" ||
			e.reason == runnelv1.ErrorReason_ERROR_REASON_INTERNAL
		return e
	}
	switch st.Code() {
	case codes.Canceled:
		if st.Message() == closingText {
			return errClientClosed
		}
		if st.Message() == context.Canceled.Error() {
			return context.Canceled
		}
		return fmt.Errorf("%s: %w", st.Message(), context.Canceled)
	case codes.DeadlineExceeded:
		return fmt.Errorf("no answer in time: %w", context.DeadlineExceeded)
	case codes.Unavailable:
		return &unreachableError{text: wire.DialText(st.Message()), lost: !neverConnected(st.Message())}
	default:
		return e
	}
}

var errClientClosed = fmt.Errorf("the client is %w", ErrClosed)

// closingText is what gRPC says of a connection after its Close.
const closingText = "grpc: the client connection is closing"

// An unreachableError says which address could not be reached and why.
type unreachableError struct {
	text string
	// lost: there was a connection, and what was asked may have been done.
	lost bool
	// distrust: one of the two does not take the other's certificate, and never
	// did.
	distrust bool
}

func (e *unreachableError) Error() string {
	if e.lost {
		return "the connection to the broker was lost: " + e.text
	}
	return ErrUnreachable.Error() + ": " + e.text
}

func (e *unreachableError) Is(target error) bool { return target == ErrUnreachable }

// neverConnected reports whether gRPC's text is about opening a connection.
func neverConnected(s string) bool {
	for _, part := range []string{"last connection error", "while dialing", "handshake", "server preface"} {
		if strings.Contains(s, part) {
			return true
		}
	}
	return false
}

// A PartitionError says of which partition an error is. The other partitions
// of a Reader go on.
type PartitionError struct {
	Topic     string
	Partition int32
	Err       error
}

func (e *PartitionError) Error() string {
	return fmt.Sprintf("%s/%d: %v", e.Topic, e.Partition, e.Err)
}

// Unwrap returns Err.
func (e *PartitionError) Unwrap() error { return e.Err }
