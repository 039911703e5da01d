package wire_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/memnet"
	"github.com/runnelmq/runnel/internal/wire"
)

// A server goes away before it has looked at a stream, and no other can be connected
// to: neither the receiver nor the sender waits for one.
func TestPlaced(t *testing.T) {
	if !t.Run("by the clock", refused) {
		return // in the bubble the clock would stop
	}
	t.Run("in a bubble", func(t *testing.T) { synctest.Test(t, refused) })
}

func refused(t *testing.T) {
	// Nothing takes so long; else what waits ends by it.
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	lis := memnet.Listen("broker:7420", 1<<16)
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() {
		c, err := lis.Accept()
		if err == nil {
			err = memnet.Refuse(c)
		}
		if err != nil {
			t.Error(err)
		}
	})
	dials, again := 0, make(chan struct{})
	conn, err := grpc.NewClient("passthrough:///broker", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithIdleTimeout(0),
		grpc.WithDisableRetry(), grpc.WithStreamInterceptor(wire.Placed),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			if dials++; dials == 1 {
				return lis.DialContext(ctx)
			}
			if dials == 2 {
				close(again)
			}
			<-ctx.Done()
			return nil, ctx.Err()
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()

	s, err := runnelv1.NewLogServiceClient(conn).Produce(ctx)
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	all.Go(func() {
		defer close(over)
		if _, err := s.Recv(); status.Code(err) != codes.Unavailable {
			t.Errorf("Recv = %v", err)
		}
	})
	select {
	case <-over:
	case <-again: // it waits for a connection
	}
	if err := s.Send(&runnelv1.ProduceRequest{}); err == nil {
		t.Error("sent to nobody")
	}
	if ctx.Err() != nil {
		t.Error("Send returned with its context only")
	}
	cancel()
	<-over
}
