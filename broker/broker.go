// Package broker joins a broker's rooms, and decides the order of waking and
// sleeping.
package broker

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"

	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/internal/rpcserver"
	"github.com/runnelmq/runnel/internal/telemetry"
	"github.com/runnelmq/runnel/internal/vfs"
)

// Deps is the world a broker lives in. Zero fields stand for the real one.
type Deps struct {
	FS vfs.FS
	// Listen opens a listener; nil: TCP.
	Listen func(ctx context.Context, addr string) (net.Listener, error)
	// Dial opens a connection; nil: TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	Log  zerolog.Logger
	// Registry takes the metrics, and is what the admin port shows; nil: one
	// of the broker's own.
	Registry *prometheus.Registry
	// Version of the program.
	Version string
	// BootID names this run of the machine; nil asks the machine. See
	// [commitlog.RootOptions].
	BootID func() (string, error)
}

// Addrs are the addresses a broker is bound to.
type Addrs struct {
	Client, Internal, Admin string // Admin is empty without an admin port
}

// A Broker is one broker process. New, then Run, once.
type Broker struct {
	cfg         Config
	deps        Deps
	incarnation string
	inService   chan struct{} // closed when the broker is ready for the first time

	// mu guards the fields below
	mu sync.Mutex

	addrs      Addrs
	partitions *partition.Set
}

// New returns a broker that has not started. It fails only for a configuration
// that Validate refuses.
func New(cfg Config, deps Deps) (*Broker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("broker configuration: %w", err)
	}
	if deps.FS == nil {
		deps.FS = vfs.OS()
	}
	if deps.Listen == nil {
		deps.Listen = func(ctx context.Context, addr string) (net.Listener, error) {
			var lc net.ListenConfig
			return lc.Listen(ctx, "tcp", addr)
		}
	}
	if deps.Registry == nil {
		deps.Registry = telemetry.NewRegistry()
	}
	return &Broker{
		cfg: cfg, deps: deps, incarnation: uuid.NewString(), inService: make(chan struct{}),
	}, nil
}

// Ready is closed when the broker has recovered and is in service.
func (b *Broker) Ready() <-chan struct{} { return b.inService }

// Addrs returns the addresses the broker is bound to; empty ones before it listens.
func (b *Broker) Addrs() Addrs {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.addrs
}

// Partitions returns the replicas this broker holds, for tests that look inside;
// nil before it listens.
func (b *Broker) Partitions() *partition.Set {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.partitions
}

// Run opens the data directory, joins the cluster and serves until ctx is
// done; then it leaves in an orderly way and returns nil. It returns an error
// when it can't start or go on; then the process should end.
func (b *Broker) Run(ctx context.Context) (err error) {
	n, err := b.open(ctx)
	if err != nil {
		return err
	}
	b.mu.Lock()
	b.addrs, b.partitions = n.addrs(), n.set
	b.mu.Unlock()
	return n.run(ctx)
}

// listeners are the ports of a broker.
type listeners struct {
	client   *rpcserver.LimitedListener
	internal *rpcserver.LimitedListener
	admin    *rpcserver.LimitedListener // nil: none
}

// listen binds all ports: the internal one before the broker registers, so
// that the controller's probe finds it.
func (b *Broker) listen(ctx context.Context) (l listeners, err error) {
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	bind := func(option, addr string) (net.Listener, error) {
		lis, err := b.deps.Listen(ctx, addr)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w: choose another address, or stop what uses this one", option, addr, err)
		}
		return lis, nil
	}
	internal, err := bind("listen.internal", b.cfg.Listen.Internal)
	if err != nil {
		return l, err
	}
	l.internal = rpcserver.Guard(internal)
	client, err := bind("listen.client", b.cfg.Listen.Client)
	if err != nil {
		return l, err
	}
	l.client = rpcserver.Limit(client, b.maxConnections())
	if b.cfg.Listen.Admin != "" {
		admin, err := bind("listen.admin", b.cfg.Listen.Admin)
		if err != nil {
			return l, err
		}
		l.admin = rpcserver.Limit(admin, maxAdminConnections)
	}
	return l, nil
}

func (l listeners) close() {
	for _, lis := range []*rpcserver.LimitedListener{l.client, l.internal, l.admin} {
		if lis != nil {
			_ = lis.Close()
		}
	}
}

// maxAdminConnections is enough for whoever scrapes and probes a broker.
const maxAdminConnections = 256

// maxConnections leaves half of the descriptors to the logs.
func (b *Broker) maxConnections() int {
	if b.cfg.Listen.MaxConnections > 0 {
		return b.cfg.Listen.MaxConnections
	}
	const unknown = 10000
	open, limit, ok := descriptors()
	if !ok {
		return unknown
	}
	return max((limit-open)/2, 1)
}

// advertised returns what others are told: the option, or the address that is
// bound. Validate has seen to it that the latter can be reached.
func advertised(option string, lis net.Listener) string {
	if option != "" {
		return option
	}
	return lis.Addr().String()
}

// security is how connections are protected.
type security struct {
	clientPort, internalPort, dial credentials.TransportCredentials // nil: plaintext
}

func (b *Broker) security() (s security, err error) {
	c := b.cfg.Security
	if c.CertFile == "" {
		return s, nil
	}
	certs, err := rpcserver.LoadCertificates(c.CertFile, c.KeyFile, c.CAFile, b.deps.Log)
	if err != nil {
		return s, fmt.Errorf("security: %w", err)
	}
	certs.Register(telemetry.Prefixed(b.deps.Registry), "broker")
	if c.CAFile != "" {
		s.internalPort, s.dial = certs.Server(tls.RequireAndVerifyClientCert), certs.Client()
	}
	if c.ClientTLS {
		// Clients need no certificate of ours. One that shows one is who it says.
		s.clientPort = certs.Server(tls.VerifyClientCertIfGiven)
	}
	return s, nil
}

// dial returns connections to other processes of the cluster, which speak with
// codec; nil: plain Protobuf.
func (b *Broker) dial(t credentials.TransportCredentials, codec encoding.CodecV2) func(addr string) (*grpc.ClientConn, error) {
	return func(addr string) (*grpc.ClientConn, error) {
		return rpcserver.Dial(addr, rpcserver.DialOptions{TLS: t, Secret: string(b.cfg.Security.ClusterSecret), Codec: codec, Dial: b.deps.Dial})
	}
}
