package partition

import (
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"github.com/runnelmq/runnel/broker/metadata"
)

// retryEvery is how often it is tried again what could not be done for want of
// room on the disk or of descriptors.
const retryEvery = time.Second

// undone is what of the newest image could not be carried out, by topic: in
// which round it failed last. A round is one look at all topics that changed,
// or are undone.
type undone struct {
	round  int
	topics map[uuid.UUID]int
}

// incomplete says whether something is left to be tried again.
func (s *Set) incomplete() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()

	return len(s.pending) > 0 || len(s.undone.topics) > 0
}

// left returns which topics are to be tried again.
func (s *Set) left() map[uuid.UUID]bool {
	left := map[uuid.UUID]bool{}
	s.mu.RLock()
	defer s.mu.RUnlock()

	for k := range s.pending {
		left[k.topic] = true
	}
	for id := range s.undone.topics {
		left[id] = true
	}
	return left
}

// with adds more topics of img to some.
func with(img *metadata.Image, topics []*metadata.Topic, more map[uuid.UUID]bool) []*metadata.Topic {
	for _, t := range topics {
		delete(more, t.ID)
	}
	for id := range more {
		if t, ok := img.TopicByID(id); ok {
			topics = append(topics, t)
		}
	}
	return topics
}

// begin begins a round.
func (s *Set) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.undone.round++
}

// done ends a round: what did not fail in it is carried out.
func (s *Set) done() {
	s.mu.Lock()
	defer s.mu.Unlock()

	for id, round := range s.undone.topics {
		if round < s.undone.round {
			delete(s.undone.topics, id)
		}
	}
}

// failed notes that a topic is not what the newest image says, and says so once
// until it is.
func (s *Set) failed(t *metadata.Topic, err error) {
	s.mu.Lock()
	level := zerolog.ErrorLevel
	if _, before := s.undone.topics[t.ID]; before {
		level = zerolog.DebugLevel
	}
	s.undone.topics[t.ID] = s.undone.round
	s.mu.Unlock()
	s.deps.Log.WithLevel(level).Str("topic", t.Name).Err(err).Msg("a topic is not what the metadata say: it will be tried again")
}

// postpone has a replica opened later. What is said of it is said of all of them:
// thousands may wait for the same thing.
func (s *Set) postpone(k key, t *metadata.Topic, err error, why string) {
	s.mu.Lock()
	s.pending[k] = true
	s.waiting = fmt.Errorf("%s/%d: %w", t.Name, k.n, err)
	s.mu.Unlock()
	s.deps.Log.Debug().Str("topic", t.Name).Int32("partition", k.n).Err(err).Msg(why)
}

// tellPending says how many replicas wait to be opened, once for as long as they
// do not become more than ever since none did.
func (s *Set) tellPending() {
	s.mu.Lock()
	n, told, why := len(s.pending), s.told, s.waiting
	if n > told || n == 0 {
		s.told = n
	}
	s.mu.Unlock()
	switch {
	case n > told:
		s.deps.Log.Warn().Int("replicas", n).AnErr("last", why).
			Msg("replicas can't be opened now: for want of room or descriptors, or because the user that runs this does not own their files; it is tried again")
	case n == 0 && told > 0:
		s.deps.Log.Info().Msg("all replicas are open that had to wait")
	}
}
