package proc

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// Links are the connections between the processes of a cluster. Each goes
// through a proxy of its target, which asks the system whose the other end is:
// so the connections of each pair can be cut on their own, also one way.
type Links struct {
	ctx  context.Context //nolint:containedctx // of the proxies, which have no caller
	stop context.CancelFunc
	wait sync.WaitGroup

	// mu guards the fields below
	mu sync.Mutex

	names map[int]string // by process id
	cut   map[link]bool
	// changed is closed and replaced when cut changes.
	changed chan struct{}
}

// A link carries bytes from one process to another.
type link struct{ from, to string }

// NewLinks returns links of which none is cut.
func NewLinks() *Links {
	ctx, stop := context.WithCancel(context.Background())
	return &Links{ctx: ctx, stop: stop, names: map[int]string{}, cut: map[link]bool{}, changed: make(chan struct{})}
}

// Name says which process a process id is.
func (l *Links) Name(pid int, name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.names[pid] = name
}

// Cut stops all bytes from one process to another, in connections that either
// has opened, as a network does that loses every packet: nobody is told.
func (l *Links) Cut(from, to string) { l.change(func() { l.cut[link{from, to}] = true }) }

// Heal undoes all cuts. What waited is delivered.
func (l *Links) Heal() { l.change(func() { clear(l.cut) }) }

func (l *Links) change(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	close(l.changed)
	l.changed = make(chan struct{})
}

// Serve proxies the port at listen to that at target, which is the port of the
// named process.
func (l *Links) Serve(ctx context.Context, name, listen, target string) error {
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return err
	}
	context.AfterFunc(l.ctx, func() { _ = lis.Close() })
	l.wait.Go(func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			l.wait.Go(func() { l.relay(conn, name, target) })
		}
	})
	return nil
}

// Close ends the proxies and all connections through them.
func (l *Links) Close() {
	l.stop()
	l.wait.Wait()
}

// relay carries the bytes of one connection until either end closes it.
func (l *Links) relay(in net.Conn, to, target string) {
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	from := l.owner(in.RemoteAddr())
	out, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", target)
	if err != nil {
		refuse(in)
		return
	}
	context.AfterFunc(ctx, func() {
		_ = in.Close()
		_ = out.Close()
	})
	var both sync.WaitGroup
	both.Go(func() { defer cancel(); l.carry(ctx, link{from, to}, in, out) })
	both.Go(func() { defer cancel(); l.carry(ctx, link{to, from}, out, in) })
	both.Wait()
}

// refuse resets a connection whose target has no listener.
func refuse(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// carry copies bytes from one connection to the other, and stands still while
// the link is cut. The end of a connection does not get through either.
func (l *Links) carry(ctx context.Context, way link, from, to net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if l.passable(ctx, way) != nil {
			return
		}
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// passable waits until a link is not cut.
func (l *Links) passable(ctx context.Context, way link) error {
	for {
		l.mu.Lock()
		cut, changed := l.cut[way], l.changed
		l.mu.Unlock()
		if !cut {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// owner returns the name of the process that has the socket bound to addr; ""
// when it is none of ours.
func (l *Links) owner(addr net.Addr) string {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return ""
	}
	l.mu.Lock()
	pids := make([]int, 0, len(l.names))
	for pid := range l.names {
		pids = append(pids, pid)
	}
	l.mu.Unlock()
	pid, err := socketOwner(tcp.Port, pids)
	if err != nil {
		return ""
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.names[pid]
}

var errNoOwner = errors.New("no process is known to own the socket")
