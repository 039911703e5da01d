package replication

import (
	"maps"
	"sync"
	"time"

	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/telemetry"
)

// tellEvery is how often the log tells of the same trouble between a leader and a
// follower, which tries again every second.
const tellEvery = time.Minute

// stuckFor is how long after it last came trouble counts as still there, though
// nobody was seen to pass it: somebody else may lead.
const stuckFor = 10 * time.Minute

// stuck are the followers that can't be sent what comes next. Every attempt is a
// subscription of its own, so this outlives them.
type stuck struct {
	// mu guards the fields below
	mu sync.Mutex

	places map[stuckPlace]*stuckAt
	swept  time.Time // when those that are over without a word were looked for
}

// A stuckPlace is a follower's copy of a partition.
type stuckPlace struct {
	follower metadata.BrokerID
	place
}

// stuckAt says since when, and what can't be sent.
type stuckAt struct {
	telemetry.Recurrence

	from record.Offset
	last time.Time
}

// again notes that what begins at from can't be sent, and says whether to tell;
// see [telemetry.Recurrence].
func (s *stuck) again(at stuckPlace, from record.Offset, now time.Time) (tell bool, before int) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if now.Sub(s.swept) >= tellEvery { // thousands may be stuck, and each comes every second
		s.swept = now
		maps.DeleteFunc(s.places, func(_ stuckPlace, w *stuckAt) bool { return now.Sub(w.last) > stuckFor })
	}
	w := s.places[at]
	if w == nil {
		w = &stuckAt{}
		if s.places == nil {
			s.places = map[stuckPlace]*stuckAt{}
		}
		s.places[at] = w
	}
	w.from, w.last = from, now
	return w.Again(now, tellEvery)
}

// has says whether a follower is stuck.
func (s *stuck) has(at stuckPlace) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.places[at] != nil
}

// passed notes that a follower was sent what lies before next. over says that it
// is stuck no more, and since when it was.
func (s *stuck) passed(at stuckPlace, next record.Offset) (since time.Time, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	w := s.places[at]
	if w == nil || next <= w.from {
		return time.Time{}, false
	}
	delete(s.places, at)
	return w.Over()
}
