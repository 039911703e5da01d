package metadata

import (
	"hash/maphash"
	"iter"
	"maps"

	"github.com/google/uuid"
)

// shardCount is how many pieces a map is cut into. Changing one entry copies
// one piece, so a delta costs 1/256 of what copying the whole would.
const shardCount = 256

// shards is an immutable map that is cheap to derive a changed one from.
type shards[K comparable, V any] struct {
	parts [shardCount]*shard[K, V] // nil: empty
}

// A shard is one piece. Its identity tells whether it changed.
type shard[K comparable, V any] struct {
	m map[K]V
}

func (s *shard[K, V]) get(k K) (v V, ok bool) {
	if s == nil {
		return v, false
	}
	v, ok = s.m[k]
	return v, ok
}

func (s *shard[K, V]) all() iter.Seq2[K, V] {
	if s == nil {
		return func(func(K, V) bool) {}
	}
	return maps.All(s.m)
}

func (s *shards[K, V]) get(k K, hash func(K) uint8) (V, bool) { return s.parts[hash(k)].get(k) }

// values yields every value, in no order.
func (s *shards[K, V]) values() iter.Seq[V] {
	return func(yield func(V) bool) {
		for _, p := range s.parts {
			for _, v := range p.all() {
				if !yield(v) {
					return
				}
			}
		}
	}
}

// An edit derives a changed map: it copies each piece once, when it first
// changes.
type edit[K comparable, V any] struct {
	*shards[K, V]

	hash   func(K) uint8
	copied [shardCount]bool
}

func editOf[K comparable, V any](s *shards[K, V], hash func(K) uint8) *edit[K, V] {
	return &edit[K, V]{shards: s, hash: hash}
}

func (e *edit[K, V]) at(k K) map[K]V {
	h := e.hash(k)
	if !e.copied[h] {
		m := make(map[K]V)
		maps.Insert(m, e.parts[h].all())
		e.parts[h] = &shard[K, V]{m}
		e.copied[h] = true
	}
	return e.parts[h].m
}

func (e *edit[K, V]) set(k K, v V) { e.at(k)[k] = v }

func (e *edit[K, V]) remove(k K) { delete(e.at(k), k) }

func hashUUID(id uuid.UUID) uint8 { return id[15] ^ id[7] } // random in every version that is in use

// hashSeed is the same for the life of the process, which is all a shard needs.
var hashSeed = maphash.MakeSeed() //nolint:gochecknoglobals // constant after start

func hashString(s string) uint8 { return uint8(maphash.String(hashSeed, s)) } //nolint:gosec // the low byte is wanted
