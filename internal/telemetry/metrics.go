package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Prefix begins the name of every metric of ours.
const Prefix = "runnel_"

// NewRegistry returns a registry with what the Go runtime and the operating
// system tell about the process: memory, goroutines, open descriptors.
func NewRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return reg
}

// Prefixed returns reg, with Prefix before the names registered through it.
func Prefixed(reg prometheus.Registerer) prometheus.Registerer {
	return prometheus.WrapRegistererWithPrefix(Prefix, reg)
}
