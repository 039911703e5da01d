package commitlog

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/runnelmq/runnel/internal/record"
)

// keySlotBytes is what one key takes in a keyMap, keyLoad how full one gets, in
// percent: a little room keeps the probes short.
const (
	keySlotBytes = 24
	keyLoad      = 90
)

// A keyMap remembers the last offset of each key, in memory of a fixed size: it
// holds hashes of keys, not keys. The hash is the first half of a SHA-256. Two
// keys with the same one would lose a record, and nobody can find two, not even
// who wants to: that takes 2^64 hashes.
type keyMap struct {
	slots []keySlot
	used  int
	limit int
}

// A keySlot is empty when next is 0.
type keySlot struct {
	high, low uint64
	next      record.Offset // after the key's last record
}

// newKeyMap returns a map of at most size bytes, and of no more than records
// keys need. It has room for one key at least.
func newKeyMap(size int64, records record.Offset) *keyMap {
	want := int64(records)/keyLoad*100 + 100
	slots := max(min(size/keySlotBytes, want), 2)
	return &keyMap{slots: make([]keySlot, slots), limit: max(int(slots*keyLoad/100), 1)}
}

// put notes that offset is the key's last. It is false when the key is new and
// the map full.
func (m *keyMap) put(key []byte, offset record.Offset) bool {
	high, low := hashKey(key)
	s := m.slot(high, low)
	if s.next == 0 {
		if m.used == m.limit {
			return false
		}
		m.used++
		s.high, s.low = high, low
	}
	s.next = max(s.next, offset+1)
	return true
}

// last returns the key's last offset; false when the map has not seen the key.
func (m *keyMap) last(key []byte) (record.Offset, bool) {
	if m.used == 0 {
		return 0, false
	}
	s := m.slot(hashKey(key))
	return s.next - 1, s.next != 0
}

// slot returns the slot of a key's hash, or the empty one it would get.
func (m *keyMap) slot(high, low uint64) *keySlot {
	i := low % uint64(len(m.slots))
	for {
		s := &m.slots[i]
		if s.next == 0 || (s.high == high && s.low == low) {
			return s
		}
		if i++; i == uint64(len(m.slots)) {
			i = 0
		}
	}
}

func hashKey(key []byte) (high, low uint64) {
	sum := sha256.Sum256(key)
	return binary.LittleEndian.Uint64(sum[:8]), binary.LittleEndian.Uint64(sum[8:16])
}
