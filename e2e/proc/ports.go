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
