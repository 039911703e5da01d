package metadata

import (
	"sync"
	"sync/atomic"
)

// A Store holds the newest image. Any number read it; the session writes it.
type Store struct {
	image atomic.Pointer[Image]

	// mu guards the fields below
	mu sync.Mutex

	changed chan struct{} // closed when a newer image is published
}

// NewStore returns a store with the empty image of broker self.
func NewStore(self BrokerID) *Store {
	s := &Store{changed: make(chan struct{})}
	s.image.Store(&Image{Self: self})
	return s
}

// Load returns the newest image, never nil.
func (s *Store) Load() *Image { return s.image.Load() }

// Changed returns a channel that is closed when the next image is published.
// Who takes the channel first and loads then misses nothing.
func (s *Store) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.changed
}

// Publish makes img the newest image. Only one goroutine may publish.
func (s *Store) Publish(img *Image) {
	s.image.Store(img)
	s.mu.Lock()
	defer s.mu.Unlock()

	close(s.changed)
	s.changed = make(chan struct{})
}
