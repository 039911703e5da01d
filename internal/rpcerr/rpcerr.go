// Package rpcerr gives every domain error one gRPC code and one reason, as a
// status or as an item of an answer, and reads them back on the client's side.
package rpcerr

import (
	"context"
	"errors"
	"maps"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// Domain is the ErrorInfo domain of every error this system returns.
const Domain = "runnel"

// maxText bounds the bytes of one error text or fact: HTTP/2 peers refuse
// header lists of more than a few KiB, and a status travels in a header.
const maxText = 1024

// internalText is all that a caller learns of an error no rule knows.
const internalText = "internal error; its details are in the log of the server"

// reasonPrefix is what buf demands of enum values and ErrorInfo does not want.
const reasonPrefix = "ERROR_REASON_"

// A Rule says how a domain error crosses the wire.
type Rule struct {
	Err            error                // matched with errors.Is
	Code           codes.Code           // what generic gRPC middleware acts on
	Reason         runnelv1.ErrorReason // what our clients act on
	OutcomeUnknown bool                 // the request may have taken effect
	RetryAfter     time.Duration        // 0: the client's own backoff
}

// Metadata is implemented by domain errors that carry facts for the caller,
// by lowerCamelCase name.
type Metadata interface {
	error
	Metadata() map[string]string
}

// Retry is implemented by domain errors that know when to try again.
type Retry interface {
	error
	RetryAfter() time.Duration
}

// A verdict is what both forms of an error are made from.
type verdict struct {
	code           codes.Code
	reason         runnelv1.ErrorReason
	text           string
	facts          map[string]string
	outcomeUnknown bool
	retryAfter     time.Duration
	known          bool
}

// Status returns err as a gRPC status, by the first rule that matches. An
// error that no rule knows becomes Internal, its text stays here, and known
// is false: the caller is to log it. A status that came from another server
// counts as unknown, so that it never passes for our own.
func Status(rules []Rule, err error) (st *status.Status, known bool) {
	if err == nil {
		return status.New(codes.OK, ""), true
	}
	if local, ok := errors.AsType[*transportError](err); ok {
		return local.status, true
	}
	v := judge(rules, err)
	st = status.New(v.code, v.text)
	if v.reason == runnelv1.ErrorReason_ERROR_REASON_UNSPECIFIED {
		return st, v.known
	}
	info := &errdetails.ErrorInfo{Reason: Name(v.reason), Domain: Domain, Metadata: v.facts}
	detailed, derr := st.WithDetails(info)
	if derr == nil && v.retryAfter > 0 {
		detailed, derr = detailed.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(v.retryAfter)})
	}
	if derr != nil {
		return st, v.known
	}
	return detailed, v.known
}

// Item returns err as the error of one item inside an answer, from the same
// rules; nil for nil. An error that no rule knows has the reason INTERNAL.
func Item(rules []Rule, err error) *runnelv1.ItemError {
	if err == nil {
		return nil
	}
	v := judge(rules, err)
	item := &runnelv1.ItemError{
		Reason:         v.reason,
		Code:           int32(v.code),
		Message:        v.text,
		Metadata:       v.facts,
		OutcomeUnknown: v.outcomeUnknown,
	}
	if v.retryAfter > 0 {
		item.RetryAfter = durationpb.New(v.retryAfter)
	}
	return item
}

// Known says whether a rule, or the end of the caller's context, explains err.
func Known(rules []Rule, err error) bool {
	return err == nil || judge(rules, err).known
}

// ItemStatus turns the error of an item into the status a single call with
// the same fate would have had.
func ItemStatus(item *runnelv1.ItemError) *status.Status {
	st := status.New(codes.Code(item.GetCode()), item.GetMessage()) //nolint:gosec // a code is small and not negative
	info := &errdetails.ErrorInfo{Reason: Name(item.GetReason()), Domain: Domain, Metadata: item.GetMetadata()}
	detailed, err := st.WithDetails(info)
	if err == nil && item.GetRetryAfter() != nil {
		detailed, err = detailed.WithDetails(&errdetails.RetryInfo{RetryDelay: item.GetRetryAfter()})
	}
	if err != nil {
		return st
	}
	return detailed
}

func judge(rules []Rule, err error) verdict {
	for _, r := range rules {
		if !errors.Is(err, r.Err) {
			continue
		}
		v := verdict{
			code: r.Code, reason: r.Reason, text: Clean(err.Error()), facts: facts(err),
			outcomeUnknown: r.OutcomeUnknown, retryAfter: r.RetryAfter, known: true,
		}
		if m, ok := errors.AsType[Retry](err); ok && m.RetryAfter() > 0 {
			v.retryAfter = m.RetryAfter()
		}
		return v
	}
	switch {
	case errors.Is(err, context.Canceled):
		return verdict{code: codes.Canceled, text: "canceled by the caller", known: true}
	case errors.Is(err, context.DeadlineExceeded):
		return verdict{code: codes.DeadlineExceeded, text: "the caller's deadline passed", outcomeUnknown: true, known: true}
	}
	return verdict{
		code: codes.Internal, reason: runnelv1.ErrorReason_ERROR_REASON_INTERNAL, text: internalText,
		facts: facts(errors.Unwrap(withheld{err})), outcomeUnknown: true,
	}
}

// facts returns what err says for programs; of several errors wrapped in one
// another, the outermost that says anything.
func facts(err error) map[string]string {
	m, ok := errors.AsType[Metadata](err)
	if !ok {
		return nil
	}
	out := maps.Clone(m.Metadata())
	for k, v := range out {
		out[k] = Clean(v)
	}
	return out
}

// withheld hides the facts of an unknown error, but for its request id.
type withheld struct{ error }

// Unwrap leads only to a request id.
func (w withheld) Unwrap() error {
	if id, ok := errors.AsType[*TracedError](w.error); ok {
		return id
	}
	return nil
}

// TracedError names the log line that tells what an internal error hides.
type TracedError struct {
	RequestID string
	Err       error
}

// Error implements error.
func (t *TracedError) Error() string { return t.Err.Error() }

// Unwrap returns the error itself.
func (t *TracedError) Unwrap() error { return t.Err }

// Metadata gives the caller what to quote when it reports the error.
func (t *TracedError) Metadata() map[string]string {
	return map[string]string{"requestId": t.RequestID}
}

// Reason returns the reason that err, a status error or a status inside one,
// carries; UNSPECIFIED if it carries none of ours.
func Reason(err error) runnelv1.ErrorReason {
	info := Info(err)
	return runnelv1.ErrorReason(runnelv1.ErrorReason_value[reasonPrefix+info.GetReason()])
}

// Info returns the ErrorInfo of ours that err carries, or nil.
func Info(err error) *errdetails.ErrorInfo {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == Domain {
			return info
		}
	}
	return nil
}

// Name returns how a reason is spelled in an ErrorInfo: NOT_LEADER.
func Name(r runnelv1.ErrorReason) string { return strings.TrimPrefix(r.String(), reasonPrefix) }

// Clean makes s fit for a string field: valid UTF-8, bounded. Error texts
// quote what callers sent, and one bad byte would make the answer unreadable.
func Clean(s string) string {
	if len(s) > maxText {
		s = s[:maxText-3] + "..."
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
