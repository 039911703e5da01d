package router

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/rpcerr"
)

var (
	// errUnreachable: no stream to the leader could be opened. Definite.
	errUnreachable = errors.New("the leader can't be reached at present")
	// errBroke: a call to the leader failed under way.
	errBroke = fmt.Errorf("%w: the call broke off", errUnreachable)
	// errPeerGone: the metadata shows that the other broker is out of service.
	errPeerGone = errors.New("the other broker went out of service")
	// errNotInTime: no leader took it in time. Definite.
	errNotInTime = errors.New("timed out before anything was stored")
	// errFenced: an earlier request of the same pipeline was refused. Definite.
	errFenced = errors.New("an earlier request of this pipeline was refused")
	// errUnneeded: nobody reads over the link any more.
	errUnneeded = errors.New("not needed any more")
	// errClosed: the router has ended. Definite.
	errClosed = fmt.Errorf("forward to the leader: %w", partition.ErrShuttingDown)
)

// ErrFenced refuses what comes behind a refused request of the same pipeline,
// and what comes of an older number. Definite: the sender sends it again.
var ErrFenced = errFenced

// ErrUnsent says of a call to another broker that nothing of it was sent.
var ErrUnsent = errors.New("the call was not sent")

// Rules says how the errors of the router cross the wire.
func Rules() []rpcerr.Rule {
	return []rpcerr.Rule{
		{Err: errUnreachable, Code: codes.Unavailable, Reason: runnelv1.ErrorReason_ERROR_REASON_NO_LEADER},
		{Err: errNotInTime, Code: codes.DeadlineExceeded, Reason: runnelv1.ErrorReason_ERROR_REASON_TIMEOUT},
		{Err: errFenced, Code: codes.Unavailable, Reason: runnelv1.ErrorReason_ERROR_REASON_STALE_METADATA},
	}
}

// A remoteError is what another broker said.
type remoteError struct {
	kind  error
	text  string
	facts map[string]string
	retry time.Duration
}

// Error implements error.
func (e *remoteError) Error() string { return e.text }

// Unwrap returns the sentinel that a broker of this version would have used.
func (e *remoteError) Unwrap() error { return e.kind }

// Metadata implements rpcerr.Metadata.
func (e *remoteError) Metadata() map[string]string { return e.facts }

// RetryAfter implements rpcerr.Retry.
func (e *remoteError) RetryAfter() time.Duration { return e.retry }

// Remote returns the error that an answer of another broker tells of; nil for
// nil. One that is unknown here is uncertain when the answer says so.
func (r *Router) remote(item *runnelv1.ItemError) error {
	if item == nil {
		return nil
	}
	e := &remoteError{text: item.GetMessage(), facts: item.GetMetadata(), retry: item.GetRetryAfter().AsDuration()}
	var internal error
	for i := range r.opts.Rules {
		rule := &r.opts.Rules[i]
		if rule.Reason == item.GetReason() && rule.OutcomeUnknown == item.GetOutcomeUnknown() {
			e.kind = rule.Err
			return e
		}
		if rule.Reason == runnelv1.ErrorReason_ERROR_REASON_INTERNAL {
			internal = rule.Err
		}
	}
	if e.kind = internal; item.GetOutcomeUnknown() || internal == nil {
		e.kind = partition.ErrCommitUncertain
	}
	return e
}

// hintOf returns who leads according to a refusal.
func hintOf(err error) (v view, ok bool) {
	re, is := errors.AsType[*remoteError](err)
	if !is || !errors.Is(err, partition.ErrNotLeader) {
		return view{}, false
	}
	leader, err1 := strconv.ParseInt(re.facts["leader"], 10, 32)
	epoch, err2 := strconv.ParseInt(re.facts["leaderEpoch"], 10, 64)
	if err1 != nil || err2 != nil {
		return view{}, false
	}
	return view{metadata.BrokerID(leader), record.Epoch(epoch)}, true
}

// late is what becomes of a write that nobody took in time.
func late(timeout time.Duration, cause error) error {
	timeout = timeout.Round(time.Millisecond)
	if errors.Is(cause, partition.ErrNoLeader) {
		return fmt.Errorf("nothing was stored within %s: %w", timeout, cause)
	}
	if cause == nil {
		return fmt.Errorf("%w: no answer within %s; try again", errNotInTime, timeout)
	}
	return fmt.Errorf("%w: %s was over; the last try failed with: %s", errNotInTime, timeout, cause.Error())
}

// uncertain is what becomes of a write that was sent and not answered.
func uncertain(format string, args ...any) error {
	return fmt.Errorf("%w: %s", partition.ErrCommitUncertain, fmt.Sprintf(format, args...))
}
