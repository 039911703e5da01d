package client_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/client"
	"github.com/runnelmq/runnel/internal/record"
)

// A record costs at most one allocation to produce. Nothing is answered
// meanwhile, so that all that is counted is the producer's.
func TestProducer_allocations(t *testing.T) {
	f := newFake(t, map[string]int{"t": 1})
	f.onProduce = func(n int, _ *runnelv1.ProduceRequest) action {
		if n == 1 {
			return action{}
		}
		return action{err: item(runnelv1.ErrorReason_ERROR_REASON_NOT_ENOUGH_REPLICAS, codes.Unavailable), wait: 1 << 40}
	}
	p := producer(t, f.client(t), client.MaxBufferedBytes(256<<20))
	if _, err := p.ProduceSync(t.Context(), client.Record{Topic: "t", Value: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	value, key := make([]byte, 100), []byte("key")
	headers := []client.Header{{Key: "a", Value: []byte("b")}}
	done := func(client.Result) {}
	n := testing.AllocsPerRun(50_000, func() {
		p.Produce(t.Context(), client.Record{Topic: "t", Key: key, Value: value, Headers: headers}, done)
	})
	if n > 1 {
		t.Errorf("%v allocations a record, want at most 1", n)
	}
}

// So does one that waits for memory first, as under load, or goes by a custom
// partitioner, or is seen by an interceptor, but for the copy that those get.
func TestProducer_allocationsOfOptions(t *testing.T) {
	see := client.Intercept(func(context.Context, *client.Record) func(client.Result) { return nil })
	for name, c := range map[string]struct {
		opts []client.ProducerOption
		most float64
	}{
		"compressed":  {[]client.ProducerOption{client.Compress(client.Zstd, 0)}, 1},
		"manual":      {[]client.ProducerOption{client.PartitionBy(client.Manual)}, 1},
		"intercepted": {[]client.ProducerOption{see}, 1},
		"acks none":   {[]client.ProducerOption{client.RequireAcks(client.AcksNone)}, 1},
		"one by one":  {[]client.ProducerOption{client.BatchBytes(64 << 10), client.Linger(time.Minute)}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, map[string]int{"t": 1})
			p := producer(t, f.client(t), append(c.opts, client.MaxBufferedBytes(256<<20))...)
			if _, err := p.ProduceSync(t.Context(), client.Record{Topic: "t", Value: []byte("x")}); err != nil {
				t.Fatal(err)
			}
			f.locked(func() {
				f.onProduce = func(int, *runnelv1.ProduceRequest) action { return action{wait: 1 << 40} }
			})
			value := make([]byte, 100)
			n := testing.AllocsPerRun(20_000, func() {
				p.Produce(t.Context(), client.Record{Topic: "t", Value: value}, nil)
			})
			if n > c.most {
				t.Errorf("%v allocations a record, want at most %v", n, c.most)
			}
		})
	}
}

// Walking over records costs nothing a record, whichever way it is done, also
// when they were compressed: what a batch costs disappears among its records.
func TestReader_allocationsOfWalks(t *testing.T) {
	const records, each = 40_000, 4000
	for _, c := range []record.Compression{record.CompressionNone, record.CompressionZstd} {
		for name, walk := range walks {
			t.Run(fmt.Sprint(name, " ", c), func(t *testing.T) {
				f := newFake(t, map[string]int{"t": 1})
				f.fill(t, "t", 0, records, each, c)
				c, all := f.arrival(t)
				r := newReader(t, c, client.Prefetch(64<<20))
				assign(t, r, client.Assignment{Topic: "t", AtEnd: true})
				<-all
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				n := walk(t.Context(), r)
				runtime.ReadMemStats(&after)
				if got := float64(after.Mallocs-before.Mallocs) / records; n != records || got > 0.1 {
					t.Errorf("%d records, %v allocations each, want %d with 0", n, got, records)
				}
			})
		}
	}
}

// The ways to walk over all that a reader reads.
var walks = map[string]func(ctx context.Context, r *client.Reader) int{
	"Records": func(ctx context.Context, r *client.Reader) (n int) {
		for range r.Records(ctx) {
			n++
		}
		return n
	},
	"Poll": func(ctx context.Context, r *client.Reader) (n int) {
		for {
			b, err := r.Poll(ctx)
			if err != nil {
				return n
			}
			for range b.All() {
				n++
			}
		}
	},
}

// Walking over records that have arrived costs nothing.
func TestReader_allocations(t *testing.T) {
	f := newFake(t, map[string]int{"t": 1})
	f.fill(t, "t", 0, 10_000, 10_000, record.CompressionNone)
	r := newReader(t, f.client(t))
	assign(t, r, client.Assignment{Topic: "t"})
	b, err := r.Poll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got client.Record
	for range 5000 { // so that its room for headers has grown
		b.Next()
	}
	runtime.GC()
	n := testing.AllocsPerRun(4000, func() {
		if !b.Next() {
			t.Fatal("it ended early")
		}
		got = b.Record()
	})
	if n > 0 || got.Headers[0].Key != "n" {
		t.Errorf("%v allocations a record, want 0; last %+v", n, got)
	}
}

// 1,000 partitions cost one producer what is waiting, up to its bound, and a
// little for each partition with anything waiting: docs/client.md has the figures.
func TestProducer_thousandPartitions(t *testing.T) {
	const parts, batch, bound, size = 1000, 32 << 10, 16 << 20, 1000
	// What is beside the records, of a partition that has some.
	const each = 3 << 10
	// What gRPC and the fake hold of what is on its way, more when they are slow.
	const passing = 1 << 20
	value := make([]byte, size)
	for name, c := range map[string]struct {
		warm, rounds int // records for each partition: answered before, and not answered
		most         int64
		reuse        bool // what was used before is at hand
	}{
		"a record each":                     {0, 1, parts * (size + each), false},
		"flooded":                           {0, 40, bound + bound/4 + parts*each, false},
		"a record each, after full batches": {64, 1, bound/4 + parts*(size+each), false},
		"flooded, after full batches":       {64, 40, bound + bound/4 + parts*each, false},
		"a record each, right after":        {64, 1, bound + bound/4 + parts*(size+each), true},
		"flooded, right after":              {64, 40, bound + bound*3/4 + parts*each, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t, map[string]int{"t": parts})
				f.onProduce = func(int, *runnelv1.ProduceRequest) action { return action{discard: true} }
				p := producer(t, f.client(t), client.BatchBytes(batch), client.MaxBufferedBytes(bound), client.PartitionBy(client.Manual),
					client.FailWhenFull(), client.Linger(time.Minute)) // full batches, and then nothing leaves
				full := 0 // touched by callbacks, one at a time
				done := func(r client.Result) {
					if errors.Is(r.Err, client.ErrBufferFull) {
						full++
					}
				}
				p.Produce(t.Context(), client.Record{Topic: "t", Value: value}, done) // the topic is known
				flush(t, p)
				before := heap()
				for i := range int32(parts) {
					for range c.warm {
						p.Produce(t.Context(), client.Record{Topic: "t", Partition: i, Value: value}, done)
					}
					if i%250 == 249 {
						flush(t, p)
					}
				}
				f.locked(func() {
					f.onProduce = func(int, *runnelv1.ProduceRequest) action { return action{ignore: true} }
				})
				if !c.reuse {
					before = heap()
				}
				for range c.rounds {
					for i := range int32(parts) {
						p.Produce(t.Context(), client.Record{Topic: "t", Partition: i, Value: value}, done)
					}
				}
				synctest.Wait() // all that leaves has arrived, however busy the machine is
				used := int64(heap()) - int64(before)
				t.Logf("%d KiB, at most %d KiB", used>>10, c.most>>10)
				if used > c.most+passing {
					t.Errorf("%d bytes for %d partitions, want at most %d", used, parts, c.most)
				}
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				_ = p.Close(ctx)
				if n := p.Reserved(); n != 0 {
					t.Errorf("%d bytes are reserved, and nothing is open", n)
				}
				if c.rounds > 1 && full == 0 {
					t.Error("the bound was never reached")
				}
			})
		})
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
