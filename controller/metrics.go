package controller

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/runnelmq/runnel/controller/state"
	"github.com/runnelmq/runnel/controller/store"
	"github.com/runnelmq/runnel/internal/rpcserver"
	"github.com/runnelmq/runnel/internal/telemetry"
)

// registerMetrics registers what is read off the picture when somebody looks.
func (c *Controller) registerMetrics(s *store.Store, lis *rpcserver.LimitedListener) {
	auto := promauto.With(telemetry.Prefixed(c.deps.Registry))
	gauge := func(name, help string, read func(*state.Image) float64) {
		auto.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
			v := 0.0
			c.mirror.View(func(i *state.Image) { v = read(i) })
			return v
		})
	}
	auto.NewGaugeFunc(prometheus.GaugeOpts{Name: "controller_active", Help: "1 on the active controller, 0 on standbys."}, func() float64 {
		if act, err := c.Active(); err == nil && act != nil {
			return 1
		}
		return 0
	})
	gauge("controller_offline_partitions", "Partitions without a leader, as this controller sees it.", func(i *state.Image) float64 {
		return float64(i.Leaderless())
	})
	gauge("controller_metadata_revision", "Revision of the metadata that this controller has seen.", func(i *state.Image) float64 {
		return float64(i.Revision())
	})
	for phase, name := range map[state.BrokerPhase]string{
		state.BrokerFenced: "fenced", state.BrokerActive: "active", state.BrokerShuttingDown: "shutting_down",
	} {
		promauto.With(prometheus.WrapRegistererWith(prometheus.Labels{"phase": name}, telemetry.Prefixed(c.deps.Registry))).NewGaugeFunc(
			prometheus.GaugeOpts{Name: "registered_brokers", Help: "Brokers that are registered, by phase."},
			func() float64 {
				n := 0
				c.mirror.View(func(i *state.Image) {
					for _, b := range i.Brokers() {
						if b.Phase == phase {
							n++
						}
					}
				})
				return float64(n)
			})
	}
	auto.NewCounterFunc(prometheus.CounterOpts{
		Name: "metadata_resyncs_total", Help: "How often all metadata was listed anew because changes were compacted away unseen.",
	}, func() float64 { return float64(s.Resyncs()) })
	auto.NewCounterFunc(prometheus.CounterOpts{
		Name: "metadata_ambiguous_commits_total", Help: "Transactions whose outcome had to be found out by reading.",
	}, func() float64 { return float64(s.Ambiguous()) })
	auto.NewCounterFunc(prometheus.CounterOpts{
		Name: "controller_connections_refused_total", Help: "Connections of brokers and other controllers that were closed at once, because file descriptors run out.",
	}, func() float64 { return float64(lis.Refused()) })
}
