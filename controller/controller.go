// Package controller joins a controller's rooms, and decides the order of waking and sleeping.
package controller

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/credentials"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/controller/active"
	"github.com/runnelmq/runnel/controller/mirror"
	"github.com/runnelmq/runnel/controller/probe"
	"github.com/runnelmq/runnel/controller/rpc"
	"github.com/runnelmq/runnel/controller/state"
	"github.com/runnelmq/runnel/controller/store"
	"github.com/runnelmq/runnel/internal/lifecycle"
	"github.com/runnelmq/runnel/internal/rpcserver"
	"github.com/runnelmq/runnel/internal/telemetry"
)

// Deps is the world a controller lives in. Zero fields stand for the real one.
type Deps struct {
	// Listen opens a listener; nil: TCP.
	Listen func(ctx context.Context, addr string) (net.Listener, error)
	// KV is the metadata store to use instead of etcd; the caller closes it.
	KV store.KV
	// Sole is whether no other controller uses KV.
	Sole bool
	Log  zerolog.Logger
	// Registry takes the metrics, and is what the admin port shows; nil: one of the controller's own.
	Registry *prometheus.Registry
	// Dial connects to brokers and other controllers; nil: TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Bootstrap permits making a new cluster where there is none.
	Bootstrap bool
	// Join are the addresses of etcd members, host:port, whose cluster this controller's embedded member joins when it has no
	// data yet.
	Join []string
	// Dev is for the one process that is controller and broker: it implies Bootstrap, and no broker is ever fenced by time.
	Dev bool
}

// A Controller is one controller process. New, then Run, once.
type Controller struct {
	cfg         Config
	deps        Deps
	incarnation uuid.UUID
	mirror      *mirror.Mirror
	metrics     *active.Metrics
	prober      *probe.Prober
	tls         credentials.TransportCredentials // of the port for brokers; nil: plaintext
	stopped     chan struct{}                    // closed when stopping is set
	bound       chan struct{}                    // closed when addr is set
	serving     chan struct{}                    // closed when this controller served as the active one for the first time

	// mu guards the fields below
	mu sync.Mutex

	addr     string
	tenure   *active.Active // nil: standby
	stopping bool
}

// New returns a controller that has not started. It fails only for a configuration that Validate refuses.
func New(cfg Config, deps Deps) (*Controller, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("controller configuration: %w", err)
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
	deps.Log = deps.Log.With().Str("component", "controller").Logger()
	return &Controller{
		prober: &probe.Prober{Dial: deps.Dial, Secret: string(cfg.Security.ClusterSecret)}, stopped: make(chan struct{}),
		cfg: cfg, deps: deps, incarnation: uuid.New(), mirror: mirror.New(),
		metrics: active.NewMetrics(telemetry.Prefixed(deps.Registry)),
		bound:   make(chan struct{}), serving: make(chan struct{}),
	}, nil
}

// Bound is closed when the controller listens.
func (c *Controller) Bound() <-chan struct{} { return c.bound }

// Ready is closed when the controller has become the active one for the first time.
func (c *Controller) Ready() <-chan struct{} { return c.serving }

// Addr returns the address the controller is bound to; "" before Bound.
func (c *Controller) Addr() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.addr
}

// Active implements rpc.Office.
func (c *Controller) Active() (*active.Active, error) {
	c.mu.Lock()
	act, stopping := c.tenure, c.stopping
	c.mu.Unlock()
	if stopping {
		return nil, rpc.ErrStopping
	}
	if act != nil {
		return act, nil
	}
	other := &rpc.NotActiveError{}
	c.mirror.View(func(i *state.Image) {
		if r := i.Controller(); r != nil && r.Incarnation != c.incarnation {
			other.Address, other.Controller = r.Address, r.Incarnation.String()
		}
	})
	return nil, other
}

// Incarnation implements rpc.Office.
func (c *Controller) Incarnation() uuid.UUID { return c.incarnation }

// Stopping implements rpc.Office.
func (c *Controller) Stopping() <-chan struct{} { return c.stopped }

// Run opens the metadata store and serves, as the active controller or as a standby, until ctx is done; then it leaves in an
// orderly way and returns nil. It returns an error when it can't start or go on; then the process should end.
func (c *Controller) Run(ctx context.Context) (err error) {
	if sec := c.cfg.Security; sec.CertFile != "" {
		certs, err := rpcserver.LoadCertificates(sec.CertFile, sec.KeyFile, sec.CAFile, c.deps.Log)
		if err != nil {
			return fmt.Errorf("security: %w", err)
		}
		certs.Register(telemetry.Prefixed(c.deps.Registry), "controller")
		c.tls = certs.Server(tls.RequireAndVerifyClientCert)
		if sec.CAFile != "" {
			c.prober.TLS = certs.Client()
		}
	}
	lis, admin, err := c.listen(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeListener(lis), closeListener(admin)) }()
	kv, err := c.openKV(ctx)
	if err != nil {
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return nil // it was told to stop before it had begun
		}
		return err
	}
	// The store closes last: a tenure is resigned in it.
	defer func() { err = errors.Join(err, kv.close()) }()
	s := store.New(kv.KV, c.cfg.Cluster.Name)
	id, err := c.clusterID(ctx, s)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	c.registerMetrics(s, lis)
	c.mu.Lock()
	c.addr = lis.Addr().String()
	c.mu.Unlock()
	close(c.bound)
	c.deps.Log.Info().Str("address", c.addr).Stringer("cluster", id).Msg("controller started")
	return c.run(ctx, s, kv, lis, admin)
}

const (
	// storePatience is how long the store may be silent at the start before that is told.
	storePatience = 2 * time.Second
	storeSilent   = "the metadata store does not answer; trying again"
)

// clusterID asks the store for the cluster's id until it answers: it may be about to be started. Why it does not is in the log.
func (c *Controller) clusterID(ctx context.Context, s *store.Store) (uuid.UUID, error) {
	for {
		try, cancel := context.WithTimeout(ctx, storePatience)
		id, err := s.ClusterID(try, uuid.New(), c.deps.Bootstrap || c.deps.Dev, c.deps.KV == nil && len(c.cfg.Etcd.Endpoints) == 0)
		silent := try.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil || !silent {
			return id, err
		}
		c.deps.Log.Warn().Err(err).Strs("endpoints", c.cfg.Etcd.Endpoints).Msg(storeSilent)
	}
}

func (c *Controller) run(ctx context.Context, s *store.Store, kv openedKV, lis, admin net.Listener) error {
	srv, svc := c.server()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.Follow(ctx, c.mirror.Apply) })
	g.Go(func() error { c.compete(ctx, s, kv); return nil })
	g.Go(func() error { c.attend(ctx, s); return nil })
	g.Go(func() error { return kv.watch(ctx) })
	g.Go(func() error {
		if c.mirror.Until(ctx, listed) == nil {
			srv.SetReady(true)
		}
		<-ctx.Done()
		c.mu.Lock()
		c.stopping = true
		c.mu.Unlock()
		close(c.stopped)
		srv.SetReady(false)
		return nil
	})
	g.Go(func() error {
		defer svc.Wait()
		return lifecycle.Serve(ctx, srv.Server, probe.Listener{Listener: lis}, c.cfg.Shutdown.Timeout.Std())
	})
	if admin != nil {
		g.Go(func() error {
			return telemetry.Admin{Metrics: c.deps.Registry, Ready: c.readiness, Log: c.deps.Log}.Serve(ctx, admin)
		})
	}
	return g.Wait()
}

// listed says that the picture was read once.
func listed(i *state.Image) bool { return i.Revision() > 0 }

func (c *Controller) readiness() error {
	ready := false
	c.mirror.View(func(i *state.Image) { ready = listed(i) })
	if !ready {
		return errors.New("the metadata was not read yet")
	}
	return nil
}

func (c *Controller) server() (*rpcserver.Server, *rpc.Service) {
	srv := rpcserver.New(rpcserver.Options{
		Port: rpcserver.InternalPort, Rules: rpc.Rules(), Log: c.deps.Log, TLS: c.tls, Secret: string(c.cfg.Security.ClusterSecret),
		// In one process with a broker, the broker's server has the plain names.
		Metrics: prometheus.WrapRegistererWithPrefix("controller_", telemetry.Prefixed(c.deps.Registry)),
	})
	svc := rpc.New(rpc.Config{SessionTimeout: c.cfg.Cluster.SessionTimeout.Std()}, c)
	controllerv1.RegisterControllerServiceServer(srv.Server, svc)
	srv.Recovering()
	return srv, svc
}

// maxAdminConnections is enough for whoever scrapes and probes a controller.
const maxAdminConnections = 256

func (c *Controller) listen(ctx context.Context) (lis *rpcserver.LimitedListener, admin net.Listener, err error) {
	bound, err := c.deps.Listen(ctx, c.cfg.Listen.Controller)
	if err != nil {
		return nil, nil, fmt.Errorf("listen.controller %s: %w: choose another address, or stop what uses this one", c.cfg.Listen.Controller, err)
	}
	lis = rpcserver.Guard(bound)
	if c.cfg.Listen.Admin == "" {
		return lis, nil, nil
	}
	if admin, err = c.deps.Listen(ctx, c.cfg.Listen.Admin); err != nil {
		err = fmt.Errorf("listen.admin %s: %w: choose another address, or stop what uses this one", c.cfg.Listen.Admin, err)
		return nil, nil, errors.Join(err, closeListener(lis))
	}
	return lis, rpcserver.Limit(admin, maxAdminConnections), nil
}

// closeListener closes a listener that may be closed already, as a server does that used it.
func closeListener(lis net.Listener) error {
	if lis == nil {
		return nil
	}
	if err := lis.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// An openedKV is a metadata store in use.
type openedKV struct {
	store.KV

	close func() error
	// watch waits for the store to fail, or for ctx.
	watch func(ctx context.Context) error
	// sole is whether no other controller can use the store: whoever is written there as active is dead.
	sole func() bool
	// yield moves the leadership of etcd from this process to another, if it has it; nil where that makes no sense.
	yield func(ctx context.Context) error
}

// connect connects to an external etcd, which may be about to be started.
func (c *Controller) connect(ctx context.Context, ext store.External) (*store.Etcd, error) {
	for {
		kv, err := store.Connect(ext, c.deps.Log)
		if !errors.Is(err, store.ErrAway) {
			return kv, err
		}
		c.deps.Log.Warn().Err(err).Strs("endpoints", ext.Endpoints).Msg(storeSilent)
		if !lifecycle.Wait(ctx, storePatience/2) {
			return nil, ctx.Err()
		}
	}
}

func (c *Controller) openKV(ctx context.Context) (openedKV, error) {
	idle := func(ctx context.Context) error { <-ctx.Done(); return nil }
	shared := func() bool { return c.deps.Sole }
	e := c.cfg.Etcd
	switch {
	case c.deps.KV != nil:
		return openedKV{KV: c.deps.KV, close: func() error { return nil }, watch: idle, sole: shared}, nil
	case len(e.Endpoints) > 0:
		ext, err := c.cfg.external(nil)
		if err != nil {
			return openedKV{}, err
		}
		kv, err := c.connect(ctx, ext)
		if err != nil {
			return openedKV{}, err
		}
		return openedKV{KV: kv, close: kv.Close, watch: idle, sole: shared}, nil
	}
	member := c.cfg.embedded()
	member.Bootstrap = c.deps.Bootstrap || c.deps.Dev
	if len(c.deps.Join) > 0 {
		ext, err := c.cfg.external(c.deps.Join)
		if err != nil {
			return openedKV{}, err
		}
		member.Bootstrap, member.Join = false, &ext
	}
	m, err := store.OpenMember(ctx, member, c.deps.Log)
	if err != nil {
		return openedKV{}, e.nameTaken(err)
	}
	watch := func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return nil
		case err := <-m.Err():
			return fmt.Errorf("the embedded etcd failed: %w", err)
		case <-m.Stopped():
			return errors.New("the embedded etcd stopped by itself; its log says why")
		}
	}
	return openedKV{KV: m, close: m.Close, watch: watch, sole: m.Sole, yield: m.Yield}, nil
}

// Times of elections.
const (
	betweenElections = 100 * time.Millisecond
	yieldPeriod      = 2 * time.Second // between looks whether this process leads etcd, too
)

// compete becomes the active controller whenever there is none, until ctx is done.
func (c *Controller) compete(ctx context.Context, s *store.Store, kv openedKV) {
	if c.mirror.Until(ctx, listed) != nil {
		return
	}
	c.deposePredecessor(ctx, s, kv.sole())
	for ctx.Err() == nil {
		var counters *state.Counters
		vacant := func(i *state.Image) bool { counters = i.Counters(); return i.Controller() == nil }
		if c.mirror.Until(ctx, vacant) != nil {
			return
		}
		me := state.Controller{Address: c.advertised(), Incarnation: c.incarnation}
		t, won, err := s.Campaign(ctx, me, counters, c.cfg.Cluster.ElectionTimeout.Std())
		if err != nil && ctx.Err() == nil {
			c.deps.Log.Warn().Err(err).Msg("election failed; trying again")
		}
		pause := betweenElections
		if won && errors.Is(c.rule(ctx, s, kv, t), active.ErrAlone) {
			pause = c.cfg.Cluster.ElectionTimeout.Std() // others first
		}
		lifecycle.Wait(ctx, pause)
	}
}

func (c *Controller) advertised() string {
	if c.cfg.Listen.Advertised != "" {
		return c.cfg.Listen.Advertised
	}
	return c.Addr()
}

// deposePredecessor ends the tenure of a controller that is certainly dead: one that had this store, or this address, before.
func (c *Controller) deposePredecessor(ctx context.Context, s *store.Store, sole bool) {
	var old *state.Controller
	c.mirror.View(func(i *state.Image) { old = i.Controller() })
	if old == nil || (!sole && old.Address != c.advertised()) {
		return
	}
	if err := s.Depose(ctx, old.Incarnation); err != nil && ctx.Err() == nil {
		c.deps.Log.Warn().Err(err).Msg("the tenure of this controller's predecessor could not be ended; waiting for it to time out")
	}
}

// rule is one tenure, from the election to its end. It returns why it ended.
func (c *Controller) rule(ctx context.Context, s *store.Store, kv openedKV, t store.Tenure) error {
	act := active.New(active.Config{
		Defaults: c.cfg.Topics.defaults(c.deps.Dev), RecoveryWait: c.cfg.Cluster.RecoveryWait.Std(),
		SessionTimeout: c.cfg.Cluster.SessionTimeout.Std(), Dev: c.deps.Dev,
		Probe: c.cfg.Cluster.Probe, FastFencing: c.cfg.Cluster.FastFencing, Sole: kv.sole,
		PreferredAfter: c.cfg.Cluster.PreferredDelay.Std(),
	}, active.Deps{Store: s, Mirror: c.mirror, Metrics: c.metrics, Prober: c.prober, Log: c.deps.Log}, t)
	c.setTenure(act)
	c.deps.Log.Info().Int64("controller_epoch", t.Epoch).Msg("this controller is the active one")
	g, tctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.Hold(tctx, t) })
	g.Go(func() error { return act.Run(tctx) })
	g.Go(func() error { c.yieldLead(tctx, kv); return nil })
	err := g.Wait()
	c.setTenure(nil)
	c.deps.Log.Info().Int64("controller_epoch", t.Epoch).AnErr("cause", err).Msg("this controller is not the active one any more")
	if err := s.Resign(context.WithoutCancel(ctx), t); err != nil {
		c.deps.Log.Warn().Err(err).Msg("the tenure could not be resigned; the next one begins when it times out")
	}
	return err
}

// yieldLead moves the leadership of etcd to another member while this controller is the active one: the end of this process then
// costs one election, not two in turn.
func (c *Controller) yieldLead(ctx context.Context, kv openedKV) {
	if kv.yield == nil {
		return
	}
	yield := func() {
		if err := kv.yield(ctx); err != nil && ctx.Err() == nil {
			c.deps.Log.Debug().Err(err).Msg("the leadership of etcd could not be moved to another member")
		}
	}
	yield()
	lifecycle.Every(ctx, yieldPeriod, func(time.Time) { yield() })
}

func (c *Controller) setTenure(act *active.Active) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tenure = act
	if act == nil {
		return
	}
	select {
	case <-c.serving:
	default:
		close(c.serving)
	}
}
