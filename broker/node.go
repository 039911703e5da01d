package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/coordinator"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/broker/producer"
	"github.com/runnelmq/runnel/broker/replication"
	"github.com/runnelmq/runnel/broker/router"
	"github.com/runnelmq/runnel/broker/rpc"
	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/lifecycle"
	"github.com/runnelmq/runnel/internal/rpcserver"
	"github.com/runnelmq/runnel/internal/telemetry"
	"github.com/runnelmq/runnel/internal/wire"
)

// featureLevel is the level of formats this version writes and understands: the
// first one.
const featureLevel = 1

// A node is a broker with its data directory open and its ports bound.
type node struct {
	broker *Broker
	log    zerolog.Logger
	lis    listeners

	root    *commitlog.Root
	store   *metadata.Store
	session *metadata.Session
	ids     *metadata.ProducerIDs
	set     *partition.Set

	replicas  *replication.Server
	followers *replication.Followers

	router   *router.Router
	groups   *coordinator.Coordinator
	logs     *rpc.LogService
	forward  *rpc.ForwardService
	client   *rpcserver.Server
	internal *rpcserver.Server
	drain    chan struct{} // closed when streams are to end
	leaving  atomic.Bool   // shutting down
}

// open takes the data directory and the ports, and builds the rest. Nothing of
// it runs yet.
func (b *Broker) open(ctx context.Context) (n *node, err error) {
	sec, err := b.security()
	if err != nil {
		return nil, err
	}
	n = &node{broker: b, log: b.deps.Log.With().Str("component", "broker").Int32("broker", b.cfg.ID).Logger(), drain: make(chan struct{})}
	if n.lis, err = b.listen(ctx); err != nil {
		return nil, err
	}
	n.root, err = commitlog.OpenRoot(b.deps.FS, b.cfg.DataDir, b.rootOptions(n.log))
	if err != nil {
		n.lis.close()
		return nil, fmt.Errorf("data_dir %s: %w", b.cfg.DataDir, err)
	}
	if s := n.root.Start(); s.Why != "" || len(s.Problems) > 0 {
		n.log.Warn().Str("data_dir", b.cfg.DataDir).Str("why", s.Why).Errs("problems", s.Problems).Msg("the last run did not end in an orderly way")
	}
	if _, limit, ok := descriptors(); ok && limit < fewDescriptors {
		n.log.Warn().Int("limit", limit).Msg("the process may open few files: raise the limit (ulimit -n), or connections will be refused early")
	}
	n.build(sec)
	return n, nil
}

// fewDescriptors is a limit with which a broker is soon in trouble.
const fewDescriptors = 4096

func (b *Broker) rootOptions(log zerolog.Logger) commitlog.RootOptions {
	return commitlog.RootOptions{
		BrokerID:           b.cfg.ID,
		BootID:             b.deps.BootID,
		DistrustPageCache:  !b.cfg.Storage.TrustPageCache,
		ReserveBytes:       int64(b.cfg.Storage.ReserveBytes),
		CheckpointInterval: b.cfg.Storage.CheckpointInterval.Std(),
		OnEvent: func(id commitlog.PartitionID, e commitlog.Event) {
			log.Warn().Stringer("partition_id", id).Stringer("event", e.Kind).Str("path", e.Path).Int64("position", e.Position).Str("detail", e.Detail).
				Msg("a log healed or found something")
		},
		OnWarning: func(err error) { log.Warn().Err(err).Msg("storage maintenance failed and will be tried again") },
	}
}

func (n *node) build(sec security) {
	b := n.broker
	reg := telemetry.Prefixed(b.deps.Registry)
	id := metadata.BrokerID(b.cfg.ID)
	n.store = metadata.NewStore(id)
	n.session = metadata.NewSession(metadata.SessionConfig{
		Broker: &controllerv1.BrokerRecord{
			BrokerId: b.cfg.ID, Incarnation: b.incarnation, DirectoryId: n.root.ID().DirectoryID.String(),
			ClientAddress:   advertised(b.cfg.Listen.AdvertisedClient, n.lis.client),
			InternalAddress: advertised(b.cfg.Listen.AdvertisedInternal, n.lis.internal),
			Rack:            b.cfg.Rack, Version: b.deps.Version, MinFeatureLevel: featureLevel, MaxFeatureLevel: featureLevel,
		},
		Controllers: b.cfg.Controllers, Dial: b.dial(sec.dial, nil), Identity: identity{n.root}, Condition: n.condition,
		Log: b.deps.Log.With().Str("component", "session").Logger(),
	}, n.store)
	n.set = partition.NewSet(partition.Config{
		Incarnation: b.incarnation, MaintainEvery: b.cfg.Storage.MaintenanceInterval.Std(), Flushers: b.cfg.Storage.Flushers,
		ReplicaLagMax: b.cfg.Replication.LagTimeMax.Std(),
		Cleaner: partition.CleanerConfig{
			Threads: b.cfg.Storage.Cleaner.Threads, DedupeBufferBytes: int64(b.cfg.Storage.Cleaner.DedupeBufferBytes),
			BytesPerSecond: int64(b.cfg.Storage.Cleaner.MaxBytesPerSecond), Backoff: b.cfg.Storage.Cleaner.Backoff.Std(),
		},
		Producers: producer.Config{ExpiryMs: b.cfg.Producers.Expiry.Std().Milliseconds(), Max: b.cfg.Producers.MaxPerPartition},
	}, partition.Deps{
		Root: n.root, Store: n.store, Session: n.session, Metrics: reg, Log: b.deps.Log.With().Str("component", "partition").Logger(),
	})
	finder := metadata.Finder{Store: n.store, CatchUp: n.session.CatchUp, Refusal: n.session.Refusal}
	pool := wire.NewPool()
	codec := wire.NewCodec(pool)
	log := b.deps.Log.With().Str("component", "rpc").Logger()
	n.client = rpcserver.New(rpcserver.Options{
		Port: rpcserver.ClientPort, Rules: rpc.Rules(), Log: log, Metrics: reg, Codec: codec, TLS: sec.clientPort,
		NoReflection: !b.cfg.Listen.Reflection,
	})
	n.internal = rpcserver.New(rpcserver.Options{
		Port: rpcserver.InternalPort, Rules: append(rpc.Rules(), replication.Rules()...), Log: log, Metrics: reg, Codec: codec,
		TLS: sec.internalPort, Secret: string(b.cfg.Security.ClusterSecret), NoReflection: !b.cfg.Listen.Reflection,
	})
	n.buildReplication(b.dial(sec.dial, codec), pool, replication.NewMetrics(reg))
	maxAge := b.cfg.Streams.MaxAge.Std()
	if maxAge == 0 {
		maxAge = -1
	}
	n.router = router.New(router.Options{Store: n.store, Dial: b.dial(sec.dial, codec), Rules: rpc.Rules(), Pool: pool, Metrics: reg})
	n.logs = rpc.NewLogService(rpc.LogOptions{
		Store: n.store, Partitions: n.set, Rules: rpc.Rules(), Metrics: reg, Pool: pool, Router: n.router, Find: finder.Find, CatchUp: n.session.CatchUp,
		MaxInflight: b.cfg.Streams.ProduceMaxInflight, MaxStreamAge: maxAge, GoawayGrace: b.cfg.Streams.GoawayGrace.Std(),
		FetchBuffer: int64(b.cfg.Streams.FetchBufferBytes),
	})
	n.logs.Register(n.client)
	admin := rpc.AdminDeps{
		Store: n.store, Session: n.session, Set: n.set, Root: n.root, Finder: finder, Router: n.router, Descriptors: descriptors,
		Version: b.deps.Version, Drain: n.drain, Log: log,
	}
	counter := rpc.NewAdminService(admin)
	runnelv1.RegisterAdminServiceServer(n.client, counter)
	runnelv1.RegisterMetadataServiceServer(n.client, rpc.NewMetadataService(admin, maxAge))
	n.ids = metadata.NewProducerIDs(n.session)
	runnelv1.RegisterProducerServiceServer(n.client, rpc.NewProducerService(n.ids, admin))
	n.buildGroups(finder, counter, reg)
	n.forward = rpc.NewForwardService(n.logs, counter)
	n.forward.Register(n.internal)
	n.client.Recovering()
	n.internal.Recovering()
	newMetrics(n, reg)
}

// buildReplication builds both ends of the copying between brokers.
func (n *node) buildReplication(dial func(addr string) (*grpc.ClientConn, error), pool *wire.Pool, metrics *replication.Metrics) {
	b := n.broker
	cfg := replication.Config{Streams: b.cfg.Replication.Streams, CatchUpRate: int64(b.cfg.Replication.CatchUpRate), CatchUpShare: b.cfg.Replication.CatchUpShare}
	deps := replication.Deps{
		Store: n.store, Set: n.set, Incarnation: b.incarnation, ClusterID: identity{n.root}.ClusterID, Pool: pool, Dial: dial, Metrics: metrics,
		Log: b.deps.Log.With().Str("component", "replication").Logger(),
	}
	n.replicas = replication.NewServer(cfg, deps)
	n.followers = replication.NewFollowers(cfg, deps)
	replicav1.RegisterReplicaServiceServer(n.internal, n.replicas)
}

func (n *node) addrs() Addrs {
	a := Addrs{Client: n.lis.client.Addr().String(), Internal: n.lis.internal.Addr().String()}
	if n.lis.admin != nil {
		a.Admin = n.lis.admin.Addr().String()
	}
	return a
}

func (n *node) condition() metadata.Condition {
	return metadata.Condition{DiskLow: n.root.Disk().Soft, StorageFailed: n.root.Failure().Err() != nil}
}

// identity keeps whom the broker belongs to in the data root.
type identity struct {
	root *commitlog.Root
}

func (i identity) ClusterID() string             { return i.root.ID().ClusterID }
func (i identity) HighestControllerEpoch() int64 { return i.root.ID().HighestControllerEpoch }
func (i identity) DataEpoch() int64              { return i.root.ID().BrokerEpoch }

func (i identity) Remember(clusterID string, controllerEpoch, brokerEpoch int64) error {
	return errors.Join(i.root.SetCluster(clusterID), i.root.SetControllerEpoch(controllerEpoch), i.root.SetBrokerEpoch(brokerEpoch))
}

// A stage is a group of parts that end together. Stages end one after another,
// so that what others stand on outlives them.
type stage struct {
	group  *errgroup.Group
	cancel context.CancelFunc
	ended  <-chan struct{} // one of its parts failed, or it was canceled
}

// begin starts a stage that outlives the end of ctx.
func begin(ctx context.Context, parts ...func(context.Context) error) stage {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	g, gctx := errgroup.WithContext(ctx)
	for _, part := range parts {
		g.Go(func() error { return part(gctx) })
	}
	return stage{group: g, cancel: cancel, ended: gctx.Done()}
}

// end cancels the stage and waits for all of it.
func (s stage) end() error {
	s.cancel()
	return s.group.Wait()
}

// run runs the broker until ctx is done or something fails, and takes it down
// in order: whoever writes first, then the logs, then the session, and last the
// ports by which others see that the broker is there.
func (n *node) run(ctx context.Context) error {
	ports := begin(ctx, n.servePorts()...)
	control := begin(ctx, n.session.Run, n.ids.Run, n.watchReadiness)
	storage := begin(ctx, n.root.Run, n.set.Run, n.followers.Run)
	forwards := begin(ctx, n.router.Run)
	groups := begin(ctx, n.groups.Run)
	clients := begin(ctx, func(ctx context.Context) error {
		return lifecycle.Serve(ctx, n.client.Server, n.lis.client, n.drainTime())
	})
	n.log.Info().Str("client", n.addrs().Client).Str("internal", n.addrs().Internal).Str("admin", n.addrs().Admin).
		Str("data_dir", n.broker.cfg.DataDir).Msg("the broker is starting")

	select {
	case <-ctx.Done():
		n.leave(ctx)
	case <-ports.ended:
	case <-control.ended:
	case <-storage.ended:
	case <-n.root.Failure().Done(): // the storage ends after that, and not while the disk hangs, too
	case <-forwards.ended:
	case <-groups.ended:
	case <-clients.ended:
	}
	if err := n.root.Failure().Err(); err != nil {
		// Nothing positive may be answered from here on, and nobody is kept
		// waiting for what will not come.
		n.log.Error().Err(err).Msg("the storage failed: the broker goes down")
		n.set.Stop(partition.ErrStorageFailed)
		stop := time.AfterFunc(failureGrace, n.client.Stop)
		defer stop.Stop()
	}
	n.startDrain()
	err := clients.end()
	n.logs.Wait()
	err = errors.Join(err, groups.end(), forwards.end())
	n.set.Stop(partition.ErrShuttingDown)
	err = errors.Join(err, storage.end())
	n.replicas.Drain()
	err = errors.Join(err, n.closeRoot())
	n.forward.Drain() // what came for partitions of this broker has been answered
	err = errors.Join(err, control.end(), ports.end())
	n.replicas.Wait()
	n.forward.Wait()
	n.log.Info().Err(err).Msg("the broker has ended")
	return err
}

// failureGrace is how long answers may take to get out when the disk failed.
const failureGrace = 500 * time.Millisecond

// servePorts are the parts that show the broker to others.
func (n *node) servePorts() []func(context.Context) error {
	parts := []func(context.Context) error{
		func(ctx context.Context) error {
			return lifecycle.Serve(ctx, n.internal.Server, n.lis.internal, time.Second)
		},
	}
	if n.lis.admin != nil {
		admin := telemetry.Admin{Metrics: n.broker.deps.Registry, Healthy: n.root.Failure().Err, Ready: n.notReady, Log: n.log}
		parts = append(parts, func(ctx context.Context) error { return admin.Serve(ctx, n.lis.admin) })
	}
	return parts
}

// leave hands the leaderships over, if a controller can be reached in time.
func (n *node) leave(ctx context.Context) {
	n.leaving.Store(true)
	n.client.SetReady(false)
	n.internal.SetReady(false)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), n.broker.cfg.Shutdown.HandOverTimeout.Std())
	defer cancel()
	if err := n.session.HandOver(ctx); err != nil {
		n.log.Warn().Err(err).Msg("draining without having handed the leaderships over")
	}
}

// startDrain asks all streams to end.
func (n *node) startDrain() {
	n.leaving.Store(true)
	n.client.SetReady(false)
	n.internal.SetReady(false)
	close(n.drain)
	n.logs.Drain()
}

// drainTime is what is left for streams when the other steps had theirs.
func (n *node) drainTime() time.Duration {
	s := n.broker.cfg.Shutdown
	return max((s.Timeout.Std()-s.HandOverTimeout.Std())*4/5, 50*time.Millisecond)
}

// closeRoot makes all durable, and marks the end as orderly. A failed disk is
// not written to again.
func (n *node) closeRoot() error {
	err := n.root.Close(n.session.Epoch())
	if n.root.Failure().Err() == nil {
		return err
	}
	return nil // the failure is reported by who met it
}

// Readiness.
var (
	errRecovering = errors.New("recovering: the logs are being opened")
	errFenced     = errors.New("not in service yet: the controller has not admitted this broker")
	errCatchingUp = errors.New("catching up: some replicas are not in sync yet")
	errElecting   = errors.New("some partitions of this broker are about to get their leader")
	errLeaving    = errors.New("shutting down")
)

// catchUpTime is after how long a broker is ready though some of its replicas
// are not back in sync, or not led.
const catchUpTime = 60 * time.Second

// unready says why the broker should get no work, nil when it should. That no
// controller can be reached is no reason: records flow without one.
func (n *node) unready() error {
	img := n.store.Load()
	self, ok := img.Broker(img.Self)
	switch {
	case n.leaving.Load():
		return errLeaving
	case !n.set.Recovered():
		return errRecovering
	case !ok || self.Phase != metadata.BrokerActive || self.Incarnation != n.broker.incarnation:
		return errFenced
	}
	return nil
}

// lagging says why work sent to this broker would not go well yet: a replica
// of it is out of its ISR, or one that it could lead is not led. Leaders are
// elected, and begin to lead, after the broker was let into service.
func (n *node) lagging() error {
	img := n.store.Load()
	for _, t := range img.Topics() {
		for i := range t.Partitions {
			p := &t.Partitions[i]
			switch {
			case !slices.Contains(p.Replicas, img.Self):
			case !slices.Contains(p.ISR, img.Self):
				return errCatchingUp
			case p.Leader == metadata.NoBroker, p.Leader == img.Self && !n.leads(t, int32(i)): //nolint:gosec // bounded by the image
				return errElecting
			}
		}
	}
	return nil
}

// leads says whether this broker leads a partition as the metadata has it, or
// has lost what it would lead.
func (n *node) leads(t *metadata.Topic, i int32) bool {
	p, err := n.set.Get(t.ID, i)
	if err != nil {
		return !errors.Is(err, partition.ErrNoLeader)
	}
	return p.State().Leader
}

// notReady is unready, and before the broker has been ready once also why that
// takes so long.
func (n *node) notReady() error {
	if err := n.unready(); err != nil {
		return err
	}
	select {
	case <-n.broker.inService:
		return nil
	default:
		return cmp.Or(n.lagging(), errCatchingUp)
	}
}

// watchReadiness keeps the health services up to date until ctx is done.
func (n *node) watchReadiness(ctx context.Context) error {
	start := time.Now()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	ready := false
	for {
		changed := n.store.Changed()
		err := n.unready()
		if err == nil && !ready && time.Since(start) < catchUpTime {
			err = n.lagging()
		}
		n.client.SetReady(err == nil)
		n.internal.SetReady(err == nil)
		if err == nil && !ready {
			ready = true
			n.log.Info().Dur("took", time.Since(start)).Msg("the broker is in service")
			close(n.broker.inService)
			tick.Reset(time.Minute) // from now on only a change of the image matters
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
