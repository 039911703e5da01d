package proc

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports returns n free ports of the loopback interface. They are below the
// range that the system takes client ports from, so that no connection made
// meanwhile occupies one.
func Ports(ctx context.Context, n int) ([]string, error) {
	const lowest, count = 10_000, 20_000
	var ports []string
	for range 100 * n {
		port := strconv.Itoa(lowest + rand.IntN(count))
		lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", port))
		if err != nil {
			continue
		}
		defer lis.Close() // only at the end, so that no port comes twice
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, errors.New("no free ports")
}

// PortRange returns the first of n free ports in a row.
func PortRange(ctx context.Context, n int) (int, error) {
	const lowest, count = 10_000, 20_000
	for range 100 {
		first := lowest + rand.IntN(count)
		if allFree(ctx, first, n) {
			return first, nil
		}
	}
	return 0, errors.New("no free ports")
}

func allFree(ctx context.Context, first, n int) bool {
	for port := first; port < first+n; port++ {
		lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			return false
		}
		_ = lis.Close()
	}
	return true
}
