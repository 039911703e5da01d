package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// Routing says how writes and reads find the leader of a partition.
type Routing uint8

// The ways.
const (
	// Direct goes to the leaders themselves, at the addresses they advertise. One
	// that cannot be reached there is reached through the brokers that the client
	// was made with. The default.
	Direct Routing = iota
	// Proxy sends everything to one of the brokers that the client was made with,
	// which passes it on: for service meshes, port-forwards and load balancers.
	Proxy
)

const (
	// verifyTimeout bounds the first question to an advertised address.
	verifyTimeout = 2 * time.Second
	// shunFor is how long an address that failed is left alone at least, and
	// shunForeign one that answered for another cluster.
	shunFor     = time.Second
	shunForeign = time.Minute
	// mostLearned is how many addresses of leaders are kept to stand in for the
	// brokers that the client was made with.
	mostLearned = 32
	// noTopic is no topic's name, so that a broker need not look for it: to ask
	// for a sign of life only.
	noTopic = "."
)

// errForeign is about an advertised address that leads to another cluster.
var errForeign = errors.New("another cluster answers at the advertised address")

// A place is where streams go: the address of a leader, or "" for the brokers
// that the client was made with, which pass everything on.
type place string

const viaSeed place = ""

func (p place) routing() runnelv1.Routing {
	if p == viaSeed {
		return runnelv1.Routing_ROUTING_PROXY
	}
	return runnelv1.Routing_ROUTING_DIRECT
}

// A direct connection is one to an advertised address.
type directConn struct {
	conn *grpc.ClientConn
	// shunned is why it is not used at present, and till when at least.
	shunned error
	till    time.Time
}

// route returns where to reach the leader of a partition.
func (c *Client) route(v *clusterView, topic, id string, n int32) (place, int64) {
	if c.opts.routing == Proxy {
		return viaSeed, 0
	}
	addr, epoch := v.leader(topic, id, n)
	if addr == "" || !c.reachable(addr) {
		return viaSeed, epoch
	}
	return place(addr), epoch
}

// knows reports whether a place leads to a member of the cluster, as far as is
// known.
func (c *Client) knows(p place) bool { return p == viaSeed || c.cluster.view.Load().has(string(p)) }

// reachable reports whether an advertised address is worth a try.
func (c *Client) reachable(addr string) bool {
	c.mu.Lock()
	d := c.direct[addr]
	if d == nil || d.shunned == nil {
		c.mu.Unlock()
		return true
	}
	soon, foreign := time.Now().Before(d.till), errors.Is(d.shunned, errForeign)
	c.mu.Unlock()
	return !soon && (foreign || d.conn.GetState() == connectivity.Ready)
}

// shun makes an address be left alone until it can be reached again.
func (c *Client) shun(p place, why error) {
	if p == viaSeed {
		return
	}
	c.mu.Lock()
	d := c.direct[string(p)]
	if d == nil || c.closed {
		c.mu.Unlock()
		return
	}
	first := d.shunned == nil
	d.shunned, d.till = why, time.Now().Add(shunFor)
	if errors.Is(why, errForeign) {
		d.till = time.Now().Add(shunForeign)
	}
	c.mu.Unlock()
	d.conn.Connect() // and it goes on trying
	if first {
		c.opts.hooks.proxied(string(p), why)
	}
}

// connect returns a connection to p. That of a leader is verified first: an
// advertised address may lead nowhere from here, or to somebody else.
func (c *Client) connect(ctx context.Context, p place) (*grpc.ClientConn, error) {
	if p == viaSeed {
		return c.conn, nil
	}
	d, err := c.directTo(string(p))
	if err != nil {
		return nil, err
	}
	err = c.verify(ctx, d.conn)
	if err != nil {
		if ctx.Err() == nil {
			c.shun(p, err)
			c.cluster.doubt()
		}
		return nil, fmt.Errorf("leader at %s: %w", string(p), err)
	}
	c.mu.Lock()
	was := d.shunned
	d.shunned = nil
	var seeds []string
	if addr := string(p); !slices.Contains(c.brokers, addr) && !slices.Contains(c.learned, addr) {
		if len(c.learned) >= mostLearned {
			c.learned = c.learned[1:]
		}
		c.learned = append(slices.Clip(c.learned), addr)
		c.roam()
		seeds = slices.Concat(c.brokers, c.learned)
	}
	c.mu.Unlock()
	if seeds != nil {
		c.seeds.UpdateState(c.opts.addresses(seeds))
	}
	if was != nil {
		c.opts.hooks.direct(string(p))
	}
	return d.conn, nil
}

func (c *Client) verify(ctx context.Context, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithTimeout(ctx, verifyTimeout)
	defer cancel()
	resp, err := runnelv1.NewMetadataServiceClient(conn).GetMetadata(ctx, &runnelv1.GetMetadataRequest{Topics: []string{noTopic}})
	if err != nil {
		return rpcError(err)
	}
	if want := c.cluster.view.Load().id; resp.GetClusterId() != want {
		return fmt.Errorf("%w: %s, want %s", errForeign, resp.GetClusterId(), want)
	}
	return nil
}

func (c *Client) directTo(addr string) (*directConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errClientClosed
	}
	if d := c.direct[addr]; d != nil {
		return d, nil
	}
	conn := c.conn
	if c.roams || len(c.brokers) != 1 || c.brokers[0] != addr {
		var err error
		if conn, _, err = newConn([]string{addr}, c.opts); err != nil {
			return nil, fmt.Errorf("connect to %s: %w", addr, err)
		}
	}
	d := &directConn{conn: conn}
	c.direct[addr] = d
	return d, nil
}

// use says that a lane leads to p, until the returned function is called.
func (c *Client) use(p place) (done func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.users[p]++
	return func() {
		c.mu.Lock()
		if c.users[p]--; c.users[p] == 0 {
			delete(c.users, p)
		}
		c.mu.Unlock()
		c.prune()
	}
}

// prune closes the connections to addresses that no member has any more and no
// lane leads to.
func (c *Client) prune() {
	view := c.cluster.view.Load()
	var gone []*grpc.ClientConn
	c.mu.Lock()
	for addr, d := range c.direct {
		if !c.closed && c.users[place(addr)] == 0 && !view.has(addr) {
			delete(c.direct, addr)
			if d.conn != c.conn {
				gone = append(gone, d.conn)
			}
		}
	}
	c.mu.Unlock()
	for _, conn := range gone {
		_ = conn.Close() // nobody uses it
	}
}

// reseed makes the connection to a seed be one to a broker that answers.
func (c *Client) reseed(good []string) {
	c.mu.Lock()
	all := slices.Concat(good, c.brokers, c.learned)
	c.roam()
	c.mu.Unlock()
	c.seeds.UpdateState(c.opts.addresses(good)) // leaves any other one
	c.seeds.UpdateState(c.opts.addresses(slices.Compact(all)))
}

// roam is called when the connection to a seed is given other addresses: it does
// not lead to the only seed for certain any more. The caller holds mu.
func (c *Client) roam() {
	c.roams = true
	maps.DeleteFunc(c.direct, func(_ string, d *directConn) bool { return d.conn == c.conn })
}

// stream opens a bidirectional stream to p on which hot messages are not
// decoded by generated code. It ends with ctx.
func (c *Client) stream(ctx context.Context, p place, method string) (grpc.ClientStream, error) {
	conn, err := c.connect(ctx, p)
	if err != nil {
		return nil, err
	}
	desc := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
	s, err := conn.NewStream(ctx, desc, method, grpc.ForceCodecV2(c.codec))
	if err != nil {
		err = rpcError(err)
		if errors.Is(err, ErrUnreachable) {
			c.shun(p, err)
		}
		return nil, err
	}
	return s, nil
}
