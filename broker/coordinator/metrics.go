package coordinator

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	loading            prometheus.Gauge
	loads              prometheus.Histogram
	unreadable, stored prometheus.Counter
	commits            prometheus.Counter
	lossWarnings       prometheus.Counter
}

func newMetrics(c *Coordinator, reg prometheus.Registerer) *metrics {
	auto := promauto.With(reg)
	m := &metrics{
		loading: auto.NewGauge(prometheus.GaugeOpts{
			Name: "coordinator_loading_partitions", Help: "Partitions of __consumer_offsets whose groups are being read and can't be answered for.",
		}),
		loads: auto.NewHistogram(prometheus.HistogramOpts{
			Name: "coordinator_load_duration_seconds", Help: "Time it took to read the groups of a partition after it came to this broker.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 9),
		}),
		unreadable: auto.NewCounter(prometheus.CounterOpts{
			Name: "coordinator_unreadable_total", Help: "Times the stored state of groups could not be read: nobody coordinates them.",
		}),
		stored: auto.NewCounter(prometheus.CounterOpts{
			Name: "coordinator_records_total", Help: "Records about groups that were stored.",
		}),
		commits: auto.NewCounter(prometheus.CounterOpts{
			Name: "offset_commits_total", Help: "Offsets of consumer groups that were committed.",
		}),
		lossWarnings: auto.NewCounter(prometheus.CounterOpts{
			Name: "consumer_group_loss_warnings_total", Help: "Times a group was about to lose records that it had not read, or had lost them.",
		}),
	}
	if reg != nil {
		reg.MustRegister(newLagCollector(c.watcher))
	}
	auto.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "coordinator_partitions", Help: "Partitions of __consumer_offsets that this broker coordinates.",
	}, func() float64 { return float64(len(c.all())) })
	return m
}
