package client

import (
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
		peer := memnet.NewRefuser("a:7420")
		c, err := New([]string{"a:7420"}, Dialer(peer.Dial))
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
		if err := peer.Wait(); err != nil {
			t.Error(err)
		}
	})
}
