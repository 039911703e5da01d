package broker

import (
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc/metadata"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
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

// Series that a broker has whatever it serves, and for each partition; both
// are in docs/operations.md.
const (
	seriesOfBroker    = 1500
	seriesOfPartition = 10
)

// However many clients come, and whatever they call themselves and ask for, the
// number of series is bounded, and the text can be parsed (OP-04).
func TestSeriesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t)
		defer w.close()
		b := w.started(testConfig())
		defer b.end(t)
		const partitions = 50
		w.create(strings.Repeat("t", 249), partitions, nil)
		crowd := func(round int) {
			for i := range 100 {
				name := fmt.Sprintf("made \"up\"\n%d/%d", round, i)
				_, _ = w.produce(name, "x")
				_, _ = w.read(name)
				_, _ = w.admin().DescribeTopics(metadata.AppendToOutgoingContext(t.Context(), "client-id", fmt.Sprint(i)),
					&runnelv1.DescribeTopicsRequest{Topics: []*runnelv1.TopicRef{{Name: name}}})
			}
		}
		scrape := func() []string {
			rec := httptest.NewRecorder()
			telemetry.Admin{Metrics: b.deps.Registry}.Handler().ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody))
			return slices.DeleteFunc(strings.Split(strings.TrimSpace(rec.Body.String()), "\n"), func(l string) bool { return strings.HasPrefix(l, "#") })
		}
		crowd(1)
		before := scrape()
		crowd(2)
		after := scrape()
		line := regexp.MustCompile(`^[a-z_0-9]+(\{([a-z_]+="[^"\\\n]*",?)+\})? [-+0-9.eE]+(Inf|NaN)?$`)
		of := 0
		for _, l := range after {
			if !line.MatchString(l) || strings.Contains(l, "made") {
				t.Errorf("%q", l)
			}
			if strings.Contains(l, "partition=") {
				of++
			}
		}
		if len(after) != len(before) || of > seriesOfPartition*partitions || len(after)-of > seriesOfBroker {
			t.Errorf("%d series of %d partitions and %d others, after %d in all", of, partitions, len(after)-of, len(before))
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
