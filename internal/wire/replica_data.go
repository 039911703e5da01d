package wire

import (
	"fmt"
	"slices"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of runnel.replica.v1.Data, and of Data in ReplicateResponse.
const (
	replicaBatches      = 1
	replicaTopicID      = 2
	replicaPartition    = 3
	replicaLeaderEpoch  = 4
	replicaSubscription = 5
	replicaStart        = 6
	replicaNext         = 7
	replicaPrevEpoch    = 8
	replicaHW           = 9
	replicaLogStart     = 10
	replicaEvents       = 6 // events of ReplicateResponse are 1 to this
	replicaDataEvent    = 3
)

// A ReplicaData is runnel.replica.v1.ReplicateResponse with data. To send it,
// TopicID and the numbers are set and the frames go to Encode; received, its
// byte slices point into the buffer it was parsed from.
type ReplicaData struct {
	TopicID                   []byte
	Partition                 int32
	LeaderEpoch, Subscription int64
	StartOffset, NextOffset   int64
	PrevEpoch                 int64
	HasPrevEpoch              bool
	HighWatermark, LogStart   int64
	// Frames is, in a received one, the stored bytes: whole frames, one after
	// another, each with its tag and length.
	Frames []byte
}

// replicaPrefix is the most bytes that stand before Data in its response.
const replicaPrefix = 6

// Encode makes the response a message to send. frames is stored bytes as they
// are, whose reference moves into the message; nil for none. All else is
// written to a buffer from pool.
func (d *ReplicaData) Encode(m *Message, pool mem.BufferPool, frames mem.Buffer) {
	buf := pool.Get(1 << minShift)
	b := d.appendHead((*buf)[:replicaPrefix])
	size := len(b) - replicaPrefix
	if frames != nil {
		size += frames.Len()
	}
	// The prefix is as long as size is; it goes right before the head.
	var prefix [replicaPrefix]byte
	p := protowire.AppendTag(prefix[:0], replicaDataEvent, protowire.BytesType)
	p = protowire.AppendVarint(p, uint64(size)) //nolint:gosec // a length
	m.Free()
	if cap(b) == cap(*buf) {
		at := replicaPrefix - len(p)
		copy(b[at:], p)
		*buf = b
		whole := mem.NewBuffer(buf, pool)
		m.bufs = append(m.bufs, whole.Slice(at, len(b)))
		whole.Free()
	} else { // the topic id is longer than any
		pool.Put(buf)
		m.bufs = append(m.bufs, mem.SliceBuffer(append(slices.Clip(p), b[replicaPrefix:]...)))
	}
	if frames != nil {
		m.bufs = append(m.bufs, frames)
	}
}

func (d *ReplicaData) appendHead(b []byte) []byte {
	number := func(num protowire.Number, v int64) {
		b = appendVarintField(b, num, uint64(v)) //nolint:gosec // as Protobuf carries it
	}
	b = appendBytesField(b, replicaTopicID, d.TopicID)
	number(replicaPartition, int64(d.Partition))
	number(replicaLeaderEpoch, d.LeaderEpoch)
	number(replicaSubscription, d.Subscription)
	number(replicaStart, d.StartOffset)
	number(replicaNext, d.NextOffset)
	if d.HasPrevEpoch {
		b = protowire.AppendVarint(protowire.AppendTag(b, replicaPrevEpoch, protowire.VarintType), uint64(d.PrevEpoch)) //nolint:gosec // as above
	}
	number(replicaHW, d.HighWatermark)
	number(replicaLogStart, d.LogStart)
	return b
}

// appendBytesField appends a field that is absent when empty.
func appendBytesField(b []byte, num protowire.Number, v []byte) []byte {
	if len(v) == 0 {
		return b
	}
	return protowire.AppendBytes(protowire.AppendTag(b, num, protowire.BytesType), v)
}

// Parse reads the response at b[start:end]. ok is false when it carries no
// data: then the generated code is to read it.
func (d *ReplicaData) Parse(b []byte, start, end int) (ok bool, err error) {
	*d = ReplicaData{}
	s := scan(b, start, end)
	from, to, times := 0, 0, 0
	for s.next() {
		if s.typ != protowire.BytesType || s.num > replicaEvents {
			continue
		}
		// As with every oneof the last event is the one there is.
		if ok = s.num == replicaDataEvent; ok {
			from, to = s.start, s.stop
			times++
		}
	}
	switch {
	case s.err != nil:
		return false, s.err
	case times > 1:
		return false, fmt.Errorf("%w: data occurs twice", ErrMalformed)
	case !ok:
		return false, nil
	}
	return true, d.parse(b, from, to)
}

func (d *ReplicaData) parse(b []byte, start, end int) error {
	s := scan(b, start, end)
	from, to := start, start // where the batches are
	for at := s.pos; s.next(); at = s.pos {
		switch {
		case s.typ == protowire.VarintType:
			d.varint(&s)
		case s.is(replicaTopicID, protowire.BytesType):
			d.TopicID = s.text("topic_id")
		case s.is(replicaBatches, protowire.BytesType):
			// They are stored with one write, so they have to lie together.
			if from == to {
				from, to = at, at
			}
			if at != to {
				return fmt.Errorf("%w: byte %d: the batches do not lie together", ErrMalformed, at)
			}
			to = s.stop
		}
	}
	d.Frames = b[from:to:to]
	return s.err
}

func (d *ReplicaData) varint(s *scanner) {
	v := int64(s.value) //nolint:gosec // as Protobuf carries it
	switch s.num {
	case replicaPartition:
		d.Partition = int32(v) //nolint:gosec // as Protobuf truncates
	case replicaLeaderEpoch:
		d.LeaderEpoch = v
	case replicaSubscription:
		d.Subscription = v
	case replicaStart:
		d.StartOffset = v
	case replicaNext:
		d.NextOffset = v
	case replicaPrevEpoch:
		d.PrevEpoch, d.HasPrevEpoch = v, true
	case replicaHW:
		d.HighWatermark = v
	case replicaLogStart:
		d.LogStart = v
	default: // unknown
	}
}
