package partition

import (
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/runnelmq/runnel/broker/metadata"
)

// counters are what partitions count themselves.
type counters struct {
	flush   prometheus.Histogram
	corrupt prometheus.Counter

	shrinks, expands, divergence, belowHW prometheus.Counter
	duplicates, outOfOrder, stateLost     prometheus.Counter

	clean cleanCounters
}

func newCounters(reg prometheus.Registerer) *counters {
	auto := promauto.With(reg)
	count := func(name, help string) prometheus.Counter {
		return auto.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	return &counters{
		clean: newCleanCounters(auto),
		flush: auto.NewHistogram(prometheus.HistogramOpts{
			Name: "log_flush_duration_seconds", Help: "Time it took to make appended records durable before they counted.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 10),
		}),
		corrupt:    count("corrupt_batches_total", "Reads that met damaged data."),
		shrinks:    count("isr_shrinks_total", "Replicas that left the ISR of a partition this broker leads."),
		expands:    count("isr_expands_total", "Replicas that joined the ISR of a partition this broker leads."),
		divergence: count("divergence_total", "Times a replica of this broker refused a leader that lacks committed records."),
		belowHW:    count("truncated_below_hw_total", "Times a replica of this broker was cut below what was committed, after an election that lost records."),
		duplicates: count("producer_duplicates_total", "Batches of idempotent producers that were stored already, and answered with their first offset."),
		outOfOrder: count("producer_out_of_order_total", "Batches of idempotent producers that were refused because an earlier one is missing."),
		stateLost:  count("producer_state_lost_total", "Batches of idempotent producers of which it can't be said whether they were stored before."),
	}
}

// collector reads the set and the image at each scrape. A series is there as
// long as its partition is: nothing is left behind by a deleted topic, and no
// stale value by one that moved away.
type collector struct {
	set *Set

	logStart, highWatermark, logEnd, size, segments, isr *prometheus.Desc
	offline, underReplicated, underMinISR                *prometheus.Desc
	unconfirmed, suspect, damaged, leaders, replicas     *prometheus.Desc
	producers                                            *prometheus.Desc
}

func newMetrics(s *Set, reg prometheus.Registerer) {
	if reg == nil {
		return
	}
	one := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, []string{"topic", "partition"}, nil)
	}
	sum := func(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, nil, nil) }
	reg.MustRegister(newCleanCollector(s), &collector{
		set:           s,
		logStart:      one("partition_log_start_offset", "First offset there is; of partitions this broker leads."),
		highWatermark: one("partition_high_watermark", "First offset not committed; of partitions this broker leads."),
		logEnd:        one("partition_log_end_offset", "Next offset to be written; of partitions this broker leads."),
		size:          one("partition_size_bytes", "Bytes of the log on disk; of partitions this broker leads."),
		segments:      one("partition_segments", "Files that hold the log; of partitions this broker leads."),
		isr:           one("partition_isr_size", "Replicas in sync; of partitions this broker leads."),

		offline:         sum("offline_partitions", "Partitions of the cluster without a leader."),
		underReplicated: sum("under_replicated_partitions", "Partitions this broker leads with fewer replicas in sync than they have."),
		underMinISR:     sum("under_min_isr_partitions", "Partitions this broker leads with fewer replicas in sync than writes need."),
		unconfirmed:     sum("leader_unconfirmed_partitions", "Partitions this broker leads and can't be sure to lead."),
		suspect:         sum("suspect_replicas", "Replicas of this broker that can't be opened, or may have lost records."),
		damaged:         sum("damaged_replicas", "Replicas of this broker with stored records that are damaged, or that the disk does not give back."),
		leaders:         sum("leader_partitions", "Partitions this broker leads."),
		replicas:        sum("replica_partitions", "Partitions this broker holds a copy of."),
		producers:       sum("remembered_producers", "Idempotent producers that the partitions of this broker remember, counted once a partition."),
	})
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.logStart, c.highWatermark, c.logEnd, c.size, c.segments, c.isr, c.offline, c.underReplicated, c.underMinISR,
		c.unconfirmed, c.suspect, c.damaged, c.leaders, c.replicas, c.producers,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	suspect := int64(len(c.set.Lost()))
	var leaders, unconfirmed, underReplicated, underMinISR, producers, damaged int64
	all := c.set.All()
	for _, p := range all {
		producers += p.producers.count.Load()
		if p.Suspicion() != "" {
			suspect++
		}
		if p.damagedHere() {
			damaged++
		}
		st, t := p.State(), p.Topic()
		if !st.Leader || t.Phase != metadata.TopicActive {
			continue
		}
		leaders++
		if !p.Confirmed() {
			unconfirmed++
		}
		p.mu.Lock()
		isr, replicas := len(p.core.committed), len(p.known.Replicas)
		p.mu.Unlock()
		if isr < replicas {
			underReplicated++
		}
		if !st.MinISRMet {
			underMinISR++
		}
		labels := []string{t.Name, strconv.Itoa(int(p.number))}
		gauge(c.logStart, int64(st.LogStart), labels...)
		gauge(c.highWatermark, int64(st.HighWatermark), labels...)
		gauge(c.logEnd, int64(st.LogEnd), labels...)
		gauge(c.size, p.Size(), labels...)
		gauge(c.segments, int64(p.Segments()), labels...)
		gauge(c.isr, int64(isr), labels...)
	}
	gauge(c.leaders, leaders)
	gauge(c.replicas, int64(len(all)))
	gauge(c.unconfirmed, unconfirmed)
	gauge(c.underReplicated, underReplicated)
	gauge(c.underMinISR, underMinISR)
	gauge(c.suspect, suspect)
	gauge(c.damaged, damaged)
	gauge(c.producers, producers)
	gauge(c.offline, Offline(c.set.deps.Store.Load()))
}

// Offline counts the partitions of active topics that have no leader.
func Offline(img *metadata.Image) int64 {
	var n int64
	for _, t := range img.Topics() {
		leaderless := func(p metadata.Partition) bool { return p.Leader == metadata.NoBroker }
		for rest := t.Partitions; ; n++ {
			i := slices.IndexFunc(rest, leaderless)
			if i < 0 {
				break
			}
			rest = rest[i+1:]
		}
	}
	return n
}
