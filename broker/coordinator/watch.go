package coordinator

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/runnelmq/runnel/broker/group"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/internal/lifecycle"
)

// A Measurer asks the leaders of places, and answers in their order.
type Measurer func(ctx context.Context, places []Place) []Measure

// measureTimeout is how long leaders are waited for.
const measureTimeout = 2 * time.Second

// A watcher measures how far the groups of this broker are behind.
type watcher struct {
	c *Coordinator
	// latest is what was measured last.
	latest atomic.Pointer[survey]

	// mu guards the fields below
	mu sync.Mutex

	round  uint64
	tracks map[string]map[group.Part]*track
	// warned are the groups that were warned of, for what they will lose, and stray
	// those for what they have committed beyond the end.
	warned, stray map[string]bool
}

// A survey is the lag of all groups at one time. Immutable.
type survey struct {
	groups []surveyed
}

type surveyed struct {
	id          string
	lag         *GroupLag
	uncommitted int // partitions with an owner and no offset
}

// A standing is where a group is.
type standing struct {
	id          string
	offsets     []*group.Offset
	uncommitted int
}

func newWatcher(c *Coordinator) *watcher {
	w := &watcher{c: c, tracks: map[string]map[group.Part]*track{}, warned: map[string]bool{}, stray: map[string]bool{}}
	w.latest.Store(&survey{})
	return w
}

// run measures until ctx is done. A round that takes long makes the next one
// wait, so that measuring never takes more than a fifth of the time.
func (w *watcher) run(ctx context.Context) {
	for wait := w.c.cfg.LagEvery; lifecycle.Wait(ctx, wait); {
		began := time.Now()
		w.measureAll(ctx)
		wait = max(w.c.cfg.LagEvery, 4*time.Since(began))
	}
}

// measureAll makes a survey of all groups.
func (w *watcher) measureAll(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*measureTimeout)
	defer cancel()
	var all []standing
	for _, s := range w.c.all() {
		got, err := ask(ctx, s, false, unanswered, func(s *shard, reply func([]standing, error)) {
			var out []standing
			for id, g := range s.groups {
				if st := (standing{id, g.AllCommitted(), g.Uncommitted()}); len(st.offsets) > 0 || st.uncommitted > 0 {
					out = append(out, st)
				}
			}
			reply(out, nil)
		})
		if err == nil {
			all = append(all, got...)
		}
	}
	next := &survey{}
	lags := w.measure(ctx, all, true)
	for i, st := range all {
		next.groups = append(next.groups, surveyed{st.id, lags[i], st.uncommitted})
	}
	w.latest.Store(next)
	w.forget()
	for _, g := range next.groups {
		w.warn(g.id, g.lag)
		w.warnStray(g.id, g.lag)
	}
}

// measure returns the lag of groups, in their order. Partitions whose leaders
// can't be asked are left out.
func (w *watcher) measure(ctx context.Context, all []standing, remember bool) []*GroupLag {
	at := map[Place]int{}
	var places []Place
	for _, st := range all {
		for _, o := range st.offsets {
			p := Place{o.Part, o.Offset}
			if _, ok := at[p]; !ok {
				at[p] = len(places)
				places = append(places, p)
			}
		}
	}
	short, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()
	var measures []Measure
	if len(places) > 0 && w.c.deps.Measure != nil {
		measures = w.c.deps.Measure(short, places)
	}
	img := w.c.deps.Store.Load()
	w.mu.Lock()
	defer w.mu.Unlock()

	w.round++
	out := make([]*GroupLag, len(all))
	for i, st := range all {
		lag := &GroupLag{Parts: map[group.Part]*PartLag{}}
		for _, o := range st.offsets {
			k := at[Place{o.Part, o.Offset}]
			if k >= len(measures) || measures[k].Err != nil {
				continue
			}
			m := &measures[k]
			t := w.trackLocked(st.id, o.Part, remember)
			if remember {
				t.add(sampleOf(m))
			}
			lag.Parts[o.Part] = lagOf(o.Offset, m, t, retention(img, o.Part))
		}
		lag.Total = sum(lag.Parts)
		out[i] = lag
	}
	return out
}

// trackLocked returns the way of a group so far.
func (w *watcher) trackLocked(id string, p group.Part, remember bool) *track {
	t := w.tracks[id][p]
	if t == nil {
		t = &track{}
		if remember {
			if w.tracks[id] == nil {
				w.tracks[id] = map[group.Part]*track{}
			}
			w.tracks[id][p] = t
		}
	}
	t.round = w.round
	return t
}

// forget drops the ways of groups that are not there any more, or that could not
// be measured in this round.
func (w *watcher) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()

	const patience = 12 // rounds: a leader that changes costs some
	for id, parts := range w.tracks {
		for p, t := range parts {
			if t.round+patience < w.round {
				delete(parts, p)
			}
		}
		if len(parts) == 0 {
			delete(w.tracks, id)
			delete(w.warned, id)
			delete(w.stray, id)
		}
	}
}

// retention is what deletes the records of a partition.
func retention(img *metadata.Image, p group.Part) Retention {
	t, ok := img.TopicByID(p.Topic)
	if !ok {
		return Retention{Time: -1, Bytes: -1}
	}
	if !t.Config.Delete {
		return Retention{Time: -1, Bytes: -1}
	}
	return Retention{Time: t.Config.RetentionTime, Bytes: t.Config.RetentionBytes}
}

// warn tells once when a group is about to lose records it has not read, or has.
func (w *watcher) warn(id string, lag *GroupLag) {
	limit := w.c.cfg.LossWarning.Seconds()
	if limit < 0 {
		return
	}
	worst := math.Inf(1)
	var where group.Part
	for p, l := range lag.Parts {
		if l.Sure && *l.LossSeconds < worst {
			worst, where = *l.LossSeconds, p
		}
	}
	w.mu.Lock()
	was := w.warned[id]
	switch {
	case worst < limit:
		w.warned[id] = true
	case worst > 1.5*limit: // well above, so that it does not flicker
		delete(w.warned, id)
	}
	w.mu.Unlock()
	if was || worst >= limit {
		return
	}
	w.c.metrics.lossWarnings.Inc()
	l := lag.Parts[where]
	what := "a group will lose records that it has not read, unless it reads faster or they are kept for longer"
	if worst == 0 {
		what = "a group has lost records that it had not read: retention deleted them"
	}
	w.c.deps.Log.Warn().Str("group", id).Str("topic", w.named(where)).Int32("partition", where.Number).Float64("time_to_data_loss_seconds", worst).
		Float64("lag_seconds", *l.Seconds).Int64("lag_records", *l.Records).Msg(what)
}

// warnStray tells once that a group has committed offsets beyond the end.
func (w *watcher) warnStray(id string, lag *GroupLag) {
	var where group.Part
	partitions, most := 0, int64(0)
	for p, l := range lag.Parts {
		if l.Beyond > 0 {
			partitions++
		}
		if l.Beyond > most {
			most, where = l.Beyond, p
		}
	}
	w.mu.Lock()
	was := w.stray[id]
	if delete(w.stray, id); partitions > 0 {
		w.stray[id] = true
	}
	w.mu.Unlock()
	if was || partitions == 0 {
		return
	}
	w.c.deps.Log.Warn().Str("group", id).Str("topic", w.named(where)).Int32("partition", where.Number).Int64("beyond_end_records", most).
		Int("partitions", partitions).
		Msg("a group has committed offsets beyond the end, of records that the log has lost or that are not written yet: it may skip what is written there next, so move it")
}

// named is what the topic of a partition is called.
func (w *watcher) named(p group.Part) string {
	if t, ok := w.c.deps.Store.Load().TopicByID(p.Topic); ok {
		return t.Name
	}
	return p.Topic.String()
}

// Lag measures how far a group is behind. It waits for the leaders a little;
// partitions of those that don't answer are left out.
func (c *Coordinator) Lag(ctx context.Context, d *Description) *GroupLag {
	st := standing{id: d.ID}
	for i := range d.Parts {
		if o := d.Parts[i].Committed; o != nil {
			st.offsets = append(st.offsets, o)
		}
	}
	lag := c.watcher.measure(ctx, []standing{st}, false)[0]
	c.ends(ctx, d, lag)
	return lag
}

// ends adds the log's ends of partitions without a committed offset.
func (c *Coordinator) ends(ctx context.Context, d *Description, lag *GroupLag) {
	var places []Place
	for i := range d.Parts {
		if d.Parts[i].Committed == nil {
			places = append(places, Place{d.Parts[i].Part, math.MaxInt64})
		}
	}
	if len(places) == 0 || c.deps.Measure == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()
	for i, m := range c.deps.Measure(ctx, places) {
		if m.Err == nil {
			lag.Parts[places[i].Part] = &PartLag{LogStart: m.LogStart, HighWatermark: m.HighWatermark}
		}
	}
}
