package rpcerr

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

var (
	errMoved = errors.New("moved")
	errFull  = errors.New("full")
)

type movedError struct{ to string }

func (e movedError) Error() string               { return "moved to " + e.to }
func (e movedError) Is(target error) bool        { return target == errMoved }
func (e movedError) Metadata() map[string]string { return map[string]string{"leader": e.to} }

func rules() []Rule {
	return []Rule{
		{Err: errMoved, Code: codes.FailedPrecondition, Reason: runnelv1.ErrorReason_ERROR_REASON_NOT_LEADER},
		{Err: errFull, Code: codes.ResourceExhausted, Reason: runnelv1.ErrorReason_ERROR_REASON_STORAGE_FULL, OutcomeUnknown: true, RetryAfter: time.Second},
	}
}

func TestBothForms(t *testing.T) {
	upstream := status.Error(codes.Unavailable, "connection to 10.1.2.3 refused, token=secret")
	for name, c := range map[string]struct {
		err   error
		known bool
		want  *runnelv1.ItemError
	}{
		"a bare sentinel": {errMoved, true, &runnelv1.ItemError{
			Reason: runnelv1.ErrorReason_ERROR_REASON_NOT_LEADER, Code: 9, Message: "moved",
		}},
		"a wrapped typed error keeps its facts": {fmt.Errorf("append: %w", movedError{"7"}), true, &runnelv1.ItemError{
			Reason: runnelv1.ErrorReason_ERROR_REASON_NOT_LEADER, Code: 9, Message: "append: moved to 7", Metadata: map[string]string{"leader": "7"},
		}},
		"a rule says when to retry and what is uncertain": {errFull, true, &runnelv1.ItemError{
			Reason: runnelv1.ErrorReason_ERROR_REASON_STORAGE_FULL, Code: 8, Message: "full", OutcomeUnknown: true, RetryAfter: durationpb.New(time.Second),
		}},
		"the caller left":              {fmt.Errorf("x: %w", context.Canceled), true, &runnelv1.ItemError{Code: 1, Message: "canceled by the caller"}},
		"the caller's deadline passed": {context.DeadlineExceeded, true, &runnelv1.ItemError{Code: 4, Message: "the caller's deadline passed", OutcomeUnknown: true}},
		"an unknown error is withheld": {errors.New("password=hunter2"), false, &runnelv1.ItemError{
			Reason: runnelv1.ErrorReason_ERROR_REASON_INTERNAL, Code: 13, Message: internalText, OutcomeUnknown: true,
		}},
		"a status of another server is withheld": {fmt.Errorf("call: %w", upstream), false, &runnelv1.ItemError{
			Reason: runnelv1.ErrorReason_ERROR_REASON_INTERNAL, Code: 13, Message: internalText, OutcomeUnknown: true,
		}},
		"facts of an unknown error are withheld, but for the request id": {
			&TracedError{RequestID: "r1", Err: errors.New("x")}, false, &runnelv1.ItemError{
				Reason: runnelv1.ErrorReason_ERROR_REASON_INTERNAL, Code: 13, Message: internalText, OutcomeUnknown: true,
				Metadata: map[string]string{"requestId": "r1"},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, Item(rules(), c.err), protocmp.Transform()); diff != "" {
				t.Errorf("item: %s", diff)
			}
			if got := Known(rules(), c.err); got != c.known {
				t.Errorf("Known = %v, want %v", got, c.known)
			}
			st, known := Status(rules(), c.err)
			if known != c.known || int32(st.Code()) != c.want.GetCode() || st.Message() != c.want.GetMessage() {
				t.Errorf("Status = %v, %v", st, known)
			}
			if got := Reason(st.Err()); got != c.want.GetReason() {
				t.Errorf("Reason = %v, want %v", got, c.want.GetReason())
			}
			if diff := cmp.Diff(c.want.GetMetadata(), Info(st.Err()).GetMetadata()); diff != "" {
				t.Errorf("facts: %s", diff)
			}
			if c.want.GetReason() != 0 {
				same := ItemStatus(c.want)
				if diff := cmp.Diff(st.Proto(), same.Proto(), protocmp.Transform()); diff != "" {
					t.Errorf("the status of the item: %s", diff)
				}
			}
		})
	}
}

func TestNothingFailed(t *testing.T) {
	if Item(rules(), nil) != nil {
		t.Error("an item for no error")
	}
	if st, known := Status(rules(), nil); st.Code() != codes.OK || !known {
		t.Errorf("Status(nil) = %v, %v", st, known)
	}
	if got := Reason(errors.New("x")); got != 0 {
		t.Errorf("Reason of an error that is no status = %v", got)
	}
}

func TestForeignErrorInfoIsNotOurs(t *testing.T) {
	st, _ := status.New(codes.Unavailable, "x").WithDetails(&errdetails.ErrorInfo{Reason: "NOT_LEADER", Domain: "example.com"})
	if got := Reason(st.Err()); got != 0 {
		t.Errorf("Reason = %v, of another domain", got)
	}
}

// Texts quote what callers sent.
func TestTextsAreValidAndBounded(t *testing.T) {
	bad := fmt.Errorf("topic %s: %w", "\xff\xfe\x80", movedError{strings.Repeat("\xf0\x9f", 4000)})
	st, _ := Status(rules(), bad)
	item := Item(rules(), bad)
	for _, s := range []string{st.Message(), item.GetMessage(), item.GetMetadata()["leader"], Info(st.Err()).GetMetadata()["leader"]} {
		if !utf8.ValidString(s) {
			t.Errorf("not valid UTF-8: %q", s)
		}
		if len(s) > 3*maxText {
			t.Errorf("%d bytes", len(s))
		}
	}
	if got := Clean("plain"); got != "plain" {
		t.Errorf("Clean changed %q", got)
	}
}

func TestTransportErrorsPass(t *testing.T) {
	if got := Transport(io.EOF); got != io.EOF { //nolint:errorlint // identity is the point
		t.Errorf("EOF became %v", got)
	}
	if Transport(nil) != nil {
		t.Error("nil became an error")
	}
	err := fmt.Errorf("receive: %w", Transport(status.Error(codes.Canceled, "context canceled")))
	if st, known := Status(rules(), err); st.Code() != codes.Canceled || !known {
		t.Errorf("Status = %v, %v", st, known)
	}
}
