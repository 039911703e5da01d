package proc

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/runnelmq/runnel/client"
)

// A leaky network breaks connections before what was read on them is handed
// over: what the brokers did is done, and nobody hears of it.
type leaky struct{ broken atomic.Int64 }

func (l *leaky) dial(ctx context.Context, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &leakyConn{Conn: conn, l: l, left: 30 + rand.IntN(300)}, nil //nolint:gosec // no secret
}

type leakyConn struct {
	net.Conn

	l    *leaky
	left int // reads until it breaks
}

func (c *leakyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.left--; c.left <= 0 && err == nil {
		c.l.broken.Add(1)
		_ = c.Close()
		return 0, errors.New("the network lost it")
	}
	return n, err
}

// An insistent writer writes numbers to every partition of a topic, in order,
// and writes those again that are not acknowledged.
type insistent struct {
	topic string
	// mu guards the fields below
	mu sync.Mutex

	again   []client.Record
	unknown int
}

func (w *insistent) write(ctx context.Context, p *client.Producer, r client.Record) {
	p.Produce(ctx, r, func(res client.Result) {
		if res.Err == nil {
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.again = append(w.again, r)
		if res.Outcome() == client.Unknown {
			w.unknown++
		}
	})
}

func (w *insistent) unknowns() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.unknown
}

func (w *insistent) run(ctx context.Context, p *client.Producer, parts int32, stop <-chan struct{}) (n int, err error) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for running := true; running; n++ {
		select {
		case <-tick.C:
		case <-stop:
			running = false
		}
		for part := range parts {
			w.write(ctx, p, client.Record{Topic: w.topic, Partition: part, Value: []byte(strconv.Itoa(n))})
		}
	}
	for {
		if err := p.Flush(ctx); err != nil {
			return n, err
		}
		w.mu.Lock()
		again := w.again
		w.again = nil
		w.mu.Unlock()
		if len(again) == 0 {
			return n, nil
		}
		for _, r := range again {
			w.write(ctx, p, r)
		}
	}
}

// PD-10: answers are lost and a leader is killed, and every record of an
// idempotent producer is in the log once, and in order. A producer that is not
// finds records twice under the same faults, when what is unknown is written
// again.
func TestExactlyOnce(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts processes")
	}
	const parts = 4
	g := cluster(t, Cluster{Controllers: 1, Brokers: 3})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	sound := must[*client.Client](t)(client.New(g.Seeds()))
	defer sound.Close()
	var topics []client.NewTopic
	for _, name := range []string{"once", "plain"} {
		topics = append(topics, client.NewTopic{Name: name, Partitions: parts, ReplicationFactor: 3})
	}
	must[[]client.TopicResult](t)(sound.NewAdmin().CreateTopics(ctx, topics))

	var (
		net   leaky
		wait  sync.WaitGroup
		stop  = make(chan struct{})
		sent  [2]int
		ws    = [2]*insistent{{topic: "once"}, {topic: "plain"}}
		opts  = [2][]client.ProducerOption{nil, {client.WithoutIdempotence()}}
		fails [2]error
	)
	for i := range ws {
		c := must[*client.Client](t)(client.New(g.Seeds(), client.Dialer(net.dial)))
		defer c.Close()
		p := must[*client.Producer](t)(c.NewProducer(append(opts[i], client.PartitionBy(client.Manual), client.BatchBytes(1<<10))...))
		wait.Go(func() {
			sent[i], fails[i] = ws[i].run(ctx, p, parts, stop)
			fails[i] = errors.Join(fails[i], p.Close(ctx))
		})
	}
	hurt(ctx, t, g)
	for ws[1].unknowns() < 20 && ctx.Err() == nil { // where little goes on, little is lost
		sleep(ctx, 50*time.Millisecond)
	}
	close(stop)
	wait.Wait()
	if err := errors.Join(fails[:]...); err != nil {
		t.Fatal(err)
	}
	once, plain := readNumbers(ctx, t, sound, "once", parts), readNumbers(ctx, t, sound, "plain", parts)
	for part, vs := range once {
		for i, v := range vs {
			if v != i {
				t.Fatalf("partition %d: number %d at place %d; around it %v", part, v, i, vs[max(i-5, 0):min(i+5, len(vs))])
			}
		}
		if len(vs) != sent[0] {
			t.Errorf("partition %d holds %d records, want %d", part, len(vs), sent[0])
		}
	}
	twice := 0
	for part, vs := range plain {
		slices.Sort(vs)
		if distinct := len(slices.Compact(slices.Clone(vs))); distinct != sent[1] {
			t.Errorf("without idempotence, partition %d holds %d of %d", part, distinct, sent[1])
		} else {
			twice += len(vs) - distinct
		}
	}
	t.Logf("%d + %d numbers to each of %d partitions, %d connections broken; with idempotence %d were unknown; without it %d were, and %d are there twice",
		sent[0], sent[1], parts, net.broken.Load(), ws[0].unknown, ws[1].unknown, twice)
	if net.broken.Load() == 0 || ws[0].unknown > 0 || twice == 0 {
		t.Error("want broken connections, nothing unknown with idempotence, and duplicates without: else this proves nothing")
	}
}

// hurt lets work go on for a while, kills the broker that leads most, and
// starts it again.
func hurt(ctx context.Context, t *testing.T, g *Group) {
	t.Helper()
	for _, b := range g.Brokers[:2] {
		sleep(ctx, time.Second)
		b.Kill()
		sleep(ctx, 500*time.Millisecond)
		if err := b.Restart(ctx); err != nil {
			t.Fatal(err)
		}
	}
	sleep(ctx, 500*time.Millisecond)
}

// readNumbers returns what every partition of a topic holds.
func readNumbers(ctx context.Context, t *testing.T, c *client.Client, topic string, parts int) [][]int {
	t.Helper()
	r := must[*client.Reader](t)(c.NewReader())
	defer r.Close()
	if err := r.Assign(ctx, client.Assignment{Topic: topic, Partition: client.AnyPartition, AtEnd: true}); err != nil {
		t.Fatal(err)
	}
	got := make([][]int, parts)
	for rec, err := range r.Records(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		got[rec.Partition] = append(got[rec.Partition], must[int](t)(strconv.Atoi(string(rec.Value))))
	}
	return got
}
