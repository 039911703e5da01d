// Package lifecycle holds the shapes every long-lived part of the system
// shares: Run(ctx) error, and a server that obeys a context.
package lifecycle

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc"
)

// Serve serves srv on lis until ctx is done, then drains it: handlers get
// grace to return, after which their connections are closed. It returns nil
// after an orderly stop, and never before all handlers have returned.
func Serve(ctx context.Context, srv *grpc.Server, lis net.Listener, grace time.Duration) error {
	stop := context.AfterFunc(ctx, func() {
		force := time.AfterFunc(grace, srv.Stop)
		defer force.Stop()
		srv.GracefulStop()
	})
	defer stop()
	// A listener that breaks leaves connections behind; they end with it.
	defer srv.Stop()
	return srv.Serve(lis)
}

// Every calls fn each period until ctx is done. A call that takes longer than
// the period delays the next; nothing piles up.
func Every(ctx context.Context, period time.Duration, fn func(now time.Time)) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			fn(now)
		}
	}
}

// Wait sleeps for d and reports whether ctx is still alive.
func Wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
