package proc

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// given remembers which ports were handed out, so that two clusters that start
// at once never take the same: a port is free until its process listens.
var given ports //nolint:gochecknoglobals // ports are the whole process's too

type ports struct {
	mu   sync.Mutex
	seen map[int]bool
}

// take reports whether the n ports from first on are this caller's now.
func (p *ports) take(first, n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for port := first; port < first+n; port++ {
		if p.seen[port] {
			return false
		}
	}
	if p.seen == nil {
		p.seen = make(map[int]bool)
	}
	for port := first; port < first+n; port++ {
		p.seen[port] = true
	}
	return true
}

// Ports returns n free ports of the loopback interface. They are below the
// range that the system takes client ports from, so that no connection made
// meanwhile occupies one.
func Ports(ctx context.Context, n int) ([]string, error) {
	const lowest, count = 10_000, 20_000
	var ports []string
	for range 100 * n {
		port := lowest + rand.IntN(count)
		if !given.take(port, 1) || !allFree(ctx, port, 1) {
			continue
		}
		if ports = append(ports, strconv.Itoa(port)); len(ports) == n {
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
		if given.take(first, n) && allFree(ctx, first, n) {
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
