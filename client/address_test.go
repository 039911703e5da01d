package client_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/runnelmq/runnel/client"
)

// Addresses reach the dialer as they were written, the zone of an IPv6 address
// included (OP-09).
func TestAddressesAreDialedAsGiven(t *testing.T) {
	for _, addr := range []string{"[::1]:7420", "[fe80::1%eth0]:7420", "localhost:7420", "10.0.0.5:7420", "broker-1.example:7420"} {
		dialed := make(chan string, 100)
		c, err := client.New([]string{addr}, client.Dialer(func(_ context.Context, to string) (net.Conn, error) {
			select {
			case dialed <- to:
			default:
			}
			return nil, errors.New("not today")
		}))
		if err != nil {
			t.Errorf("%s: %v", addr, err)
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if err := c.Ping(ctx); !errors.Is(err, client.ErrUnreachable) {
			t.Errorf("%s: %v", addr, err)
		}
		cancel()
		if got := <-dialed; got != addr {
			t.Errorf("dialed %q, want %q", got, addr)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}
