package proc

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/runnelmq/runnel/client"
)

// BenchmarkGroup_commit is how long a member waits for a commit to be durable, on
// three brokers: alone, and when sixteen of its goroutines commit, each for a
// partition.
func BenchmarkGroup_commit(b *testing.B) {
	const partitions = 16
	if built.err != nil {
		b.Fatal(built.err)
	}
	cl, err := StartCluster(b.Context(), built.path, Cluster{Dir: b.TempDir(), Controllers: 1, Brokers: 3})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(cl.Kill)
	c, err := client.New(cl.Seeds())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close() })
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	if _, err := c.NewAdmin().CreateTopics(ctx, []client.NewTopic{{Name: "work", Partitions: partitions}}); err != nil {
		b.Fatal(err)
	}
	p, err := c.NewProducer(client.PartitionBy(client.Manual))
	if err != nil {
		b.Fatal(err)
	}
	for n := range int32(partitions) {
		if _, err := p.ProduceSync(ctx, client.Record{Topic: "work", Partition: n, Value: []byte("v")}); err != nil {
			b.Fatal(err)
		}
	}
	if err := p.Close(ctx); err != nil {
		b.Fatal(err)
	}
	g, err := c.NewGroup("workers", client.Topics("work"), client.ManualCommit())
	if err != nil {
		b.Fatal(err)
	}
	defer g.Close()
	var recs []client.Record
	for rec, err := range g.Records(ctx) {
		if err != nil {
			b.Fatal(err)
		}
		if recs = append(recs, rec.Clone()); len(recs) == partitions {
			break
		}
	}
	for _, workers := range []int{1, partitions} {
		b.Run(fmt.Sprint(workers, " at once"), func(b *testing.B) {
			var all sync.WaitGroup
			var left atomic.Int64
			left.Store(int64(b.N))
			b.ResetTimer()
			for i := range workers {
				all.Go(func() {
					for left.Add(-1) >= 0 {
						if err := g.Commit(b.Context(), recs[i]); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commits/s")
		})
	}
}
