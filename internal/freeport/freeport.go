// Package freeport finds ports of the loopback interface, for tests.
//
// A port is free until somebody listens, so between the search and the process
// that is to use it another search could find it too, in this process or in one
// that tests beside it. Whoever takes a TCP port here therefore holds the UDP port
// of the same number, which nothing else wants, and looks for that first.
package freeport

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// The ports are below the range that systems take those of clients from, so that
// no connection made meanwhile occupies one.
const lowest, count = 10_000, 20_000

// Take returns n ports that are the caller's until ctx ends.
func Take(ctx context.Context, n int) ([]string, error) {
	var ports []string
	for range n {
		port, err := TakeRange(ctx, 1)
		if err != nil {
			return nil, err
		}
		ports = append(ports, strconv.Itoa(port))
	}
	return ports, nil
}

// TakeRange returns the first of n ports in a row that are the caller's until ctx
// ends.
func TakeRange(ctx context.Context, n int) (int, error) {
	if ctx.Done() == nil {
		return 0, errors.New("ports are held until the context ends, and this one never does")
	}
	var last error
	for range 100 {
		first := lowest + rand.IntN(count-n)
		release, err := hold(ctx, first, n)
		if err == nil {
			context.AfterFunc(ctx, release)
			return first, nil
		}
		last = err
	}
	return 0, fmt.Errorf("no %d free ports in a row: %w", n, last)
}

// hold takes the n ports from first on until release is called, or none.
func hold(ctx context.Context, first, n int) (release func(), err error) {
	var held []net.PacketConn
	all := func() {
		for _, c := range held {
			_ = c.Close()
		}
	}
	defer func() {
		if err != nil {
			all()
		}
	}()
	var lc net.ListenConfig
	for port := first; port < first+n; port++ {
		at := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		mark, err := lc.ListenPacket(ctx, "udp", at)
		if err != nil {
			return nil, err
		}
		held = append(held, mark)
		lis, err := lc.Listen(ctx, "tcp", at)
		if err != nil {
			return nil, err
		}
		_ = lis.Close()
	}
	return all, nil
}
