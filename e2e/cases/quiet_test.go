package cases

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/keepalive"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/rpcserver"
)

const fiveMinutes = 5*time.Minute + 10*time.Second

// Nobody is sent away for pinging too often: neither our own clients and
// brokers, idle for five minutes with a stream and without, nor one of others
// that pings every ten seconds (GR-04).
func TestGR04_pingsAreWelcome(t *testing.T) {
	pinging := grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true})
	for name, idle := range map[string]func(w *town) (addr string){
		"our client without a stream": func(w *town) string {
			c := w.client(brokerAddr)
			defer c.Close()
			if err := c.Ping(w.t.Context()); err != nil {
				w.t.Error(err)
			}
			time.Sleep(fiveMinutes)
			if err := c.Ping(w.t.Context()); err != nil {
				w.t.Error(err)
			}
			return brokerAddr
		},
		"our client that reads": func(w *town) string {
			c := w.client(brokerAddr)
			defer c.Close()
			w.topic(c, "t", 1, nil)
			r := w.reader(c, "t")
			defer r.Close()
			p, err := c.NewProducer()
			if err != nil {
				w.t.Fatal(err)
			}
			defer p.Close(w.t.Context())
			w.produce(p, "t", "before")
			time.Sleep(fiveMinutes)
			w.produce(p, "t", "after")
			if got := w.next(r, 2, time.Second); !slices.Equal(got, []string{"before", "after"}) {
				w.t.Errorf("read %v", got)
			}
			return brokerAddr
		},
		"a stock client that pings": func(w *town) string {
			conn := w.conn(brokerAddr, pinging, grpc.WithIdleTimeout(0))
			defer conn.Close()
			conn.Connect()
			time.Sleep(fiveMinutes)
			if s := conn.GetState(); s != connectivity.Ready {
				w.t.Errorf("the connection is %s", s)
			}
			return brokerAddr
		},
		"a stock client that pings and reads": func(w *town) string {
			c := w.client(brokerAddr)
			w.topic(c, "t", 1, nil)
			_ = c.Close()
			before := w.net.dialled(brokerAddr)
			conn := w.conn(brokerAddr, pinging)
			defer conn.Close()
			w.follow(conn, "t", fiveMinutes)
			if n := w.net.dialled(brokerAddr) - before; n != 1 {
				w.t.Errorf("connected %d times", n)
			}
			return ""
		},
		"a link between brokers": func(w *town) string {
			conn, err := rpcserver.Dial(internalAddr, rpcserver.DialOptions{Dial: w.net.dial})
			if err != nil {
				w.t.Fatal(err)
			}
			defer conn.Close()
			conn.Connect()
			time.Sleep(fiveMinutes)
			if s := conn.GetState(); s != connectivity.Ready {
				w.t.Errorf("the connection is %s", s)
			}
			return internalAddr
		},
	} {
		t.Run(name, func(t *testing.T) {
			inTown(t, nil, func(w *town) {
				if addr := idle(w); addr != "" && w.net.dialled(addr) != 1 {
					w.t.Errorf("connected %d times", w.net.dialled(addr))
				}
				// Nobody at all had to connect again, the broker to its controller neither.
				if n := w.net.dialled(controllerAddr); n != 1 {
					w.t.Errorf("the broker dialled its controller %d times", n)
				}
			})
		})
	}
}

// follow reads a topic with a bare stub, for that long, and fails when the
// stream ends before.
func (w *town) follow(conn *grpc.ClientConn, topic string, long time.Duration) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), long)
	defer cancel()
	stream, err := runnelv1.NewLogServiceClient(conn).Fetch(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := stream.Send(&runnelv1.FetchRequest{Options: &runnelv1.FetchOptions{Follow: true}, Partitions: []*runnelv1.FetchPartition{{Topic: topic}}}); err != nil {
		w.t.Fatal(err)
	}
	for {
		_, err := stream.Recv()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			w.t.Errorf("the stream ended: %v", err)
			return
		}
	}
}

// noticed is within what time a client notices that its broker is gone without
// a word: docs/cluster.md promises 20 s, half a minute is what the
// case allows.
const noticed = 30 * time.Second

// A broker whose machine vanishes, with no word to anybody, is noticed by a
// client that only reads; it goes on where the topic is served again, and misses
// nothing (GR-06).
func TestGR06_aVanishedBrokerIsNoticed(t *testing.T) {
	inTown(t, nil, func(w *town) {
		t := w.t
		c := w.client(brokerAddr)
		defer c.Close()
		w.topic(c, "t", 1, nil)
		r := w.reader(c, "t")
		defer r.Close()
		p, err := c.NewProducer()
		if err != nil {
			t.Fatal(err)
		}
		w.produce(p, "t", "before")
		if got := w.next(r, 1, time.Second); got[0] != "before" {
			t.Fatal(got)
		}
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // idle

		w.net.vanish(brokerAddr)
		w.stop()
		w.start()
		other := w.client(brokerAddr)
		defer other.Close()
		fresh, err := other.NewProducer()
		if err != nil {
			t.Fatal(err)
		}
		defer fresh.Close(t.Context())
		gone := time.Now()
		w.produce(fresh, "t", "meanwhile")
		if got := w.next(r, 1, noticed); got[0] != "meanwhile" {
			t.Fatal(got)
		}
		if took := time.Since(gone); took > noticed {
			t.Errorf("noticed after %s", took)
		}
		w.produce(fresh, "t", "after")
		if got := w.next(r, 1, time.Second); got[0] != "after" {
			t.Fatal(got)
		}
	})
}

// A proxy that ends streams which one side is silent on for a minute does not end
// those of an idle topic, and what is written after five minutes arrives at once
// (GR-09).
func TestGR09_quietStreamsPassProxies(t *testing.T) {
	inTown(t, nil, func(w *town) {
		t := w.t
		pr := w.proxy("10.0.0.1:7420", time.Minute)
		defer pr.close()
		c := w.client("10.0.0.1:7420")
		defer c.Close()
		w.topic(c, "t", 1, nil)
		r := w.reader(c, "t")
		defer r.Close()
		p, err := c.NewProducer()
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close(t.Context())
		w.produce(p, "t", "before")
		if got := w.next(r, 1, time.Second); got[0] != "before" {
			t.Fatal(got)
		}
		time.Sleep(fiveMinutes)
		w.produce(p, "t", "after")
		if got := w.next(r, 1, time.Second); got[0] != "after" {
			t.Fatal(got)
		}
		if n := pr.reset.Load(); n != 0 {
			t.Errorf("%d streams were ended for silence", n)
		}
		// It does end those that are silent: a bare stub that sends nothing more.
		conn := w.conn("10.0.0.1:7420")
		defer conn.Close()
		stream, err := runnelv1.NewLogServiceClient(conn).Fetch(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&runnelv1.FetchRequest{Options: &runnelv1.FetchOptions{Follow: true}, Partitions: []*runnelv1.FetchPartition{{Topic: "t"}}}); err != nil {
			t.Fatal(err)
		}
		for err == nil {
			_, err = stream.Recv()
		}
		if errors.Is(err, io.EOF) || pr.reset.Load() != 1 {
			t.Errorf("the proxy of this test ends no streams: %v", err)
		}
	})
}
