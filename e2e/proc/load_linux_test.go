package proc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/runnelmq/runnel/client"
	"github.com/runnelmq/runnel/e2e/history"
)

const (
	txns           = "txns"
	txnsPartitions = 12
	// deliveryWithin is longer than any fault lasts.
	deliveryWithin = time.Minute
)

// cluster starts a cluster for the test, which ends with it. The logs are
// shown when the test fails.
func cluster(t *testing.T, c Cluster) *Group {
	t.Helper()
	if c.Dir == "" {
		c.Dir = t.TempDir()
	}
	g, err := StartCluster(t.Context(), binary(t), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g.Kill()
		if t.Failed() {
			for _, n := range g.All() {
				t.Logf("the log of %s ends\n%s", n.Name, n.Log())
			}
		}
	})
	return g
}

// createTxns creates the topic that a load writes to.
func createTxns(t *testing.T, g *Group) {
	t.Helper()
	c := must[*client.Client](t)(client.New(g.Seeds()))
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	rs := must[[]client.TopicResult](t)(c.NewAdmin().CreateTopics(ctx, []client.NewTopic{{Name: txns, Partitions: txnsPartitions, ReplicationFactor: 3}}))
	if rs[0].Err != nil {
		t.Fatal(rs[0].Err)
	}
}

// A load writes numbered records to all partitions through every broker, reads
// them as they come, and keeps their history.
type load struct {
	h       *history.History
	g       *Group
	stop    chan struct{} // closed: no more records
	writing sync.WaitGroup
	tailing sync.WaitGroup
	quit    context.CancelFunc // ends the readers

	// mu guards the fields below
	mu sync.Mutex

	errs []error
	why  map[string]int // outcomes other than acknowledged, by their error
	// acked is when the newest record of each partition that is acknowledged
	// was sent.
	acked [txnsPartitions]time.Time
	// heard is when each partition had a record acknowledged last, and silent
	// the longest time between two of those since silence was asked.
	heard  [txnsPartitions]time.Time
	silent time.Duration
	// next is the first offset of each partition above all that is acknowledged,
	// and seen, of each reader but 0, above all that it has read.
	next [txnsPartitions]int64
	seen [tails][txnsPartitions]int64
}

// tails is how many readers follow the ends of the partitions.
const tails = 2

// startLoad begins to write and to read. Reader 0 is for the end.
func startLoad(t *testing.T, g *Group) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{h: history.New(history.Options{FromBeginning: true}), g: g, stop: make(chan struct{}), quit: cancel, why: map[string]int{}}
	t.Cleanup(l.end)
	for i := range g.Brokers {
		seeds := slices.Concat(g.Seeds()[i:], g.Seeds()[:i])
		l.writing.Go(func() { l.failed(l.write(ctx, seeds)) })
	}
	for i := range tails {
		seeds := slices.Concat(g.Seeds()[i:], g.Seeds()[:i])
		l.tailing.Go(func() { l.failed(l.read(ctx, i+1, seeds, false)) })
	}
	return l
}

func (l *load) end() {
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	l.writing.Wait()
	l.quit()
	l.tailing.Wait()
}

func (l *load) failed(err error) {
	if err == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.errs = append(l.errs, err)
}

// write sends records until the load stops.
func (l *load) write(ctx context.Context, seeds []string) error {
	const (
		every = 4 * time.Millisecond
		size  = 200
	)
	c, err := client.New(seeds)
	if err != nil {
		return err
	}
	defer c.Close()
	next := int32(0)
	p, err := c.NewProducer(client.DeliveryTimeout(deliveryWithin), client.PartitionBy(func(_ *client.Record, n int32) int32 {
		next++
		return next % n
	}))
	if err != nil {
		return err
	}
	me := l.h.Producer()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for running := true; running; {
		select {
		case <-tick.C:
		case <-l.stop:
			running = false
			continue
		}
		n, at := l.h.Next(me), time.Now()
		p.Produce(ctx, client.Record{Topic: txns, Value: history.Value(me, n, size)}, func(r client.Result) { l.outcome(me, n, at, r) })
	}
	ctx, cancel := context.WithTimeout(ctx, 2*deliveryWithin)
	defer cancel()
	return p.Close(ctx)
}

func (l *load) outcome(producer int, n int64, at time.Time, r client.Result) {
	fate := history.Acknowledged
	switch r.Outcome() {
	case client.Failed:
		fate = history.Failed
	case client.Unknown:
		fate = history.Unknown
	case client.Acknowledged:
	}
	l.h.Outcome(producer, n, fate, r.Partition, r.Offset)
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.Err != nil {
		l.why[unnumbered(r.Err)]++
		return
	}
	now := time.Now()
	if last := l.heard[r.Partition]; !last.IsZero() {
		l.silent = max(l.silent, now.Sub(last))
	}
	l.heard[r.Partition] = now
	l.next[r.Partition] = max(l.next[r.Partition], r.Offset+1)
	if at.After(l.acked[r.Partition]) {
		l.acked[r.Partition] = at
	}
}

// silence returns the longest time that any partition had nothing acknowledged
// since it was asked before.
func (l *load) silence() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.silent
	l.silent = 0
	return s
}

// unnumbered returns an error's text with N for each number, so that those that
// are alike count together.
func unnumbered(err error) string {
	return regexp.MustCompile("[0-9]+").ReplaceAllString(err.Error(), "N")
}

// read reads all partitions, from the beginning, until their end or ctx's.
func (l *load) read(ctx context.Context, reader int, seeds []string, toEnd bool) error {
	c, err := client.New(seeds)
	if err != nil {
		return err
	}
	defer c.Close()
	r, err := c.NewReader()
	if err != nil {
		return err
	}
	defer r.Close()
	if err := r.Assign(ctx, client.Assignment{Topic: txns, Partition: client.AnyPartition, AtEnd: toEnd}); err != nil {
		return fmt.Errorf("reader %d: %w", reader, err)
	}
	for {
		b, err := r.Poll(ctx)
		switch {
		case errors.Is(err, io.EOF), ctx.Err() != nil && !toEnd:
			return nil
		case err != nil:
			return fmt.Errorf("reader %d: %w", reader, err)
		}
		for b.Next() {
			rec := b.Record()
			l.h.Read(reader, rec.Partition, rec.Offset, rec.Value)
			l.saw(reader, rec.Partition, rec.Offset+1)
		}
		if err := b.Err(); err != nil {
			return fmt.Errorf("reader %d: %w", reader, err)
		}
	}
}

func (l *load) saw(reader int, partition int32, next int64) {
	if reader == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen[reader-1][partition] = next
}

// readUp waits until both readers have all that is acknowledged now.
func (l *load) readUp(t *testing.T, within time.Duration) {
	t.Helper()
	l.mu.Lock()
	next := l.next
	l.mu.Unlock()
	behind := func() (who []string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		for r := range l.seen {
			for p, want := range next {
				if l.seen[r][p] < want {
					who = append(who, fmt.Sprintf("reader %d is at %d of %d in partition %d", r+1, l.seen[r][p], want, p))
				}
			}
		}
		return who
	}
	l.until(t, within, behind)
}

// check ends the load, reads all back, and fails the test for every anomaly.
func (l *load) check(t *testing.T) history.Report {
	t.Helper()
	close(l.stop)
	l.writing.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := l.read(ctx, 0, l.g.Seeds(), true); err != nil {
		t.Errorf("reading all back: %v", err)
	}
	l.quit()
	l.tailing.Wait()
	r := l.h.Check()
	t.Log(r)
	l.mu.Lock()
	defer l.mu.Unlock()
	for why, n := range l.why {
		t.Logf("%6d × %s", n, why)
	}
	for _, err := range l.errs {
		t.Error(err)
	}
	for _, a := range r.Anomalies {
		t.Errorf("%v (%d of its kind)", a, r.Counts[a.Kind])
	}
	if r.Acknowledged == 0 {
		t.Error("nothing was acknowledged: this proves nothing")
	}
	return r
}

// flowing waits until every partition has a record acknowledged that was sent
// after since.
func (l *load) flowing(t *testing.T, since time.Time, within time.Duration) {
	t.Helper()
	l.until(t, within, func() (stuck []string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		for p, at := range l.acked {
			if !at.After(since) {
				stuck = append(stuck, fmt.Sprintf("partition %d acknowledges nothing", p))
			}
		}
		return stuck
	})
}

// until waits until nothing is wrong any more.
func (l *load) until(t *testing.T, within time.Duration, wrong func() []string) {
	t.Helper()
	give := time.NewTimer(within)
	defer give.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		what := wrong()
		if len(what) == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-give.C:
			t.Fatalf("for %v: %s", within, strings.Join(what, "; "))
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		}
	}
}
