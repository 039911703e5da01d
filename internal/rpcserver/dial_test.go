package rpcserver

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/internal/memnet"
)

// The other side goes away before it has looked at a stream, and cannot be reached
// again: the stream ends, and does not wait for it.
func TestDial_streamEndsWithItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer := memnet.NewRefuser("controller:7422")
		conn, err := Dial("controller:7422", DialOptions{Dial: peer.Dial})
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		s, err := controllerv1.NewControllerServiceClient(conn).Session(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); status.Code(err) != codes.Unavailable {
			t.Errorf("Recv = %v", err)
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("took %v", took)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		if err := peer.Wait(); err != nil {
			t.Error(err)
		}
	})
}
