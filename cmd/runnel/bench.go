package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/runnelmq/runnel/client"
)

func (a *app) benchCommand() *cobra.Command {
	return noun("bench", "Measure how fast records are written and read", a.benchProduce(), a.benchConsume())
}

type benchFlags struct {
	produceFlags

	topic      string
	records    int64
	size       int
	producers  int
	partitions int32
	inFlight   int
	batch      int
	keys       int
}

// benchResult is what a measurement prints.
type benchResult struct {
	Topic         string  `json:"topic"`
	Records       int64   `json:"records"`
	Bytes         int64   `json:"bytes"`
	Seconds       float64 `json:"seconds"`
	RecordsPerSec float64 `json:"records_per_second"`
	MBPerSec      float64 `json:"mb_per_second"`
	// Latency from the call to the acknowledgement, or from the time the
	// record was stamped with to its being read.
	Latency *latencyView `json:"latency_ms,omitempty"`
}

type latencyView struct {
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

func (a *app) benchProduce() *cobra.Command {
	var f benchFlags
	c := &cobra.Command{
		Use:   "produce",
		Short: "Write records as fast as they are taken",
		Long: `Writes records of random bytes and prints the rate, and the latency from the
call to the acknowledgement. A topic that does not exist is created.`,
		Example: "  runnel bench produce --topic speed --records 5000000 --size 100 --partitions 16",
		Args:    args(),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			return a.runBenchProduce(c.Context(), f)
		},
	}
	f.flags(c)
	fs := c.Flags()
	fs.IntVar(&f.size, "size", 100, "`bytes` of each record's value")
	fs.IntVar(&f.producers, "producers", 1, "`N` producers that write at a time")
	fs.Int32Var(&f.partitions, "partitions", 1, "`N` partitions of the topic, when it is created")
	fs.IntVar(&f.keys, "keys", 0, "`N` different keys; 0: no keys")
	fs.IntVar(&f.inFlight, "in-flight", 5, "`N` batches of a partition under way at a time")
	fs.IntVar(&f.batch, "batch-bytes", 256<<10, "`bytes` of the largest batch")
	fs.StringVar(&f.acks, "acks", "all", "wait for `all|leader|none`")
	fs.StringVar(&f.compression, "compression", "none", "compress batches: `zstd|lz4|snappy|gzip|none`")
	f.partition = client.AnyPartition
	return c
}

func (f *benchFlags) flags(c *cobra.Command) {
	c.Flags().StringVar(&f.topic, "topic", "bench", "`name` of the topic")
	c.Flags().Int64Var(&f.records, "records", 1_000_000, "`N` records")
}

func (f *benchFlags) check() error {
	switch {
	case f.records < 1:
		return usagef("--records %d: want 1 or more", f.records)
	case f.size < 0 || f.size > maxLine:
		return usagef("--size %d: want 0 to %d", f.size, maxLine)
	case f.producers < 1 || f.producers > 1000:
		return usagef("--producers %d: want 1 to 1000", f.producers)
	case f.partitions < 1:
		return usagef("--partitions %d: want 1 or more", f.partitions)
	case f.keys < 0:
		return usagef("--keys %d: want 0 or more", f.keys)
	}
	return nil
}

func (a *app) runBenchProduce(ctx context.Context, f benchFlags) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	if err := a.ensureTopic(ctx, c, f); err != nil {
		return err
	}
	ctx, stop := interruptible(ctx)
	defer stop()
	loads := make([]*benchLoad, f.producers)
	for i := range loads {
		p, err := a.producer(c, f.produceFlags, client.MaxInFlight(f.inFlight), client.BatchBytes(f.batch))
		if err != nil {
			return err
		}
		share := f.records / int64(f.producers)
		if int64(i) < f.records%int64(f.producers) {
			share++
		}
		loads[i] = newBenchLoad(f, p, share)
	}
	bar := startProgress(a.err, f.records*int64(f.size), func() (int64, int64) {
		var n int64
		for _, l := range loads {
			n += l.acked.Load()
		}
		return n * int64(f.size), n
	})
	begun := time.Now()
	var all sync.WaitGroup
	for _, l := range loads {
		all.Go(func() { l.run(ctx, a.timeout) })
	}
	all.Wait()
	took := time.Since(begun)
	bar.close()
	res := benchResult{Topic: f.topic}
	var lat []time.Duration
	var failed error
	for _, l := range loads {
		res.Records += l.acked.Load()
		lat = append(lat, l.latencies...)
		failed = errors.Join(failed, l.err)
	}
	res.Bytes = res.Records * int64(f.size)
	res.finish(took, lat)
	if err := a.printBench(res, "acknowledged"); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return errInterrupted
	}
	return failed
}

func (a *app) ensureTopic(ctx context.Context, c *client.Client, f benchFlags) error {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	rs, err := c.NewAdmin().CreateTopics(ctx, []client.NewTopic{{Name: f.topic, Partitions: f.partitions, IfNotExists: true}})
	if err != nil {
		return err
	}
	r, err := one(rs)
	if err != nil {
		return err
	}
	return r.Err
}

func (r *benchResult) finish(took time.Duration, lat []time.Duration) {
	r.Seconds = took.Seconds()
	r.RecordsPerSec = float64(r.Records) / max(r.Seconds, 1e-9)
	r.MBPerSec = float64(r.Bytes) / 1e6 / max(r.Seconds, 1e-9)
	if len(lat) == 0 {
		return
	}
	slices.Sort(lat)
	at := func(q float64) float64 {
		i := min(int(q*float64(len(lat))), len(lat)-1)
		return float64(lat[i].Microseconds()) / 1000
	}
	r.Latency = &latencyView{P50: at(0.5), P90: at(0.9), P99: at(0.99), P999: at(0.999), Max: at(1)}
}

func (a *app) printBench(r benchResult, what string) error {
	if a.format == "json" {
		return a.printJSON(r)
	}
	fmt.Fprintf(a.out, "%s %s in %.2f s: %.0f records/s, %.1f MB/s\n", counted(r.Records, "record"), what, r.Seconds, r.RecordsPerSec, r.MBPerSec)
	if l := r.Latency; l != nil {
		fmt.Fprintf(a.out, "latency: p50 %.2f ms, p90 %.2f ms, p99 %.2f ms, p99.9 %.2f ms, max %.2f ms\n", l.P50, l.P90, l.P99, l.P999, l.Max)
	}
	return nil
}
