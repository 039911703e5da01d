package rpcserver

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"google.golang.org/grpc/codes"
)

// metrics of one port. Interceptors see registered methods only, so that no
// caller can make up label values.
type metrics struct {
	handledTotal *prometheus.CounterVec
	duration     *prometheus.HistogramVec
	active       *prometheus.GaugeVec
}

// String names the port in labels.
func (p Port) String() string {
	if p == InternalPort {
		return "internal"
	}
	return "client"
}

func newMetrics(o Options) *metrics {
	reg := o.Metrics
	if reg != nil {
		reg = prometheus.WrapRegistererWith(prometheus.Labels{"port": o.Port.String()}, reg)
	}
	auto := promauto.With(reg)
	return &metrics{
		handledTotal: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "rpc_handled_total", Help: "Calls and streams that ended, by gRPC code.",
		}, []string{"method", "code"}),
		duration: auto.NewHistogramVec(prometheus.HistogramOpts{
			Name: "rpc_duration_seconds", Help: "Time unary calls took.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 10),
		}, []string{"method"}),
		active: auto.NewGaugeVec(prometheus.GaugeOpts{
			Name: "active_streams", Help: "Streams that are open.",
		}, []string{"method"}),
	}
}

func (m *metrics) handled(method string, code codes.Code, took time.Duration) {
	method = strings.TrimPrefix(method, "/")
	m.handledTotal.WithLabelValues(method, code.String()).Inc()
	m.duration.WithLabelValues(method).Observe(took.Seconds())
}

// stream counts a stream until the returned function is called.
func (m *metrics) stream(method string) func(codes.Code) {
	method = strings.TrimPrefix(method, "/")
	g := m.active.WithLabelValues(method)
	g.Inc()
	return func(code codes.Code) {
		g.Dec()
		m.handledTotal.WithLabelValues(method, code.String()).Inc()
	}
}
