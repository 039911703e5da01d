package partition

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/runnelmq/runnel/internal/commitlog"
)

// cleanCounters are what compaction counts.
type cleanCounters struct {
	passes, failures, read, written prometheus.Counter

	superseded, tombstones, keyless prometheus.Counter
}

func newCleanCounters(auto promauto.Factory) cleanCounters {
	count := func(name, help string) prometheus.Counter {
		return auto.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	removed := auto.NewCounterVec(prometheus.CounterOpts{
		Name: "log_cleaner_records_removed_total",
		Help: "Records that compaction removed: superseded by a newer one of their key, tombstones after their time, or without a key.",
	}, []string{"reason"})
	return cleanCounters{
		passes:     count("log_cleaner_passes_total", "Passes of compaction over a partition that came to their end."),
		failures:   count("log_cleaner_failures_total", "Passes of compaction that failed; they are tried again."),
		read:       count("log_cleaner_read_bytes_total", "Bytes of segments that compaction read."),
		written:    count("log_cleaner_written_bytes_total", "Bytes of segments that compaction wrote."),
		superseded: removed.WithLabelValues("superseded"),
		tombstones: removed.WithLabelValues("tombstone"),
		keyless:    removed.WithLabelValues("keyless"),
	}
}

func (c *cleanCounters) add(done *commitlog.Cleaned) {
	c.read.Add(float64(done.BytesRead))
	c.written.Add(float64(done.BytesWritten))
	c.superseded.Add(float64(done.Superseded))
	c.tombstones.Add(float64(done.Tombstones))
	c.keyless.Add(float64(done.Keyless))
}

// cleanCollector looks at each scrape how compaction stands.
type cleanCollector struct {
	set *Set

	running, uncleanable, dirtiest *prometheus.Desc
}

func newCleanCollector(s *Set) *cleanCollector {
	one := func(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, nil, nil) }
	return &cleanCollector{
		set:         s,
		running:     one("log_cleaner_running", "Partitions that are being compacted at the moment."),
		uncleanable: one("log_cleaner_uncleanable_partitions", "Partitions of this broker that damage keeps from being compacted."),
		dirtiest:    one("log_cleaner_max_dirty_ratio", "Largest share of a partition of this broker that could be compacted and was not yet."),
	}
}

// Describe implements prometheus.Collector.
func (c *cleanCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.running
	ch <- c.uncleanable
	ch <- c.dirtiest
}

// Collect implements prometheus.Collector.
func (c *cleanCollector) Collect(ch chan<- prometheus.Metric) {
	uncleanable, dirtiest, now := 0, 0.0, time.Now()
	for _, p := range c.set.All() {
		dirtiest = max(dirtiest, p.dirt(now).Ratio())
		if p.uncleanable() {
			uncleanable++
		}
	}
	gauge := func(d *prometheus.Desc, v float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v)
	}
	gauge(c.running, float64(c.set.clean.running()))
	gauge(c.uncleanable, float64(uncleanable))
	gauge(c.dirtiest, dirtiest)
}
