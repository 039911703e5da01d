package cases

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runnelmq/runnel/client"
)

// groupNext returns the next n records of a member as topic/partition/offset=value.
func (w *town) groupNext(g *client.Group, n int, within time.Duration) []string {
	w.t.Helper()
	got, err := groupRead(w.t.Context(), g, n, within)
	if len(got) < n {
		w.t.Fatalf("read %d of %d records in %s: %v", len(got), n, within, err)
	}
	return got
}

// idle lets a member read for a while, and returns what it read.
func (w *town) idle(g *client.Group, long time.Duration) []string {
	w.t.Helper()
	got, err := groupRead(w.t.Context(), g, 1<<30, long)
	if !errors.Is(err, context.DeadlineExceeded) {
		w.t.Fatalf("after %v: %v", got, err)
	}
	return got
}

// groupRead reads until there are n records, a time has passed, or an error
// comes.
func groupRead(ctx context.Context, g *client.Group, n int, within time.Duration) (got []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for rec, err := range g.Records(ctx) {
		if err != nil {
			return got, err
		}
		if got = append(got, fmt.Sprintf("%s/%d/%d=%s", rec.Topic, rec.Partition, rec.Offset, rec.Value)); len(got) == n {
			return got, nil
		}
	}
	return got, nil
}

// A group whose next records were deleted does what it was told: it stops and
// says where the log begins and ends, or goes on at either end (CG-13). A log may
// begin inside a batch (ST-22).
func TestCG13_recordsWereDeleted(t *testing.T) {
	for name, c := range map[string]struct {
		opts     []client.ReaderOption
		logStart int64
		want     []string
	}{
		"fail, all deleted":     {nil, 22, nil},
		"earliest, all deleted": {[]client.ReaderOption{client.OnOutOfRange(client.ResetEarliest)}, 22, offsets(22, 27)},
		"latest, all deleted":   {[]client.ReaderOption{client.OnOutOfRange(client.ResetLatest)}, 22, offsets(27, 29)},
		"fail, some deleted":    {nil, 15, nil},
		"earliest, some":        {[]client.ReaderOption{client.OnOutOfRange(client.ResetEarliest)}, 15, offsets(15, 27)},
		"latest, some":          {[]client.ReaderOption{client.OnOutOfRange(client.ResetLatest)}, 15, offsets(27, 29)},
		"nothing of its own":    {nil, 5, offsets(5, 27)},
	} {
		t.Run(name, func(t *testing.T) {
			inTown(t, nil, func(w *town) {
				t := w.t
				cl := w.client(brokerAddr)
				defer cl.Close()
				w.topic(cl, "t", 1, nil)
				w.numbered(cl, "t", 1, 0, 22)
				admin := cl.NewAdmin()
				if _, _, err := admin.ResetOffsets(t.Context(), "g", []client.OffsetReset{{Topic: "t", To: client.AtOffset(5)}}); err != nil {
					t.Fatal(err)
				}
				if _, err := admin.DeleteRecords(t.Context(), "t", map[int32]int64{0: c.logStart}); err != nil {
					t.Fatal(err)
				}
				w.numbered(cl, "t", 1, 22, 27)
				g, err := cl.NewGroup("g", client.Topics("t"), client.Reading(c.opts...))
				if err != nil {
					t.Fatal(err)
				}
				defer g.Close()
				if c.want == nil {
					got, err := groupRead(t.Context(), g, 1, 20*time.Second)
					e, ok := errors.AsType[*client.Error](err)
					if !ok || !errors.Is(err, client.ErrOffsetOutOfRange) || len(got) > 0 {
						t.Fatalf("%v, %v", got, err)
					}
					start, _ := e.Int("logStartOffset")
					end, _ := e.Int("highWatermark")
					if start != c.logStart || end != 27 {
						t.Errorf("the error says [%d, %d): %v", start, end, err)
					}
					if at := w.committed(cl, "g")["t/0"]; at != 5 {
						t.Errorf("committed is %d", at)
					}
					return
				}
				got := w.idle(g, 20*time.Second)
				w.numbered(cl, "t", 1, 27, 29)
				got = append(got, w.idle(g, 20*time.Second)...)
				want := c.want
				if want[len(want)-1] != offsets(28, 29)[0] {
					want = append(slices.Clip(want), offsets(27, 29)...)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Error(diff)
				}
				if at := w.committed(cl, "g")["t/0"]; at != 29 {
					t.Errorf("committed is %d", at)
				}
			})
		})
	}
}

// offsets describes the records of numbered.
func offsets(from, to int) (out []string) {
	for ; from < to; from++ {
		out = append(out, fmt.Sprintf("t/0/%d=%s", from, number(from)))
	}
	return out
}

// A group that has come to offsets whose records are all compacted away, up to the
// end, has no lag (ST-16).
func TestST16_nothingIsLeft(t *testing.T) {
	for _, processed := range []int{0, 1, 2} {
		t.Run(fmt.Sprint(processed, " processed before"), func(t *testing.T) {
			inTown(t, soonClean, func(w *town) {
				t := w.t
				c := w.client(brokerAddr)
				defer c.Close()
				configs := compacts()
				configs["delete.retention.ms"] = "1000"
				w.topic(c, "t", 1, configs)
				p, err := c.NewProducer()
				if err != nil {
					t.Fatal(err)
				}
				defer p.Close(t.Context())
				w.put(p, "t", client.Record{Key: []byte("k"), Value: []byte("v")}, client.Record{Key: []byte("l"), Value: []byte("v")})
				if processed > 0 {
					if _, _, err := c.NewAdmin().ResetOffsets(t.Context(), "g", []client.OffsetReset{{Topic: "t", To: client.AtOffset(int64(processed))}}); err != nil {
						t.Fatal(err)
					}
				}
				w.put(p, "t", client.Record{Key: []byte("k")}, client.Record{Key: []byte("l")})
				time.Sleep(10 * time.Minute)
				stop := w.member(c, "g", client.Topics("t"))
				time.Sleep(20 * time.Second)
				d, err := c.NewAdmin().DescribeGroup(t.Context(), "g")
				if err != nil || len(d.Partitions) != 1 || d.LagRecords != 0 || d.Partitions[0].Committed != 4 {
					t.Errorf("%+v, %v: want no lag", d, err)
				}
				w.put(p, "t", client.Record{Key: []byte("k"), Value: []byte("more")})
				time.Sleep(time.Second)
				if got, errs := stop(); fmt.Sprint(got) != "[more]" || len(errs) > 0 {
					t.Errorf("read %v, %v", got, errs)
				}
			})
		})
	}
}

// What a group has processed of a compacted topic has no lag, whatever was
// compacted away below, between and behind what there is (ST-16).
func TestST16_noLagOverHoles(t *testing.T) {
	inTown(t, soonClean, func(w *town) {
		t := w.t
		c := w.client(brokerAddr)
		defer c.Close()
		configs := compacts()
		configs["delete.retention.ms"] = "1000"
		w.topic(c, "t", 1, configs)
		p, err := c.NewProducer()
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close(t.Context())
		for i := range 20 {
			w.put(p, "t", client.Record{Key: []byte(number(i)), Value: []byte("v")}, client.Record{Key: []byte("again"), Value: []byte(number(i))})
		}
		// The last ones are tombstones, and will be gone.
		w.put(p, "t", client.Record{Key: []byte(number(19))}, client.Record{Key: []byte("again")})
		time.Sleep(10 * time.Minute)
		g, err := c.NewGroup("g", client.Topics("t"), client.ManualCommit())
		if err != nil {
			t.Fatal(err)
		}
		var recs []client.Record
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		for rec, err := range g.Records(ctx) {
			if err != nil {
				break
			}
			recs = append(recs, rec.Clone())
		}
		if len(recs) != 19 || recs[18].Offset != 36 {
			t.Fatalf("%d records are left, the last at %d", len(recs), recs[len(recs)-1].Offset)
		}
		for _, i := range []int{18, 3, 11} { // out of order
			if err := g.Commit(t.Context(), recs[i]); err != nil {
				t.Error(err)
			}
		}
		if at := w.committed(c, "g")["t/0"]; at != 37 {
			t.Errorf("%d is committed", at)
		}
		if err := g.Commit(t.Context(), recs[5], recs[18], recs[7]); err != nil { // several of a partition
			t.Error(err)
		}
		if at := w.committed(c, "g")["t/0"]; at != 37 {
			t.Errorf("%d is committed", at)
		}
		if err := g.Commit(t.Context()); err != nil { // all that is processed
			t.Error(err)
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		d, err := c.NewAdmin().DescribeGroup(t.Context(), "g")
		if err != nil || len(d.Partitions) != 1 || d.LagRecords != 0 || d.LagSeconds != 0 || d.Partitions[0].Committed != 42 {
			t.Errorf("%+v, %v: want no lag", d, err)
		}
	})
}
