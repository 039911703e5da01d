package broker

import (
	"flag"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/runnelmq/runnel/internal/telemetry"
)

var rewrite = flag.Bool("rewrite", false, "write testdata anew")

// The names of metrics are an interface: dashboards and alerts use them. A
// change shows in testdata/metrics.txt.
func TestMetricNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t)
		defer w.close()
		b := w.started(testConfig())
		defer b.end(t)
		w.create("orders", 2, nil)
		if _, err := w.produce("orders", "x"); err != nil {
			t.Fatal(err)
		}
		if _, err := w.read("orders"); err != nil {
			t.Fatal(err)
		}
		families, err := b.deps.Registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var got strings.Builder
		for _, f := range families {
			if strings.HasPrefix(f.GetName(), telemetry.Prefix) {
				got.WriteString(f.GetName() + "\n")
			}
			if f.GetHelp() == "" {
				t.Errorf("%s says nothing of itself", f.GetName())
			}
		}
		const golden = "testdata/metrics.txt"
		if *rewrite {
			if err := os.WriteFile(golden, []byte(got.String()), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got.String()); diff != "" {
			t.Errorf("metrics differ from %s (-rewrite writes it anew):\n%s", golden, diff)
		}
	})
}

// Topics come and go; their series do too, and none of those that alarm rises
// meanwhile (OP-01, OP-03).
func TestSeriesGoWithTheirTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t)
		defer w.close()
		b := w.started(testConfig())
		defer b.end(t)
		scrape := func() (series int, alarms float64) {
			families, err := b.deps.Registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range families {
				switch f.GetName() {
				case "runnel_offline_partitions", "runnel_under_replicated_partitions", "runnel_under_min_isr_partitions":
					alarms += f.GetMetric()[0].GetGauge().GetValue()
				}
				for _, m := range f.GetMetric() {
					for _, l := range m.GetLabel() {
						if l.GetName() == "topic" {
							series++
						}
					}
				}
			}
			return series, alarms
		}
		before, _ := scrape()
		for range 20 {
			id := uuid.MustParse(w.create("orders", 3, nil))
			if n, alarms := scrape(); n <= before || alarms != 0 {
				t.Errorf("%d series, %v alarms while it is there", n, alarms)
			}
			if err := w.controller.DeleteTopic(t.Context(), id, 1); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if n, alarms := scrape(); n != before || alarms != 0 {
				t.Errorf("%d series, %v alarms after it", n, alarms)
			}
		}
	})
}
