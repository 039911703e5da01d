// Package probe finds out whether another process of the cluster is alive, from the outside: what answers at its address, and
// how its connections end.
package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	"github.com/runnelmq/runnel/internal/lifecycle"
	"github.com/runnelmq/runnel/internal/rpcserver"
)

// Times of probes.
const (
	dialTimeout  = time.Second
	askTimeout   = 2 * time.Second
	betweenDials = 50 * time.Millisecond
)

// A Prober asks. It is safe for concurrent use.
type Prober struct {
	// Dial opens a connection; nil: TCP.
	Dial   func(ctx context.Context, addr string) (net.Conn, error)
	TLS    credentials.TransportCredentials // nil: plaintext
	Secret string                           // the cluster secret, "" for none
}

// An Identity is who answers at a broker's internal address.
type Identity struct {
	Cluster     string // "" for none yet
	Broker      int32
	Incarnation string
	// At is where it answered: the address with the name resolved.
	At string
}

// A Verdict is what a probe found out about a process.
type Verdict uint8

// The verdicts.
const (
	Unknown Verdict = iota // it may live
	Dead                   // it certainly does not
)

// Open opens a connection.
func (p *Prober) Open(ctx context.Context, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if p.Dial != nil {
		return p.Dial(ctx, addr)
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr)
}

// Ask asks who is at a broker's internal address.
func (p *Prober) Ask(ctx context.Context, addr string) (Identity, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var mu sync.Mutex
	at := addr
	conn, err := p.connect(addr, func(c net.Conn) {
		mu.Lock()
		defer mu.Unlock()
		at = Resolved(c, addr)
	})
	if err != nil {
		return Identity{}, err
	}
	defer func() { _ = conn.Close() }()
	resp, err := replicav1.NewReplicaServiceClient(conn).Probe(ctx, &replicav1.ProbeRequest{})
	if err != nil {
		return Identity{}, err
	}
	mu.Lock()
	defer mu.Unlock()
	return Identity{Cluster: resp.GetClusterId(), Broker: resp.GetBrokerId(), Incarnation: resp.GetIncarnation(), At: at}, nil
}

// connect returns a connection that tells of each dial that succeeded.
func (p *Prober) connect(addr string, opened func(net.Conn)) (*grpc.ClientConn, error) {
	return rpcserver.Dial(addr, rpcserver.DialOptions{TLS: p.TLS, Secret: p.Secret, Dial: func(ctx context.Context, addr string) (net.Conn, error) {
		c, err := p.Open(ctx, addr)
		if err == nil {
			opened(c)
		}
		return c, err
	}})
}

// Replica asks at a broker's internal address how much of a partition is there.
func (p *Prober) Replica(ctx context.Context, addr, topic string, partition int32) (*replicav1.DescribeReplicaResponse, error) {
	conn, err := p.connect(addr, func(net.Conn) {})
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	return replicav1.NewReplicaServiceClient(conn).DescribeReplica(ctx, &replicav1.DescribeReplicaRequest{TopicId: topic, Partition: partition})
}

// Resolved returns the address a connection leads to, or addr where the connection has none.
func Resolved(c net.Conn, addr string) string {
	if _, err := netip.ParseAddrPort(c.RemoteAddr().String()); err == nil {
		return c.RemoteAddr().String()
	}
	return addr
}

// Broker judges whether a broker's process is dead. at is where it answered when it was last known to live.
//
// It is dead when nobody listens there, tried twice, or when the same broker answers as another process. Whoever else answers,
// and whatever else goes wrong, proves nothing.
func (p *Prober) Broker(ctx context.Context, at string, want Identity) (Verdict, error) {
	gone, err := p.Gone(ctx, at)
	if gone || err != nil {
		return verdict(gone), err
	}
	got, err := p.Ask(ctx, at)
	if err != nil {
		return Unknown, err
	}
	if got.Broker != want.Broker || got.Cluster != want.Cluster {
		return Unknown, fmt.Errorf("broker %d of cluster %q answers at %s instead of broker %d", got.Broker, got.Cluster, at, want.Broker)
	}
	return verdict(got.Incarnation != want.Incarnation), nil
}

func verdict(dead bool) Verdict {
	if dead {
		return Dead
	}
	return Unknown
}

// Gone reports whether nobody listens at an address: two connections, a moment apart, are refused by the machine. It returns an
// error when neither that nor the opposite is known.
func (p *Prober) Gone(ctx context.Context, at string) (bool, error) {
	for n := range 2 {
		if n > 0 && !lifecycle.Wait(ctx, betweenDials) {
			return false, ctx.Err()
		}
		c, err := p.Open(ctx, at)
		switch {
		case err == nil:
			return false, c.Close()
		case !errors.Is(err, syscall.ECONNREFUSED):
			return false, err
		}
	}
	return true, nil
}
