package cases

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runnelmq/runnel/client"
)

// committed returns what a group has committed, by topic and partition.
func (w *town) committed(c *client.Client, group string) map[string]int64 {
	w.t.Helper()
	d, err := c.NewAdmin().DescribeGroup(w.t.Context(), group)
	if err != nil {
		w.t.Fatal(err)
	}
	out := map[string]int64{}
	for i := range d.Partitions {
		out[fmt.Sprintf("%s/%d", d.Partitions[i].Topic, d.Partitions[i].Partition)] = d.Partitions[i].Committed
	}
	return out
}

// numbered writes records with the numbers from n up to end to each partition.
func (w *town) numbered(c *client.Client, topic string, partitions int32, n, end int) {
	w.t.Helper()
	p, err := c.NewProducer(client.PartitionBy(client.Manual))
	if err != nil {
		w.t.Fatal(err)
	}
	for ; n < end; n++ {
		for part := range partitions {
			p.Produce(w.t.Context(), client.Record{Topic: topic, Partition: part, Value: []byte(number(n))}, func(r client.Result) {
				if r.Err != nil {
					w.t.Error(r.Err)
				}
			})
		}
	}
	if err := p.Close(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

// A reset goes exactly where it says, in the partitions it names and no others;
// what lies outside the log is refused or, of a distance, cut short and told; a
// dry run says the same and changes nothing; who names nothing is told so
// (AD-07).
func TestAD07_resetsGoWhereTheySay(t *testing.T) {
	inTown(t, nil, func(w *town) {
		t := w.t
		c := w.client(brokerAddr)
		defer c.Close()
		admin := c.NewAdmin()
		for _, topic := range []string{"t", "other"} {
			w.topic(c, topic, 2, nil)
			w.numbered(c, topic, 2, 0, 50)
		}
		before := time.Now().Add(-time.Hour)
		time.Sleep(time.Hour)
		gap := time.Now()
		time.Sleep(time.Hour)
		w.numbered(c, "t", 2, 50, 100)
		time.Sleep(time.Minute)

		all := client.OffsetReset{Topic: "t", Partition: client.AnyPartition, To: client.AtOffset(50)}
		stays := map[string]int64{"t/0": 50, "t/1": 50}
		reset := func(dry bool, rs ...client.OffsetReset) (to []int64, err error) {
			t.Helper()
			var opts []client.AdminOption
			if dry {
				opts = append(opts, client.ValidateOnly())
			}
			results, applied, err := admin.ResetOffsets(t.Context(), "g", rs, opts...)
			if err != nil {
				return nil, err
			}
			var errs []error
			for _, r := range results {
				to = append(to, r.New)
				errs = append(errs, r.Err)
			}
			if err := errors.Join(errs...); err != nil || dry {
				if applied {
					t.Errorf("%+v: applied", rs)
				}
				return to, err
			}
			if !applied {
				t.Errorf("%+v: not applied", rs)
			}
			return to, nil
		}
		must := func(want map[string]int64) {
			t.Helper()
			if diff := cmp.Diff(want, w.committed(c, "g")); diff != "" {
				t.Errorf("committed: %s", diff)
			}
		}
		for name, c := range map[string]struct {
			to    client.Start
			shift int64
			want  int64
			err   error
		}{
			"earliest":             {to: client.Earliest(), want: 0},
			"latest":               {to: client.Latest(), want: 100},
			"a time in the gap":    {to: client.AtTime(gap), want: 50},
			"a time before all":    {to: client.AtTime(before), want: 0},
			"a time after all":     {to: client.AtTime(time.Now()), want: 100},
			"an offset":            {to: client.AtOffset(30), want: 30},
			"the end":              {to: client.AtOffset(100), want: 100},
			"beyond the end":       {to: client.AtOffset(101), err: client.ErrOffsetOutOfRange},
			"back":                 {shift: -10, want: 40},
			"on":                   {shift: 7, want: 57},
			"on beyond the end":    {shift: 1000, want: 100},
			"back before the log":  {shift: -1000, want: 0},
			"on beyond all bounds": {shift: 1<<63 - 1, want: 100},
			"back before them":     {shift: -1 << 63, want: 0},
		} {
			if _, err := reset(false, all); err != nil {
				t.Fatal(err)
			}
			one := client.OffsetReset{Topic: "t", Partition: 1, To: c.to, Shift: c.shift}
			for _, dry := range []bool{true, false} {
				got, err := reset(dry, one)
				if !errors.Is(err, c.err) || err == nil && got[0] != c.want {
					t.Errorf("%s, dry %t: %v, %v, want %d, %v", name, dry, got, err, c.want, c.err)
				}
				if dry || c.err != nil {
					must(stays)
				}
			}
			if c.err == nil {
				must(map[string]int64{"t/0": 50, "t/1": c.want})
			}
			one.Partition = client.AnyPartition
			if _, err := reset(false, all); err != nil {
				t.Fatal(err)
			}
			if got, err := reset(false, one); !errors.Is(err, c.err) || err == nil && fmt.Sprint(got) != fmt.Sprint([]int64{c.want, c.want}) {
				t.Errorf("%s, all: %v, %v", name, got, err)
			}
		}
		if _, err := reset(false, all); err != nil {
			t.Fatal(err)
		}
		// Nothing at all is done when a part can't be.
		for name, c := range map[string]struct {
			with client.OffsetReset
			err  error
		}{
			"no such topic":     {client.OffsetReset{Topic: "none", Partition: client.AnyPartition, To: client.Latest()}, client.ErrTopicNotFound},
			"no such partition": {client.OffsetReset{Topic: "t", Partition: 2, To: client.Latest()}, client.ErrPartitionNotFound},
			"a system's topic":  {client.OffsetReset{Topic: "__consumer_offsets", Partition: 0, To: client.Latest()}, client.ErrTopicInternal},
			"the same twice":    {client.OffsetReset{Topic: "t", Partition: 0, To: client.Latest()}, client.ErrInvalidRequest},
			"no bad offset":     {client.OffsetReset{Topic: "t", Partition: 1, To: client.AtOffset(-1)}, client.ErrInvalidRequest},
		} {
			if _, err := reset(false, client.OffsetReset{Topic: "t", Partition: 0, To: client.Earliest()}, c.with); !errors.Is(err, c.err) {
				t.Errorf("%s: %v, want %v", name, err, c.err)
			}
			must(stays)
		}
		for _, dry := range []bool{true, false} {
			if _, err := reset(dry); !errors.Is(err, client.ErrInvalidRequest) {
				t.Errorf("nothing is named: %v", err)
			}
		}
		// A topic that was not read yet is no other topic's business.
		if got, err := reset(false, client.OffsetReset{Topic: "other", Partition: 1, To: client.AtOffset(20)}); err != nil || fmt.Sprint(got) != "[20]" {
			t.Errorf("%v, %v", got, err)
		}
		must(map[string]int64{"t/0": 50, "t/1": 50, "other/1": 20})
		// A distance needs a place to count from.
		if got, err := reset(false, client.OffsetReset{Topic: "other", Partition: 0, Shift: 5}); !errors.Is(err, client.ErrInvalidRequest) {
			t.Errorf("a distance from nothing leads to %v, %v", got, err)
		}
		must(map[string]int64{"t/0": 50, "t/1": 50, "other/1": 20})
		// In a log that begins later, and inside a batch.
		if _, err := admin.DeleteRecords(t.Context(), "t", map[int32]int64{0: 53, 1: 53}); err != nil {
			t.Fatal(err)
		}
		for name, c := range map[string]struct {
			to    client.Start
			shift int64
			want  int64
			err   error
		}{
			"earliest":          {to: client.Earliest(), want: 53},
			"a time in the gap": {to: client.AtTime(gap), want: 53},
			"too early":         {to: client.AtOffset(52), err: client.ErrOffsetOutOfRange},
			"the first":         {to: client.AtOffset(53), want: 53},
			"back":              {shift: -10, want: 53},
		} {
			one := client.OffsetReset{Topic: "t", Partition: 0, To: c.to, Shift: c.shift}
			if got, err := reset(false, one); !errors.Is(err, c.err) || err == nil && got[0] != c.want {
				t.Errorf("from 53, %s: %v, %v, want %d, %v", name, got, err, c.want, c.err)
			}
		}
	})
}

// A group that runs is moved, too: its members go on at the new place, what was
// not named goes on where it was, and a dry run disturbs nobody (AD-07).
func TestAD07_resetsWhileMembersRun(t *testing.T) {
	inTown(t, nil, func(w *town) {
		t := w.t
		c := w.client(brokerAddr)
		defer c.Close()
		w.topic(c, "t", 2, nil)
		w.numbered(c, "t", 2, 0, 100)
		var moved int
		hooks := client.GroupHooks{
			OnRevoke: func([]client.PartitionID) { moved++ },
			OnLost:   func([]client.PartitionID, error) { moved++ },
		}
		g, err := c.NewGroup("g", client.Topics("t"), client.WithGroupHooks(hooks))
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		if got := w.groupNext(g, 200, time.Minute); len(got) != 200 {
			t.Fatalf("read %d", len(got))
		}
		w.idle(g, 10*time.Second)
		back := client.OffsetReset{Topic: "t", Partition: 1, Shift: -10}
		if rs, applied, err := c.NewAdmin().ResetOffsets(t.Context(), "g", []client.OffsetReset{back}, client.ValidateOnly()); err != nil || applied || rs[0].New != 90 || rs[0].Old != 100 {
			t.Errorf("%+v, %t, %v", rs, applied, err)
		}
		if got := w.idle(g, 10*time.Second); len(got) > 0 || moved > 0 {
			t.Errorf("a dry run had %v read again, %d times something was moved", got, moved)
		}
		done := make(chan error, 1)
		w.wg.Go(func() {
			rs, applied, err := c.NewAdmin().ResetOffsets(t.Context(), "g", []client.OffsetReset{back})
			if err == nil && (!applied || rs[0].New != 90) {
				err = fmt.Errorf("%+v, %t", rs, applied)
			}
			done <- err
		})
		got := w.idle(g, 20*time.Second)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		var want []string
		for n := range 10 {
			want = append(want, fmt.Sprintf("t/1/%d=%s", 90+n, number(90+n)))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(map[string]int64{"t/0": 100, "t/1": 100}, w.committed(c, "g")); diff != "" {
			t.Errorf("committed: %s", diff)
		}
	})
}
