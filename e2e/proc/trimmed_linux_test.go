package proc

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runnelmq/runnel/client"
	"github.com/runnelmq/runnel/internal/record"
)

// ST-22: a log may begin inside a batch. A follower that comes back with an
// empty disk begins there too, and so does every reader, whoever leads, also
// after all were restarted.
func TestCluster_startInsideABatchST22(t *testing.T) {
	t.Parallel()
	const batch, start = 100, 50
	g := cluster(t, Cluster{Controllers: 1, Brokers: 3})
	createTxns(t, g)
	c := must[*client.Client](t)(client.New(g.Seeds()))
	defer c.Close()
	oneBatchEach(t, c, batch)

	for _, name := range logsOf(t, g.Brokers[0]) {
		data := must[[]byte](t)(os.ReadFile(name))
		if f, v := record.ParseFrame(data, int64(len(data)), record.MaxFrameSize); v != record.OK || f.Size != len(data) {
			t.Fatalf("%s is not one batch: %v, %d of %d bytes", name, v, f.Size, len(data))
		}
	}

	empty := g.Brokers[0]
	empty.stop(t)
	wipe(t, empty)
	before := map[int32]int64{}
	for p := range int32(txnsPartitions) {
		before[p] = start
	}
	for _, d := range must[[]client.DeletedRecords](t)(c.NewAdmin().DeleteRecords(t.Context(), txns, before)) {
		if d.Err != nil || d.LogStart != start {
			t.Fatalf("%+v", d)
		}
	}
	empty.restart(t)
	settled(t, g)
	for i, alone := range g.Brokers {
		for j, b := range g.Brokers {
			if j != i {
				b.stop(t)
			}
		}
		isr(t, alone, 1)
		got := strings.Fields(alone.cli(t, "consume", txns, "--exit-at-end", "--print", "%p/%o=%v"))
		slices.Sort(got)
		var want []string
		for n := start * txnsPartitions; n < batch*txnsPartitions; n++ {
			want = append(want, fmt.Sprintf("%d/%d=%d", n%txnsPartitions, n/txnsPartitions, n))
		}
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s alone: %s", alone.Name, diff)
		}
		for j, b := range g.Brokers {
			if j != i {
				b.restart(t)
			}
		}
		settled(t, g)
	}
}

// oneBatchEach writes n records to each partition, in one batch.
func oneBatchEach(t *testing.T, c *client.Client, n int) {
	t.Helper()
	p := must[*client.Producer](t)(c.NewProducer(client.PartitionBy(client.Manual), client.Linger(time.Second)))
	for i := range n * txnsPartitions {
		p.Produce(t.Context(), client.Record{Topic: txns, Partition: int32(i % txnsPartitions), Value: fmt.Append(nil, i)}, func(r client.Result) {
			if r.Err != nil {
				t.Error(r.Err)
			}
		})
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}
