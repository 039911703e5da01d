package client

import (
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/memnet"
)

// A broker goes away before it has looked at a stream, and cannot be reached again:
// the stream ends, instead of waiting for the broker, so that the next one can be
// opened elsewhere.
func TestStream_endsWithItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lis := memnet.Listen("a:7420", 1<<16)
		var all sync.WaitGroup
		all.Go(func() {
			conn, err := lis.Accept()
			if err == nil {
				err = memnet.Refuse(conn)
			}
			if err != nil {
				t.Error(err)
			}
		})
		dials := 0
		c, err := New([]string{"a:7420"}, Dialer(func(ctx context.Context, _ string) (net.Conn, error) {
			if dials++; dials == 1 {
				return lis.DialContext(ctx)
			}
			<-ctx.Done()
			return nil, ctx.Err()
		}))
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		s, err := c.stream(t.Context(), viaSeed, runnelv1.LogService_Produce_FullMethodName)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.RecvMsg(&runnelv1.ProduceResponse{}); status.Code(err) != codes.Unavailable {
			t.Errorf("RecvMsg = %v", err)
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("took %v", took)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		all.Wait()
	})
}
