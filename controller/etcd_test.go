package controller_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/rs/zerolog"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/controller"
	"github.com/runnelmq/runnel/controller/state"
	"github.com/runnelmq/runnel/controller/store"
	"github.com/runnelmq/runnel/internal/config"
)

// onDisk returns the configuration of a controller with an embedded etcd, on free ports.
func onDisk(dir string) controller.Config {
	cfg := controller.DefaultConfig()
	cfg.DataDir = dir
	cfg.Listen = controller.ListenConfig{Controller: "127.0.0.1:0", Admin: "127.0.0.1:0"}
	cfg.Etcd.Client, cfg.Etcd.Peer = "127.0.0.1:0", "127.0.0.1:0"
	cfg.Cluster.Probe = false
	cfg.Etcd.Heartbeat = config.Duration(20 * time.Millisecond)
	return cfg
}

// startOnDisk runs a controller until stop is called.
func startOnDisk(t *testing.T, cfg controller.Config, deps controller.Deps) (c *controller.Controller, stop func() error) {
	t.Helper()
	deps.Log = zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.InfoLevel)
	c, err := controller.New(cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var runErr error
	done := make(chan struct{})
	wg.Go(func() {
		defer close(done)
		runErr = c.Run(ctx)
	})
	stop = func() error {
		cancel()
		<-done
		return runErr
	}
	select {
	case <-c.Ready():
	case <-done:
		t.Fatalf("the controller ended: %v", runErr)
	}
	return c, stop
}

func TestEmbeddedEtcd_keeps_everything_over_a_restart(t *testing.T) {
	dir := t.TempDir()
	reg := prometheus.NewRegistry()
	c, stop := startOnDisk(t, onDisk(dir), controller.Deps{Bootstrap: true, Registry: reg})
	w := &world{t: t, dialer: (&net.Dialer{}).DialContext}
	b := w.newBroker(1).serve(c.Addr())
	created := mustCreate(t, w.client(c.Addr()), &runnelv1.NewTopic{Name: "t", Partitions: new(int32(300)), Configs: map[string]string{"retention.ms": "5"}})
	families, err := reg.Gather()
	if err != nil || len(families) == 0 {
		t.Errorf("metrics: %d families, %v", len(families), err)
	}
	if problems, err := promlint.NewWithMetricFamilies(families).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("metrics: %v, %v", problems, err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	b.leave()
	cluster, epoch, controllerEpoch := b.register.GetClusterId(), b.epoch, b.controllerEpoch

	start := time.Now()
	c, stop = startOnDisk(t, onDisk(dir), controller.Deps{})
	b = b.restarted().serve(c.Addr())
	awaitLeader(b, created.GetTopicId(), 1, 1)
	t.Logf("back in service after %v", time.Since(start))
	topic := b.topicNamed("t")
	b.locked(func() {
		if topic.GetTopicId() != created.GetTopicId() || topic.GetConfigs()["retention.ms"] != "5" || len(b.partitions) != 300 {
			t.Errorf("the topic is %v with %d partitions", topic, len(b.partitions))
		}
		if b.register.GetClusterId() != cluster || b.epoch != epoch+1 || b.controllerEpoch != controllerEpoch+1 {
			t.Errorf("cluster %s, broker epoch %d, controller epoch %d; they were %s, %d, %d", b.register.GetClusterId(), b.epoch, b.controllerEpoch, cluster, epoch, controllerEpoch)
		}
	})
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	b.failure()
	b.leave()
}

func TestEmbeddedEtcd_is_not_made_by_accident(t *testing.T) {
	c, err := controller.New(onDisk(t.TempDir()), controller.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Run(t.Context()); !errors.Is(err, store.ErrNoData) {
		t.Errorf("without data and without Bootstrap: %v, want ErrNoData", err)
	}
}

func TestRun_says_which_port_is_taken(t *testing.T) {
	var lc net.ListenConfig
	taken, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for option, change := range map[string]func(*controller.Config){
		"listen.controller": func(c *controller.Config) { c.Listen.Controller = taken.Addr().String() },
		"listen.admin":      func(c *controller.Config) { c.Listen.Admin = taken.Addr().String() },
		"etcd.client":       func(c *controller.Config) { c.Etcd.Client = taken.Addr().String() },
		"etcd.peer":         func(c *controller.Config) { c.Etcd.Peer = taken.Addr().String() },
	} {
		cfg := onDisk(t.TempDir())
		change(&cfg)
		c, err := controller.New(cfg, controller.Deps{Bootstrap: true})
		if err != nil {
			t.Fatal(err)
		}
		err = c.Run(t.Context())
		if err == nil {
			t.Errorf("%s: no error", option)
			continue
		}
		if !containsAll(err.Error(), option, taken.Addr().String()) {
			t.Errorf("%s: the error names neither option nor address: %v", option, err)
		}
	}
}

// kill -9 leaves the election key behind; the next process on the same data does not wait for it to time out.
func TestEmbeddedEtcd_deposes_its_dead_predecessor(t *testing.T) {
	dir := t.TempDir()
	m, err := store.OpenMember(t.Context(), store.Embedded{
		Dir: filepath.Join(dir, "etcd"), Client: "127.0.0.1:0", Peer: "127.0.0.1:0", Bootstrap: true,
		QuotaSize: 64 << 20, Compact: time.Hour, Tick: 20 * time.Millisecond, Start: 20 * time.Second,
	}, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	s := store.New(m, "runnel")
	if err := electAnother(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	_, stop := startOnDisk(t, onDisk(dir), controller.Deps{})
	if took := time.Since(start); took > heldFor/2 {
		t.Errorf("it took %v", took)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}

// heldFor is for how long electAnother holds a cluster.
const heldFor = 3 * time.Minute

// electAnother makes a cluster and a controller that holds it for heldFor and is never heard of again.
func electAnother(ctx context.Context, s *store.Store) error {
	if _, err := s.ClusterID(ctx, uuid.New(), true, false); err != nil {
		return err
	}
	var counters *state.Counters
	fctx, cancel := context.WithCancel(ctx)
	defer cancel()
	image := state.NewImage()
	if err := s.Follow(fctx, func(rev state.Revision, updates []state.Update) {
		image.Apply(rev, updates)
		counters = image.Counters()
		cancel()
	}); err != nil {
		return err
	}
	_, won, err := s.Campaign(ctx, state.Controller{Address: "elsewhere:7422", Incarnation: uuid.New()}, counters, heldFor)
	if err == nil && !won {
		err = errors.New("not elected")
	}
	return err
}

func containsAll(s string, parts ...string) bool {
	for _, p := range parts {
		if !strings.Contains(s, p) {
			return false
		}
	}
	return true
}
