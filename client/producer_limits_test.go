package client_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/client"
)

// The delivery timeout fires whatever the broker does, and says how certain it
// is.
func TestProducer_deliveryTimeout(t *testing.T) {
	always := func(a action) func(int, *runnelv1.ProduceRequest) action {
		return func(int, *runnelv1.ProduceRequest) action { return a }
	}
	for name, c := range map[string]struct {
		do   func(f *fakeBroker)
		want client.Outcome
	}{
		"no broker": {func(f *fakeBroker) { f.down = true }, client.Failed},
		"no leader": {func(f *fakeBroker) {
			f.onProduce = always(action{err: item(runnelv1.ErrorReason_ERROR_REASON_NO_LEADER, codes.Unavailable)})
		}, client.Failed},
		"no answer":       {func(f *fakeBroker) { f.onProduce = always(action{ignore: true}) }, client.Unknown},
		"broker hangs":    {func(f *fakeBroker) { f.onProduce = always(action{wait: time.Hour}) }, client.Unknown},
		"always draining": {func(f *fakeBroker) { f.onProduce = always(action{final: true}) }, client.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t, map[string]int{"t": 1})
				c.do(f)
				p := producer(t, f.client(t), client.DeliveryTimeout(5010*time.Millisecond), client.BatchBytes(1<<10)) // not at the moment of a retry
				y := newTally()
				begun := time.Now()
				send(t, p, y, 0, 10)
				flush(t, p)
				if took := time.Since(begun); took < 4*time.Second || took > 6*time.Second {
					t.Errorf("took %v, want 5s", took)
				}
				for v, r := range y.results {
					if r.Outcome() != c.want || !errors.Is(r.Err, client.ErrDeliveryTimeout) {
						t.Errorf("%s: %v (%v), want %v", v, r.Outcome(), r.Err, c.want)
					}
				}
				if len(y.results) != 10 {
					t.Errorf("%d callbacks, want 10", len(y.results))
				}
			})
		})
	}
}

// PD-07: Flush and Close end with their context, and every record has its callback.
func TestProducer_flushAndCloseHonourTheirContext(t *testing.T) {
	for name, do := range map[string]func(f *fakeBroker){
		"brokers gone": func(f *fakeBroker) { f.down = true; f.nodes[0].srv.Stop() },
		"no leader": func(f *fakeBroker) {
			f.onProduce = func(int, *runnelv1.ProduceRequest) action {
				return action{err: item(runnelv1.ErrorReason_ERROR_REASON_NO_LEADER, codes.Unavailable)}
			}
		},
		"no answer": func(f *fakeBroker) {
			f.onProduce = func(int, *runnelv1.ProduceRequest) action { return action{ignore: true} }
		},
		"never known": func(f *fakeBroker) { delete(f.topics, "t"); f.down = true; f.nodes[0].srv.Stop() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t, map[string]int{"t": 1})
				p := producer(t, f.client(t))
				y := newTally()
				if name != "never known" {
					if _, err := p.ProduceSync(t.Context(), client.Record{Topic: "t", Value: []byte("-1")}); err != nil {
						t.Fatal(err)
					}
				}
				f.locked(func() { do(f) })
				synctest.Wait()
				send(t, p, y, 0, 100)
				within(t, "flush", p.Flush)
				within(t, "close", p.Close)
				if len(y.results) != 100 {
					t.Errorf("%d callbacks, want 100", len(y.results))
				}
				y.check(t, 0, y.count(client.Failed), y.count(client.Unknown))
				p.Produce(t.Context(), client.Record{Topic: "t"}, y.done("late"))
				if err := y.results["late"].Err; !errors.Is(err, client.ErrClosed) {
					t.Errorf("after Close: %v", err)
				}
			})
		})
	}
}

func within(t *testing.T, what string, call func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	begun := time.Now()
	if err := call(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%s: %v, want the context's error", what, err)
	}
	if took := time.Since(begun); took < 2500*time.Millisecond || took > 3500*time.Millisecond {
		t.Errorf("%s took %v, want 3s", what, took)
	}
}

func TestProducer_memoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 1})
		f.onProduce = func(int, *runnelv1.ProduceRequest) action { return action{ignore: true} }
		p := producer(t, f.client(t), client.MaxBufferedBytes(10<<10), client.BatchBytes(2<<10), client.DeliveryTimeout(10*time.Second))
		y := newTally()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		for i := range 40 {
			v := itoa(i)
			p.Produce(ctx, client.Record{Topic: "t", Value: make([]byte, 1000)}, y.done(v))
		}
		flush(t, p)
		waited := 0
		for _, r := range y.results {
			if errors.Is(r.Err, context.DeadlineExceeded) {
				waited++
			}
		}
		if waited < 30 || len(y.results) != 40 {
			t.Errorf("%d of %d records found no room, want at least 30 of 40", waited, len(y.results))
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 1})
		f.onProduce = func(int, *runnelv1.ProduceRequest) action { return action{wait: time.Second} }
		p := producer(t, f.client(t), client.MaxBufferedBytes(10<<10), client.FailWhenFull())
		y := newTally()
		for i := range 40 {
			p.Produce(t.Context(), client.Record{Topic: "t", Value: make([]byte, 1000)}, y.done(itoa(i)))
		}
		flush(t, p)
		if y.count(client.Failed) < 30 || !errors.Is(y.errs(1)[0], client.ErrBufferFull) {
			t.Errorf("%d failed, first %v", y.count(client.Failed), y.errs(1))
		}
	})
}

// What is taken while somebody waits for memory does not linger either: it may
// be what holds that memory.
func TestProducer_nothingLingersUnderPressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 1})
		f.onProduce = func(int, *runnelv1.ProduceRequest) action { return action{wait: time.Second} }
		p := producer(t, f.client(t), client.Linger(time.Minute), client.MaxBufferedBytes(2000))
		y := newTally()
		begun := time.Now()
		p.Produce(t.Context(), client.Record{Topic: "t", Value: make([]byte, 1000)}, y.done("first"))
		var waiter sync.WaitGroup
		waiter.Go(func() {
			p.Produce(t.Context(), client.Record{Topic: "t", Value: make([]byte, 1800)}, y.done("large"))
		})
		synctest.Wait()
		p.Produce(t.Context(), client.Record{Topic: "t", Value: make([]byte, 500)}, y.done("small"))
		waiter.Wait()
		flush(t, p)
		y.check(t, 3, 0, 0)
		if took := time.Since(begun); took > 10*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// A stream that is refused outright has stored nothing.
func TestProducer_refusedStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 1})
		f.onProduce = func(int, *runnelv1.ProduceRequest) action {
			return action{kill: status.Error(codes.PermissionDenied, "not you")}
		}
		p := producer(t, f.client(t))
		rs, err := p.ProduceSync(t.Context(), client.Record{Topic: "t", Value: []byte("x")})
		if err == nil || rs[0].Outcome() != client.Failed {
			t.Errorf("%v: %v, want a certain failure", rs[0].Outcome(), err)
		}
	})
}

// A topic that was deleted and created again takes no old writes, and takes new
// ones (AD-03).
func TestProducer_topicCreatedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 3})
		p := producer(t, f.client(t), client.PartitionBy(client.Manual))
		one := func(part int32) error {
			_, err := p.ProduceSync(t.Context(), client.Record{Topic: "t", Partition: part, Value: []byte("1")})
			return err
		}
		if err := one(2); err != nil {
			t.Fatal(err)
		}
		f.create("t", 1)
		if err := one(0); !errors.Is(err, client.ErrTopicIDMismatch) {
			t.Errorf("an old write: %v", err)
		}
		for range 2 { // the first may come before the look at the topic is over
			_ = one(0)
			synctest.Wait()
		}
		if err := one(0); err != nil {
			t.Errorf("a new write: %v", err)
		}
		if err := one(2); !errors.Is(err, client.ErrPartitionNotFound) {
			t.Errorf("a partition that is gone: %v", err)
		}
	})
}

// PD-03: keyless records go to all partitions alike, also when one is slow.
func TestProducer_slowPartitionGetsNoMore(t *testing.T) {
	for _, slow := range []time.Duration{0, 200 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeCluster(t, 3, map[string]int{"t": 3})
			f.onProduce = func(_ int, req *runnelv1.ProduceRequest) action {
				if req.GetPartition() == 0 {
					return action{wait: slow}
				}
				return action{}
			}
			p := producer(t, f.client(t), client.BatchBytes(16<<10), client.MaxBufferedBytes(1<<20))
			y := newTally()
			for i := range 100_000 {
				p.Produce(t.Context(), client.Record{Topic: "t", Value: []byte(itoa(i))}, y.done(itoa(i)))
			}
			flush(t, p)
			y.check(t, 100_000, 0, 0)
			for n := range 3 {
				if got := len(f.all(t, "t", n)); got < 28_000 || got > 38_000 {
					t.Errorf("with %v of delay in partition 0, partition %d got %d of 100000 records", slow, n, got)
				}
			}
		})
	}
}

func TestProducer_partitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 4})
		p := producer(t, f.client(t), client.BatchBytes(1<<10))
		y := newTally()
		for i := range 400 {
			v := itoa(i)
			p.Produce(t.Context(), client.Record{Topic: "t", Key: []byte("k" + itoa(i%10)), Value: []byte(v)}, y.done(v))
		}
		for i := range 20000 {
			v := itoa(1000 + i)
			p.Produce(t.Context(), client.Record{Topic: "t", Value: []byte(v)}, y.done(v))
		}
		flush(t, p)
		y.check(t, 20400, 0, 0)
		place := map[string]int{}
		for n := range 4 {
			keyless := 0
			for _, r := range f.all(t, "t", n) {
				if r.Key == nil {
					keyless++
					continue
				}
				if at, ok := place[string(r.Key)]; ok && at != n {
					t.Errorf("key %s is in the partitions %d and %d", r.Key, at, n)
				}
				place[string(r.Key)] = n
			}
			if keyless < 1500 {
				t.Errorf("partition %d got %d of 20000 keyless records", n, keyless)
			}
		}
	})
}
