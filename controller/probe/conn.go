package probe

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/peer"
)

// A Conn is a connection that remembers how it ended.
type Conn struct {
	net.Conn

	ended chan struct{} // closed when err is set

	// mu guards the fields below
	mu sync.Mutex

	err error // of the first Read that failed
}

// Watch returns c, remembering how it ends.
func Watch(c net.Conn) *Conn { return &Conn{Conn: c, ended: make(chan struct{})} }

// Read implements net.Conn.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		c.mu.Lock()
		if c.err == nil {
			c.err = err
			close(c.ended)
		}
		c.mu.Unlock()
	}
	return n, err
}

// RemoteAddr implements net.Conn. What it returns leads back to the connection: gRPC hands it to calls.
func (c *Conn) RemoteAddr() net.Addr { return addr{c.Conn.RemoteAddr(), c} }

// Closed waits until the connection has ended, or for a while, and reports whether the other side closed or reset it. A
// connection that timed out, or that this side closed, was not.
func (c *Conn) Closed(wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-c.ended:
	case <-timer.C:
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Is(c.err, io.EOF) || errors.Is(c.err, syscall.ECONNRESET)
}

type addr struct {
	net.Addr

	conn *Conn
}

// A Listener accepts connections that remember how they ended.
type Listener struct{ net.Listener }

// Accept implements net.Listener.
func (l Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return Watch(c), nil
}

// Caller returns the connection that a call came over, nil when its listener is no Listener.
func Caller(ctx context.Context) *Conn {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	a, ok := p.Addr.(addr)
	if !ok {
		return nil
	}
	return a.conn
}
