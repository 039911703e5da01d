package router

import (
	"sync"

	"github.com/google/uuid"
)

// A Local writes to the partitions of this broker.
type Local interface {
	// WriteLocal appends w to a partition, for a pipeline whose leader this
	// broker has become. An error means that nothing was stored, unless it is
	// ErrCommitUncertain; without one it calls w.Stored, and w.Committed when
	// the outcome is known.
	WriteLocal(topic uuid.UUID, n int32, w *Write) error
}

// A Stream is one client stream as far as its writes go elsewhere: the account
// of what is held for it.
type Stream struct {
	r     *Router
	local Local
	// principal is who writes.
	principal string
	// room receives when there may be room again.
	room chan struct{}

	// mu guards the fields below
	mu sync.Mutex

	pipelines map[pipelineKey]*Pipeline
	bytes     int64 // that wait or are unanswered
	over      int   // pipelines that hold more than they may
	detached  bool
}

type pipelineKey struct {
	topic uuid.UUID
	n     int32
}

// NewStream returns the account of a client stream. principal is who writes, ""
// for somebody nothing is known of.
func (r *Router) NewStream(local Local, principal string) *Stream {
	return &Stream{r: r, local: local, principal: principal, room: make(chan struct{}, 1), pipelines: map[pipelineKey]*Pipeline{}}
}

// Pipeline returns the way to one partition, in order.
func (s *Stream) Pipeline(topic uuid.UUID, n int32) *Pipeline {
	s.mu.Lock()
	defer s.mu.Unlock()

	k := pipelineKey{topic, n}
	p := s.pipelines[k]
	if p == nil {
		p = newPipeline(s, topic, n)
		s.pipelines[k] = p
	}
	return p
}

// Busy returns the pipeline of a partition when something is in it; nil when
// there is none or it is idle.
func (s *Stream) Busy(topic uuid.UUID, n int32) *Pipeline {
	s.mu.Lock()
	p := s.pipelines[pipelineKey{topic, n}]
	s.mu.Unlock()
	if p == nil || p.idle() {
		return nil
	}
	return p
}

// Full says whether the client stream must not be read further, and returns
// what to wait for before asking again.
func (s *Stream) Full() (bool, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.bytes >= s.r.opts.StreamBytes || s.over > 0, s.room
}

// Detach ends the account: the client stream is over, and nobody waits for
// outcomes. What was not sent is dropped, but for what was answered already.
func (s *Stream) Detach() {
	s.mu.Lock()
	s.detached = true
	pipelines := make([]*Pipeline, 0, len(s.pipelines))
	for _, p := range s.pipelines {
		pipelines = append(pipelines, p)
	}
	s.mu.Unlock()
	for _, p := range pipelines {
		p.detach()
	}
}

// charge adds to the account.
func (s *Stream) charge(size int64, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.bytes += size
	if over {
		s.over++
	}
}

// discharge takes from the account.
func (s *Stream) discharge(size int64, below bool) {
	s.mu.Lock()
	s.bytes -= size
	if below {
		s.over--
	}
	s.mu.Unlock()
	select {
	case s.room <- struct{}{}:
	default:
	}
}
