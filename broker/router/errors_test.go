package router

import (
	"errors"
	"testing"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/internal/rpcerr"
)

// What a leader of another version says is certain only when it says so.
func TestRemote_reasonsOfAnotherVersion(t *testing.T) {
	internal := errors.New("internal")
	r := New(Options{Store: metadata.NewStore(1), Rules: []rpcerr.Rule{
		{Err: internal, Reason: runnelv1.ErrorReason_ERROR_REASON_INTERNAL},
		{Err: partition.ErrNotLeader, Reason: runnelv1.ErrorReason_ERROR_REASON_NOT_LEADER},
	}})
	later := runnelv1.ErrorReason(9999)
	for _, c := range []struct {
		reason  runnelv1.ErrorReason
		unknown bool
		want    error
	}{
		{runnelv1.ErrorReason_ERROR_REASON_NOT_LEADER, false, partition.ErrNotLeader},
		{runnelv1.ErrorReason_ERROR_REASON_NOT_LEADER, true, partition.ErrCommitUncertain},
		{later, false, internal},
		{later, true, partition.ErrCommitUncertain},
	} {
		err := r.remote(&runnelv1.ItemError{Reason: c.reason, OutcomeUnknown: c.unknown})
		if !errors.Is(err, c.want) || errors.Is(err, partition.ErrCommitUncertain) != c.unknown {
			t.Errorf("%v, outcome unknown %v: %v, want %v", c.reason, c.unknown, errors.Unwrap(err), c.want)
		}
	}
}
