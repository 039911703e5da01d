package client

import (
	"context"
	"sync"
	"sync/atomic"
)

// memory bounds the bytes of records whose outcome is not known yet.
type memory struct {
	most int64
	used atomic.Int64
	// waiting is the number of callers of wait.
	waiting atomic.Int32

	// mu guards the fields below
	mu sync.Mutex

	freed chan struct{} // closed and replaced when memory is given back
}

func newMemory(most int64) *memory {
	return &memory{most: most, freed: make(chan struct{})}
}

// try takes n bytes, unless that would be too many. One record is always let
// through, however large, when nothing else is there.
func (m *memory) try(n int64) bool {
	for {
		used := m.used.Load()
		if used > 0 && used+n > m.most {
			return false
		}
		if m.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

// wait takes n bytes as soon as there are so many. It calls pressing once it
// counts as waiting.
func (m *memory) wait(ctx context.Context, closed <-chan struct{}, n int64, pressing func()) error {
	m.waiting.Add(1)
	defer m.waiting.Add(-1)
	pressing()
	for {
		m.mu.Lock()
		freed := m.freed
		m.mu.Unlock()
		if m.try(n) {
			return nil
		}
		select {
		case <-freed:
		case <-closed:
			return errProducerClosed
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// give returns n bytes.
func (m *memory) give(n int64) {
	m.used.Add(-n)
	if m.waiting.Load() == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.freed)
	m.freed = make(chan struct{})
}

// pressed reports whether somebody waits for memory: then nothing lingers.
func (m *memory) pressed() bool { return m.waiting.Load() > 0 }
