package client_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/client"
)

// A name that no topic has is refused before anybody is asked, and does not keep
// the client from learning of other topics.
func TestClient_impossibleTopic(t *testing.T) {
	for _, name := range []string{"\xff", "a b", "..", strings.Repeat("x", 250)} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeCluster(t, 2, map[string]int{"t": 2})
			c := f.client(t)
			p, r := producer(t, c), newReader(t, c)
			rs, err := p.ProduceSync(t.Context(), client.Record{Topic: name})
			if rs[0].Outcome() != client.Failed || !errors.Is(err, client.ErrInvalidTopicName) {
				t.Errorf("produce: %v (%v)", rs[0].Outcome(), err)
			}
			if err := r.Assign(t.Context(), client.Assignment{Topic: name}); !errors.Is(err, client.ErrInvalidTopicName) {
				t.Errorf("assign: %v", err)
			}
			y := newTally()
			spread(t, p, y, 0, 10)
			flush(t, p)
			synctest.Wait()
			spread(t, p, y, 10, 20)
			flush(t, p)
			y.check(t, 20, 0, 0)
			if got := f.routed(); got["direct"] == 0 {
				t.Errorf("requests %v, want direct ones", got)
			}
		})
	}
}

func TestReader_impossiblePartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 2, map[string]int{"t": 2})
		c := f.client(t)
		r := newReader(t, c)
		assign(t, r, client.Assignment{Topic: "t", Partition: client.AnyPartition})
		if err := r.Assign(t.Context(), client.Assignment{Topic: "t", Partition: -5}); !errors.Is(err, client.ErrPartitionNotFound) {
			t.Errorf("assign: %v", err)
		}
		if err := r.Assign(t.Context(), client.Assignment{Topic: "t", Stop: -1}); !errors.Is(err, client.ErrInvalidRequest) {
			t.Errorf("assign: %v", err)
		}
	})
}

// A record that is given with a context that has ended is not taken.
func TestProducer_endedContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 1})
		p := producer(t, f.client(t))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		rs, err := p.ProduceSync(ctx, client.Record{Topic: "t"}, client.Record{Topic: "t"})
		if len(rs) != 2 || rs[0].Outcome() != client.Failed || rs[1].Outcome() != client.Failed || !errors.Is(err, context.Canceled) {
			t.Errorf("%v, %v; want both failed for certain", rs, err)
		}
		flush(t, p)
		if f.calls > 0 {
			t.Errorf("%d requests, want none", f.calls)
		}
	})
}

func TestNewProducer_nilInterceptor(t *testing.T) {
	c, err := client.New([]string{"broker:7420"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.NewProducer(client.Intercept(nil)); err == nil {
		t.Error("no error for Intercept(nil)")
	}
}

// The delivery timeout counts from Produce, also when a record waits for its
// topic first.
func TestProducer_deliveryTimeoutIsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 1})
		f.down = true
		f.onProduce = func(int, *runnelv1.ProduceRequest) action { return action{ignore: true} }
		p := producer(t, f.client(t), client.DeliveryTimeout(10*time.Second))
		y := newTally()
		begun := time.Now()
		send(t, p, y, 0, 10)
		time.AfterFunc(5*time.Second, func() { f.locked(func() { f.down = false }) })
		flush(t, p)
		if took := time.Since(begun); took > 10100*time.Millisecond {
			t.Errorf("took %v, want 10s", took)
		}
		y.check(t, 0, 0, 10)
		f.locked(func() {
			if f.calls == 0 {
				t.Error("nothing was sent, so this shows nothing")
			}
		})
	})
}

// A record that waited for memory for long has all of its time from then on.
func TestProducer_timeAfterTheWaitForMemory(t *testing.T) {
	const delivery = 5 * time.Second
	noLeader := item(runnelv1.ErrorReason_ERROR_REASON_NO_LEADER, codes.Unavailable)
	for name, refused := range map[string]time.Duration{"soon": 40 * time.Millisecond, "when the other's is up": delivery} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t, map[string]int{"t": 1})
				var given atomic.Int64 // in nanoseconds
				start := time.Now()
				f.onProduce = func(_ int, req *runnelv1.ProduceRequest) action {
					given.Store(int64(req.GetTimeout().AsDuration()))
					if time.Since(start) < refused {
						return action{err: noLeader}
					}
					return action{}
				}
				p := producer(t, f.client(t), client.MaxBufferedBytes(1<<10), client.DeliveryTimeout(delivery))
				y := newTally()
				for _, v := range []string{"a", "b"} {
					p.Produce(t.Context(), client.Record{Topic: "t", Value: make([]byte, 1<<10)}, y.done(v))
				}
				begun := time.Now()
				for time.Since(begun) < 2*delivery && y.of("b").Topic == "" {
					time.Sleep(10 * time.Millisecond)
					synctest.Wait()
				}
				if took := time.Since(begun); took > time.Second || y.of("b").Err != nil {
					t.Errorf("took %v: %v", took, y.of("b").Err)
				}
				if got := time.Duration(given.Load()); got < delivery/2 {
					t.Errorf("the broker was given %v for it, want most of %v", got, delivery)
				}
			})
		})
	}
}

// A record whose time is up says what it waited for, also when it was never sent.
func TestProducer_timeoutSaysWhatWasWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 1})
		p := producer(t, f.client(t), client.DeliveryTimeout(5*time.Second))
		y := newTally()
		send(t, p, y, 0, 1)
		flush(t, p)
		f.locked(func() { f.onProduce = func(int, *runnelv1.ProduceRequest) action { return action{ignore: true} } })
		send(t, p, y, 1, 2)
		synctest.Wait()
		send(t, p, y, 2, 3)
		time.Sleep(6 * time.Second)
		y.check(t, 1, 1, 1)
		if err := y.of("2").Err; err == nil || !strings.Contains(err.Error(), "sent before are not answered") {
			t.Errorf("%v, want an error that says what was waited for", err)
		}
	})
}

// PD-15: however long a record may take, brokers are not asked to keep what they
// know of it for that long, and nothing of it is kept once it has its outcome.
func TestProducer_enormousDeliveryTimeout(t *testing.T) {
	for name, c := range map[string]struct {
		opts []client.ProducerOption
		most time.Duration
	}{
		"idempotent": {nil, 30 * time.Second},
		"not":        {[]client.ProducerOption{client.WithoutIdempotence()}, 5 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t, map[string]int{"t": 1})
				f.onProduce = func(_ int, req *runnelv1.ProduceRequest) action {
					if d := req.GetTimeout().AsDuration(); d <= 0 || d > c.most {
						t.Errorf("the broker is given %v, want at most %v", d, c.most)
					}
					return action{}
				}
				p := producer(t, f.client(t), append(c.opts, client.DeliveryTimeout(1<<62), client.MaxBufferedBytes(8<<10), client.FailWhenFull())...)
				y := newTally()
				for i := range 100 { // a hundred times what it may keep
					v := itoa(i)
					p.Produce(t.Context(), client.Record{Topic: "t", Value: make([]byte, 8000)}, y.done(v))
					flush(t, p)
				}
				y.check(t, 100, 0, 0)
			})
		})
	}
}

// A client that is closed too early is no riddle: everything that hangs on it says
// so at once.
func TestClient_closedTooEarly(t *testing.T) {
	for name, opts := range map[string][]client.ProducerOption{"numbers": nil, "no numbers": {client.WithoutIdempotence()}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeCluster(t, 2, map[string]int{"t": 2})
				c := f.client(t)
				p, r := producer(t, c, append(opts, client.PartitionBy(client.Manual))...), newReader(t, c)
				assign(t, r, client.Assignment{Topic: "t", Partition: client.AnyPartition})
				y := newTally()
				write := func(from, to int) {
					for i := from; i < to; i++ {
						p.Produce(t.Context(), client.Record{Topic: "t", Partition: int32(i % 2)}, y.done(itoa(i)))
					}
				}
				write(0, 2)
				flush(t, p)
				read(t, r, 2)
				f.locked(func() { f.onProduce = func(int, *runnelv1.ProduceRequest) action { return action{ignore: true} } })
				write(2, 4)
				synctest.Wait()
				if err := c.Close(); err != nil {
					t.Error(err)
				}
				begun := time.Now()
				write(4, 6)
				flush(t, p)
				y.check(t, 2, 2, 2)
				if err := y.of("4").Err; !errors.Is(err, client.ErrClosed) {
					t.Errorf("%v, want ErrClosed", err)
				}
				var last error
				for _, err := range r.Records(t.Context()) {
					last = err
				}
				if !errors.Is(last, client.ErrClosed) {
					t.Errorf("read: %v, want ErrClosed", last)
				}
				if took := time.Since(begun); took > 5*time.Second {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

func TestNew_misuse(t *testing.T) {
	for name, opt := range map[string]client.Option{
		"no token": client.Token(""),
		"no time":  client.ConnectTimeout(-1),
	} {
		if _, err := client.New([]string{"broker:7420"}, client.TLS(nil), opt); err == nil || !strings.Contains(err.Error(), "want") {
			t.Errorf("%s: %v, want an error that says what to do", name, err)
		}
	}
	c, err := client.New([]string{"broker:7420"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.NewProducer(nil); err != nil {
		t.Error(err)
	}
	if _, err := c.NewReader(nil); err != nil {
		t.Error(err)
	}
}
