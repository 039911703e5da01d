package coordinator

import (
	"math"
	"slices"
	"time"

	"github.com/runnelmq/runnel/broker/group"
)

// A Place is an offset in a partition, of which its leader is asked.
type Place struct {
	Part   group.Part
	Offset int64
}

// A Measure is what a leader knows of a place.
type Measure struct {
	LogStart, HighWatermark int64
	// AppendMs is the append time of the first record at or after the place, Unix
	// milliseconds; negative: there is none.
	AppendMs   int64
	BytesAfter int64
	NowMs      int64 // the leader's clock
	Err        error // why there is no measure
}

// Retention is what deletes a topic's records.
type Retention struct {
	Time  time.Duration // negative: age does not
	Bytes int64         // negative: size does not
}

// A PartLag is how far a group is behind in a partition.
type PartLag struct {
	LogStart, HighWatermark int64
	// Beyond is how many records beyond the end the committed offset names. There is
	// no lag then.
	Beyond int64
	// Nil without a committed offset that is in the log.
	Records     *int64
	Seconds     *float64
	LossSeconds *float64 // until unread records are deleted; +Inf: never
	// Sure is true when the group's pace is known, and not assumed to be none.
	Sure bool
}

// A GroupLag is how far a group is behind.
type GroupLag struct {
	Total PartLag // sum of records, most seconds, least time to loss
	Parts map[group.Part]*PartLag
}

// paceWindow is over how long the pace of a group and of the writers is taken,
// paceStep how far apart what is remembered for that lies.
const (
	paceWindow = 5 * time.Minute
	paceStep   = 30 * time.Second
)

// A sample is where a group stood at some time.
type sample struct {
	atMs  int64 // the leader's clock
	logMs int64 // append time of the next record to read; atMs when there was none
	bytes int64 // of the log behind it
}

// A track is the recent way of a group through a partition, oldest sample first.
type track struct {
	samples []sample
	round   uint64 // in which it was last seen
}

// sampleOf returns where a place is now.
func sampleOf(m *Measure) sample {
	s := sample{atMs: m.NowMs, logMs: m.AppendMs, bytes: m.BytesAfter}
	if m.AppendMs < 0 {
		s.logMs = m.NowMs
	}
	return s
}

// add remembers a sample, and forgets what is older than the window.
func (t *track) add(s sample) {
	if n := len(t.samples); n > 0 {
		if s.atMs < t.samples[n-1].atMs { // another leader, or a clock that was set back
			t.samples = t.samples[:0]
		} else if n > 1 && s.atMs-t.samples[n-2].atMs < paceStep.Milliseconds() {
			t.samples = t.samples[:n-1] // the newest one stands for its step
		}
	}
	t.samples = append(t.samples, s)
	old := s.atMs - paceWindow.Milliseconds()
	for len(t.samples) > 2 && t.samples[1].atMs <= old {
		t.samples = slices.Delete(t.samples, 0, 1)
	}
}

// leastPace is over how long a pace must have been seen to be believed.
const leastPace = 2 * time.Second

// pace returns how many seconds of the log the group reads in a second, and by
// how many bytes a second what is behind it grows. sure is false while that is
// not known.
func (t *track) pace() (seconds, growth float64, sure bool) {
	if len(t.samples) < 2 {
		return 0, 0, false
	}
	a, b := t.samples[0], t.samples[len(t.samples)-1]
	took := float64(b.atMs - a.atMs)
	if took < float64(leastPace.Milliseconds()) {
		return 0, 0, false
	}
	return float64(b.logMs-a.logMs) / took, float64(b.bytes-a.bytes) * 1000 / took, true
}

// lagOf returns the lag at a committed offset.
func lagOf(committed int64, m *Measure, t *track, keep Retention) *PartLag {
	l := &PartLag{LogStart: m.LogStart, HighWatermark: m.HighWatermark, Beyond: max(committed-m.HighWatermark, 0)}
	if l.Beyond > 0 {
		return l
	}
	l.Records = new(max(m.HighWatermark-max(committed, m.LogStart), 0))
	seconds := 0.0
	if m.AppendMs >= 0 && committed < m.HighWatermark {
		seconds = max(float64(m.NowMs-m.AppendMs)/1000, 0)
	}
	l.Seconds = &seconds
	v, growth, sure := t.pace()
	l.Sure = sure
	loss := math.Inf(1)
	switch {
	case committed < m.LogStart:
		loss, l.Sure = 0, true
	case committed >= m.HighWatermark:
		l.Sure = true
	default:
		if keep.Time >= 0 && v < 1 {
			left := keep.Time.Seconds() - seconds
			loss = min(loss, max(left/(1-v), 0))
		}
		if keep.Bytes >= 0 && growth > 0 {
			loss = min(loss, max(float64(keep.Bytes-m.BytesAfter)/growth, 0))
		}
	}
	l.LossSeconds = &loss
	return l
}

// sum adds up the lag of all partitions.
func sum(parts map[group.Part]*PartLag) PartLag {
	total := PartLag{Sure: true}
	for _, p := range parts {
		if p.Records == nil {
			continue
		}
		if total.Records == nil {
			total.Records, total.Seconds, total.LossSeconds = new(int64(0)), new(0.0), new(math.Inf(1))
		}
		*total.Records += *p.Records
		*total.Seconds = max(*total.Seconds, *p.Seconds)
		*total.LossSeconds = min(*total.LossSeconds, *p.LossSeconds)
	}
	return total
}
