package client

import (
	"encoding/binary"
	"math/rand/v2"
	"sync"
)

// A Partitioner chooses the partition of a record, from 0 up to n. It is
// called by many goroutines at once, and must not keep r.
type Partitioner func(r *Record, n int32) int32

// Manual takes the partition that the record names.
func Manual(r *Record, _ int32) int32 { return r.Partition }

// keyPartition is the partition of a key, as every client of such systems
// computes it: a key keeps its place whichever of them wrote it.
func keyPartition(key []byte, n int32) int32 {
	return int32(murmur2(key)&0x7fffffff) % n //nolint:gosec // 31 bits
}

// murmur2 is Austin Appleby's hash, 32 bits, with the seed that the Java
// client of Kafka uses.
func murmur2(b []byte) uint32 {
	const (
		seed = 0x9747b28c
		m    = 0x5bd1e995
		r    = 24
	)
	h := seed ^ uint32(len(b)) //nolint:gosec // the algorithm's
	for ; len(b) >= 4; b = b[4:] {
		k := binary.LittleEndian.Uint32(b)
		k *= m
		k ^= k >> r
		k *= m
		h *= m
		h ^= k
	}
	switch len(b) {
	case 3:
		h ^= uint32(b[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(b[1]) << 8
		fallthrough
	case 1:
		h ^= uint32(b[0])
		h *= m
	}
	h ^= h >> 13
	h *= m
	h ^= h >> 15
	return h
}

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
