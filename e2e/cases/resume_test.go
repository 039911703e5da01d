package cases

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runnelmq/runnel/client"
)

// A group that goes on in a compacted log finds its place, also when what it had
// processed last was compacted away since, in whatever leader epoch that was, and
// has no lag in the end (ST-15, ST-16).
func TestST16_goesOnInAHole(t *testing.T) {
	for _, read := range []int64{10, 25, 31, 45} {
		t.Run(fmt.Sprint("after ", read), func(t *testing.T) {
			inTown(t, soonClean, func(w *town) { goOnInAHole(w, read) })
		})
	}
}

func goOnInAHole(w *town, read int64) {
	t := w.t
	c := w.client(brokerAddr)
	defer c.Close()
	configs := compacts()
	configs["min.compaction.lag.ms"] = "60000"
	configs["max.compaction.lag.ms"] = "60000"
	w.topic(c, "t", 1, configs)
	p, err := c.NewProducer(client.WithoutIdempotence()) // of an idempotent one the last batch stays
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(t.Context())
	written := 0
	write := func(n int, key string) {
		for range n {
			rec := client.Record{Key: []byte(key), Value: []byte(number(written))}
			if key == "" {
				rec.Key = []byte(number(written))
			}
			w.put(p, "t", rec)
			written++
		}
	}
	write(10, "")      // 0 to 9 stay
	write(20, "again") // 10 to 29 go
	w.stop()
	w.start()
	write(40, "again") // 30 to 68, too, but for the epoch's first batch, which is emptied
	write(1, "last")
	g, err := c.NewGroup("g", client.Topics("t"), client.ManualCommit())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for rec, err := range g.Records(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if rec.Offset == read-1 {
			if err := g.Commit(ctx, rec); err != nil {
				t.Error(err)
			}
			break
		}
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * time.Minute)
	w.stop()
	w.start()
	if got := w.readFrom(c, "t", 0); len(got) != 12 {
		t.Fatalf("left is %v", got)
	}
	var want []string
	for o := read; o < 10; o++ {
		want = append(want, number(int(o)))
	}
	want = append(want, number(69), number(70))
	stop := w.member(c, "g", client.Topics("t"))
	time.Sleep(20 * time.Second)
	got, errs := stop()
	if diff := cmp.Diff(want, got); diff != "" || len(errs) > 0 {
		t.Errorf("%v, %s", errs, diff)
	}
	if d, err := c.NewAdmin().DescribeGroup(t.Context(), "g"); err != nil || d.LagRecords != 0 {
		t.Errorf("%+v, %v", d, err)
	}
}
