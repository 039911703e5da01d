package proc

import (
	"context"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/runnelmq/runnel/client"
)

// TestPings_forReal is what e2e/cases shows of GR-04 in no time, with a process,
// sockets and a clock on the wall: for RUNNEL_PINGS, such as 5m, nobody who pings
// every ten seconds is sent away, and no idle client of ours connects twice.
func TestPings_forReal(t *testing.T) {
	text := os.Getenv("RUNNEL_PINGS")
	if text == "" {
		t.Skip("it takes minutes: set RUNNEL_PINGS=5m, or make soak")
	}
	long, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("RUNNEL_PINGS: %v", err)
	}
	n := dev(t, Dev{})
	var dials atomic.Int32
	dial := func(ctx context.Context, addr string) (net.Conn, error) {
		dials.Add(1)
		var d net.Dialer
		return d.DialContext(ctx, "tcp", addr)
	}
	conn, err := grpc.NewClient("passthrough:///"+n.Client,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithIdleTimeout(0), grpc.WithContextDialer(dial),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	conn.Connect()
	c, err := client.New([]string{n.Client}, client.Dialer(dial))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	n.cli(t, "topic", "create", "idle", "--partitions", "1")
	r, err := c.NewReader()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	if err := r.Assign(t.Context(), client.Assignment{Topic: "idle", Partition: 0}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	if b, err := r.Poll(ctx); ctx.Err() == nil {
		t.Fatalf("an idle topic has %v, %v", b, err)
	}
	if s := conn.GetState(); s != connectivity.Ready {
		t.Errorf("the connection that pings is %s", s)
	}
	if got := dials.Load(); got != 2 {
		t.Errorf("two clients connected %d times", got)
	}
}
