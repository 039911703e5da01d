package client_test

import (
	"context"
	"errors"
	"runtime"
	"testing"

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

// 1,000 partitions cost one producer no more than a batch each, and never more
// than its bound.
func TestProducer_thousandPartitions(t *testing.T) {
	const parts, batch, bound = 1000, 32 << 10, 16 << 20
	f := newFake(t, map[string]int{"t": parts})
	p := producer(t, f.client(t), client.BatchBytes(batch), client.MaxBufferedBytes(bound), client.PartitionBy(client.Manual), client.FailWhenFull())
	// The topic is known, and each partition has had a batch.
	value := make([]byte, 1000)
	for i := range int32(parts) {
		p.Produce(t.Context(), client.Record{Topic: "t", Partition: i, Value: value}, nil)
	}
	flush(t, p)
	f.locked(func() {
		f.onProduce = func(int, *runnelv1.ProduceRequest) action { return action{ignore: true} }
	})
	before := heap()
	full := 0
	for range 100 {
		for i := range int32(parts) {
			p.Produce(t.Context(), client.Record{Topic: "t", Partition: i, Value: value}, func(r client.Result) {
				if errors.Is(r.Err, client.ErrBufferFull) {
					full++
				}
			})
		}
	}
	used := int64(heap()) - int64(before)
	if most := int64(parts * batch); used > most {
		t.Errorf("%d bytes for %d partitions, want at most a batch each, %d", used, parts, most)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = p.Close(ctx)
	if full == 0 {
		t.Error("the bound was never reached")
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
