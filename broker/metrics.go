package broker

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// newMetrics registers what is read off the parts at each scrape.
func newMetrics(n *node, reg prometheus.Registerer) {
	auto := promauto.With(reg)
	gauge := func(name, help string, f func() float64) {
		auto.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f)
	}
	gauge("disk_free_bytes", "Free bytes on the disk of the data directory.", func() float64 { return float64(n.root.Disk().Free) })
	gauge("disk_total_bytes", "Bytes of the disk of the data directory.", func() float64 { return float64(n.root.Disk().Total) })
	gauge("ready", "1 while the broker is in service.", func() float64 {
		if n.notReady() != nil {
			return 0
		}
		return 1
	})
	gauge("metadata_revision", "Revision of the newest metadata this broker has.", func() float64 { return float64(n.store.Load().Revision) })
	gauge("broker_epoch", "Epoch of this process's registration; 0 before the first.", func() float64 { return float64(n.session.Epoch()) })
	gauge("client_connections", "Connections of clients that are open.", func() float64 { return float64(n.lis.client.Open()) })
	gauge("quarantined_directories", "Directories in the data directory that no topic of the cluster has.", func() float64 {
		return float64(len(n.root.Quarantined()))
	})
	auto.NewCounterFunc(prometheus.CounterOpts{
		Name: "client_connections_refused_total", Help: "Connections of clients that were closed at once, because too many were open.",
	}, func() float64 { return float64(n.lis.client.Refused()) })
	auto.NewCounterFunc(prometheus.CounterOpts{
		Name: "internal_connections_refused_total", Help: "Connections of other brokers and of controllers that were closed at once, because file descriptors run out.",
	}, func() float64 { return float64(n.lis.internal.Refused()) })
}
