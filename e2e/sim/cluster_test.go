package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"google.golang.org/grpc"

	"github.com/runnelmq/runnel/broker"
	"github.com/runnelmq/runnel/controller"
	"github.com/runnelmq/runnel/controller/state"
	"github.com/runnelmq/runnel/controller/store/storetest"
	"github.com/runnelmq/runnel/internal/config"
	"github.com/runnelmq/runnel/internal/rpcserver"
	"github.com/runnelmq/runnel/internal/vfs"
)

// Hosts that are neither broker nor controller, and what all share.
const (
	clientHost = "clients"
	storeHost  = "store"
	secret     = "of this simulation"
)

// A shape is how large a cluster is, and how it is tuned.
type shape struct {
	controllers, brokers int
	lag                  time.Duration // replica lag
	latency              time.Duration // the most that a healthy link, a sync or half a call of the store takes
}

// A cluster is controllers and brokers, each a process on a host of its own.
type cluster struct {
	t     *testing.T
	rng   *rand.Rand
	shape shape
	net   *network
	kv    *storetest.Fake
	logs  *journal
	wg    sync.WaitGroup // of all processes that ever ran

	brokers     []*brokerHost
	controllers []*controllerHost
	conns       []*grpc.ClientConn // of clients, to each broker
	topics      []*topic
	group       *groupWatch           // nil: there is none
	objects     map[string]readObject // of the store, by path

	judge *judge
}

// A brokerHost is a machine for a broker.
type brokerHost struct {
	c     *cluster
	id    int32
	name  string
	boots int
	mem   *vfs.Mem // what is on the disk for the next process
	proc  *brokerProcess
	down  bool
	// leaving: its process ends in an orderly way.
	leaving bool
	// before is the incarnation of the process before the present one.
	before uuid.UUID
	// lossy: its power was cut, and it has not been seen in all its ISRs since.
	lossy bool
}

// A brokerProcess is one run of a broker.
type brokerProcess struct {
	*broker.Broker

	disk   *disk
	cancel context.CancelFunc
	done   chan struct{}
}

// A controllerHost is a machine for a controller.
type controllerHost struct {
	c      *cluster
	name   string
	link   *storeLink
	cancel context.CancelFunc
	done   chan struct{}
	down   bool
}

func newCluster(t *testing.T, seed uint64, s shape) *cluster {
	t.Helper()
	c := &cluster{
		t: t, rng: rand.New(rand.NewPCG(seed, 1)), shape: s, net: newNetwork(), kv: storetest.New(), logs: newJournal(), objects: map[string]readObject{},
	}
	c.judge = newJudge(c)
	c.kv.Audit(c.judge.audit)
	c.spread()
	for i := range s.controllers {
		h := &controllerHost{c: c, name: fmt.Sprintf("c%d", i)}
		c.controllers = append(c.controllers, h)
		h.start()
	}
	for i := range s.brokers {
		h := &brokerHost{c: c, id: int32(i), name: fmt.Sprintf("b%d", i), mem: vfs.NewMem()}
		c.brokers = append(c.brokers, h)
		h.start()
		conn, err := rpcserver.Dial(h.clientAddr(), rpcserver.DialOptions{Dial: c.dialer(clientHost, func() bool { return true })})
		if err != nil {
			t.Fatal(err)
		}
		c.conns = append(c.conns, conn)
	}
	return c
}

// spread gives each link a latency of its own, so that what happens in one step
// elsewhere takes several here.
func (c *cluster) spread() {
	hosts := []string{clientHost}
	for i := range c.shape.brokers {
		hosts = append(hosts, fmt.Sprintf("b%d", i))
	}
	for i := range c.shape.controllers {
		hosts = append(hosts, fmt.Sprintf("c%d", i))
	}
	for _, a := range hosts {
		for _, b := range hosts {
			c.net.latency[link{a, b}] = c.some()
		}
	}
}

// some is a latency.
func (c *cluster) some() time.Duration {
	return time.Duration(c.rng.Int64N(int64(c.shape.latency) + 1))
}

// addresses are where clients reach the brokers.
func (c *cluster) addresses() (out []string) {
	for _, h := range c.brokers {
		out = append(out, h.clientAddr())
	}
	return out
}

// dialer connects a host. Addresses begin with the host's name.
func (c *cluster) dialer(from string, alive func() bool) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, addr string) (net.Conn, error) {
		host, _, _ := strings.Cut(addr, ":")
		return c.net.dial(ctx, from, host, addr, alive)
	}
}

func (c *cluster) listener(host string, alive func() bool) func(context.Context, string) (net.Listener, error) {
	return func(_ context.Context, addr string) (net.Listener, error) {
		if !alive() {
			return nil, net.ErrClosed
		}
		return c.net.listen(host, addr)
	}
}

func (h *controllerHost) addr() string { return h.name + ":7422" }

func (h *controllerHost) start() {
	c := h.c
	link := newStoreLink(c.kv, c.net, h.name, c.some())
	living := func() bool { return link.ctx.Err() == nil }
	cfg := controller.DefaultConfig()
	cfg.Listen.Controller, cfg.Listen.Advertised, cfg.Listen.Admin = h.addr(), h.addr(), ""
	cfg.Security.ClusterSecret = secret
	cfg.Cluster.RecoveryWait = config.Duration(10 * time.Second)
	ctl, err := controller.New(cfg, controller.Deps{
		KV: link, Bootstrap: true, Log: c.logs.logger(h.name), Registry: prometheus.NewRegistry(),
		Listen: c.listener(h.name, living), Dial: c.dialer(h.name, living),
	})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	h.link, h.cancel, h.done, h.down = link, cancel, make(chan struct{}), false
	done := h.done
	c.wg.Go(func() {
		defer close(done)
		if err := ctl.Run(ctx); err != nil && living() {
			c.judge.complain("process", "controller %s ended by itself: %v", h.name, err)
		}
	})
}

// kill ends the controller at once.
func (h *controllerHost) kill() {
	h.link.kill()
	h.c.net.die(h.name, true)
	h.cancel()
	h.down = true
}

func (h *brokerHost) clientAddr() string   { return h.name + ":7420" }
func (h *brokerHost) internalAddr() string { return h.name + ":7421" }

func (h *brokerHost) start() {
	c := h.c
	cfg := broker.DefaultConfig()
	cfg.ID, cfg.DataDir = h.id, "data"
	cfg.Listen = broker.ListenConfig{Client: h.clientAddr(), Internal: h.internalAddr()}
	cfg.Security.ClusterSecret = secret
	cfg.Controllers = nil
	for _, ctl := range c.controllers {
		cfg.Controllers = append(cfg.Controllers, ctl.addr())
	}
	cfg.Storage.ReserveBytes = 1 << 20 // what is kept for a full disk is made at each start
	cfg.Replication.LagTimeMax = config.Duration(c.shape.lag)
	cfg.Shutdown.Timeout = config.Duration(5 * time.Second)
	p := &brokerProcess{disk: &disk{mem: h.mem, slow: c.some(), died: make(chan struct{})}, done: make(chan struct{})}
	living := func() bool { p.disk.mu.RLock(); defer p.disk.mu.RUnlock(); return !p.disk.dead }
	boot := fmt.Sprintf("%s-boot-%d", h.name, h.boots)
	b, err := broker.New(cfg, broker.Deps{
		FS: p.disk, Listen: c.listener(h.name, living), Dial: c.dialer(h.name, living), Log: c.logs.logger(h.name), Version: "sim",
		BootID: func() (string, error) { return boot, nil },
	})
	if err != nil {
		c.t.Fatal(err)
	}
	p.Broker = b
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	if b := c.picture().brokers[state.BrokerID(h.id)]; b != nil {
		h.before = b.Incarnation
	}
	h.proc, h.down, h.leaving = p, false, false
	c.net.boot(h.name)
	c.wg.Go(func() {
		defer close(p.done)
		err := b.Run(ctx)
		if living() && (err != nil || ctx.Err() == nil) && p.disk.failedAt().IsZero() {
			c.judge.complain("process", "broker %s ended by itself: %v", h.name, err)
		}
	})
}

// kill ends the broker's process at once; the machine goes on.
func (h *brokerHost) kill() {
	h.mem = h.proc.disk.kill()
	h.gone(true)
}

// cutPower ends the machine at once, and keeps a part of what was not synced.
func (h *brokerHost) cutPower(keep int) {
	h.mem = h.proc.disk.powerCut(h.c.rng, keep)
	h.boots++
	h.lossy = true
	h.gone(false)
}

// ended says whether the process has come to its end, by itself or as it was
// asked to.
func (h *brokerHost) ended() bool {
	select {
	case <-h.proc.done:
		return true
	default:
		return false
	}
}

// restartAfterFailure starts the broker again on the disk on which it ended,
// which holds none of what was not synced: the kernel does not keep for long
// what it could not write.
func (h *brokerHost) restartAfterFailure() {
	h.mem = h.proc.disk.powerCut(h.c.rng, 0)
	h.lossy = true
	h.gone(true)
	h.start()
}

func (h *brokerHost) gone(power bool) {
	h.c.net.die(h.name, power)
	h.proc.cancel()
	h.down = true
}

// endTime is how long all brokers together may take to end.
const endTime = 5 * time.Minute

// close ends all that runs, orderly, and waits for it.
func (c *cluster) close() {
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	for _, h := range c.brokers {
		if !h.down {
			h.proc.cancel()
		}
	}
	limit := time.NewTimer(endTime)
	defer limit.Stop()
	for _, h := range c.brokers {
		select {
		case <-h.proc.done:
		case <-limit.C:
			c.judge.complain("I19", "broker %s does not end", h.name)
			h.kill()
			limit.Reset(0) // and for the others
		}
	}
	for _, h := range c.controllers {
		h.cancel()
	}
	c.wg.Wait()
	for _, h := range c.controllers {
		h.link.kill()
	}
	c.kv.Close()
}

// A journal keeps what all processes log, for the case that a run fails.
type journal struct {
	start time.Time
	level zerolog.Level

	// mu guards the fields below
	mu  sync.Mutex
	buf bytes.Buffer
}

func newJournal() *journal {
	level, err := zerolog.ParseLevel(os.Getenv("RUNNEL_SIM_LOG"))
	if err != nil || level == zerolog.NoLevel {
		level = zerolog.Disabled
	}
	return &journal{start: time.Now(), level: level}
}

func (j *journal) logger(host string) zerolog.Logger {
	if j.level == zerolog.Disabled {
		return zerolog.Nop()
	}
	return zerolog.New(lineWriter{j, host}).Level(j.level)
}

// note writes a line of the simulation itself.
func (j *journal) note(format string, args ...any) {
	_, _ = lineWriter{j, "sim"}.Write(fmt.Appendf(nil, format+"\n", args...))
}

func (j *journal) text() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.String()
}

type lineWriter struct {
	j    *journal
	host string
}

// Write implements io.Writer.
func (w lineWriter) Write(b []byte) (int, error) {
	w.j.mu.Lock()
	defer w.j.mu.Unlock()
	_, err := fmt.Fprintf(&w.j.buf, "%9.3f %-3s %s", time.Since(w.j.start).Seconds(), w.host, b)
	return len(b), err
}

// errStopped is the cause of contexts that end because the run does.
var errStopped = errors.New("the run ends")
