package commitlog

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// What an append waits for while the root flushes and checkpoints 200 logs
// beside it: a batch of 1 KiB every 2 ms, to the next log each time. Of each
// append, how long after it was due it ended; and how late it began.
func BenchmarkRoot_appendBesideFlushes(b *testing.B) {
	const (
		logs  = 200
		every = 2 * time.Millisecond
	)
	r, err := OpenRoot(vfs.OS(), b.TempDir(), RootOptions{ClusterID: "c", BrokerID: 1})
	must(b, err)
	all := make([]*Log, logs)
	topic := uuid.New()
	for i := range all {
		all[i], _, err = r.OpenPartition(topic, "t", int32(i), Config{}, true)
		must(b, err)
	}
	ctx, stop := context.WithCancel(b.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = r.Run(ctx) }) // an append would tell
	var late, took []time.Duration
	batch := benchBatch(b, 1<<10)
	tick := time.NewTicker(every)
	defer tick.Stop()
	n := 0
	for b.Loop() {
		due := <-tick.C
		begin := time.Now()
		if _, err := all[n%logs].Append(&batch, 1, record.CreateTime); err != nil {
			b.Fatal(err)
		}
		late, took = append(late, begin.Sub(due)), append(took, time.Since(due))
		n++
	}
	stop()
	running.Wait()
	must(b, r.Close(1))
	for unit, of := range map[string][]time.Duration{"late": late, "took": took} {
		slices.Sort(of)
		b.ReportMetric(float64(of[len(of)*99/100].Microseconds())/1000, "p99-"+unit+"-ms")
		b.ReportMetric(float64(of[len(of)-1].Microseconds())/1000, "max-"+unit+"-ms")
	}
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-took-ms")
}
