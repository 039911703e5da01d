package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

func withReason(t *testing.T, c codes.Code, reason, domain string) error {
	t.Helper()
	st, err := status.New(c, "text").WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: domain, Metadata: map[string]string{"maxBytes": "7"}})
	if err != nil {
		t.Fatal(err)
	}
	return st.Err()
}

// What a refused record fails with in the end is the reason that says most.
func TestTelling(t *testing.T) {
	none, late, other := error(nil), error(&Error{Reason: "TIMEOUT", reason: runnelv1.ErrorReason_ERROR_REASON_TIMEOUT}), ErrNoLeader
	for _, c := range []struct{ before, now, want error }{
		{none, late, late}, {other, late, other}, {late, other, other}, {none, other, other}, {ErrMoving, other, other},
	} {
		if got := telling(c.before, c.now); got != c.want { //nolint:errorlint // the very one
			t.Errorf("%v, then %v: %v", c.before, c.now, got)
		}
	}
}

// When time is up, the error says what stood in the way before.
func TestPersistSaysWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		tries := 0
		err := persist(ctx, func(ctx context.Context) error {
			if tries++; tries < 3 {
				return itemError(&runnelv1.ItemError{Reason: runnelv1.ErrorReason_ERROR_REASON_NO_LEADER})
			}
			<-ctx.Done()
			return rpcError(status.FromContextError(ctx.Err()).Err())
		})
		if !errors.Is(err, ErrNoLeader) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	})
}

// unasked is how a broker fails a change when it has no controller; changed
// says whether it was made, "" when the broker does not know.
func unasked(t *testing.T, changed string) error {
	t.Helper()
	info := &errdetails.ErrorInfo{Reason: "CONTROLLER_UNAVAILABLE", Domain: "runnel", Metadata: map[string]string{"changed": changed}}
	st, err := status.New(codes.Unavailable, "text").WithDetails(info)
	if err != nil {
		t.Fatal(err)
	}
	return st.Err()
}

// Errors are told apart by their reason, wherever they come from and however
// they are wrapped.
func TestErrors(t *testing.T) {
	dial := `connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"`
	for name, c := range map[string]struct {
		err                error
		is                 error
		reason             string
		retriable, unknown bool
		text               string
	}{
		"status":             {rpcError(withReason(t, codes.NotFound, "TOPIC_NOT_FOUND", "runnel")), ErrTopicNotFound, "TOPIC_NOT_FOUND", false, false, "text"},
		"retriable status":   {rpcError(withReason(t, codes.Unavailable, "NO_LEADER", "runnel")), ErrNoLeader, "NO_LEADER", true, false, ""},
		"uncertain status":   {rpcError(withReason(t, codes.DeadlineExceeded, "COMMIT_UNCERTAIN", "runnel")), ErrCommitUncertain, "COMMIT_UNCERTAIN", false, true, ""},
		"reason to come":     {rpcError(withReason(t, codes.Unavailable, "NEW_REASON", "runnel")), nil, "NEW_REASON", true, false, ""},
		"somebody else's":    {rpcError(withReason(t, codes.Internal, "TOPIC_NOT_FOUND", "proxy")), nil, "", false, false, "Internal"},
		"nobody there":       {rpcError(status.Error(codes.Unavailable, dial)), ErrUnreachable, "", true, false, "dial tcp 127.0.0.1:1: connect: connection refused"},
		"lost":               {rpcError(status.Error(codes.Unavailable, "error reading from server: EOF")), ErrUnreachable, "", true, false, "was lost: error reading"},
		"lost change":        {changeError("create", status.Error(codes.Unavailable, "error reading from server: EOF")), ErrOutcomeUnknown, "", false, true, ""},
		"change never sent":  {changeError("create", status.Error(codes.Unavailable, dial)), ErrUnreachable, "", true, false, ""},
		"unanswered change":  {changeError("create", status.Error(codes.DeadlineExceeded, "x")), context.DeadlineExceeded, "", false, true, ""},
		"item":               {itemError(&runnelv1.ItemError{Reason: runnelv1.ErrorReason_ERROR_REASON_MOVING, Code: 14, Message: "m", RetryAfter: durationpb.New(7)}), ErrMoving, "MOVING", true, false, "m (MOVING)"},
		"nobody was asked":   {rpcError(unasked(t, "no")), ErrControllerUnavailable, "CONTROLLER_UNAVAILABLE", true, false, ""},
		"nobody answered":    {rpcError(unasked(t, "")), ErrControllerUnavailable, "CONTROLLER_UNAVAILABLE", false, true, ""},
		"item, uncertain":    {itemError(&runnelv1.ItemError{Reason: runnelv1.ErrorReason_ERROR_REASON_TIMEOUT, OutcomeUnknown: true}), ErrOutcomeUnknown, "TIMEOUT", false, true, ""},
		"item, internal":     {itemError(&runnelv1.ItemError{Reason: runnelv1.ErrorReason_ERROR_REASON_INTERNAL}), ErrInternal, "INTERNAL", false, true, ""},
		"item, to come":      {itemError(&runnelv1.ItemError{Reason: 9999, Code: int32(codes.InvalidArgument)}), nil, "9999", false, false, ""},
		"full":               {ErrBufferFull, ErrBufferFull, "", true, false, ""},
		"our own":            {tooLarge(8, 7), ErrRecordTooLarge, "RECORD_TOO_LARGE", false, false, "8 bytes"},
		"delivery timeout":   {deliveryTimeout(1, nil, errStreamEnded), ErrDeliveryTimeout, "", false, false, errStreamEnded.Error()},
		"timeout after sent": {unknown(deliveryTimeout(1)), ErrDeliveryTimeout, "", false, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := fmt.Errorf("wrapped: %w", &PartitionError{Topic: "t", Err: c.err})
			if c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("%v is not %v", err, c.is)
			}
			if errors.Is(err, ErrStorageFull) {
				t.Errorf("%v is also %v", err, ErrStorageFull)
			}
			if got := Reason(err); got != c.reason {
				t.Errorf("reason %q, want %q", got, c.reason)
			}
			if got := Retriable(err); got != c.retriable {
				t.Errorf("retriable %v, want %v", got, c.retriable)
			}
			if got := errors.Is(err, ErrOutcomeUnknown); got != c.unknown {
				t.Errorf("unknown %v, want %v", got, c.unknown)
			}
			if !strings.Contains(err.Error(), c.text) {
				t.Errorf("%q has no %q", err, c.text)
			}
		})
	}
}

// Every reason that a client can meet has a value of its own, or is none that
// it can meet.
func TestEveryReasonHasAnError(t *testing.T) {
	all := []error{
		ErrInternal, ErrInvalidRequest, ErrUnsupported, ErrShuttingDown, ErrTimeout, ErrUnauthenticated, ErrTopicNotFound, ErrPartitionNotFound, ErrTopicIDMismatch,
		ErrTopicExists, ErrInvalidTopicName, ErrInvalidPartitions, ErrInvalidReplicationFactor, ErrInvalidConfig, ErrTopicInternal, ErrCorruptBatch,
		ErrRecordTooLarge, ErrUnsupportedCompression, ErrInvalidTimestamp, ErrInvalidRecord, ErrOffsetOutOfRange, ErrOffsetNotAvailable,
		ErrLogTruncated, ErrLogCorrupt, ErrNotLeader, ErrNoLeader, ErrFencedLeaderEpoch, ErrLeaderUnconfirmed, ErrMoving, ErrStaleMetadata,
		ErrNotEnoughReplicas, ErrCommitUncertain, ErrOutOfOrderSequence, ErrProducerStateLost, ErrFencedProducer, ErrStorageFull, ErrStorageFailed, ErrTooManyInflight, ErrOverloaded, ErrControllerUnavailable,
		ErrConflict, ErrMetadataStoreFull, ErrGroupNotFound, ErrGroupNotEmpty, ErrInvalidGroup, ErrInvalidSubscription, ErrUnknownMember, ErrFencedMember, ErrFencedMemberEpoch, ErrStaleAssignment, ErrNotCoordinator, ErrCoordinatorLoading, ErrGroupFull, ErrGroupStateUnreadable,
	}
	inside := map[string]bool{"": true, "NOT_CONTROLLER": true, "DUPLICATE_BROKER": true, "CLUSTER_MISMATCH": true, "STALE_BROKER_EPOCH": true}
	have := map[string]bool{}
	for _, e := range all {
		have[Reason(e)] = true
	}
	for n := range runnelv1.ErrorReason_name {
		if r := reasonName(runnelv1.ErrorReason(n)); !have[r] && !inside[r] {
			t.Errorf("%s has no error value", r)
		}
	}
}
