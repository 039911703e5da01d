package coordinator

import "github.com/prometheus/client_golang/prometheus"

// lagCollector shows the last survey. A series is there as long as its group and
// partition are.
type lagCollector struct {
	w *watcher

	records, seconds, loss, uncommitted, beyond, omitted *prometheus.Desc
}

func newLagCollector(w *watcher) *lagCollector {
	one := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, []string{"group", "topic", "partition"}, nil)
	}
	return &lagCollector{
		w:       w,
		records: one("consumer_group_lag_records", "Records that a group has not committed yet."),
		seconds: one("consumer_group_lag_seconds", "Age of the first record that a group has not committed yet; 0 when there is none."),
		loss: one("consumer_group_time_to_data_loss_seconds",
			"How long until retention deletes records that a group has not read, at its pace and that of the writers; 0: it has, +Inf: never."),
		uncommitted: prometheus.NewDesc("consumer_group_uncommitted_partitions",
			"Partitions that a group reads and has not committed anything of: they have no lag, since only their readers know where they began.",
			[]string{"group"}, nil),
		beyond: prometheus.NewDesc("consumer_group_beyond_end_partitions",
			"Partitions in which a group has committed an offset beyond the end: they have no lag, and what is written there next may be skipped.",
			[]string{"group"}, nil),
		omitted: prometheus.NewDesc("consumer_group_lag_omitted_partitions", "Partitions of groups that have no lag series, because there are too many: see group.lag_series.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (l *lagCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{l.records, l.seconds, l.loss, l.uncommitted, l.beyond, l.omitted} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (l *lagCollector) Collect(ch chan<- prometheus.Metric) {
	img := l.w.c.deps.Store.Load()
	shown, omitted := 0, 0
	for _, g := range l.w.latest.Load().groups {
		if g.uncommitted > 0 {
			ch <- prometheus.MustNewConstMetric(l.uncommitted, prometheus.GaugeValue, float64(g.uncommitted), g.id)
		}
		beyond := 0
		for p, lag := range g.lag.Parts {
			if lag.Beyond > 0 {
				beyond++
			}
			t, ok := img.TopicByID(p.Topic)
			if !ok || lag.Records == nil {
				continue
			}
			if shown == l.w.c.cfg.LagSeries {
				omitted++
				continue
			}
			shown++
			labels := []string{g.id, t.Name, decimal(p.Number)}
			ch <- prometheus.MustNewConstMetric(l.records, prometheus.GaugeValue, float64(*lag.Records), labels...)
			ch <- prometheus.MustNewConstMetric(l.seconds, prometheus.GaugeValue, *lag.Seconds, labels...)
			ch <- prometheus.MustNewConstMetric(l.loss, prometheus.GaugeValue, *lag.LossSeconds, labels...)
		}
		if beyond > 0 {
			ch <- prometheus.MustNewConstMetric(l.beyond, prometheus.GaugeValue, float64(beyond), g.id)
		}
	}
	ch <- prometheus.MustNewConstMetric(l.omitted, prometheus.GaugeValue, float64(omitted))
}
