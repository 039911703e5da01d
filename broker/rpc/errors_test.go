package rpc

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/internal/rpcerr"
)

func TestEveryReasonHasARule(t *testing.T) {
	code := map[runnelv1.ErrorReason]codes.Code{}
	for _, r := range Rules() {
		if was, ok := code[r.Reason]; ok && was != r.Code {
			t.Errorf("%v is sent as %v and as %v", r.Reason, was, r.Code)
		}
		code[r.Reason] = r.Code
		if r.Err == nil || r.Code == codes.OK || r.Reason == 0 {
			t.Errorf("an empty rule: %+v", r)
		}
	}
	name := regexp.MustCompile(`^[A-Z][A-Z0-9_]+[A-Z0-9]$`)
	for n, full := range runnelv1.ErrorReason_name {
		r := runnelv1.ErrorReason(n)
		if r == runnelv1.ErrorReason_ERROR_REASON_UNSPECIFIED || r == runnelv1.ErrorReason_ERROR_REASON_UNAUTHENTICATED {
			continue // the latter a port says before anybody is asked
		}
		if _, ok := code[r]; !ok {
			t.Errorf("no rule for %s", full)
		}
		if s := rpcerr.Name(r); !name.MatchString(s) || len(s) > 63 {
			t.Errorf("%s is no reason for an ErrorInfo", s)
		}
	}
}

// Whatever went wrong after an append is uncertain, not what its cause is.
func TestUncertaintyComesFirst(t *testing.T) {
	e := newErrorTable(zerolog.Nop())
	for _, cause := range []error{partition.ErrStorageFailed, partition.ErrDeleted, partition.ErrNotLeader} {
		item := e.item(fmt.Errorf("x: %w: %w", partition.ErrCommitUncertain, cause))
		if item.GetReason() != runnelv1.ErrorReason_ERROR_REASON_COMMIT_UNCERTAIN || !item.GetOutcomeUnknown() {
			t.Errorf("caused by %v: %v", cause, item)
		}
	}
}

func TestUnknownErrorsAreLoggedUnderAnID(t *testing.T) {
	var log strings.Builder
	item := newErrorTable(zerolog.New(&log)).item(errors.New("password=hunter2"))
	id := item.GetMetadata()["requestId"]
	if id == "" || !strings.Contains(log.String(), id) || !strings.Contains(log.String(), "hunter2") || strings.Contains(item.String(), "hunter2") {
		t.Errorf("item %v, log %s", item, log.String())
	}
	if newErrorTable(zerolog.New(&log)).item(nil) != nil {
		t.Error("an item for no error")
	}
}

// What a controller says passes through with its reason and facts; what the
// connection to it says does not.
func TestUpstream(t *testing.T) {
	e := newErrorTable(zerolog.Nop())
	from := func(code codes.Code, reason string) error {
		st, err := status.New(code, "text").WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: "runnel", Metadata: map[string]string{"topic": "a"}})
		if err != nil {
			t.Fatal(err)
		}
		return st.Err()
	}
	for _, r := range Rules() {
		got := e.upstream(from(r.Code, rpcerr.Name(r.Reason)))
		want := r.Reason
		if want == runnelv1.ErrorReason_ERROR_REASON_NOT_CONTROLLER {
			want = runnelv1.ErrorReason_ERROR_REASON_CONTROLLER_UNAVAILABLE
		}
		st, known := rpcerr.Status(Rules(), got)
		if !known || rpcerr.Reason(st.Err()) != want {
			t.Errorf("%v came out as %v", r.Reason, st)
		}
		if want == r.Reason && (st.Message() != "text" || rpcerr.Info(st.Err()).GetMetadata()["topic"] != "a") {
			t.Errorf("%v lost its text or facts: %v", r.Reason, st)
		}
	}
	for name, err := range map[string]error{
		"a broken connection": status.Error(codes.Unavailable, "connection to 10.0.0.1 refused"),
		"a timeout":           status.Error(codes.DeadlineExceeded, "context deadline exceeded"),
	} {
		got := e.upstream(err)
		if !errors.Is(got, metadata.ErrNoController) || strings.Contains(got.Error(), "10.0.0.1") {
			t.Errorf("%s: %v", name, got)
		}
	}
	if st, known := rpcerr.Status(Rules(), e.upstream(from(codes.Aborted, "MADE_UP_LATER"))); !known || st.Code() != codes.Internal {
		t.Errorf("an unknown reason: %v", st)
	}
}
