package proc

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/runnelmq/runnel/client"
)

const (
	wide           = "wide"
	widePartitions = 200
	// pileBytes are what each partition holds, and an emptied follower lacks.
	pileBytes = 1 << 20
	// paceEvery is the time between two records of a pace.
	paceEvery = 2 * time.Millisecond
	// slowerAtMost is the factor of PROTOCOL §6 row 74.
	slowerAtMost = 2
	// slowestRestless is that of the slowest writes without rests, and while the
	// emptied one starts: servers and clients share two cores.
	slowestRestless = 10
	// noiseBelow is a p99 that says nothing of the brokers.
	noiseBelow = 5 * time.Millisecond
)

// A pace writes a record every paceEvery, whether those before were acknowledged
// or not, and notes how long each took from the time when it was due.
type pace struct {
	c *client.Client

	mu      sync.Mutex
	samples []paceSample
	failed  []error
}

type paceSample struct {
	due  time.Time
	took time.Duration
}

func (p *pace) run(ctx context.Context) error {
	producer, err := p.c.NewProducer(client.PartitionBy(client.Manual), client.Linger(0))
	if err != nil {
		return err
	}
	tick := time.NewTicker(paceEvery)
	defer tick.Stop()
	value := make([]byte, 1024)
	for i := int32(0); ; i++ {
		select {
		case <-ctx.Done():
			return producer.Close(context.WithoutCancel(ctx))
		case due := <-tick.C:
			producer.Produce(context.WithoutCancel(ctx), client.Record{Topic: wide, Partition: i % widePartitions, Value: value}, func(r client.Result) {
				p.note(paceSample{due, time.Since(due)}, r.Err)
			})
		}
	}
}

func (p *pace) note(s paceSample, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.failed = append(p.failed, err)
		return
	}
	p.samples = append(p.samples, s)
}

// took logs and returns the median of what the records took that were due in a
// time, and what the slowest hundredth took at least.
func (p *pace) took(t *testing.T, when string, from, to time.Time) (p50, p99 time.Duration) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	var took []time.Duration
	for _, s := range p.samples {
		if !s.due.Before(from) && s.due.Before(to) {
			took = append(took, s.took)
		}
	}
	if len(took) < 100 {
		t.Fatalf("%s, only %d records were acknowledged in %v", when, len(took), to.Sub(from))
	}
	slices.Sort(took)
	p50, p99 = took[len(took)/2], took[len(took)*99/100]
	t.Logf("%s: %v, %d records, p50 %v, p99 %v, max %v", when, to.Sub(from).Round(time.Millisecond), len(took),
		p50.Round(10*time.Microsecond), p99.Round(10*time.Microsecond), took[len(took)-1].Round(10*time.Microsecond))
	return p50, p99
}

// inSync waits until n replicas of every wide partition are in sync.
func inSync(t *testing.T, c *client.Client, n int) {
	t.Helper()
	eventually(t, "the replicas in sync are as many as they should be", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		ds, err := c.NewAdmin().DescribeTopics(ctx, []string{wide})
		return err == nil && len(ds) == 1 && len(ds[0].Partitions) == widePartitions &&
			!slices.ContainsFunc(ds[0].Partitions, func(p client.PartitionDescription) bool { return len(p.ISR) != n })
	})
}

// inService waits until n brokers are.
func inService(t *testing.T, c *client.Client, n int) {
	t.Helper()
	eventually(t, "all brokers are in service", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		d, err := c.NewAdmin().DescribeCluster(ctx)
		active := 0
		for _, b := range d.Brokers {
			if b.State == "active" {
				active++
			}
		}
		return err == nil && active == n
	})
}

// pileUp fills the wide topic with bytes that don't compress.
func pileUp(t *testing.T, c *client.Client) {
	t.Helper()
	rs := must[[]client.TopicResult](t)(c.NewAdmin().CreateTopics(t.Context(), []client.NewTopic{{Name: wide, Partitions: widePartitions, ReplicationFactor: 3}}))
	if rs[0].Err != nil {
		t.Fatal(rs[0].Err)
	}
	p := must[*client.Producer](t)(c.NewProducer(client.PartitionBy(client.Manual)))
	value := make([]byte, 32<<10)
	src := rand.NewChaCha8([32]byte{})
	for i := range pileBytes / len(value) * widePartitions {
		_, _ = src.Read(value)
		p.Produce(t.Context(), client.Record{Topic: wide, Partition: int32(i % widePartitions), Value: slices.Clone(value)}, func(r client.Result) {
			if r.Err != nil {
				t.Error(r.Err)
			}
		})
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A broker whose disk was emptied copies 200 partitions anew, no faster than it
// may, while what is in sync is written about as quickly as before. The leaders
// rest between what they send it, unless they are told not to. Its start, on the
// two cores of all the others, is looked at by itself.
func TestCluster_catchUpAside(t *testing.T) {
	if !whole() {
		t.Skip("a part of make e2e: it measures for a minute")
	}
	for _, c := range []catchUpCase{
		{name: "by default", share: 25, slower: slowerAtMost},
		{name: "8 MiB a second", share: 25, rate: 8 << 20, slower: slowerAtMost},
		{name: "without rests", share: 100, slower: slowestRestless},
	} {
		t.Run(c.name, func(t *testing.T) { catchUpAside(t, c) })
	}
}

// A catchUpCase is what each of the two leaders is configured with, and how much
// slower the slowest writes may become.
type catchUpCase struct {
	name   string
	share  int
	rate   int // bytes a second; 0: no bound
	slower int // times
}

func catchUpAside(t *testing.T, c catchUpCase) {
	t.Helper()
	g := cluster(t, Cluster{Controllers: 1, Brokers: 3, BrokerSet: []string{
		"replication.catch_up_rate=" + strconv.Itoa(c.rate) + "B", "replication.catch_up_share=" + strconv.Itoa(c.share),
	}})
	cl := must[*client.Client](t)(client.New(g.Seeds()))
	t.Cleanup(func() { _ = cl.Close() })
	pileUp(t, cl)
	inSync(t, cl, 3)

	p := &pace{c: cl}
	ctx, stop := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	writing.Go(func() {
		if err := p.run(ctx); err != nil {
			t.Error(err)
		}
	})
	defer writing.Wait()
	defer stop()
	pass(t, 2*time.Second) // connections are made
	begin := time.Now()
	pass(t, 8*time.Second)
	usual, before := p.took(t, "three in sync", begin, time.Now())

	bad := g.Brokers[0]
	bad.stop(t)
	wipe(t, bad)
	inSync(t, cl, 2)
	pass(t, time.Second)
	begin = time.Now()
	pass(t, 5*time.Second)
	p.took(t, "one away", begin, time.Now())

	begin = time.Now()
	if err := bad.Start(); err != nil {
		t.Fatal(err)
	}
	started := begin
	if c.share < 100 { // else it is soon done
		inService(t, cl, len(g.Brokers))
		started = time.Now()
	}
	inSync(t, cl, 3)
	end := time.Now()
	stop()
	writing.Wait()
	_, whole := p.took(t, "an emptied one starts, and catches up", begin, end)
	median, during := p.took(t, "it catches up", started, end)
	t.Logf("the median is %.1f times that of before, the p99 %.1f times", float64(median)/float64(usual), float64(during)/float64(before))
	if median > slowerAtMost*usual && c.share < 100 {
		t.Errorf("the median rose from %v to %v while a follower caught up", usual, median)
	}
	if during > time.Duration(c.slower)*max(before, noiseBelow) {
		t.Errorf("the p99 rose from %v to %v while a follower caught up", before, during)
	}
	if whole > slowestRestless*max(before, noiseBelow) {
		t.Errorf("the p99 rose from %v to %v while a follower started and caught up", before, whole)
	}
	if len(p.failed) > 0 {
		t.Errorf("%d records failed, the first: %v", len(p.failed), p.failed[0])
	}
	if c.rate > 0 {
		least := time.Duration(float64(widePartitions*pileBytes) / float64(2*c.rate) * float64(time.Second))
		if took := end.Sub(begin); took < least*9/10 {
			t.Errorf("caught up in %v: two leaders that keep to their rates need %v", took, least)
		}
	}
	equal(t, g, widePartitions)
}
