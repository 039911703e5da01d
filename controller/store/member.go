package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
)

// ErrNoData is returned when there is no member's data and none is to be made.
var ErrNoData = errors.New("there is no metadata here")

// ErrStopped is returned when a member ends while it starts, as etcd has it when the others say that they removed it.
var ErrStopped = errors.New("the member stopped while starting: if it was removed from the cluster (runnel controller members, where another controller runs, does not list its id), " +
	"move its directory away and start it with runnel controller join; else look at what it logged before")

// Embedded says how to run an etcd member in this process.
type Embedded struct {
	Dir    string // its data
	Name   string // apart from those of other members; "" for runnel
	Client string // host:port it serves clients on, for operators' tools
	Peer   string // host:port it serves other members on
	// AdvertisedPeer is the host:port that other members come to; "" for Peer.
	AdvertisedPeer string
	// Members are the first members of a new cluster, this one among them; empty: this one alone.
	Members []Peer
	// CertFile, KeyFile and CAFile make both ports mutual TLS; "" for plaintext.
	CertFile, KeyFile, CAFile string
	// Join, when there is no data, makes this a new member of the cluster that is reached there, instead of the first of a new one.
	Join *External
	// Bootstrap permits making a new, empty member. Without it a member whose data was lost would come up as a new cluster.
	Bootstrap bool
	QuotaSize int64         // bytes of metadata before writes are refused
	Compact   time.Duration // how much history watches can catch up with
	Tick      time.Duration // heartbeat between members; elections take ten
	Start     time.Duration // how long the start may take
}

// A Peer is a member as the others reach it.
type Peer struct {
	Name, Addr string
}

// A Member is an etcd member in this process.
type Member struct {
	*Etcd

	server  *embed.Etcd
	closing *atomic.Bool

	yielding atomic.Bool
	yields   sync.WaitGroup // what Yield began
}

const (
	// closeGrace is how long a member that ends may try to give the leadership away, and clients may take to leave. A peer that hangs
	// would keep it for 7 s.
	closeGrace = time.Second
	// quotaRoom is the part of the quota that must be free for a member that was full to write again; as much is worth a defragmentation
	// at the start.
	quotaRoom = 8
	// closeTimeout bounds the end of a member: it has been seen to hang.
	closeTimeout = 10 * time.Second
)

// HasData reports whether a member has ever lived in dir.
func HasData(dir string) (bool, error) {
	_, err := os.Stat(filepath.Join(dir, "member"))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// OpenMember starts a member and waits until it serves.
func OpenMember(ctx context.Context, e Embedded, log zerolog.Logger) (*Member, error) {
	if err := discardUnused(e.Dir); err != nil {
		return nil, fmt.Errorf("etcd data: %w", err)
	}
	has, err := HasData(e.Dir)
	if err != nil {
		return nil, fmt.Errorf("etcd data: %w", err)
	}
	if !has && !e.Bootstrap && e.Join == nil {
		return nil, fmt.Errorf("%w: %s holds none: to begin a new cluster, start its first controller once with --bootstrap; to add a controller to a cluster, start it once with join; if there was data, restore it", ErrNoData, e.Dir)
	}
	if err := os.MkdirAll(e.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("etcd data: %w", err)
	}
	if err := checkFiles(e.Dir); err != nil {
		return nil, fmt.Errorf("start etcd in %s: %w", e.Dir, err)
	}
	cfg := e.config()
	closing := &atomic.Bool{}
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zapLogger(log, closing))
	if !has && e.Join != nil {
		if err := e.prepareJoin(ctx, cfg, log); err != nil {
			return nil, err
		}
	}
	server, err := startEtcd(cfg)
	if err != nil && strings.Contains(err.Error(), "has already been bootstrapped") { // etcd has no error of its own for it
		err = fmt.Errorf("%w: the data of this one are gone, and what it voted for with them: remove it where another controller runs (runnel controller remove %s),\n"+
			"then start it with runnel controller join, and no --bootstrap (%w)", ErrMemberLost, e.name(), err)
	}
	if err != nil {
		return nil, fmt.Errorf("start etcd in %s: %w", e.Dir, err)
	}
	m := &Member{server: server, closing: closing}
	err = m.await(ctx, e.Start)
	// One that joins may not have heard yet that it is a learner.
	if err == nil && (server.Server.IsLearner() || (!has && e.Join != nil)) {
		err = e.promote(ctx, server.Server, log)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start etcd in %s: %w", e.Dir, err), m.Close())
	}
	m.Etcd = &Etcd{client: v3client.New(server.Server)}
	if err := m.disarm(ctx, e, log); err != nil {
		log.Warn().Err(err).Msg("whether the metadata store was full could not be looked at")
	}
	return m, nil
}

// disarm ends what etcd keeps up once it was full, also over a restart and with a higher quota: that it refuses to write. It does so
// where this member has room again. An alarm of another member is for that one to disarm.
func (m *Member) disarm(ctx context.Context, e Embedded, log zerolog.Logger) error {
	if m.server.Server.Backend().Size() > e.QuotaSize-e.QuotaSize/quotaRoom {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, e.Start)
	defer cancel()
	alarms, err := m.client.AlarmList(ctx)
	if err != nil {
		return translate(err)
	}
	for _, a := range alarms.Alarms {
		if a.GetAlarm() != etcdserverpb.AlarmType_NOSPACE || a.GetMemberID() != uint64(m.server.Server.MemberID()) {
			continue
		}
		if _, err := m.client.AlarmDisarm(ctx, (*clientv3.AlarmMember)(a)); err != nil {
			return translate(err)
		}
		log.Info().Msg("the metadata store was full, and has room again")
	}
	return nil
}

// startEtcd is embed.StartEtcd, which panics when the disk is full, and on files that it can't make sense of: that is no fault of this program.
func startEtcd(cfg *embed.Config) (server *embed.Etcd, err error) {
	defer func() {
		p := recover()
		if _, ours := p.(runtime.Error); ours {
			// Where in etcd it got lost helps nobody.
			server, err = nil, unusable("etcd can't make sense of its files in member/wal and member/snap")
		} else if p != nil {
			server, err = nil, unusable("%v", p)
		}
	}()
	if server, err = embed.StartEtcd(cfg); damaged(err) {
		err = unusable("%w", err)
	}
	return server, err
}

// await waits until the member serves.
func (m *Member) await(ctx context.Context, limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-m.server.Server.ReadyNotify():
		return nil
	case <-m.server.Server.StopNotify():
		return ErrStopped
	case err := <-m.server.Err():
		select {
		case <-m.server.Server.StoppingNotify():
			return ErrStopped // what else failed is only because of that
		default:
			return err
		}
	case <-timer.C:
		return fmt.Errorf("it was not ready after %v: are the other members up?", limit)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// defaultName is the name of a member that was given none.
const defaultName = "runnel"

func (e Embedded) name() string {
	if e.Name == "" {
		return defaultName
	}
	return e.Name
}

// peerURL returns where other members come to.
func (e Embedded) peerURL() string {
	addr := e.AdvertisedPeer
	if addr == "" {
		addr = e.Peer
	}
	return e.url(addr).String()
}

func (e Embedded) url(addr string) *url.URL {
	scheme := "http"
	if e.CAFile != "" {
		scheme = "https"
	}
	return &url.URL{Scheme: scheme, Host: addr}
}

func (e Embedded) config() *embed.Config {
	cfg := embed.NewConfig()
	client, peer := []url.URL{*e.url(e.Client)}, []url.URL{*e.url(e.Peer)}
	cfg.Name = e.name()
	cfg.Dir = e.Dir
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = client, client
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = peer, peer
	if e.AdvertisedPeer != "" {
		cfg.AdvertisePeerUrls = []url.URL{*e.url(e.AdvertisedPeer)}
	}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	if len(e.Members) > 0 {
		var all []string
		for _, p := range e.Members {
			all = append(all, p.Name+"="+e.url(p.Addr).String())
		}
		cfg.InitialCluster = strings.Join(all, ",")
	}
	cfg.InitialClusterToken = "runnel"
	if e.CAFile != "" {
		info := transport.TLSInfo{CertFile: e.CertFile, KeyFile: e.KeyFile, TrustedCAFile: e.CAFile, ClientCertAuth: true}
		cfg.ClientTLSInfo, cfg.PeerTLSInfo = info, info
	}
	cfg.AutoCompactionMode = embed.CompactorModePeriodic
	cfg.AutoCompactionRetention = e.Compact.String()
	cfg.QuotaBackendBytes = e.QuotaSize
	cfg.BootstrapDefragThresholdMegabytes = uint(max(1, e.QuotaSize/quotaRoom>>20)) //nolint:gosec // validated
	cfg.TickMs = uint(e.Tick.Milliseconds())                                        //nolint:gosec // validated
	cfg.ElectionMs = uint(10 * e.Tick.Milliseconds())                               //nolint:gosec // validated
	cfg.EnableGRPCGateway = false                                                   // nobody asked for an HTTP API
	if e.CAFile == "" {
		cfg.HostWhitelist = map[string]struct{}{"127.0.0.1": {}, "localhost": {}, "::1": {}}
	}
	cfg.CORS = map[string]struct{}{}
	return cfg
}

// Err tells when the member failed.
func (m *Member) Err() <-chan error { return m.server.Err() }

// Stopped is closed when the member has stopped.
func (m *Member) Stopped() <-chan struct{} { return m.server.Server.StopNotify() }

// Sole reports whether there is no other member.
func (m *Member) Sole() bool { return len(m.server.Server.Cluster().Members()) == 1 }

// Yield moves the leadership of etcd to another member if this one has it and another votes. etcd tries for longer than a process
// has to end: when ctx is done, it is left to itself until Close.
func (m *Member) Yield(ctx context.Context) error {
	if m.server.Server.Leader() != m.server.Server.MemberID() || m.Sole() || !m.yielding.CompareAndSwap(false, true) {
		return nil
	}
	done := make(chan error, 1)
	m.yields.Go(func() {
		defer m.yielding.Store(false)
		done <- m.server.Server.TryTransferLeadershipOnShutdown()
	})
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("etcd: %w", err)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ClientAddr returns where the member serves clients.
func (m *Member) ClientAddr() net.Addr { return m.server.Clients[0].Addr() }

// Close ends the member. What was committed is on disk.
func (m *Member) Close() error {
	m.closing.Store(true)
	var err error
	if m.Etcd != nil {
		err = m.Etcd.Close()
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(done)
		m.server.Close()
	})
	hurry := time.AfterFunc(closeGrace, m.server.Server.HardStop)
	defer hurry.Stop()
	timer := time.NewTimer(closeTimeout)
	defer timer.Stop()
	select {
	case <-done:
		m.yields.Wait() // the end of the server is theirs
		return err
	case <-timer.C:
		return errors.Join(err, fmt.Errorf("etcd did not stop within %v", closeTimeout))
	}
}
