package rpc

import (
	"context"
	"net"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/wire"
)

// heapInUse returns the bytes in use after a collection.
func heapInUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // pools give up what they hold in the second
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) + int64(m.StackInuse)
}

// held returns what the streams have of the fetch budget.
func (b *testBroker) held() int64 {
	bg := b.svc.budget
	bg.mu.Lock()
	defer bg.mu.Unlock()

	return b.svc.opts.FetchBuffer - bg.small.free - bg.large.free + bg.aside
}

// A thousand readers that never read hold a bounded amount of memory: at most
// one response of 64 KiB each, because responses grow only when they go
// through (GR-10). The heap's bound counts both sides, as client and broker share the
// process: 64 KiB under way, 64 KiB in the client's window, and the goroutines
// and buffers of streams and connections.
func TestFetch_stalledReadersHoldLittle(t *testing.T) {
	const (
		readers   = 1000
		perReader = 64<<10 + 64<<10 + 128<<10
	)
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{disk: true})
		b.topic("t", 1)
		for range 400 {
			b.append("t", 0, string(make([]byte, 10<<10)))
		}
		before := heapInUse()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var conns []*grpc.ClientConn
		for i := range readers {
			if i%100 == 0 {
				conns = append(conns, b.dial(b.dialer, grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(16<<20)))
			}
			stream, err := runnelv1.NewLogServiceClient(conns[len(conns)-1]).Fetch(ctx)
			if err != nil {
				t.Fatal(err)
			}
			send(t, stream, &runnelv1.FetchRequest{
				Options: &runnelv1.FetchOptions{Format: batches, Follow: true}, Partitions: []*runnelv1.FetchPartition{fromOffset("t", 0, 0)},
			})
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		used, budget := heapInUse()-before, b.held()
		t.Logf("%d stalled readers: heap +%d MiB, %d MiB of the fetch budget", readers, used>>20, budget>>20)
		if used > readers*perReader && !raceEnabled { // the race detector's own memory counts too
			t.Errorf("the heap grew by %d bytes, want at most %d a reader", used, perReader)
		}
		if budget == 0 || budget > readers*(64<<10) {
			t.Errorf("%d bytes of the budget are held, want at most 64 KiB a reader, and some", budget)
		}
		cancel()
		synctest.Wait()
		if got := b.held(); got != 0 {
			t.Errorf("%d bytes of the budget are still held after the streams ended", got)
		}
		for _, c := range conns {
			_ = c.Close()
		}
	})
}

// Readers that are stuck with large batches do not keep others from reading.
func TestFetch_stuckReadersStarveNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{opts: LogOptions{FetchBuffer: 16 << 20}})
		b.topic("large", 1)
		b.topic("small", 1)
		for range 3 {
			b.text("large", 0, string(make([]byte, 1<<20-100)))
		}
		conn := b.dial(b.dialer, grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(16<<20))
		defer conn.Close()
		for range 20 { // 20 MiB and more are wanted, 8 MiB there are
			stream, err := runnelv1.NewLogServiceClient(conn).Fetch(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			send(t, stream, &runnelv1.FetchRequest{Options: &runnelv1.FetchOptions{Follow: true}, Partitions: []*runnelv1.FetchPartition{fromOffset("large", 0, 0)}})
		}
		synctest.Wait()
		if held := b.held(); held < 7<<20 {
			t.Fatalf("%d bytes are held: the readers are not stuck", held)
		}
		b.text("small", 0, "fine")
		got := b.fetchAll(&runnelv1.FetchRequest{Options: &runnelv1.FetchOptions{Format: text}, Partitions: []*runnelv1.FetchPartition{{Topic: "small"}}})
		if len(got.texts[0]) != 1 {
			t.Error(got.texts)
		}
		if held := b.held(); held > 16<<20 {
			t.Errorf("%d bytes are held, the budget is 16 MiB", held)
		}
	})
}

// stall opens streams that want the topic's first record and never read.
func (b *testBroker) stall(ctx context.Context, conn *grpc.ClientConn, topic string, streams int) {
	b.t.Helper()
	for range streams {
		stream, err := runnelv1.NewLogServiceClient(conn).Fetch(ctx)
		if err != nil {
			b.t.Fatal(err)
		}
		send(b.t, stream, &runnelv1.FetchRequest{Options: &runnelv1.FetchOptions{Follow: true}, Partitions: []*runnelv1.FetchPartition{fromOffset(topic, 0, 0)}})
	}
}

// Readers that are stuck with large batches do not keep others from reading
// large batches either, nor do those who have nothing more to read. What all
// hold together stays within twice the budget, however many they are.
func TestFetch_stuckReadersLetLargeBatchesGoOn(t *testing.T) {
	const buffer = 16 << 20
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{opts: LogOptions{FetchBuffer: buffer}})
		b.topic("stuck", 1)
		b.topic("live", 1)
		b.text("stuck", 0, string(make([]byte, 900<<10)))
		large := string(make([]byte, 300<<10))
		b.text("live", 0, large)
		conn := b.dial(b.dialer, grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(16<<20))
		defer conn.Close()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		b.stall(ctx, conn, "stuck", 15) // 15 MiB are wanted, 8 MiB there are
		synctest.Wait()
		if held := b.held(); held < 7<<20 {
			t.Fatalf("%d bytes are held: the readers are not stuck", held)
		}
		begin := time.Now()
		live := b.fetch(following(&runnelv1.FetchPartition{Topic: "live"}))
		next := func(limit time.Duration) {
			t.Helper()
			timeout := time.AfterFunc(time.Minute, cancel) // and then there is room
			defer timeout.Stop()
			for {
				if r := recv(t, live); len(r.GetTextRecords()) > 0 {
					break
				}
			}
			if took := time.Since(begin); took > limit {
				t.Errorf("a reader of large records got the next after %s, want %s at most", took, limit)
			}
		}
		next(stuckAfter)
		for range 5 {
			b.text("live", 0, large)
			begin = time.Now()
			next(0)
		}
		b.stall(ctx, conn, "stuck", 100)
		time.Sleep(time.Minute)
		if held := b.held(); held < buffer || held > 2*buffer {
			t.Errorf("%d bytes are held, want the budget of %d and at most as much again", held, buffer)
		}
		if waiting, stuck := b.svc.budget.pressure(); waiting == 0 || stuck != buffer {
			t.Errorf("%d streams wait and %d bytes are stuck, want some and %d", waiting, stuck, buffer)
		}
		cancel()
		synctest.Wait()
		if held := b.held(); held != 0 {
			t.Errorf("%d bytes are still held after the stuck streams ended", held)
		}
		b.text("live", 0, large)
		begin = time.Now()
		next(0)
	})
}

// A reader that was slow for a while gets all the same, and its memory is back
// in the budget.
func TestFetch_stuckReaderComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{opts: LogOptions{FetchBuffer: 16 << 20}})
		b.topic("t", 1)
		for range 3 {
			b.text("t", 0, string(make([]byte, 900<<10)))
		}
		stream := b.fetch(following(fromOffset("t", 0, 0)))
		time.Sleep(10 * time.Second)
		if _, aside := b.svc.budget.pressure(); aside != 1<<20 || !b.svc.budget.try(8<<20) {
			t.Errorf("%d bytes are set aside, want 1 MiB and the half free", aside)
		}
		b.svc.budget.release(8<<20, 0)
		for got := 0; got < 3; {
			got += len(recv(t, stream).GetTextRecords())
		}
		synctest.Wait()
		if held := b.held(); held != 0 {
			t.Errorf("%d bytes are held of what was read", held)
		}
	})
}

// Fifty producers that never read their answers stop being read (GR-10): they cost the
// broker their unanswered calls, not what they would like to send.
func TestProduce_stalledProducersHoldLittle(t *testing.T) {
	const (
		producers   = 50
		inflight    = 100
		perProducer = 2<<20 + 1<<20 // a stream window, and the unanswered calls of it; both sides share the process
	)
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{disk: true, opts: LogOptions{MaxInflight: inflight}})
		b.topic("t", 1)
		b.isr("t", 1, 2, 1, 1, 2) // nothing is committed
		batch := buildBatch(t, record.CompressionNone, time.Now().UnixMilli(), make([]byte, 10<<10))
		raw := rawRequest("t", 0, batch)
		before := heapInUse()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		conn := b.dial(b.dialer)
		for range producers {
			stream, err := runnelv1.NewLogServiceClient(conn).Produce(ctx)
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				for stream.SendMsg(wire.NewMessage(raw)) == nil {
				}
			})
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got, want := b.ends()["t/0"], int64(producers*inflight); got != want {
			t.Errorf("%d requests were read, want %d a stream", got, inflight)
		}
		used := heapInUse() - before
		t.Logf("%d stalled producers: heap +%d MiB", producers, used>>20)
		if used > producers*perProducer {
			t.Errorf("the heap grew by %d bytes, want at most %d a producer", used, perProducer)
		}
		cancel()
		wg.Wait()
		_ = conn.Close()
	})
}

// Streams that break off at any point leave nothing behind (GR-12).
func TestStreams_abortedLeaveNoGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		b.topic("t", 2)
		b.topic("stuck", 1)
		b.isr("stuck", 1, 2, 1, 1, 2)
		b.text("t", 0, "a", "b")
		synctest.Wait()
		before := runtime.NumGoroutine()
		for i := range 1000 {
			ctx, cancel := context.WithCancel(t.Context())
			if i%2 == 0 {
				stream, err := b.log.Produce(ctx)
				if err != nil {
					t.Fatal(err)
				}
				send(t, stream, textRequest(1, "t", 0, "x"), textRequest(2, "stuck", 0, "x"))
				if i%4 == 0 {
					recv(t, stream)
				}
			} else {
				stream, err := b.log.Fetch(ctx)
				if err != nil {
					t.Fatal(err)
				}
				send(t, stream, following(&runnelv1.FetchPartition{Topic: "t"}), &runnelv1.FetchRequest{Pause: refs("t", 1)})
				if i%3 == 0 {
					recv(t, stream)
				}
			}
			if i%5 == 0 {
				synctest.Wait()
			}
			cancel()
		}
		synctest.Wait()
		if after := runtime.NumGoroutine(); after > before+10 {
			t.Errorf("%d goroutines, %d before", after, before)
		}
		if held := b.held(); held != 0 {
			t.Errorf("%d bytes of the budget are held", held)
		}
		var parked dto.Metric
		if err := b.svc.metrics.parked.Write(&parked); err != nil || parked.GetGauge().GetValue() != 0 {
			t.Errorf("%v writes of streams that are gone still wait, %v", parked.GetGauge(), err)
		}
	})
}

// A connection that dies with responses on their way costs no memory for good:
// gRPC does not give their buffers back.
func TestFetch_deadConnectionsHoldNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		b.topic("t", 1)
		for range 10 {
			b.text("t", 0, string(make([]byte, 100<<10)))
		}
		var raw net.Conn
		conn := b.dial(func(ctx context.Context, addr string) (net.Conn, error) {
			var err error
			raw, err = b.dialer(ctx, addr)
			return raw, err
		}, grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(1<<20))
		for range 5 {
			stream, err := runnelv1.NewLogServiceClient(conn).Fetch(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			send(t, stream, &runnelv1.FetchRequest{
				Options: &runnelv1.FetchOptions{Format: batches, Follow: true}, Partitions: []*runnelv1.FetchPartition{fromOffset("t", 0, 0)},
			})
		}
		synctest.Wait()
		if b.held() == 0 {
			t.Fatal("the readers are not stuck")
		}
		_ = raw.Close()
		synctest.Wait()
		if held := b.held(); held != 0 {
			t.Errorf("%d bytes of the budget are held by dead connections", held)
		}
		_ = conn.Close()
	})
}
