package coordinator

import (
	"context"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"github.com/runnelmq/runnel/broker/group"
)

// The formulas, by the numbers: a group at offset 100 of a log [0, 1000).
func TestLagOf(t *testing.T) {
	const now = 1_000_000_000
	forever := Retention{Time: -1, Bytes: -1}
	day := Retention{Time: 24 * time.Hour, Bytes: -1}
	at := func(m Measure) *Measure {
		m.NowMs, m.HighWatermark = now, 1000
		return &m
	}
	// moved is a track over 100 s in which the group read v seconds of the log a
	// second, and what is behind it grew by growth bytes a second.
	moved := func(v float64, growth int64) *track {
		return &track{samples: []sample{
			{atMs: now - 100_000, logMs: now - 3_600_000 - int64(v*100_000), bytes: 5000},
			{atMs: now, logMs: now - 3_600_000, bytes: 5000 + growth*100},
		}}
	}
	behind := at(Measure{AppendMs: now - 3_600_000, BytesAfter: 5000})
	for name, c := range map[string]struct {
		committed     int64
		m             *Measure
		t             *track
		keep          Retention
		records       int64
		seconds, loss float64
		sure          bool
	}{
		"caught up":                    {1000, at(Measure{AppendMs: -1}), &track{}, day, 0, 0, math.Inf(1), true},
		"an hour behind, pace unknown": {100, behind, &track{}, day, 900, 3600, 23 * 3600, false},
		"standing still":               {100, behind, moved(0, 0), day, 900, 3600, 23 * 3600, true},
		"at half the pace of time":     {100, behind, moved(0.5, 0), day, 900, 3600, 46 * 3600, true},
		"as fast as time":              {100, behind, moved(1, 0), day, 900, 3600, math.Inf(1), true},
		"catching up":                  {100, behind, moved(20, -50), day, 900, 3600, math.Inf(1), true},
		"nothing is deleted":           {100, behind, moved(0, 100), forever, 900, 3600, math.Inf(1), true},
		"by size":                      {100, behind, moved(0, 50), Retention{Time: -1, Bytes: 10_000}, 900, 3600, 100, true},
		"by size, catching up":         {100, behind, moved(0, -50), Retention{Time: -1, Bytes: 10_000}, 900, 3600, math.Inf(1), true},
		"by size, over it":             {100, behind, moved(0, 50), Retention{Time: -1, Bytes: 4000}, 900, 3600, 0, true},
		"the nearer of both":           {100, behind, moved(0, 50), Retention{Time: 24 * time.Hour, Bytes: 10_000}, 900, 3600, 100, true},
		"older than the retention":     {100, at(Measure{AppendMs: now - 90_000_000}), moved(0, 0), day, 900, 90_000, 0, true},
		"below the log start":          {100, at(Measure{LogStart: 400, AppendMs: now - 60_000}), moved(0, 0), day, 600, 60, 0, true},
	} {
		l := lagOf(c.committed, c.m, c.t, c.keep)
		if *l.Records != c.records || *l.Seconds != c.seconds || *l.LossSeconds != c.loss || l.Sure != c.sure {
			t.Errorf("%s: %d records, %v s, loss in %v s, sure %v; want %+v", name, *l.Records, *l.Seconds, *l.LossSeconds, l.Sure, c)
		}
	}
}

// A group that has committed beyond the end has no lag, and is not told to have
// none: how far beyond is said.
func TestLagOf_beyondTheEnd(t *testing.T) {
	l := lagOf(1002, &Measure{LogStart: 5, HighWatermark: 1000, AppendMs: -1, NowMs: 7}, &track{}, Retention{Time: time.Hour, Bytes: -1})
	if d := cmp.Diff(&PartLag{LogStart: 5, HighWatermark: 1000, Beyond: 2}, l); d != "" {
		t.Error(d)
	}
	p := func(n int32) group.Part { return group.Part{Number: n} }
	total := sum(map[group.Part]*PartLag{p(0): l, p(1): {Records: new(int64(3)), Seconds: new(4.0), LossSeconds: new(5.0)}})
	if *total.Records != 3 || *total.Seconds != 4 || *total.LossSeconds != 5 {
		t.Errorf("in all %d records, %v s, loss in %v s", *total.Records, *total.Seconds, *total.LossSeconds)
	}
}

// A group that has committed beyond the end is warned of once, and again when it
// was in order meanwhile; a metric counts the partitions while it is so.
func TestWatcher_beyondTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{}, 2)
		defer r.end()
		topic := r.topic("orders", 3)
		var log strings.Builder
		var ends atomic.Pointer[[3]int64]
		ends.Store(&[3]int64{100, 90, 40})
		r.stop()
		r.runs.Wait()
		r.measure = func(_ context.Context, places []Place) []Measure {
			out := make([]Measure, len(places))
			for i, p := range places {
				out[i] = Measure{HighWatermark: ends.Load()[p.Part.Number], AppendMs: -1, NowMs: time.Now().UnixMilli()}
			}
			return out
		}
		r.log = zerolog.New(zerolog.SyncWriter(&log))
		r.start()
		for n := range int32(3) {
			if err := r.commit("g", "", 0, 100, group.Part{Topic: topic.ID, Number: n}); err != nil {
				t.Fatal(err)
			}
		}
		warned := func() int { return strings.Count(log.String(), "beyond the end") }
		pause(time.Minute)
		wantEqual(t, "series", map[string]float64{"consumer_group_beyond_end_partitions g  ": 2}, r.series("consumer_group_beyond_"))
		wantEqual(t, "lag", map[string]float64{"consumer_group_lag_records g orders 0": 0}, r.series("consumer_group_lag_records"))
		if s := log.String(); warned() != 1 || !strings.Contains(s, `"partition":2,"beyond_end_records":60,"partitions":2`) || !strings.Contains(s, `"group":"g","topic":"orders"`) {
			t.Errorf("%d warnings: %s", warned(), s)
		}
		ends.Store(&[3]int64{100, 100, 100})
		pause(time.Minute)
		if s := r.series("consumer_group_beyond_"); len(s) != 0 || warned() != 1 {
			t.Errorf("%v, %d warnings: want none of a group that is in order", s, warned())
		}
		ends.Store(&[3]int64{100, 100, 99})
		pause(time.Minute)
		if warned() != 2 {
			t.Errorf("%d warnings: want another one", warned())
		}
	})
}

// A track remembers five minutes, coarsely, and forgets when clocks go back.
func TestTrack(t *testing.T) {
	tr := &track{}
	for i := range int64(200) { // a sample every 5 s, the group at twice the pace of time
		tr.add(sample{atMs: i * 5000, logMs: i * 10_000, bytes: 1_000_000 - i*500})
		if len(tr.samples) > 14 {
			t.Fatalf("it keeps %d samples", len(tr.samples))
		}
	}
	v, growth, sure := tr.pace()
	if !sure || v != 2 || growth != -100 {
		t.Errorf("pace %v, growth %v, sure %v", v, growth, sure)
	}
	for i := range int64(61) { // then it stops: five minutes later only that counts
		tr.add(sample{atMs: 1_000_000 + i*5000, logMs: 1_990_000, bytes: 900_500})
	}
	if v, _, _ := tr.pace(); v > 0.15 {
		t.Errorf("five minutes after it stopped its pace is %v", v)
	}
	tr.add(sample{atMs: 5})
	if _, _, sure := tr.pace(); sure || len(tr.samples) != 1 {
		t.Error("a clock that was set back counts")
	}
}

// Lag is measured in the background, shown while the group is there, and a group
// that is about to lose records is warned of once.
func TestWatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{LossWarning: time.Hour, LagSeries: 2}, 2)
		defer r.end()
		topic := r.topic("orders", 3)
		var log strings.Builder
		var fixed time.Time // where the group stands still; zero: at the pace of time, 10 min behind
		r.stop()
		r.runs.Wait()
		r.measure = func(_ context.Context, places []Place) []Measure {
			out := make([]Measure, len(places))
			for i, p := range places {
				now := time.Now()
				at := fixed
				if at.IsZero() {
					at = now.Add(-10 * time.Minute)
				}
				out[i] = Measure{HighWatermark: 100, AppendMs: at.UnixMilli(), BytesAfter: 1000, NowMs: now.UnixMilli()}
				if p.Part.Number == 2 {
					out[i] = Measure{Err: group.ErrLoading}
				}
			}
			return out
		}
		r.log = zerolog.New(zerolog.SyncWriter(&log))
		r.start()
		for n := range int32(3) {
			if err := r.commit("g", "", 0, 40, group.Part{Topic: topic.ID, Number: n}); err != nil {
				t.Fatal(err)
			}
		}
		pause(11 * time.Second)
		wantEqual(t, "series", map[string]float64{
			"consumer_group_lag_omitted_partitions": 0,
			"consumer_group_lag_records g orders 0": 60, "consumer_group_lag_records g orders 1": 60,
			"consumer_group_lag_seconds g orders 0": 600, "consumer_group_lag_seconds g orders 1": 600,
		}, r.series("consumer_group_lag_"))
		if log.Len() > 0 && strings.Contains(log.String(), "lose") {
			t.Errorf("warned without a cause: %s", log.String())
		}
		if err := r.Delete(context.Background(), Number("g", 2), "g"); err != nil {
			t.Fatal(err)
		}
		fixed = time.Now().Add(-7*24*time.Hour + 30*time.Minute) // half an hour before the default retention
		for n := range int32(3) {
			if err := r.commit("k", "", 0, 40, group.Part{Topic: topic.ID, Number: n}); err != nil {
				t.Fatal(err)
			}
		}
		pause(10 * time.Minute)
		if n := strings.Count(log.String(), "will lose records"); n != 1 {
			t.Errorf("%d warnings: %s", n, log.String())
		}
		d := r.describe("k")
		if l := r.Lag(context.Background(), d); len(l.Parts) != 2 || *l.Total.Records != 120 {
			t.Errorf("%+v", l)
		}
		if err := r.commit("h", "", 0, 40, group.Part{Topic: topic.ID, Number: 0}); err != nil {
			t.Fatal(err)
		}
		pause(6 * time.Second)
		if s := r.series("consumer_group_lag_"); len(s) != 5 || s["consumer_group_lag_omitted_partitions"] != 1 {
			t.Errorf("%v: want the 2 partitions that are allowed", s)
		}
		for _, id := range []string{"k", "h"} {
			if err := r.Delete(context.Background(), Number(id, 2), id); err != nil {
				t.Fatal(err)
			}
		}
		pause(6 * time.Second)
		if s := r.series("consumer_group_"); len(s) != 2 { // the count of what is left out, and that of warnings
			t.Errorf("of groups that are gone: %v", s)
		}
	})
}

// series returns those whose names begin so, by name, group, topic and partition.
func (r *rig) series(prefix string) map[string]float64 {
	r.t.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["group"] != "" {
				name += " " + labels["group"] + " " + labels["topic"] + " " + labels["partition"]
			}
			if strings.HasPrefix(name, prefix) {
				out[name] = m.GetGauge().GetValue()
			}
		}
	}
	return out
}
