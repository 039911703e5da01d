package cases

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/runnelmq/runnel/internal/memnet"
)

// A network is listeners in memory, and the connections to them.
type network struct {
	// mu guards the fields below
	mu sync.Mutex

	listeners map[string]*memnet.Listener
	links     map[string][]*link // by the address dialled, those that are open
	dials     map[string]int
	received  atomic.Int64   // bytes that came over all links, to who dialled
	most      map[string]int // links open at one time
}

func newNetwork() *network {
	return &network{
		listeners: map[string]*memnet.Listener{}, links: map[string][]*link{}, dials: map[string]int{}, most: map[string]int{},
	}
}

func (n *network) listen(_ context.Context, addr string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[addr] != nil {
		return nil, syscall.EADDRINUSE
	}
	l := memnet.Listen(addr, 1<<20)
	n.listeners[addr] = l
	return l, nil
}

// free makes room for another listener at addr.
func (n *network) free(addr string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.listeners, addr)
}

func (n *network) dial(ctx context.Context, addr string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[addr]
	n.dials[addr]++
	n.mu.Unlock()
	if l == nil {
		return nil, syscall.ECONNREFUSED
	}
	c, err := l.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	k := &link{Conn: c, net: n, closed: make(chan struct{}), lost: make(chan struct{})}
	k.forget = func() { n.forget(addr, k) }
	n.mu.Lock()
	defer n.mu.Unlock()
	n.links[addr] = append(n.links[addr], k)
	n.most[addr] = max(n.most[addr], len(n.links[addr]))
	return k, nil
}

func (n *network) forget(addr string, k *link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, other := range n.links[addr] {
		if other == k {
			n.links[addr] = append(n.links[addr][:i:i], n.links[addr][i+1:]...)
			return
		}
	}
}

// dialled returns how often addr was dialled.
func (n *network) dialled(addr string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dials[addr]
}

// atOnce returns how many connections to addr were open at the same time.
func (n *network) atOnce(addr string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.most[addr]
}

// vanish loses the connections to addr without a word: what is sent goes
// nowhere, and nothing comes, not even an end.
func (n *network) vanish(addr string) {
	n.mu.Lock()
	links := n.links[addr]
	n.links[addr] = nil
	n.mu.Unlock()
	for _, k := range links {
		close(k.lost)
	}
}

// A link is the side of a connection that dialled.
type link struct {
	net.Conn

	net    *network
	lost   chan struct{}
	closed chan struct{}
	once   sync.Once
	forget func()
}

func (k *link) gone() bool {
	select {
	case <-k.lost:
		return true
	default:
		return false
	}
}

// Read implements net.Conn.
func (k *link) Read(b []byte) (int, error) {
	for {
		n, err := k.Conn.Read(b)
		if !k.gone() {
			k.net.received.Add(int64(n))
			return n, err
		}
		if err != nil {
			<-k.closed
			return 0, net.ErrClosed
		}
	}
}

// Write implements net.Conn.
func (k *link) Write(b []byte) (int, error) {
	if k.gone() {
		return len(b), nil
	}
	return k.Conn.Write(b)
}

// Close implements net.Conn.
func (k *link) Close() error {
	k.once.Do(func() {
		k.forget()
		close(k.closed)
	})
	return k.Conn.Close()
}
