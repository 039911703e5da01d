// Package memnet is a network in memory, for tests.
//
// It stands where grpc's bufconn would: that one starts timers that fire at
// once with every connection. In a synctest bubble those run on whoever starts
// them, all with the one race context the bubble has for its timers, and when two
// connections begin at a time the race detector reads through a nil pointer.
// Nothing here starts a timer that is already due.
package memnet

import (
	"context"
	"net"
	"sync"
)

// A Listener hands out connections in memory. It is safe for concurrent use.
type Listener struct {
	addr   Addr
	size   int
	coming chan net.Conn
	once   sync.Once
	closed chan struct{}
}

// An Addr names one end of a connection.
type Addr string

// Network implements net.Addr.
func (Addr) Network() string { return "mem" }

// String implements net.Addr.
func (a Addr) String() string { return string(a) }

// Listen returns a listener whose connections hold up to size bytes each way.
func Listen(addr string, size int) *Listener {
	return &Listener{addr: Addr(addr), size: size, coming: make(chan net.Conn), closed: make(chan struct{})}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case <-l.closed:
		return nil, net.ErrClosed
	case c := <-l.coming:
		return c, nil
	}
}

// Close implements net.Listener. What was accepted stays open.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return l.addr }

// Dial returns a connection once it is accepted.
func (l *Listener) Dial() (net.Conn, error) { return l.DialContext(context.Background()) }

// DialContext returns a connection once it is accepted, or why it is not.
func (l *Listener) DialContext(ctx context.Context) (net.Conn, error) {
	there, back := newPipe(l.size), newPipe(l.size)
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-l.closed:
		return nil, net.ErrClosed
	case l.coming <- &conn{in: there, out: back, local: l.addr, remote: "dialer"}:
		return &conn{in: back, out: there, local: "dialer", remote: l.addr}, nil
	}
}
