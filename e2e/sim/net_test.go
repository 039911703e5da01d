package sim

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// maxQueued is what one direction of a connection holds before its writer waits.
const maxQueued = 1 << 20

// A network carries bytes between hosts: a host is whoever listens or dials
// under one name. What is cut is held back, as TCP would go on sending it, and
// arrives when the cut is over.
type network struct {
	// mu guards the fields below, and all pipes. Nobody waits with it held.
	mu sync.Mutex

	listeners map[string]*listener
	conns     map[*conn]bool // both ends of each open connection
	cuts      map[link]int   // how many cuts are in force
	delays    map[link]time.Duration
	latency   map[link]time.Duration // of the healthy link
	off       map[string]bool        // hosts without power: they neither answer nor refuse
	changed   chan struct{}          // closed and replaced when somebody may go on
}

// A link is one direction between two hosts.
type link struct{ from, to string }

func newNetwork() *network {
	return &network{
		listeners: map[string]*listener{}, conns: map[*conn]bool{}, cuts: map[link]int{}, delays: map[link]time.Duration{},
		latency: map[link]time.Duration{}, off: map[string]bool{}, changed: make(chan struct{}),
	}
}

func (n *network) notifyLocked() {
	close(n.changed)
	n.changed = make(chan struct{})
}

// arrivalLocked is when what is sent over a link now arrives.
func (n *network) arrivalLocked(l link) time.Time { return time.Now().Add(n.latency[l] + n.delays[l]) }

// cut holds back all that goes over links until the returned function is
// called.
func (n *network) cut(links ...link) (heal func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range links {
		n.cuts[l]++
	}
	var once sync.Once
	return func() {
		once.Do(func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			for _, l := range links {
				n.cuts[l]--
			}
			n.notifyLocked()
		})
	}
}

// delay makes what goes over links take d, until the returned function is
// called.
func (n *network) delay(d time.Duration, links ...link) (heal func()) {
	set := func(d time.Duration) {
		n.mu.Lock()
		defer n.mu.Unlock()
		for _, l := range links {
			n.delays[l] = d
		}
	}
	set(d)
	return func() { set(0) }
}

// reset breaks all connections between two hosts, at once at both ends.
func (n *network) reset(a, b string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		if (c.local == a && c.remote == b) || (c.local == b && c.remote == a) {
			c.breakLocked(syscall.ECONNRESET)
		}
	}
	n.notifyLocked()
}

// die ends a host's process: its ports close, and its kernel resets its
// connections, of which the others hear over links that are not cut. Without
// power nobody hears anything.
func (n *network) die(host string, power bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for addr, l := range n.listeners {
		if l.host == host {
			l.closeLocked()
			delete(n.listeners, addr)
		}
	}
	n.off[host] = !power
	for c := range n.conns {
		if c.local != host {
			continue
		}
		if power {
			c.out.sendLocked(chunk{err: syscall.ECONNRESET, at: n.arrivalLocked(link{c.local, c.remote})})
		}
		c.breakLocked(net.ErrClosed)
	}
	n.notifyLocked()
}

// boot gives a host power; connections it had before are reset when the others
// next hear of it.
func (n *network) boot(host string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.off[host] {
		for c := range n.conns {
			if c.remote == host {
				c.in.sendLocked(chunk{err: syscall.ECONNRESET, at: time.Now()})
			}
		}
	}
	n.off[host] = false
	n.notifyLocked()
}

// An address is where somebody listens.
type address string

// Network implements net.Addr.
func (address) Network() string { return "sim" }

// String implements net.Addr.
func (a address) String() string { return string(a) }

// A listener is a port of a host.
type listener struct {
	net     *network
	host    string
	addr    address
	pending []*conn
	closed  bool
}

// listen opens a port of a host.
func (n *network) listen(host, addr string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[addr] != nil {
		return nil, fmt.Errorf("listen %s: %w", addr, syscall.EADDRINUSE)
	}
	l := &listener{net: n, host: host, addr: address(addr)}
	n.listeners[addr] = l
	return l, nil
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		l.net.mu.Lock()
		if l.closed {
			l.net.mu.Unlock()
			return nil, net.ErrClosed
		}
		if len(l.pending) > 0 {
			c := l.pending[0]
			l.pending = l.pending[1:]
			l.net.mu.Unlock()
			return c, nil
		}
		changed := l.net.changed
		l.net.mu.Unlock()
		<-changed
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.net.mu.Lock()
	defer l.net.mu.Unlock()
	if l.closed {
		return net.ErrClosed
	}
	l.closeLocked()
	delete(l.net.listeners, string(l.addr))
	l.net.notifyLocked()
	return nil
}

func (l *listener) closeLocked() {
	l.closed = true
	for _, c := range l.pending {
		c.out.sendLocked(chunk{err: syscall.ECONNRESET, at: time.Now()})
		c.breakLocked(net.ErrClosed)
	}
	l.pending = nil
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return l.addr }

// dial connects a host to an address of another. It waits while the way is
// cut, as SYN packets would.
func (n *network) dial(ctx context.Context, from, to, addr string, alive func() bool) (net.Conn, error) {
	for {
		n.mu.Lock()
		if !alive() {
			n.mu.Unlock()
			return nil, net.ErrClosed
		}
		changed := n.changed
		if n.cuts[link{from, to}] == 0 && n.cuts[link{to, from}] == 0 && !n.off[to] {
			l := n.listeners[addr]
			if l == nil {
				n.mu.Unlock()
				return nil, fmt.Errorf("dial %s: %w", addr, syscall.ECONNREFUSED)
			}
			c := n.connectLocked(from, l)
			n.mu.Unlock()
			return c, nil
		}
		n.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (n *network) connectLocked(from string, l *listener) *conn {
	there, back := &pipe{net: n, link: link{from, l.host}}, &pipe{net: n, link: link{l.host, from}}
	near := &conn{net: n, local: from, remote: l.host, in: back, out: there, addr: l.addr}
	far := &conn{net: n, local: l.host, remote: from, in: there, out: back, addr: l.addr}
	n.conns[near], n.conns[far] = true, true
	l.pending = append(l.pending, far)
	n.notifyLocked()
	return near
}

// A pipe is one direction of a connection.
type pipe struct {
	net    *network
	link   link
	chunks []chunk
	queued int
	// waker is closed and replaced when a reader or a writer may go on.
	waker chan struct{}
}

// A chunk is bytes on their way, or the end of them.
type chunk struct {
	data []byte
	err  error
	at   time.Time // when it arrives
}

func (p *pipe) sendLocked(c chunk) {
	if n := len(p.chunks); n > 0 && p.chunks[n-1].at.After(c.at) {
		c.at = p.chunks[n-1].at // in order
	}
	p.chunks = append(p.chunks, c)
	p.queued += len(c.data)
	p.wakeLocked()
}

func (p *pipe) wakeLocked() {
	if p.waker != nil {
		close(p.waker)
		p.waker = nil
	}
}

func (p *pipe) wokenLocked() <-chan struct{} {
	if p.waker == nil {
		p.waker = make(chan struct{})
	}
	return p.waker
}

// A conn is one end of a connection.
type conn struct {
	net           *network
	local, remote string
	in, out       *pipe
	addr          address
	err           error // of every call from here on
	readBy        time.Time
	writeBy       time.Time
}

func (c *conn) breakLocked(err error) {
	if c.err == nil {
		c.err = err
	}
	delete(c.net.conns, c)
	c.in.wakeLocked()
	c.out.wakeLocked()
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	for {
		c.net.mu.Lock()
		n, done, err := c.readLocked(b)
		woken, until := c.in.wokenLocked(), c.readBy
		if len(c.in.chunks) > 0 && c.net.cuts[c.in.link] == 0 && (until.IsZero() || c.in.chunks[0].at.Before(until)) {
			until = c.in.chunks[0].at
		}
		changed := c.net.changed
		if c.net.cuts[c.in.link] == 0 {
			changed = nil
		}
		c.net.mu.Unlock()
		if done {
			return n, err
		}
		await(woken, changed, until)
	}
}

func (c *conn) readLocked(b []byte) (n int, done bool, err error) {
	now := time.Now()
	switch {
	case c.err != nil:
		return 0, true, c.err
	case !c.readBy.IsZero() && !now.Before(c.readBy):
		return 0, true, os.ErrDeadlineExceeded
	case len(c.in.chunks) == 0 || c.net.cuts[c.in.link] > 0 || c.in.chunks[0].at.After(now):
		return 0, false, nil
	}
	head := &c.in.chunks[0]
	if head.err != nil {
		return 0, true, head.err // and so for ever
	}
	n = copy(b, head.data)
	head.data = head.data[n:]
	c.in.queued -= n
	if len(head.data) == 0 {
		c.in.chunks = c.in.chunks[1:]
	}
	c.in.wakeLocked()
	return n, true, nil
}

// await waits for one of the channels, or a time; the zero one never comes.
func await(woken, changed <-chan struct{}, until time.Time) {
	var timeout <-chan time.Time
	if !until.IsZero() {
		t := time.NewTimer(time.Until(until))
		defer t.Stop()
		timeout = t.C
	}
	select {
	case <-woken:
	case <-changed:
	case <-timeout:
	}
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) {
	written := 0
	for {
		c.net.mu.Lock()
		switch {
		case c.err != nil:
			c.net.mu.Unlock()
			return written, c.err
		case !c.writeBy.IsZero() && !time.Now().Before(c.writeBy):
			c.net.mu.Unlock()
			return written, os.ErrDeadlineExceeded
		}
		if room := min(maxQueued-c.out.queued, len(b)-written); room > 0 {
			data := append([]byte(nil), b[written:written+room]...)
			c.out.sendLocked(chunk{data: data, at: c.net.arrivalLocked(c.out.link)})
			written += room
		}
		woken, until := c.out.wokenLocked(), c.writeBy
		c.net.mu.Unlock()
		if written == len(b) {
			return written, nil
		}
		await(woken, nil, until)
	}
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	if c.err != nil {
		return nil
	}
	c.out.sendLocked(chunk{err: io.EOF, at: c.net.arrivalLocked(c.out.link)})
	c.breakLocked(net.ErrClosed)
	return nil
}

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return c.addr }

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr { return c.addr }

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error { return c.deadline(&c.readBy, &c.writeBy, t) }

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error { return c.deadline(&c.readBy, nil, t) }

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error { return c.deadline(nil, &c.writeBy, t) }

func (c *conn) deadline(read, write *time.Time, t time.Time) error {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	if read != nil {
		*read = t
	}
	if write != nil {
		*write = t
	}
	c.in.wakeLocked()
	c.out.wakeLocked()
	return nil
}
