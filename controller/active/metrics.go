package active

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics count what the active controller decides. They outlive tenures.
type Metrics struct {
	elections      *prometheus.CounterVec
	fencings       *prometheus.CounterVec
	moves          *prometheus.CounterVec
	isrChanges     prometheus.Counter
	commitDuration prometheus.Histogram
}

// NewMetrics registers the metrics; reg may be nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	auto := promauto.With(reg)
	return &Metrics{
		elections: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "elections_total",
			Help: "Leaders elected by this controller, by kind: isr and elr lose nothing, recovery and unclean may.",
		}, []string{"kind"}),
		fencings: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "fencings_total",
			Help: "Brokers taken out of service by this controller, by cause.",
		}, []string{"cause"}),
		moves: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "leader_moves_total",
			Help: "Planned moves of leaderships, by cause: shutdown, preferred leader, or at the leader's request.",
		}, []string{"cause"}),
		isrChanges: auto.NewCounter(prometheus.CounterOpts{
			Name: "isr_changes_total",
			Help: "Changes of in-sync replicas that leaders proposed and this controller made.",
		}),
		commitDuration: auto.NewHistogram(prometheus.HistogramOpts{
			Name:    "metadata_commit_duration_seconds",
			Help:    "Time from deciding on a change to knowing that it is committed.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
		}),
	}
}
