package broker

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata/metadatatest"
	"github.com/runnelmq/runnel/internal/config"
	"github.com/runnelmq/runnel/internal/memnet"
	"github.com/runnelmq/runnel/internal/rpcerr"
	"github.com/runnelmq/runnel/internal/vfs"
)

// network is a net of listeners in memory.
type network struct {
	// mu guards the fields below
	mu sync.Mutex

	listeners map[string]*memnet.Listener
}

func (n *network) listen(_ context.Context, addr string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[addr] != nil {
		return nil, syscall.EADDRINUSE
	}
	l := memnet.Listen(addr, 1<<20)
	n.listeners[addr] = l
	return l, nil
}

func (n *network) dial(ctx context.Context, addr string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[addr]
	n.mu.Unlock()
	if l == nil {
		return nil, syscall.ECONNREFUSED
	}
	return l.DialContext(ctx)
}

func (n *network) close(addr string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.listeners, addr)
}

const (
	clientAddr     = "127.0.0.1:7420"
	internalAddr   = "127.0.0.1:7421"
	controllerAddr = "127.0.0.1:7422"
)

// town is a controller, and a disk on which brokers come and go.
type town struct {
	t          *testing.T
	net        *network
	disk       *vfs.Mem
	fault      *vfs.Fault
	controller *metadatatest.Controller
	server     *grpc.Server
	health     *health.Server // of the controller
	wg         sync.WaitGroup
	stop       context.CancelFunc
	conn       *grpc.ClientConn
}

func newTown(t *testing.T) *town {
	t.Helper()
	w := &town{t: t, net: &network{listeners: map[string]*memnet.Listener{}}, disk: vfs.NewMem(), controller: metadatatest.New()}
	w.fault = vfs.NewFault(w.disk)
	w.server = grpc.NewServer(grpc.WaitForHandlers(true))
	controllerv1.RegisterControllerServiceServer(w.server, w.controller)
	w.health = health.NewServer() // serving
	healthpb.RegisterHealthServer(w.server, w.health)
	lis, err := w.net.listen(t.Context(), controllerAddr)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w.stop = cancel
	w.wg.Go(func() { _ = w.server.Serve(lis) })
	w.wg.Go(func() { _ = w.controller.Serve(ctx) })
	conn, err := grpc.NewClient("passthrough:///"+clientAddr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(w.net.dial), grpc.WithIdleTimeout(0))
	if err != nil {
		t.Fatal(err)
	}
	w.conn = conn
	return w
}

func (w *town) close() {
	_ = w.conn.Close()
	w.stop()
	w.server.Stop()
	w.controller.Wait()
	w.wg.Wait()
}

func testConfig() Config {
	c := DefaultConfig()
	c.ID, c.DataDir, c.Listen.Admin = 1, "data", ""
	c.Streams.GoawayGrace = config.Duration(time.Second)
	return c
}

// running is a broker that runs.
type running struct {
	*Broker

	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

func (w *town) start(cfg Config) *running {
	w.t.Helper()
	b, err := New(cfg, Deps{FS: w.fault, Listen: w.net.listen, Dial: w.net.dial, Log: zerolog.Nop(), Version: "test"})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	r := &running{Broker: b, cancel: cancel, done: make(chan struct{})}
	w.wg.Go(func() {
		defer close(r.done)
		r.err = b.Run(ctx)
		w.net.close(cfg.Listen.Client)
		w.net.close(cfg.Listen.Internal)
	})
	return r
}

func (w *town) started(cfg Config) *running {
	w.t.Helper()
	r := w.start(cfg)
	select {
	case <-r.Ready():
	case <-r.done:
		w.t.Fatalf("ended: %v", r.err)
	case <-time.NewTimer(time.Minute).C:
		w.t.Fatal("not ready after a minute")
	}
	return r
}

func (r *running) end(t *testing.T) {
	t.Helper()
	r.cancel()
	<-r.done
	if r.err != nil {
		t.Errorf("Run = %v", r.err)
	}
}

func (w *town) admin() runnelv1.AdminServiceClient { return runnelv1.NewAdminServiceClient(w.conn) }

func (w *town) create(name string, partitions int32, configs map[string]string) string {
	w.t.Helper()
	resp, err := w.admin().CreateTopics(w.t.Context(), &runnelv1.CreateTopicsRequest{Topics: []*runnelv1.NewTopic{{Name: name, Partitions: &partitions, Configs: configs}}})
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.GetResults()[0].GetTopicId()
}

func (w *town) produce(topic, value string) (int64, error) {
	resp, err := runnelv1.NewLogServiceClient(w.conn).Append(w.t.Context(), &runnelv1.AppendRequest{Request: &runnelv1.ProduceRequest{
		Topic: topic, Partition: new(int32), TextRecords: []*runnelv1.ProduceTextRecord{{Value: &value}},
	}})
	for _, r := range resp.GetResponse().GetResults() {
		if r.GetError() != nil {
			err = rpcerr.ItemStatus(r.GetError()).Err()
		}
	}
	return resp.GetResponse().GetBaseOffset(), err
}

// read returns the values of partition 0, and ends.
func (w *town) read(topic string) ([]string, error) {
	stream, err := runnelv1.NewLogServiceClient(w.conn).Read(w.t.Context(), &runnelv1.ReadRequest{Request: &runnelv1.FetchRequest{
		Options:    &runnelv1.FetchOptions{Format: runnelv1.FetchFormat_FETCH_FORMAT_TEXT},
		Partitions: []*runnelv1.FetchPartition{{Topic: topic}},
	}})
	if err != nil {
		return nil, err
	}
	var out []string
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		for _, r := range m.GetResponse().GetTextRecords() {
			out = append(out, r.GetValue())
		}
	}
}
