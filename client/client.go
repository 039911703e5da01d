package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/wire"
)

const (
	// ioBuffer is the size of a connection's read and write buffer; this, not
	// the windows, is what buys a third of the throughput.
	ioBuffer = 256 << 10
	// Static windows: a fetch is bounded by credit, not by these.
	streamWindow = 16 << 20
	connWindow   = 64 << 20
	// maxMessage is the most a broker sends in one message, with room for what
	// is around it.
	maxMessage = 4<<20 + 64<<10
	// connectTimeout bounds one attempt to reach one address.
	connectTimeout = 5 * time.Second
	// A peer that vanished without a word is noticed within the sum of these.
	pingAfter   = 10 * time.Second
	pingTimeout = 10 * time.Second
	// firstBackoff and maxBackoff bound the pause between two attempts.
	firstBackoff = 50 * time.Millisecond
	maxBackoff   = time.Second
	// callTimeout bounds one call that a producer or reader makes by itself.
	callTimeout = 10 * time.Second
)

// A Client is a connection to a cluster. It connects when it is first needed,
// to the first address that answers, and stays there while that is healthy;
// from there it learns where the leaders are. It is safe for concurrent use.
type Client struct {
	brokers []string
	opts    clientOptions
	conn    *grpc.ClientConn // to one of brokers, or of seeds
	seeds   *manual.Resolver
	pool    *wire.Pool
	codec   *wire.Codec
	cluster *cluster
	ctx     context.Context //nolint:containedctx // ends with Close, for what start runs
	stop    context.CancelFunc
	workers sync.WaitGroup

	// mu guards the fields below
	mu sync.Mutex

	closed bool
	direct map[string]*directConn // by advertised address
	users  map[place]int          // lanes that lead there
	// learned are addresses of leaders that have been reached: they stand in for
	// brokers when none of those is left.
	learned []string
	// roams is true when conn may lead to others than brokers.
	roams bool
}

type clientOptions struct {
	tls     *tls.Config
	creds   credentials.PerRPCCredentials
	dial    func(ctx context.Context, addr string) (net.Conn, error)
	agent   string
	timeout time.Duration // of one attempt to connect
	routing Routing
	hooks   Hooks
	door    *door
}

// An Option changes how a Client connects. A nil one changes nothing.
type Option func(*clientOptions)

// TLS makes the client connect with TLS; nil stands for the defaults of
// [tls.Config]. Without TLS connections are plaintext.
func TLS(cfg *tls.Config) Option {
	if cfg == nil {
		cfg = &tls.Config{} //nolint:gosec // TLS 1.2 is the least by default
	}
	return func(o *clientOptions) { o.tls = cfg }
}

// Token sends a bearer token with every call. It needs [TLS].
func Token(token string) Option { return Credentials(bearer(token)) }

// Credentials sends what c says with every call, such as a token that is
// renewed. Where c asks for transport security, it needs [TLS].
func Credentials(c credentials.PerRPCCredentials) Option {
	return func(o *clientOptions) { o.creds = c }
}

// WithRouting says how leaders are found; by default [Direct].
func WithRouting(r Routing) Option { return func(o *clientOptions) { o.routing = r } }

// WithHooks has h called as the client works.
func WithHooks(h Hooks) Option { return func(o *clientOptions) { o.hooks = h } }

// Dialer replaces how connections are opened, such as for a proxy or a test.
func Dialer(dial func(ctx context.Context, addr string) (net.Conn, error)) Option {
	return func(o *clientOptions) { o.dial = dial }
}

// UserAgent names the program in the brokers' logs.
func UserAgent(name string) Option { return func(o *clientOptions) { o.agent = name } }

// ConnectTimeout bounds one attempt to reach one address; 5 s by default.
func ConnectTimeout(d time.Duration) Option {
	return func(o *clientOptions) { o.timeout = d }
}

// New returns a client of the cluster that the brokers, a list of host:port,
// belong to; one that is up is enough. It opens no connection yet. An IPv6
// address is written in brackets: [::1]:7420.
func New(brokers []string, opts ...Option) (*Client, error) {
	addrs, err := parseBrokers(brokers)
	if err != nil {
		return nil, err
	}
	o := clientOptions{agent: "runnel-go", timeout: connectTimeout}
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	if o.creds != nil && o.creds.RequireTransportSecurity() && o.tls == nil {
		return nil, errors.New("a token is sent over TLS only: add client.TLS, or leave the token out")
	}
	if o.creds == bearer("") {
		return nil, errors.New("Token(\"\"): want a token, or leave it out")
	}
	if o.timeout <= 0 {
		return nil, fmt.Errorf("ConnectTimeout(%v): want more than 0", o.timeout)
	}
	if o.routing > Proxy {
		return nil, fmt.Errorf("WithRouting(%d): want Direct or Proxy", o.routing)
	}
	pool := wire.NewPool()
	c := &Client{brokers: addrs, opts: o, pool: pool, codec: wire.NewCodec(pool), direct: map[string]*directConn{}, users: map[place]int{}}
	c.opts.door = &door{}
	c.cluster = newCluster(c)
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.conn, c.seeds, err = newConn(addrs, c.opts)
	if err != nil {
		c.stop()
		return nil, fmt.Errorf("connect to %s: %w", strings.Join(addrs, ","), err)
	}
	return c, nil
}

// start runs f in a goroutine that Close ends and waits for; false after Close.
func (c *Client) start(f func(context.Context)) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.workers.Go(func() { f(c.ctx) })
	return true
}

// newConn returns a connection that tries addrs in turn, keeps the first that
// answers, and starts over when that one breaks.
func newConn(addrs []string, o clientOptions) (*grpc.ClientConn, *manual.Resolver, error) {
	res := manual.NewBuilderWithScheme("runnel")
	res.InitialState(o.addresses(addrs))
	creds := insecure.NewCredentials()
	if o.tls != nil {
		creds = credentials.NewTLS(o.tls)
	}
	opts := []grpc.DialOption{
		grpc.WithResolvers(res),
		grpc.WithTransportCredentials(creds),
		grpc.WithUserAgent(o.agent),
		grpc.WithReadBufferSize(ioBuffer),
		grpc.WithWriteBufferSize(ioBuffer),
		grpc.WithStaticStreamWindowSize(streamWindow),
		grpc.WithStaticConnWindowSize(connWindow),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: firstBackoff, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxBackoff},
			MinConnectTimeout: o.timeout,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: pingTimeout}),
		grpc.WithDisableRetry(), // what may be sent again is for the producer to say
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(0),
		grpc.WithChainUnaryInterceptor(textual, o.door.unary),
		grpc.WithChainStreamInterceptor(wire.Placed, o.door.stream),
	}
	if o.dial != nil {
		opts = append(opts, grpc.WithContextDialer(o.dial))
	}
	if o.creds != nil {
		opts = append(opts, grpc.WithPerRPCCredentials(o.creds))
	}
	// Escaped: the % before the zone of an IPv6 address is one of a URL, else.
	conn, err := grpc.NewClient("runnel:///"+url.PathEscape(addrs[0]), opts...)
	return conn, res, err
}

// addresses are addrs for gRPC. Each is to prove that it is what it is called
// there, or what the program says that all are called.
func (o *clientOptions) addresses(addrs []string) (s resolver.State) {
	for _, a := range addrs {
		name := a
		if o.tls != nil && o.tls.ServerName != "" {
			name = o.tls.ServerName
		}
		s.Addresses = append(s.Addresses, resolver.Address{Addr: a, ServerName: name})
	}
	return s
}

// bearer is a token in the way of RFC 6750.
type bearer string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

func (bearer) RequireTransportSecurity() bool { return true }

// Brokers returns the addresses the client was made with.
func (c *Client) Brokers() []string { return append([]string(nil), c.brokers...) }

// Close ends the client's connections. Producers and Readers of the client
// must have been closed before: what they had under way fails, and they are of no
// use any more.
func (c *Client) Close() error {
	c.mu.Lock()
	closed := c.closed
	c.closed = true
	c.mu.Unlock()
	if closed {
		return nil
	}
	c.stop()
	c.workers.Wait()
	err := c.conn.Close()
	for _, d := range c.direct { // nothing is added any more
		if d.conn != c.conn {
			err = errors.Join(err, d.conn.Close())
		}
	}
	return err
}

// Ping asks a broker for a sign of life.
func (c *Client) Ping(ctx context.Context) error {
	_, err := runnelv1.NewMetadataServiceClient(questions{c}).GetMetadata(ctx, &runnelv1.GetMetadataRequest{Topics: []string{noTopic}})
	return rpcError(err)
}
