package client

import (
	"slices"
	"time"
)

// AnyPartition in [Record.Partition] leaves the choice to the producer's
// partitioner.
const AnyPartition int32 = -1

// A Record is one record, to be written or as it was read.
//
// Key and Value tell nil from empty: a record without a key has a nil Key, and
// a nil Value is a tombstone, which deletes the key on a compacted topic.
type Record struct {
	// Topic is the name of the topic.
	Topic string
	// Partition is the number of the partition. A producer looks at it only
	// with the [Manual] partitioner.
	Partition int32
	// Offset is the place in the partition, for a record that was read.
	Offset int64
	// Timestamp is in milliseconds, as stored. A producer takes the zero time
	// for "now".
	Timestamp time.Time
	// Key groups records: all of one key go to one partition, in order.
	Key []byte
	// Value is what the record says.
	Value []byte
	// Headers are facts about the record, in order. Names may repeat.
	Headers []Header
	// LeaderEpoch is the epoch of the leader that stored a record that was read.
	LeaderEpoch int64
}

// A Header is one fact about a record.
type Header struct {
	// Key is its name: not empty, valid UTF-8.
	Key string
	// Value tells nil from empty.
	Value []byte
}

// Clone returns a copy of r that shares no memory with it, and so may be kept.
func (r Record) Clone() Record {
	r.Key = slices.Clone(r.Key)
	r.Value = slices.Clone(r.Value)
	if r.Headers != nil {
		hs := make([]Header, len(r.Headers))
		for i, h := range r.Headers {
			hs[i] = Header{Key: string([]byte(h.Key)), Value: slices.Clone(h.Value)}
		}
		r.Headers = hs
	}
	return r
}
