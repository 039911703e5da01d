package replication

import (
	"context"
	"net"
	"sync"
	"syscall"

	"github.com/runnelmq/runnel/internal/memnet"
)

// A route is one way between two addresses.
type route struct{ from, to string }

// A network is listeners in memory, whose connections a test can cut or silence.
type network struct {
	// mu guards the fields below
	mu sync.Mutex

	listeners map[string]*memnet.Listener
	silenced  map[route]chan struct{} // closed when it ends
	conns     map[*conn]bool
}

// A conn is the dialer's end of a connection.
type conn struct {
	net.Conn

	net    *network
	at, to string
	closed chan struct{}
	once   sync.Once
}

func (n *network) listen(addr string) net.Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := memnet.Listen(addr, 1<<20)
	n.listeners[addr] = l
	return l
}

func (n *network) unlisten(addr string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.listeners, addr)
}

func (n *network) dial(ctx context.Context, from, to string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[to]
	n.mu.Unlock()
	if l == nil {
		return nil, syscall.ECONNREFUSED
	}
	inner, err := l.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: inner, net: n, at: from, to: to, closed: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns[c] = true
	return c, nil
}

// pass waits until bytes may go that way.
func (c *conn) pass(r route) {
	for {
		c.net.mu.Lock()
		wait := c.net.silenced[r]
		c.net.mu.Unlock()
		if wait == nil {
			return
		}
		select {
		case <-wait:
		case <-c.closed:
			return
		}
	}
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.pass(route{c.to, c.at}) // what was on its way does not arrive either
	return n, err
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) {
	c.pass(route{c.at, c.to})
	return c.Conn.Write(b)
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.once.Do(func() { close(c.closed) })
	c.net.mu.Lock()
	delete(c.net.conns, c)
	c.net.mu.Unlock()
	return c.Conn.Close()
}

// silence lets nothing go from one broker to another any more.
func (n *network) silence(from, to int32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if r := (route{address(from), address(to)}); n.silenced[r] == nil {
		n.silenced[r] = make(chan struct{})
	}
}

// isolate silences a broker, both ways.
func (n *network) isolate(id int32, others ...int32) {
	for _, o := range others {
		n.silence(id, o)
		n.silence(o, id)
	}
}

// heal ends all silence.
func (n *network) heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for r, wait := range n.silenced {
		close(wait)
		delete(n.silenced, r)
	}
}

// cut breaks the connections that a broker opened to another.
func (n *network) cut(from, to int32) {
	n.mu.Lock()
	var broken []*conn
	for c := range n.conns {
		if c.at == address(from) && c.to == address(to) {
			broken = append(broken, c)
		}
	}
	n.mu.Unlock()
	for _, c := range broken {
		_ = c.Close()
	}
}
