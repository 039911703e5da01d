package client_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/client"
	"github.com/runnelmq/runnel/internal/record"
)

// An ear hears what the hooks are told.
type ear struct {
	// mu guards the fields below
	mu sync.Mutex

	proxied, direct, broken []string
	batches                 []client.BatchInfo
	fetched                 int
}

func (e *ear) hooks() client.Hooks {
	add := func(to *[]string, s string) {
		e.mu.Lock()
		defer e.mu.Unlock()
		*to = append(*to, s)
	}
	return client.Hooks{
		Proxied: func(addr string, why error) { add(&e.proxied, addr+" "+why.Error()) },
		Direct:  func(addr string) { add(&e.direct, addr) },
		Broken:  func(addr string, why error) { add(&e.broken, addr+" "+why.Error()) },
		Produced: func(b client.BatchInfo) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.batches = append(e.batches, b)
		},
		Fetched: func(client.FetchInfo) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.fetched++
		},
	}
}

// routed counts requests by the node that got them, and by how.
func (f *fakeBroker) routed() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := map[string]int{}
	for _, d := range f.nodes {
		n["direct"] += d.direct
		n["proxied"] += d.proxied
	}
	return n
}

func spread(t *testing.T, p *client.Producer, y *tally, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		v := itoa(i)
		p.Produce(t.Context(), client.Record{Topic: "t", Key: []byte(v), Value: []byte(v)}, y.done(v))
	}
}

// acquaint has p write to every broker of the cluster, which it may not know of
// when the first records leave, and returns how many were sent.
func acquaint(t *testing.T, f *fakeBroker, p *client.Producer, y *tally) (sent int) {
	t.Helper()
	for ; sent < 1000; sent += 100 {
		spread(t, p, y, sent, sent+100)
		flush(t, p)
		synctest.Wait()
		strangers := 0
		f.locked(func() {
			for _, d := range f.nodes {
				if d.direct == 0 {
					strangers++
				}
			}
		})
		if strangers == 0 {
			return sent + 100
		}
	}
	t.Fatal("it does not go to all leaders")
	return 0
}

// read reads n records, within a minute, and returns their values, sorted.
func read(t *testing.T, r *client.Reader, n int) (vs []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for rec, err := range r.Records(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if vs = append(vs, string(rec.Value)); len(vs) == n {
			break
		}
	}
	slices.Sort(vs)
	return vs
}

func TestClient_goesToTheLeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 3, map[string]int{"t": 6})
		c := f.client(t)
		p := producer(t, c)
		y := newTally()
		spread(t, p, y, 0, 10)
		flush(t, p)
		synctest.Wait() // the leaders are known
		first := f.routed()
		spread(t, p, y, 10, 1000)
		flush(t, p)
		y.check(t, 1000, 0, 0)
		r := newReader(t, c)
		assign(t, r, client.Assignment{Topic: "t", Partition: client.AnyPartition})
		if vs := slices.Compact(read(t, r, 1000)); len(vs) != 1000 {
			t.Errorf("%d different records were read, want 1000", len(vs))
		}
		got := f.routed()
		if got["proxied"] != first["proxied"] || got["direct"] == 0 {
			t.Errorf("requests %v, at first %v; want all but the first direct", got, first)
		}
	})
}

func TestClient_proxyAsksOneBrokerForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 3, map[string]int{"t": 6})
		f.nodes[1].down, f.nodes[2].down = true, true
		c := f.client(t, client.WithRouting(client.Proxy))
		p := producer(t, c)
		y := newTally()
		spread(t, p, y, 0, 1000)
		flush(t, p)
		y.check(t, 1000, 0, 0)
		r := newReader(t, c)
		assign(t, r, client.Assignment{Topic: "t", Partition: client.AnyPartition})
		read(t, r, 1000)
		if got := f.routed(); got["direct"] != 0 {
			t.Errorf("requests %v, want all proxied", got)
		}
	})
}

// A leader that cannot be reached at the address it advertises, or where
// another cluster answers, is reached through a seed; and directly again when
// that works.
func TestClient_unreachableLeader(t *testing.T) {
	for name, hurt := range map[string]func(*fakeNode){
		"refused":         func(d *fakeNode) { d.down = true },
		"another cluster": func(d *fakeNode) { d.cluster = "other" },
		"silent":          func(d *fakeNode) { d.blackhole = true },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeCluster(t, 2, map[string]int{"t": 4})
				hurt(f.nodes[1])
				var e ear
				c := f.client(t, client.WithHooks(e.hooks()))
				p := producer(t, c)
				r := newReader(t, c)
				assign(t, r, client.Assignment{Topic: "t", Partition: client.AnyPartition})
				y := newTally()
				begun := time.Now()
				spread(t, p, y, 0, 100)
				flush(t, p)
				spread(t, p, y, 100, 1000)
				flush(t, p)
				y.check(t, 1000, 0, 0)
				read(t, r, 1000)
				if took := time.Since(begun); took > 5*time.Second {
					t.Errorf("took %v", took)
				}
				e.mu.Lock()
				if len(e.proxied) == 0 || !strings.HasPrefix(e.proxied[0], f.nodes[1].addr) {
					t.Errorf("the hook was told %q", e.proxied)
				}
				e.mu.Unlock()
				if n := f.nodes[1].fetched.Load(); n > 0 {
					t.Errorf("%d partitions were fetched where they cannot be", n)
				}
				f.locked(func() { d := f.nodes[1]; d.down, d.blackhole, d.cluster = false, false, "fake" })
				time.Sleep(2 * time.Minute)
				before := f.nodes[1].direct
				if name != "silent" && f.nodes[1].fetched.Load() == 0 {
					t.Error("the reader goes on through the seed")
				}
				spread(t, p, y, 1000, 2000)
				flush(t, p)
				y.check(t, 2000, 0, 0)
				read(t, r, 1000)
				if f.nodes[1].direct == before || len(e.direct) == 0 {
					t.Errorf("%d direct requests, as before; the hook was told %q", before, e.direct)
				}
			})
		})
	}
}

// A reader keeps its place, and every record is read once, while leaders move.
func TestReader_leaderMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 3, map[string]int{"t": 1})
		c := f.client(t)
		p := producer(t, c, client.BatchBytes(1<<10))
		r := newReader(t, c, client.Prefetch(64<<10))
		assign(t, r, client.Assignment{Topic: "t"})
		next := 0
		for round := range 50 {
			y := newTally()
			send(t, p, y, round*100, round*100+100)
			f.locked(func() { f.topics["t"].parts[0].lead(round % 3) })
			for rec, err := range r.Records(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				if string(rec.Value) != itoa(next) {
					t.Fatalf("read %q, want %d", rec.Value, next)
				}
				if next++; next == round*100+100 {
					break
				}
			}
		}
	})
}

// While no seed can be reached, and others answer that are connected already,
// these are not asked without end.
func TestClient_asksAroundInMeasure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 3, map[string]int{"t": 3})
		p := producer(t, f.client(t))
		y := newTally()
		sent := acquaint(t, f, p, y)
		f.locked(func() {
			for _, d := range f.nodes {
				d.down = true // for new connections
				d.asked.Store(0)
			}
		})
		f.nodes[0].srv.Stop()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := f.nodes[1].asked.Load(); n == 0 || n > 100 {
			t.Errorf("a broker was asked %d times in 10 s", n)
		}
		f.locked(func() {
			f.nodes[1].down, f.nodes[2].down = false, false
			f.topics["t"].parts[0].lead(1)
		})
		spread(t, p, y, sent, sent+100)
		flush(t, p)
		y.check(t, sent+100, 0, 0)
	})
}

// With one seed alone, which goes, the others are found.
func TestClient_outlivesItsSeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 3, map[string]int{"t": 3, "u": 3})
		c := f.client(t)
		p := producer(t, c)
		y := newTally()
		spread(t, p, y, 0, 1000)
		flush(t, p)
		synctest.Wait() // the leaders are known
		f.locked(func() {
			f.nodes[0].down = true
			for _, topic := range f.topics {
				for _, pt := range topic.parts {
					pt.lead(1 + pt.leader%2)
				}
			}
		})
		f.nodes[0].srv.Stop()
		spread(t, p, y, 1000, 2000)
		flush(t, p)
		y.check(t, 2000, 0, 0)
		if _, err := p.ProduceSync(t.Context(), client.Record{Topic: "u", Value: []byte("x")}); err != nil {
			t.Error(err) // a topic that it has to ask about
		}
	})
}

// A seed that leads all that is written and read is lost before the client has
// spoken to anybody else: the others are known by what it told.
func TestClient_outlivesItsOnlyAcquaintance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 3, map[string]int{"t": 1})
		c := f.client(t)
		p, r := producer(t, c), newReader(t, c)
		y := newTally()
		send(t, p, y, 0, 100)
		flush(t, p)
		assign(t, r, client.Assignment{Topic: "t"})
		read(t, r, 100)
		synctest.Wait()
		f.locked(func() {
			f.nodes[0].down = true
			f.topics["t"].parts[0].lead(1)
		})
		f.nodes[0].srv.Stop()
		begun := time.Now()
		send(t, p, y, 100, 200)
		flush(t, p)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		n := 0
		for _, err := range r.Records(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			if n++; n == 100 {
				break
			}
		}
		if took := time.Since(begun); took > 10*time.Second {
			t.Errorf("took %v", took)
		}
		y.check(t, 200, 0, 0)
	})
}

func TestNew_badRouting(t *testing.T) {
	if _, err := client.New([]string{"b:1"}, client.WithRouting(7)); err == nil {
		t.Error("WithRouting(7) was taken")
	}
}

// Hooks are told of batches, and of retries that found them stored.
func TestHooks_produced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 1})
		f.onProduce = func(n int, _ *runnelv1.ProduceRequest) action {
			switch n {
			case 1:
				it := item(runnelv1.ErrorReason_ERROR_REASON_COMMIT_UNCERTAIN, codes.DeadlineExceeded)
				it.OutcomeUnknown = true
				return action{also: it}
			case 3:
				return action{err: item(runnelv1.ErrorReason_ERROR_REASON_INVALID_TIMESTAMP, codes.InvalidArgument)}
			}
			return action{}
		}
		var e ear
		c := f.client(t, client.WithHooks(e.hooks()))
		p := producer(t, c)
		for range 2 {
			_, _ = p.ProduceSync(t.Context(), client.Record{Topic: "t", Value: []byte("x")})
		}
		flush(t, p)
		e.mu.Lock()
		defer e.mu.Unlock()
		if len(e.batches) != 2 || !e.batches[0].Duplicate || e.batches[0].Retries != 1 || e.batches[0].Err != nil || e.batches[0].WireBytes == 0 ||
			!errors.Is(e.batches[1].Err, client.ErrInvalidTimestamp) || e.batches[1].Records != 1 {
			t.Errorf("the hook was told %+v", e.batches)
		}
	})
}

// Nothing is left after Close: synctest fails when a goroutine is.
func TestClient_closeLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 3, map[string]int{"t": 6})
		c := f.client(t)
		p, err := c.NewProducer()
		if err != nil {
			t.Fatal(err)
		}
		r, err := c.NewReader()
		if err != nil {
			t.Fatal(err)
		}
		y := newTally()
		spread(t, p, y, 0, 1000)
		assign(t, r, client.Assignment{Topic: "t", Partition: client.AnyPartition})
		read(t, r, 500)
		if err := p.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		y.check(t, 1000, 0, 0)
		if _, err := c.NewAdmin().DescribeCluster(context.Background()); !errors.Is(err, client.ErrClosed) {
			t.Errorf("after Close: %v, want ErrClosed", err)
		}
	})
}

// Added partitions are told by push, and used.
func TestProducer_addedPartitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 2, map[string]int{"t": 1})
		p := producer(t, f.client(t), client.PartitionBy(func(_ *client.Record, n int32) int32 { return n - 1 }))
		one := func() int32 {
			rs, err := p.ProduceSync(t.Context(), client.Record{Topic: "t", Value: []byte("x")})
			if err != nil {
				t.Fatal(err)
			}
			return rs[0].Partition
		}
		if got := one(); got != 0 {
			t.Errorf("partition %d of 1", got)
		}
		f.locked(func() {
			f.topics["t"].parts = append(f.topics["t"].parts, &fakePartition{leader: 1, epoch: 1, known: map[record.ProducerID]*fakeWindow{}})
		})
		synctest.Wait()
		one() // looks at the topic
		synctest.Wait()
		if got := one(); got != 1 {
			t.Errorf("partition %d, want the one that was added", got)
		}
	})
}

// Leaders that move to and fro while much is under way: answers from before are
// not taken for those after.
func TestReader_leadersToAndFro(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const records = 60_000
		f := newFakeCluster(t, 2, map[string]int{"t": 1})
		f.fill(t, "t", 0, records, 10, record.CompressionNone)
		r := newReader(t, f.client(t), client.Prefetch(64<<10))
		assign(t, r, client.Assignment{Topic: "t", AtEnd: true})
		next := int64(0)
		for polls := 0; next < records; polls++ {
			b, err := r.Poll(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for rec := range b.All() {
				if rec.Offset != next {
					t.Fatalf("read offset %d, want %d", rec.Offset, next)
				}
				next++
			}
			if polls%2 == 0 {
				f.locked(func() { f.topics["t"].parts[0].lead(polls / 2 % 2) })
			}
		}
		if n := f.topics["t"].parts[0].epoch; n < 10 {
			t.Errorf("only %d moves", n)
		}
	})
}
