package rpc

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
)

// A deadStream has ended before its handler began: no header can be set.
type deadStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s deadStream) Context() context.Context { return s.ctx }
func (s deadStream) RecvMsg(any) error        { return context.Canceled }

// Clients may open a stream and cancel it at once: no fault of the server.
func TestFetchOverBeforeItBegan(t *testing.T) {
	past, cancel := context.WithCancel(t.Context())
	cancel()
	late, stop := context.WithTimeout(t.Context(), 0)
	defer stop()
	for name, c := range map[string]struct {
		ctx  context.Context
		want error
	}{
		"canceled":              {past, context.Canceled},
		"too late":              {late, context.DeadlineExceeded},
		"not known to be ended": {t.Context(), context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newTestBroker(t, testConfig{})
				if err := b.svc.fetch(deadStream{ctx: c.ctx}); !errors.Is(err, c.want) {
					t.Errorf("got %v, want %v", err, c.want)
				}
			})
		})
	}
}
