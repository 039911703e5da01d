package client_test

import (
	"context"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/client"
	"github.com/runnelmq/runnel/internal/record"
)

// gone wants nothing of what was held to be in memory, and that something was
// held at each of the places.
func gone(t *testing.T, held map[string][]client.Buffer, at ...string) {
	t.Helper()
	if got := slices.Sorted(maps.Keys(held)); !slices.Equal(got, at) {
		t.Errorf("something was held at %q, want at %q: this shows less than it should", got, at)
	}
	for where, bs := range held {
		if n := client.Left(bs); n > 0 {
			t.Errorf("%s: %d of %d buffers are left after Close", where, n, len(bs))
		}
	}
}

// No buffer is left of a closed producer, also while the program still has the
// producer itself, and however its records ended: here Close is cut short with
// some in flight, some refused, some that wait behind those, some that linger,
// and some whose topic is not known.
func TestProducer_closeLeavesNoBuffer(t *testing.T) {
	for name, opts := range map[string][]client.ProducerOption{
		"plain":      nil,
		"compressed": {client.Compress(client.LZ4, 0)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t, map[string]int{"t": 4})
				var refusals int
				f.onProduce = func(_ int, req *runnelv1.ProduceRequest) action {
					switch req.GetPartition() {
					case 0:
						return action{ignore: true}
					case 1:
						// The first of two is refused while the other, which was sent
						// meanwhile, has no answer: it waits.
						if refusals++; refusals == 1 {
							return action{wait: 10 * time.Millisecond, err: storageFull()}
						}
						return action{ignore: true}
					}
					return action{}
				}
				c := f.client(t)
				p := producer(t, c, append(opts, client.PartitionBy(client.Manual), client.Linger(time.Minute), client.BatchBytes(16<<10))...)
				value := []byte(strings.Repeat("value ", 1500)) // two records fill a batch, and no small one
				called := 0
				write := func(topic string, part int32, n int) {
					for range n {
						p.Produce(t.Context(), client.Record{Topic: topic, Partition: part, Value: value, Headers: []client.Header{{Key: "h", Value: []byte("v")}}}, func(client.Result) { called++ })
					}
				}
				write("t", 2, 2)
				flush(t, p) // the topic is known
				write("t", 0, 40)
				write("t", 1, 4)
				write("t", 3, 1)
				f.locked(func() { f.silentOn = "unknown" })
				write("unknown", 0, 3)
				time.Sleep(20 * time.Millisecond)
				synctest.Wait()
				held := p.Buffers()
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				_ = p.Close(ctx)
				at := []string{"held", "in flight", "open", "queued", "refused"}
				gone(t, held, at...)
				if called != 50 {
					t.Errorf("%d callbacks, want 50", called)
				}
				runtime.KeepAlive(p)
				runtime.KeepAlive(c)
			})
		})
	}
}

// The same after all was written.
func TestProducer_orderlyCloseLeavesNoBuffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 1})
		f.onProduce = func(int, *runnelv1.ProduceRequest) action { return action{wait: time.Second} }
		p := producer(t, f.client(t), client.BatchBytes(16<<10))
		y := newTally()
		for i := range 100 {
			p.Produce(t.Context(), client.Record{Topic: "t", Value: make([]byte, 1000)}, y.done(itoa(i)))
		}
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		held := p.Buffers()
		if err := p.Close(t.Context()); err != nil {
			t.Error(err)
		}
		y.check(t, 100, 0, 0)
		gone(t, held, "in flight", "open", "queued")
		runtime.KeepAlive(p)
	})
}

// Nor of a closed reader, or of one that a group reads with: neither of what was
// fetched ahead, nor of the batch in hand. Where it stands is known all the same.
func TestReader_closeLeavesNoBuffer(t *testing.T) {
	for _, c := range []record.Compression{record.CompressionNone, record.CompressionZstd} {
		for name, walk := range map[string]func(t *testing.T, r *client.Reader){
			"Poll": func(t *testing.T, r *client.Reader) {
				t.Helper()
				b, err := r.Poll(t.Context())
				if err != nil || !b.Next() {
					t.Fatal(err)
				}
			},
			"Records": func(t *testing.T, r *client.Reader) {
				t.Helper()
				for _, err := range r.Records(t.Context()) {
					if err != nil {
						t.Fatal(err)
					}
					break
				}
			},
		} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFake(t, map[string]int{"t": 1})
					f.fill(t, "t", 0, 40_000, 2000, c)
					r := newReader(t, f.client(t), client.Prefetch(256<<10))
					assign(t, r, client.Assignment{Topic: "t"})
					synctest.Wait()
					walk(t, r)
					held := r.Buffers()
					_ = r.Close()
					gone(t, held, "in hand", "queued")
					if pos, ok := r.Position("t", 0); name == "Records" && (pos != 1 || !ok) {
						t.Errorf("position %d, %v; want 1, as one record was handed out", pos, ok)
					}
					for range r.Records(t.Context()) { // which says that it is closed
					}
					runtime.KeepAlive(r)
				})
			})
		}
	}
}

func TestGroup_closeLeavesNoBuffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newFakeGroup(t, map[string]int{"t": 1})
		g.f.fill(t, "t", 0, 40_000, 2000, record.CompressionNone)
		m := member(t, g.f.client(t), client.Reading(client.Prefetch(256<<10)))
		readRecords(t, m, 10)
		synctest.Wait()
		held := m.Reader().Buffers()
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		gone(t, held, "in hand", "queued")
		runtime.KeepAlive(m)
	})
}
