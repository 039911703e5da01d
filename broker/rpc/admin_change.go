package rpc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/internal/lifecycle"
	"github.com/runnelmq/runnel/internal/refusal"
	"github.com/runnelmq/runnel/internal/rpcerr"
)

const (
	// changeBackoff is how long a change waits before it is asked for again.
	// The session has usually found the new controller by then.
	changeBackoff    = 50 * time.Millisecond
	maxChangeBackoff = 500 * time.Millisecond
)

// change asks the active controller for a change. While it is certain that
// nothing was changed, because nobody could be asked or whoever was asked is
// not the active controller, it waits for the one that takes over, at most for
// as long as the request's timeout allows. What may have been changed is never
// asked for again: the error says so.
//
// ask makes one call, with opt among its options.
func change[T any](
	ctx context.Context, s *AdminService, timeout *durationpb.Duration,
	ask func(ctx context.Context, c controllerv1.ControllerServiceClient, opt grpc.CallOption) (T, error),
) (T, error) {
	var none T
	patience, err := timeoutOf(timeout)
	if err != nil {
		return none, err
	}
	waiting, stop := context.WithTimeout(ctx, patience)
	defer stop()
	working, cancel := context.WithTimeout(ctx, patience+adminSlack)
	defer cancel()
	for backoff := changeBackoff; ; backoff = min(2*backoff, maxChangeBackoff) {
		c, _, err := s.deps.Session.AwaitController(waiting)
		if err != nil {
			return none, s.unchanged(ctx, patience)
		}
		var to peer.Peer
		got, err := ask(working, c, grpc.Peer(&to))
		if err == nil {
			return got, nil
		}
		if !untouched(err, &to) {
			return none, s.errors.upstream(err)
		}
		if !lifecycle.Wait(waiting, backoff) {
			return none, s.unchanged(ctx, patience)
		}
	}
}

// untouched says whether it is certain that a call that failed changed nothing.
// A call that was given to a connection has a peer; without one, nothing of it
// left this process.
func untouched(err error, to *peer.Peer) bool {
	if errors.Is(err, errTakenOver) {
		return true
	}
	switch rpcerr.Reason(err) {
	case runnelv1.ErrorReason_ERROR_REASON_NOT_CONTROLLER, runnelv1.ErrorReason_ERROR_REASON_UNAUTHENTICATED:
		return true
	default:
	}
	return to.Addr == nil && status.Code(err) == codes.Unavailable && rpcerr.Info(err) == nil
}

// unchanged is what a change fails with that no controller could be asked for.
func (s *AdminService) unchanged(ctx context.Context, after time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return refusal.New(errUnasked, map[string]string{"changed": "no"},
		"no controller could be asked within %s: nothing was changed; check that the controllers run, and try again%s",
		after, metadata.Refused(s.deps.Session.Refusal()))
}

// errTakenOver says that some items were refused because the controller that
// was asked is not the active one any more.
var errTakenOver = errors.New("another controller is taking over")

// changeEach is change for a request of several items, each for itself: those
// that a controller refused only because it is not the active one any more are
// asked for again. Once any item has an answer, the failure of others is told
// beside it, by failed.
func changeEach[Item any, Result interface{ GetError() *runnelv1.ItemError }](
	ctx context.Context, s *AdminService, timeout *durationpb.Duration, items []Item,
	ask func(ctx context.Context, c controllerv1.ControllerServiceClient, items []Item, opt grpc.CallOption) ([]Result, error),
	failed func(Item, *runnelv1.ItemError) Result,
) ([]Result, error) {
	results := make([]Result, len(items))
	open := make([]int, len(items))
	for i := range open {
		open[i] = i
	}
	_, err := change(ctx, s, timeout, func(ctx context.Context, c controllerv1.ControllerServiceClient, opt grpc.CallOption) (struct{}, error) {
		part := make([]Item, len(open))
		for k, i := range open {
			part[k] = items[i]
		}
		got, err := ask(ctx, c, part, opt)
		if err != nil {
			return struct{}{}, err
		}
		if len(got) != len(open) {
			return struct{}{}, fmt.Errorf("the controller answered %d of %d items", len(got), len(open))
		}
		var again []int
		for k, i := range open {
			results[i] = got[k]
			if got[k].GetError().GetReason() == runnelv1.ErrorReason_ERROR_REASON_NOT_CONTROLLER {
				again = append(again, i)
			}
		}
		if open = again; len(open) > 0 {
			return struct{}{}, errTakenOver
		}
		return struct{}{}, nil
	})
	if err != nil {
		if len(open) == len(items) {
			return nil, err
		}
		for _, i := range open {
			results[i] = failed(items[i], s.errors.item(err))
		}
	}
	return results, nil
}
