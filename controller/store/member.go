package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.uber.org/zap"
)

// ErrNoData is returned when there is no member's data and none is to be made.
var ErrNoData = errors.New("there is no metadata here")

// Embedded says how to run an etcd member in this process.
type Embedded struct {
	Dir    string // its data
	Client string // host:port it serves clients on, for operators' tools
	Peer   string // host:port it serves other members on
	// Bootstrap permits making a new, empty member. Without it a member whose data was lost would come up as a new cluster.
	Bootstrap bool
	QuotaSize int64         // bytes of metadata before writes are refused
	Compact   time.Duration // how much history watches can catch up with
	Tick      time.Duration // heartbeat between members; elections take ten
	Start     time.Duration // how long the start may take
}

// A Member is an etcd member in this process.
type Member struct {
	*Etcd

	server  *embed.Etcd
	closing *atomic.Bool
}

// closeTimeout bounds the end of a member: it has been seen to hang.
const closeTimeout = 10 * time.Second

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
	has, err := HasData(e.Dir)
	if err != nil {
		return nil, fmt.Errorf("etcd data: %w", err)
	}
	if !has && !e.Bootstrap {
		return nil, fmt.Errorf("%w: %s holds none: to begin a new cluster, start its first controller once with --bootstrap; if there was data, restore it", ErrNoData, e.Dir)
	}
	if err := os.MkdirAll(e.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("etcd data: %w", err)
	}
	closing := &atomic.Bool{}
	server, err := startEtcd(e.config(zapLogger(log, closing)))
	if err != nil {
		return nil, fmt.Errorf("start etcd in %s: %w", e.Dir, err)
	}
	m := &Member{server: server, closing: closing}
	timer := time.NewTimer(e.Start)
	defer timer.Stop()
	select {
	case <-server.Server.ReadyNotify():
		m.Etcd = &Etcd{client: v3client.New(server.Server)}
		return m, nil
	case <-server.Server.StopNotify():
		err = errors.New("it stopped while starting")
	case err = <-server.Err():
	case <-timer.C:
		err = fmt.Errorf("it was not ready after %v", e.Start)
	case <-ctx.Done():
		err = ctx.Err()
	}
	return nil, errors.Join(fmt.Errorf("start etcd in %s: %w", e.Dir, err), m.Close())
}

// ErrUnusable is returned when etcd gives up on what it finds in its directory.
var ErrUnusable = errors.New("the metadata store can't be used: look for a full disk or damaged files, free space or restore a copy")

// startEtcd is embed.StartEtcd, which panics when the disk is full, and on files that it can't make sense of: that is no fault of this program.
func startEtcd(cfg *embed.Config) (server *embed.Etcd, err error) {
	defer func() {
		if p := recover(); p != nil {
			server, err = nil, fmt.Errorf("%w: %v", ErrUnusable, p)
		}
	}()
	return embed.StartEtcd(cfg)
}

func (e Embedded) config(log *zap.Logger) *embed.Config {
	cfg := embed.NewConfig()
	client, peer := listenURL(e.Client), listenURL(e.Peer)
	cfg.Name = "runnel"
	cfg.Dir = e.Dir
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = client, client
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = peer, peer
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.InitialClusterToken = "runnel"
	cfg.AutoCompactionMode = embed.CompactorModePeriodic
	cfg.AutoCompactionRetention = e.Compact.String()
	cfg.QuotaBackendBytes = e.QuotaSize
	cfg.TickMs = uint(e.Tick.Milliseconds())          //nolint:gosec // validated
	cfg.ElectionMs = uint(10 * e.Tick.Milliseconds()) //nolint:gosec // validated
	cfg.EnableGRPCGateway = false                     // nobody asked for an HTTP API
	cfg.HostWhitelist = map[string]struct{}{"127.0.0.1": {}, "localhost": {}, "::1": {}}
	cfg.CORS = map[string]struct{}{}
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(log)
	return cfg
}

func listenURL(addr string) []url.URL {
	return []url.URL{{Scheme: "http", Host: addr}}
}

// Err tells when the member failed.
func (m *Member) Err() <-chan error { return m.server.Err() }

// Stopped is closed when the member has stopped.
func (m *Member) Stopped() <-chan struct{} { return m.server.Server.StopNotify() }

// Sole reports whether there is no other member.
func (m *Member) Sole() bool { return len(m.server.Server.Cluster().Members()) == 1 }

// Yield moves the leadership of etcd to another member if this one has it and another votes.
func (m *Member) Yield() error {
	if m.server.Server.Leader() != m.server.Server.MemberID() || m.Sole() {
		return nil
	}
	if err := m.server.Server.TryTransferLeadershipOnShutdown(); err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	return nil
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
	timer := time.NewTimer(closeTimeout)
	defer timer.Stop()
	select {
	case <-done:
		return err
	case <-timer.C:
		return errors.Join(err, fmt.Errorf("etcd did not stop within %v", closeTimeout))
	}
}
