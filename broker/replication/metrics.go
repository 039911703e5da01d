package replication

import (
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics count what both ends do.
type Metrics struct {
	sentBytes, receivedBytes prometheus.Counter
	stalls, dropped          prometheus.Counter
	leading, following       prometheus.Gauge // streams
	lag                      *lagCollector
}

// NewMetrics registers the metrics of replication; reg may be nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	auto := promauto.With(reg)
	counter := func(name, help string) prometheus.Counter {
		return auto.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return auto.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m := &Metrics{
		sentBytes:     counter("replication_sent_bytes_total", "Bytes of batches that were sent to followers."),
		receivedBytes: counter("replication_received_bytes_total", "Bytes of batches that came from leaders."),
		stalls:        counter("replication_credit_stalls_total", "Times that batches had to wait because a follower was behind with appending."),
		dropped:       counter("replication_dropped_subscriptions_total", "Subscriptions that this follower gave up because of what came over them."),
		leading:       gauge("replication_follower_streams", "Streams on which followers are served."),
		following:     gauge("replication_leader_streams", "Streams on which leaders are followed."),
		lag:           newLagCollector(),
	}
	if reg != nil {
		reg.MustRegister(m.lag)
	}
	return m
}

// A lagCollector tells, at each scrape, how far followers are behind.
type lagCollector struct {
	desc *prometheus.Desc

	// mu guards the fields below
	mu sync.Mutex

	subs map[*subscription]bool
}

func newLagCollector() *lagCollector {
	return &lagCollector{
		desc: prometheus.NewDesc("replica_lag_records", "Records a follower has not acknowledged; of partitions this broker leads.",
			[]string{"topic", "partition", "replica"}, nil),
		subs: map[*subscription]bool{},
	}
}

func (c *lagCollector) add(s *subscription) {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.subs[s] = true
}

func (c *lagCollector) remove(s *subscription) {
	c.mu.Lock()
	defer c.mu.Unlock()

	delete(c.subs, s)
}

// Describe implements prometheus.Collector.
func (c *lagCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

// Collect implements prometheus.Collector. Of two subscriptions of one replica
// the later one counts: the earlier is about to end.
func (c *lagCollector) Collect(ch chan<- prometheus.Metric) {
	type replica struct {
		topic             string
		partition, broker int32
	}
	latest := map[replica]*subscription{}
	c.mu.Lock()
	for s := range c.subs {
		k := replica{s.part.Topic().Name, s.part.Number(), int32(s.follower)}
		if l := latest[k]; l == nil || l.number < s.number {
			latest[k] = s
		}
	}
	c.mu.Unlock()
	for k, s := range latest {
		behind := max(int64(s.part.State().LogEnd)-s.written.Load(), 0)
		ch <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(behind),
			k.topic, strconv.Itoa(int(k.partition)), strconv.Itoa(int(k.broker)))
	}
}
