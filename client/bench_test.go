package client_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"google.golang.org/grpc"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/client"
	"github.com/runnelmq/runnel/internal/memnet"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/wire"
)

// swift starts a broker that answers produce requests without a look at their
// records, so that little is counted but what the client does.
func swift(b *testing.B, topics map[string]int) *fakeBroker {
	b.Helper()
	pool := wire.NewPool()
	answer := func(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if info.FullMethod != runnelv1.LogService_Produce_FullMethodName {
			return handler(srv, s)
		}
		var (
			msg wire.Message
			req wire.ProduceRequest
		)
		for {
			if err := s.RecvMsg(&msg); err != nil {
				return err
			}
			buf := msg.Copy(pool, 0)
			err := req.Parse(*buf, 0, len(*buf))
			pool.Put(buf)
			if err != nil {
				return err
			}
			resp := wire.ProduceResponse{RequestID: req.RequestID, Partition: req.Partition, AppendTimeMs: wire.None}
			if err := s.SendMsg(&resp); err != nil {
				return err
			}
		}
	}
	f := emptyFake()
	b.Cleanup(f.startNode("broker:7420", memnet.Listen("broker:7420", 4<<20), false, grpc.ForceServerCodecV2(wire.NewCodec(pool)), grpc.StreamInterceptor(answer)))
	for name, n := range topics {
		f.create(name, n)
	}
	return f
}

// What a record costs the client, in allocations above all: the broker is in the
// same process, so for speed see e2e/bench.
func BenchmarkProducer_Produce(b *testing.B) {
	for _, size := range []int{100, 1 << 10} {
		for _, parts := range []int{1, 1000} {
			b.Run(fmt.Sprintf("%dB/%d", size, parts), func(b *testing.B) {
				f := swift(b, map[string]int{"t": parts})
				p := producer(b, f.client(b), client.PartitionBy(client.Manual))
				value := make([]byte, size)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				i := int32(0)
				for b.Loop() {
					p.Produce(b.Context(), client.Record{Topic: "t", Partition: i, Value: value}, nil)
					if i++; int(i) == parts {
						i = 0
					}
				}
				if err := p.Flush(context.Background()); err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}

// arrival is a client whose channel is told when a reader of f has got all there
// is.
func (f *fakeBroker) arrival(tb testing.TB) (*client.Client, <-chan struct{}) {
	tb.Helper()
	all := make(chan struct{}, 1)
	return f.client(tb, client.WithHooks(client.Hooks{Fetched: func(i client.FetchInfo) {
		if i.Lag == 0 {
			all <- struct{}{}
		}
	}})), all
}

// What a record costs that has arrived.
func BenchmarkReader(b *testing.B) {
	const records, each = 200_000, 2000
	f := newFake(b, map[string]int{"t": 1})
	f.fill(b, "t", 0, records, each, record.CompressionNone)
	c, all := f.arrival(b)
	for name, walk := range walks {
		b.Run(name, func(b *testing.B) {
			var mallocs uint64
			n := 0
			for b.Loop() {
				b.StopTimer()
				r := newReader(b, c, client.Prefetch(64<<20))
				assign(b, r, client.Assignment{Topic: "t", AtEnd: true})
				<-all
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				b.StartTimer()
				n += walk(b.Context(), r)
				b.StopTimer()
				runtime.ReadMemStats(&after)
				mallocs += after.Mallocs - before.Mallocs
				_ = r.Close()
				b.StartTimer()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/record")
			b.ReportMetric(float64(mallocs)/float64(n), "allocs/record")
			b.ReportMetric(0, "ns/op")
		})
	}
}
