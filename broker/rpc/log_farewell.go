package rpc

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// A farewell decides when a stream ends as planned: first the client is told,
// then it has a grace period to half-close, then the stream ends. It is pure:
// time comes in as arguments.
type farewell struct {
	drain <-chan struct{} // closed when the broker shuts down
	// expires is when the stream is as old as it may become; zero: never.
	expires time.Time
	grace   time.Duration
	// ends is when the grace period is over; zero while nothing was said.
	ends time.Time
}

// due returns why the client is to be told now, once.
func (f *farewell) due(now time.Time) (runnelv1.GoawayReason, bool) {
	if !f.ends.IsZero() {
		return 0, false
	}
	select {
	case <-f.drain:
		return runnelv1.GoawayReason_GOAWAY_REASON_DRAINING, true
	default:
	}
	if !f.expires.IsZero() && !now.Before(f.expires) {
		return runnelv1.GoawayReason_GOAWAY_REASON_MAX_AGE, true
	}
	return 0, false
}

// begin starts the grace period and returns what to tell the client.
func (f *farewell) begin(reason runnelv1.GoawayReason, now time.Time) *runnelv1.Goaway {
	f.ends = now.Add(f.grace)
	return &runnelv1.Goaway{Reason: reason, ReconnectAfter: durationpb.New(0), Grace: durationpb.New(f.grace)}
}

// said reports whether the client was told.
func (f *farewell) said() bool { return !f.ends.IsZero() }

// over reports whether the stream is to end now.
func (f *farewell) over(now time.Time) bool { return !f.ends.IsZero() && !now.Before(f.ends) }

// next returns when time alone changes something; zero: never.
func (f *farewell) next() time.Time {
	if !f.ends.IsZero() {
		return f.ends
	}
	return f.expires
}

// draining returns the channel to wait on; nil when it no longer matters.
func (f *farewell) draining() <-chan struct{} {
	if f.said() {
		return nil
	}
	return f.drain
}

// last returns the very last message of a stream that ends this way.
func (f *farewell) last(reason runnelv1.GoawayReason) *runnelv1.Goaway {
	return &runnelv1.Goaway{Reason: reason, Final: true}
}

// earlier returns the earlier of two times, of which zero means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
