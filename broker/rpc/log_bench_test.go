package rpc

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/rpcserver"
	"github.com/runnelmq/runnel/internal/wire"
)

// listenTCP listens on the loopback interface.
func listenTCP(tb testing.TB) func() (net.Listener, func(context.Context, string) (net.Conn, error)) {
	tb.Helper()
	return func() (net.Listener, func(context.Context, string) (net.Conn, error)) {
		var lc net.ListenConfig
		lis, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
		if err != nil {
			tb.Fatal(err)
		}
		addr := lis.Addr().String()
		return lis, func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}
	}
}

func clientOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithReadBufferSize(256 << 10), grpc.WithWriteBufferSize(256 << 10),
		grpc.WithStaticStreamWindowSize(2 << 20), grpc.WithStaticConnWindowSize(16 << 20),
	}
}

// A bareServer moves messages over a stream and does nothing else: what no
// broker on the same gRPC can beat.
type bareServer struct {
	conn *grpc.ClientConn
	pool *wire.Pool
	// size and count of the messages that source sends.
	size, count int
}

func (*bareServer) sink(_ any, ss grpc.ServerStream) error {
	var m wire.Message
	for {
		if err := ss.RecvMsg(&m); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		m.Free()
		resp := wire.ProduceResponse{RequestID: 1, Partition: 0, BaseOffset: 1 << 30, AppendTimeMs: wire.None, LogStart: 0}
		if err := ss.SendMsg(&resp); err != nil {
			return err
		}
	}
}

func (s *bareServer) source(_ any, ss grpc.ServerStream) error {
	var m wire.Message
	if err := ss.RecvMsg(&m); err != nil {
		return err
	}
	for range s.count {
		r := wire.FetchResponse{Partition: wire.None, NextOffset: 5, HighWatermark: 5, LogStart: 5, LastStable: 5, LeaderEpoch: 5}
		b := s.pool.Get(s.size)
		r.Payload = mem.BufferSlice{mem.NewBuffer(b, s.pool)}
		if _, err := r.Encode(&m, s.pool, false); err != nil {
			return err
		}
		if err := ss.SendMsg(&m); err != nil {
			return err
		}
	}
	return nil
}

const bareService = "runnel.test.Bare"

func newBareServer(tb testing.TB, listen func() (net.Listener, func(context.Context, string) (net.Conn, error))) *bareServer {
	tb.Helper()
	s := &bareServer{pool: wire.NewPool()}
	srv := rpcserver.New(rpcserver.Options{Port: rpcserver.ClientPort, Rules: Rules(), Log: zerolog.Nop(), Codec: wire.NewCodec(s.pool)})
	srv.RegisterService(&grpc.ServiceDesc{
		ServiceName: bareService, HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{
			{StreamName: "Sink", Handler: s.sink, ServerStreams: true, ClientStreams: true},
			{StreamName: "Source", Handler: s.source, ServerStreams: true, ClientStreams: true},
		},
	}, s)
	lis, dial := listen()
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(lis) })
	conn, err := grpc.NewClient("passthrough:///bare", append(clientOptions(),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(dial),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(wire.NewCodec(wire.NewPool()))))...)
	if err != nil {
		tb.Fatal(err)
	}
	s.conn = conn
	tb.Cleanup(func() {
		_ = conn.Close()
		srv.Stop()
		wg.Wait()
	})
	return s
}

// pump sends n copies of raw on a stream and reads an answer to each.
func pump(tb testing.TB, conn *grpc.ClientConn, method string, raw []byte, n int) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	desc := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	stream, err := conn.NewStream(ctx, desc, method)
	if err != nil {
		tb.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for range n {
			if err := stream.SendMsg(wire.NewMessage(raw)); err != nil {
				return // and the answers tell why
			}
		}
		_ = stream.CloseSend()
	})
	var m wire.Message
	var resp wire.ProduceResponse
	for range n {
		if err := stream.RecvMsg(&m); err != nil {
			tb.Fatal(err)
		}
		b := m.Copy(wire.NewPool(), 0)
		if err := resp.Parse(*b, 0, len(*b)); err != nil || resp.Error != nil {
			tb.Fatal(resp.Error, err)
		}
	}
	wg.Wait()
	if err := stream.RecvMsg(&m); !errors.Is(err, io.EOF) {
		tb.Fatal(err)
	}
}

// drainAll reads a stream that begins with raw to its end, and returns the
// bytes and messages it had.
func drainAll(tb testing.TB, conn *grpc.ClientConn, method string, raw []byte) (size, messages int) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		tb.Fatal(err)
	}
	if err := stream.SendMsg(wire.NewMessage(raw)); err != nil {
		tb.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		tb.Fatal(err)
	}
	var m wire.Message
	for {
		if err := stream.RecvMsg(&m); err != nil {
			if !errors.Is(err, io.EOF) {
				tb.Fatal(err)
			}
			return size, messages
		}
		size += m.Len()
		messages++
		m.Free()
	}
}

// manyValues are values of one size, n bytes of them.
func manyValues(n, size int) [][]byte {
	var out [][]byte
	for range n / size {
		out = append(out, make([]byte, size))
	}
	return out
}

// cpu is what this process, both sides of the connection, has used.
func cpu() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func benchmark(b *testing.B, bytesEach int64, run func(n int)) {
	b.Helper()
	run(10) // connections, pools
	b.SetBytes(bytesEach)
	b.ReportAllocs()
	b.ResetTimer()
	start := cpu()
	run(b.N)
	used := cpu() - start
	b.ReportMetric(used.Seconds()/(float64(bytesEach)*float64(b.N)/1e9), "cpu-s/GB")
}

// Run with -benchtime 2000x or more; MB/s and CPU count both sides, so compare
// with the bare stream of the same run.
func BenchmarkProduce(b *testing.B) {
	for name, batch := range map[string][][]byte{"64KiB of 100B": manyValues(64<<10, 100), "64KiB of 1KiB": manyValues(64<<10, 1<<10)} {
		b.Run(name, func(b *testing.B) {
			raw := rawRequest("t", 0, buildBatch(b, record.CompressionNone, time.Now().UnixMilli(), batch...))
			b.Run("bare", func(b *testing.B) {
				s := newBareServer(b, listenTCP(b))
				benchmark(b, int64(len(raw)), func(n int) { pump(b, s.conn, "/"+bareService+"/Sink", raw, n) })
			})
			b.Run("broker", func(b *testing.B) {
				br := newTestBroker(b, testConfig{disk: true, listen: listenTCP(b), dial: clientOptions()})
				br.topic("t", 1)
				benchmark(b, int64(len(raw)), func(n int) { pump(b, br.conn, runnelv1.LogService_Produce_FullMethodName, raw, n) })
			})
		})
	}
}

func BenchmarkFetch(b *testing.B) {
	const total = 64 << 20
	br := newTestBroker(b, testConfig{disk: true, listen: listenTCP(b), dial: clientOptions()})
	br.topic("t", 1)
	raw := rawRequest("t", 0, buildBatch(b, record.CompressionNone, time.Now().UnixMilli(), manyValues(64<<10, 100)...))
	pump(b, br.conn, runnelv1.LogService_Produce_FullMethodName, raw, total/len(raw))
	for name, size := range map[string]int{"bare 1MiB": 1 << 20, "bare 64KiB": 64 << 10} {
		b.Run(name, func(b *testing.B) {
			s := newBareServer(b, listenTCP(b))
			s.size, s.count = size, total/size
			benchmark(b, total, func(n int) {
				for range n {
					drainAll(b, s.conn, "/"+bareService+"/Source", nil)
				}
			})
		})
	}
	for name, opts := range map[string]*runnelv1.FetchOptions{
		"batches 1MiB": {Format: batches}, "batches 64KiB": {Format: batches, MaxResponseBytes: new(int32(64 << 10))}, "records": {Format: records},
	} {
		b.Run(name, func(b *testing.B) {
			raw := marshal(b, &runnelv1.FetchRequest{Options: opts, Partitions: []*runnelv1.FetchPartition{{Topic: "t"}}})
			benchmark(b, total, func(n int) {
				for range n {
					drainAll(b, br.conn, runnelv1.LogService_Fetch_FullMethodName, raw)
				}
			})
		})
	}
}

// allocations of the whole process while run runs.
func allocations(run func()) float64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	run()
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs - before.Mallocs)
}

// A message costs few allocations more than what gRPC itself makes of it, and
// none for each record in it: a batch of a thousand costs what one of ten does.
func TestLogService_allocationsAMessage(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	const n, most = 400, 20
	b := newTestBroker(t, testConfig{disk: true, listen: listenTCP(t), dial: clientOptions()})
	bare := newBareServer(t, listenTCP(t))
	for _, count := range []int{10, 1000} {
		values := manyValues(count*20, 20)
		topic := "batches" + decimal(count)
		b.topic(topic, 1)
		raw := rawRequest(topic, 0, buildBatch(t, record.CompressionNone, time.Now().UnixMilli(), values...))
		perBatch := allocations(func() { pump(t, b.conn, runnelv1.LogService_Produce_FullMethodName, raw, n) }) / n
		base := allocations(func() { pump(t, bare.conn, "/"+bareService+"/Sink", raw, n) }) / n
		t.Logf("produce, %d records a batch: %.1f allocations a message, %.1f of them gRPC's and the client's", count, perBatch, base)
		if perBatch-base > most {
			t.Errorf("produce, %d records a batch: %.1f allocations more than the bare stream", count, perBatch-base)
		}
		req := &runnelv1.ProduceRequest{Topic: topic, Partition: new(int32(0))}
		for _, v := range values {
			req.Records = append(req.Records, &runnelv1.ProduceRecord{Key: []byte("k"), Value: v, Headers: []*runnelv1.Header{{Key: "h", Value: v}}})
		}
		many := marshal(t, req)
		// The client here reads the results with one allocation for all.
		perRequest := allocations(func() { pump(t, b.conn, runnelv1.LogService_Produce_FullMethodName, many, n) }) / n
		base = allocations(func() { pump(t, bare.conn, "/"+bareService+"/Sink", many, n) }) / n
		t.Logf("produce, %d records: %.1f allocations a message, %.1f of them gRPC's and the client's", count, perRequest, base)
		if perRequest-base > most {
			t.Errorf("produce, %d records: %.1f allocations more than the bare stream", count, perRequest-base)
		}
		for name, format := range map[string]runnelv1.FetchFormat{"batches": batches, "records": records, "text": text} {
			fetch := marshal(t, &runnelv1.FetchRequest{
				Options:    &runnelv1.FetchOptions{Format: format, MaxResponseBytes: new(int32(64 << 10))},
				Partitions: []*runnelv1.FetchPartition{{Topic: topic}},
			})
			messages, size := 0, 0
			got := allocations(func() { size, messages = drainAll(t, b.conn, runnelv1.LogService_Fetch_FullMethodName, fetch) })
			got /= float64(messages)
			bare.size, bare.count = size/messages, messages
			base := allocations(func() { drainAll(t, bare.conn, "/"+bareService+"/Source", nil) }) / float64(messages)
			t.Logf("fetch %s, %d records a batch: %.1f allocations a message of %d bytes, %.1f of them gRPC's and the client's", name, count, got, size/messages, base)
			if messages > 20 && got-base > most {
				t.Errorf("fetch %s, %d records a batch: %.1f allocations more than the bare stream", name, count, got-base)
			}
		}
	}
}
