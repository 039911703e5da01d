// Package partitioner maps record keys to partitions as Kafka's clients do, so
// that a key keeps its partition when an application moves over.
package partitioner

import "encoding/binary"

// Constants of MurmurHash2, 32 bits, and the seed Kafka chose.
const (
	seed       = 0x9747b28c
	multiplier = 0x5bd1e995
	shift      = 24
)

// ForKey returns the partition of key among count partitions; count is at least
// 1. An empty key is a key like any other.
func ForKey(key []byte, count int) int32 {
	return int32(murmur2(key)&0x7fffffff) % int32(count) //nolint:gosec // both are within 31 bits
}

// murmur2 returns the hash of key.
func murmur2(key []byte) uint32 {
	h := uint32(seed) ^ uint32(len(key)) //nolint:gosec // keys are far below 4 GiB
	for ; len(key) >= 4; key = key[4:] {
		k := binary.LittleEndian.Uint32(key)
		k *= multiplier
		k ^= k >> shift
		k *= multiplier
		h *= multiplier
		h ^= k
	}
	switch len(key) {
	case 3:
		h ^= uint32(key[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(key[1]) << 8
		fallthrough
	case 1:
		h ^= uint32(key[0])
		h *= multiplier
	}
	h ^= h >> 13
	h *= multiplier
	h ^= h >> 15
	return h
}
