package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/runnelmq/runnel/client"
)

// sampleEvery: the latency of one record in so many is measured.
const sampleEvery = 64

// A benchLoad is what one producer of a measurement does.
type benchLoad struct {
	f        benchFlags
	producer *client.Producer
	records  int64
	values   [][]byte
	acked    atomic.Int64
	// Written by callbacks, which come one at a time, and read after run.
	latencies []time.Duration
	err       error
}

func newBenchLoad(f benchFlags, p *client.Producer, records int64) *benchLoad {
	l := &benchLoad{f: f, producer: p, records: records}
	for range 64 {
		v := make([]byte, f.size)
		for i := range v {
			// Half of the bits are random: compressions find something to do.
			v[i] = 'a' + byte(rand.IntN(16))
		}
		l.values = append(l.values, v)
	}
	return l
}

func (l *benchLoad) run(ctx context.Context, timeout time.Duration) {
	done := func(r client.Result) {
		if r.Err != nil {
			l.fail(r.Err)
			return
		}
		l.acked.Add(1)
	}
	for i := range l.records {
		if ctx.Err() != nil {
			break
		}
		r := client.Record{Topic: l.f.topic, Value: l.values[i%int64(len(l.values))]}
		if l.f.keys > 0 {
			r.Key = fmt.Appendf(nil, "key-%d", rand.IntN(l.f.keys))
		}
		if i%sampleEvery != 0 {
			l.producer.Produce(ctx, r, done)
			continue
		}
		begun := time.Now()
		l.producer.Produce(ctx, r, func(r client.Result) {
			if r.Err == nil {
				l.latencies = append(l.latencies, time.Since(begun))
			}
			done(r)
		})
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	if err := l.producer.Close(closing); err != nil {
		l.fail(err)
	}
}

func (l *benchLoad) fail(err error) {
	if l.err == nil {
		l.err = err
	}
}

func (a *app) benchConsume() *cobra.Command {
	var f benchFlags
	c := &cobra.Command{
		Use:   "consume",
		Short: "Read records as fast as they come",
		Long: `Reads a topic from its beginning and prints the rate. It stops after --records,
or at the end of the topic.`,
		Example: "  runnel bench consume --topic speed --records 5000000",
		Args:    args(),
		RunE: func(c *cobra.Command, _ []string) error {
			if f.records < 1 {
				return usagef("--records %d: want 1 or more", f.records)
			}
			return a.runBenchConsume(c.Context(), f)
		},
	}
	f.flags(c)
	return c
}

func (a *app) runBenchConsume(ctx context.Context, f benchFlags) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, stop := interruptible(ctx)
	defer stop()
	if err := a.look(ctx, c, f.topic); err != nil {
		return err
	}
	r, err := c.NewReader(client.RetryTimeout(a.timeout))
	if err != nil {
		return err
	}
	defer r.Close()
	assign, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	if err := r.Assign(assign, client.Assignment{Topic: f.topic, Partition: client.AnyPartition, AtEnd: true}); err != nil {
		return err
	}
	var records, size atomic.Int64
	bar := startProgress(a.err, 0, func() (int64, int64) { return size.Load(), records.Load() })
	begun := time.Now()
	err = readAll(ctx, r, f.records, &records, &size)
	took := time.Since(begun)
	bar.close()
	res := benchResult{Topic: f.topic, Records: records.Load(), Bytes: size.Load()}
	res.finish(took, nil)
	if perr := a.printBench(res, "read"); perr != nil {
		return perr
	}
	if ctx.Err() != nil {
		return errInterrupted
	}
	return err
}

// readAll reads until the end, or most records, and counts records and the
// bytes of their keys and values.
func readAll(ctx context.Context, r *client.Reader, most int64, records, size *atomic.Int64) error {
	var n, bytes int64
	for n < most {
		b, err := r.Poll(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		for n < most && b.Next() {
			rec := b.Record()
			n++
			bytes += int64(len(rec.Key) + len(rec.Value))
		}
		records.Store(n)
		size.Store(bytes)
		if err := b.Err(); err != nil {
			return err
		}
	}
	return nil
}
