package main

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/runnelmq/runnel/client"
	"github.com/runnelmq/runnel/e2e/proc"
)

// A steady load writes a record every steadyEvery, each to the next partition,
// whether those before were acknowledged or not.
const (
	steadyPartitions = 200
	steadyEvery      = 2 * time.Millisecond
	steadyRecords    = 5000
	// steadyWarm records come first and are not counted: connections are made,
	// and every partition has been written to.
	steadyWarm = 1000
)

// calmly returns a run of writers that each write a record, wait for the
// acknowledgement, and write the next, with a client of their own.
func calmly(writers int) func(context.Context, options, *proc.Group, string) (clusterSample, error) {
	return func(ctx context.Context, o options, g *proc.Group, topic string) (clusterSample, error) {
		each := int(min(clusterRecords(o)/int64(writers), 1000))
		took := make([][]time.Duration, writers)
		all, ctx := errgroup.WithContext(ctx)
		begin := time.Now()
		for w := range took {
			all.Go(func() (err error) {
				took[w], err = writeCalmly(ctx, g, topic, int32(w), each) //nolint:gosec // few writers
				return err
			})
		}
		if err := all.Wait(); err != nil {
			return clusterSample{}, err
		}
		return latencies(slices.Concat(took...), time.Since(begin)), nil
	}
}

func writeCalmly(ctx context.Context, g *proc.Group, topic string, writer int32, records int) (took []time.Duration, err error) {
	c, err := client.New(g.Seeds())
	if err != nil {
		return nil, err
	}
	defer c.Close()
	p, err := c.NewProducer(client.PartitionBy(func(_ *client.Record, n int32) int32 { return writer % n }))
	if err != nil {
		return nil, err
	}
	value := make([]byte, clusterValue)
	for range records {
		sent := time.Now()
		if _, err := p.ProduceSync(ctx, client.Record{Topic: topic, Value: value}); err != nil {
			return nil, err
		}
		took = append(took, time.Since(sent))
	}
	return took, p.Close(ctx)
}

// produceSteadily measures from when a record was due: one that is late to be
// sent because the one before hung is late.
func produceSteadily(ctx context.Context, o options, g *proc.Group, topic string) (clusterSample, error) {
	c, err := client.New(g.Seeds())
	if err != nil {
		return clusterSample{}, err
	}
	defer c.Close()
	p, err := c.NewProducer(client.PartitionBy(client.Manual), client.Linger(0))
	if err != nil {
		return clusterSample{}, err
	}
	var (
		mu     sync.Mutex
		took   []time.Duration
		failed error
	)
	warm := int(min(steadyWarm, clusterRecords(o)/2))
	count := warm + int(min(steadyRecords, clusterRecords(o)/2))
	value := make([]byte, clusterValue)
	var begin time.Time
	tick := time.NewTicker(steadyEvery)
	defer tick.Stop()
	for i := range count {
		due := <-tick.C
		if i == warm {
			begin = due
		}
		p.Produce(ctx, client.Record{Topic: topic, Partition: int32(i % steadyPartitions), Value: value}, func(r client.Result) { //nolint:gosec // few partitions
			mu.Lock()
			defer mu.Unlock()

			if r.Err != nil {
				failed = r.Err
			} else if i >= warm {
				took = append(took, time.Since(due))
			}
		})
	}
	if err := p.Close(ctx); err != nil {
		return clusterSample{}, err
	}
	mu.Lock()
	defer mu.Unlock()

	return latencies(took, time.Since(begin)), failed
}

// latencies sums up what records took that were written within a time.
func latencies(took []time.Duration, within time.Duration) clusterSample {
	slices.Sort(took)
	at := func(q float64) float64 {
		if len(took) == 0 {
			return 0
		}
		return float64(took[min(int(q*float64(len(took))), len(took)-1)].Microseconds()) / 1000
	}
	n := float64(len(took))
	return clusterSample{Records: n / within.Seconds(), MBs: n * clusterValue / 1e6 / within.Seconds(), P50: at(0.5), P99: at(0.99), Max: at(1)}
}
