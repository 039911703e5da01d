package controller

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/google/uuid"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/controller/probe"
	"github.com/runnelmq/runnel/controller/state"
	"github.com/runnelmq/runnel/controller/store"
	"github.com/runnelmq/runnel/internal/lifecycle"
	"github.com/runnelmq/runnel/internal/rpcserver"
)

// Times of a standby's watch over the active controller.
const (
	attendSilence = 3 * time.Second        // after which a stream is opened anew
	attendAgain   = 200 * time.Millisecond // between streams
	attendEnd     = 100 * time.Millisecond // how long the end of a connection may come after the end of its stream
	attendProbes  = 5                      // looks at a controller whose connection broke
)

// attend keeps a stream to the active controller while another one is, and ends its tenure as soon as its process has
// certainly ended, instead of when its lease times out. That is safe even if it was wrong: the election is liveness only.
func (c *Controller) attend(ctx context.Context, s *store.Store) {
	if !c.cfg.Cluster.FastFencing || c.deps.Dev {
		return
	}
	for ctx.Err() == nil {
		var active *state.Controller
		other := func(i *state.Image) bool {
			active = i.Controller()
			return active != nil && active.Incarnation != c.incarnation
		}
		if c.mirror.Until(ctx, other) != nil {
			return
		}
		if c.attendOne(ctx, active) {
			c.deps.Log.Warn().Str("address", active.Address).Msg("the active controller's process has ended; ending its tenure")
			if err := c.depose(ctx, s, active); err != nil && ctx.Err() == nil {
				c.deps.Log.Warn().Err(err).Msg("the tenure of the active controller could not be ended; waiting for it to time out")
			}
		}
		lifecycle.Wait(ctx, attendAgain)
	}
}

// depose ends a tenure, unless that has happened by itself before.
func (c *Controller) depose(ctx context.Context, s *store.Store, active *state.Controller) error {
	ctx, cancel := context.WithTimeout(ctx, 2*c.cfg.Cluster.ElectionTimeout.Std())
	defer cancel()
	return s.Depose(ctx, active.Incarnation)
}

// attendOne watches over the active controller until the stream to it ends, or another one is active. It reports whether the
// process has ended: the connection was closed by the other side, and nobody listens there any more.
func (c *Controller) attendOne(ctx context.Context, active *state.Controller) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel()
	watch.Go(func() {
		replaced := func(i *state.Image) bool { r := i.Controller(); return r == nil || r.Incarnation != active.Incarnation }
		if c.mirror.Until(ctx, replaced) == nil {
			cancel()
		}
	})
	var line lastConn
	conn, err := rpcserver.Dial(active.Address, rpcserver.DialOptions{
		TLS: c.prober.TLS, Secret: c.prober.Secret, Dial: func(ctx context.Context, addr string) (net.Conn, error) { return line.dial(ctx, c.prober, addr) },
	})
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	seen := c.follow(ctx, controllerv1.NewControllerServiceClient(conn), active.Incarnation)
	last := line.get()
	if !seen || ctx.Err() != nil || last == nil || !last.Closed(attendEnd) {
		return false
	}
	at := probe.Resolved(last, active.Address)
	for range attendProbes {
		if gone, _ := c.prober.Gone(ctx, at); gone {
			return true
		}
		if !lifecycle.Wait(ctx, attendAgain) {
			return false
		}
	}
	return false
}

// follow receives signs of life until there are no more, and reports whether any came from the incarnation.
func (c *Controller) follow(ctx context.Context, client controllerv1.ControllerServiceClient, incarnation uuid.UUID) (seen bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silence := time.AfterFunc(attendSilence, cancel)
	defer silence.Stop()
	stream, err := client.Attend(ctx, &controllerv1.AttendRequest{})
	if err != nil {
		return false
	}
	for {
		resp, err := stream.Recv()
		if err != nil {
			return seen && silence.Stop()
		}
		if resp.GetIncarnation() != incarnation.String() {
			return false // somebody else answers there
		}
		seen = true
		silence.Reset(attendSilence)
	}
}

// A lastConn is the newest connection of a client.
type lastConn struct {
	// mu guards the fields below
	mu sync.Mutex

	conn *probe.Conn
}

func (l *lastConn) dial(ctx context.Context, p *probe.Prober, addr string) (net.Conn, error) {
	conn, err := p.Open(ctx, addr)
	if err != nil {
		return nil, err
	}
	watched := probe.Watch(conn)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn = watched
	return watched, nil
}

func (l *lastConn) get() *probe.Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn
}
