package client

import (
	"math/rand/v2"
	"sync"
)

// A Partitioner chooses the partition of a record, from 0 up to n. It is
// called by many goroutines at once, and must not keep r.
type Partitioner func(r *Record, n int32) int32

// Manual takes the partition that the record names.
func Manual(r *Record, _ int32) int32 { return r.Partition }

// A sticky chooser keeps keyless records of a topic on one partition until
// that got a batch's worth of bytes, so that batches are full and partitions
// even.
type sticky struct {
	// mu guards the fields below
	mu sync.Mutex

	partition int32 // -1 before the first choice, which is at random
	left      int   // bytes until the next choice
}

// choose returns the partition, out of n, for a record of size bytes. Each
// partition gets at least run bytes in a row, and all get the same, whatever
// becomes of what is sent there: one that is slow gets no more than others.
func (s *sticky) choose(size, run int, n int32) int32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.partition < 0:
		s.partition, s.left = rand.Int32N(n), run //nolint:gosec // to spread, not to hide
	case s.left <= 0, s.partition >= n:
		s.partition, s.left = (s.partition+1)%n, run
	}
	s.left -= size
	return s.partition
}
