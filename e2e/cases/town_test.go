package cases

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/broker"
	"github.com/runnelmq/runnel/broker/metadata/metadatatest"
	"github.com/runnelmq/runnel/client"
	"github.com/runnelmq/runnel/internal/vfs"
)

const (
	brokerAddr     = "127.0.0.1:7420"
	internalAddr   = "127.0.0.1:7421"
	controllerAddr = "127.0.0.1:7422"
)

// A town is one broker, its controller and a network.
type town struct {
	t          *testing.T
	net        *network
	disk       *vfs.Mem
	config     broker.Config
	controller *metadatatest.Controller
	wg         sync.WaitGroup
	stop       func()      // the broker
	dead       atomic.Bool // it is being killed: what it says does not count
}

// inTown runs f in a bubble with a broker. tune may change its configuration.
func inTown(t *testing.T, tune func(*broker.Config), f func(w *town)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &town{t: t, net: newNetwork(), disk: vfs.NewMem(), controller: metadatatest.New(), config: broker.DefaultConfig()}
		w.config.ID, w.config.DataDir, w.config.Listen.Admin = 1, "data", ""
		w.config.Controllers = []string{controllerAddr}
		if tune != nil {
			tune(&w.config)
		}
		srv := grpc.NewServer(grpc.WaitForHandlers(true))
		controllerv1.RegisterControllerServiceServer(srv, w.controller)
		healthpb.RegisterHealthServer(srv, health.NewServer())
		lis, err := w.net.listen(t.Context(), controllerAddr)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		w.wg.Go(func() { _ = srv.Serve(lis) })
		w.wg.Go(func() { _ = w.controller.Serve(ctx) })
		defer func() {
			w.stop()
			cancel()
			srv.Stop()
			w.controller.Wait()
			w.wg.Wait()
		}()
		w.start()
		f(w)
	})
}

// start starts the broker, and returns when it is in service.
func (w *town) start() {
	w.t.Helper()
	b, err := broker.New(w.config, broker.Deps{FS: w.disk, Listen: w.net.listen, Dial: w.net.dial, Log: zerolog.Nop(), Version: "test"})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	w.wg.Go(func() {
		defer close(done)
		if err := b.Run(ctx); err != nil && !w.dead.Load() {
			w.t.Errorf("the broker: %v", err)
		}
		w.net.free(brokerAddr)
		w.net.free(internalAddr)
	})
	w.stop = func() {
		cancel()
		<-done
	}
	select {
	case <-b.Ready():
	case <-done:
		w.t.Fatal("the broker ended")
	}
}

// client returns a Go client of the broker at addr.
func (w *town) client(addr string, opts ...client.Option) *client.Client {
	w.t.Helper()
	c, err := client.New([]string{addr}, append([]client.Option{client.Dialer(w.net.dial)}, opts...)...)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// conn returns a connection as stock clients have it.
func (w *town) conn(addr string, opts ...grpc.DialOption) *grpc.ClientConn {
	w.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(w.net.dial),
	}, opts...)...)
	if err != nil {
		w.t.Fatal(err)
	}
	return conn
}

// topic creates a topic.
func (w *town) topic(c *client.Client, name string, partitions int32, configs map[string]string) {
	w.t.Helper()
	if _, err := c.NewAdmin().CreateTopics(w.t.Context(), []client.NewTopic{{Name: name, Partitions: partitions, Configs: configs}}); err != nil {
		w.t.Fatal(err)
	}
}

// produce writes values to partition 0 and waits for them.
func (w *town) produce(p *client.Producer, topic string, values ...string) {
	w.t.Helper()
	var rs []client.Record
	for _, v := range values {
		rs = append(rs, client.Record{Topic: topic, Value: []byte(v)})
	}
	if _, err := p.ProduceSync(w.t.Context(), rs...); err != nil {
		w.t.Fatalf("produce %v: %v", values, err)
	}
}

// reader returns a reader of all of a topic.
func (w *town) reader(c *client.Client, topic string, opts ...client.ReaderOption) *client.Reader {
	w.t.Helper()
	r, err := c.NewReader(opts...)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := r.Assign(w.t.Context(), client.Assignment{Topic: topic, Partition: client.AnyPartition}); err != nil {
		w.t.Fatal(err)
	}
	return r
}

// next returns the next n values of a reader, which must come within a time.
func (w *town) next(r *client.Reader, n int, within time.Duration) []string {
	w.t.Helper()
	values, err := collect(w.t.Context(), r, n, within)
	if err != nil {
		w.t.Fatalf("read %d of %d records in %s: %v", len(values), n, within, err)
	}
	return values
}

// collect is next, for any goroutine.
func collect(ctx context.Context, r *client.Reader, n int, within time.Duration) (values []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for len(values) < n {
		b, err := r.Poll(ctx)
		if err == nil {
			err = b.Err()
		}
		if err != nil {
			return values, err
		}
		for rec := range b.All() {
			values = append(values, string(rec.Value))
		}
	}
	return values, nil
}

func number(i int) string { return fmt.Sprintf("%06d", i) }
