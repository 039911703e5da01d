package rpc

import (
	"sync"
	"time"
)

// Pipelines that were idle for long are forgotten. Nothing of them can be under
// way then: requests have at most five minutes.
const (
	pipelineIdle  = 10 * time.Minute
	pipelineSweep = time.Minute
)

// A pipelineBook knows how far the pipelines of all senders have come. They live
// longer than a stream: after one broke, what it still holds must not be taken
// behind what came over the next.
type pipelineBook struct {
	// mu guards the fields below
	mu sync.Mutex

	pipelines map[uint64]*pipelineState
	swept     time.Time
}

// A pipelineState is one pipeline.
type pipelineState struct {
	number  uint64
	refused bool // something of the number was
	parked  int  // requests that wait for metadata
	seen    time.Time
}

func newPipelineBook() *pipelineBook { return &pipelineBook{pipelines: map[uint64]*pipelineState{}} }

// A passage says what to do with a request of a pipeline.
type passage uint8

const (
	passageOpen    passage = iota // take it
	passageRefused                // something before it was refused, or it is old
	passageParked                 // something before it waits
)

// enter looks a request up, and notes the newest number.
func (b *pipelineBook) enter(name, number uint64, now time.Time) passage {
	b.mu.Lock()
	defer b.mu.Unlock()

	if now.Sub(b.swept) > pipelineSweep {
		b.sweepLocked(now)
	}
	st := b.pipelines[name]
	if st == nil {
		st = &pipelineState{number: number}
		b.pipelines[name] = st
	}
	st.seen = now
	switch {
	case number > st.number:
		*st = pipelineState{number: number, seen: now}
	case number < st.number || st.refused:
		return passageRefused
	}
	if st.parked > 0 {
		return passageParked
	}
	return passageOpen
}

// again looks a request up that was parked: whether it may be taken now.
func (b *pipelineBook) again(name, number uint64) passage {
	b.mu.Lock()
	defer b.mu.Unlock()

	st := b.pipelines[name]
	if st == nil || st.number != number || st.refused {
		return passageRefused
	}
	return passageOpen
}

// refuse notes that a request was refused: all later ones of its number are.
func (b *pipelineBook) refuse(name, number uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()

	if st := b.pipelines[name]; st != nil && st.number == number {
		st.refused = true
	}
}

// park adds to the requests that wait.
func (b *pipelineBook) park(name, number uint64, delta int) {
	b.mu.Lock()
	defer b.mu.Unlock()

	if st := b.pipelines[name]; st != nil && st.number == number {
		st.parked += delta
	}
}

func (b *pipelineBook) sweepLocked(now time.Time) {
	b.swept = now
	for name, st := range b.pipelines {
		if st.parked == 0 && now.Sub(st.seen) > pipelineIdle {
			delete(b.pipelines, name)
		}
	}
}
