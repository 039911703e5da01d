package wire

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// Field numbers of runnel.v1.FetchResponse.
const (
	fetchedBatches     = 1
	fetchedTag         = 2
	fetchedTopic       = 3
	fetchedTopicID     = 4
	fetchedPartition   = 5
	fetchedNextOffset  = 6
	fetchedHW          = 7
	fetchedLogStart    = 8
	fetchedLastStable  = 9
	fetchedLeaderEpoch = 10
	fetchedRecords     = 11
	fetchedTextRecords = 12
	fetchedEnd         = 13
	fetchedError       = 14
)

// A FetchResponse is runnel.v1.FetchResponse to send: all but the records as
// values, the records as bytes that are fields of it already.
type FetchResponse struct {
	Tag       uint64
	Topic     string
	TopicID   string
	Partition int32 // None: absent
	// Absent when None.
	NextOffset, HighWatermark, LogStart, LastStable, LeaderEpoch int64

	End    bool
	Error  *runnelv1.ItemError
	Goaway *runnelv1.Goaway

	// Payload is whole fields of a FetchResponse: frames as stored, which are
	// field 1, or what AppendRecord and AppendTextRecord wrote.
	Payload mem.BufferSlice
}

// Encode makes the response a message to send, and returns its serialized size.
// The payload's references move into the message. All else is written to a
// buffer from pool, so that a pool that counts sees every response leave. With
// wrapped the message is the ReadResponse around the response; the size stays
// that of the response.
func (r *FetchResponse) Encode(m *Message, pool mem.BufferPool, wrapped bool) (size int, err error) {
	room := 0
	if wrapped {
		room = wrapRoom
	}
	buf := pool.Get(1 << minShift)
	b, err := r.appendHead((*buf)[:room])
	if err != nil {
		pool.Put(buf)
		return 0, err
	}
	size = len(b) - room + r.Payload.Len()
	if wrapped {
		prefix := protowire.AppendTag(b[:0], wrappedResponse, protowire.BytesType)
		prefix = protowire.AppendVarint(prefix, uint64(size)) //nolint:gosec // a length
		b = append(prefix, b[room:]...)
	}
	m.Free()
	if cap(b) == cap(*buf) {
		*buf = b
		m.bufs = append(m.bufs, mem.NewBuffer(buf, pool))
	} else {
		pool.Put(buf)
		m.bufs = append(m.bufs, mem.SliceBuffer(b))
	}
	m.bufs = append(m.bufs, r.Payload...)
	r.Payload = nil
	return size, nil
}

// wrapRoom is the most bytes a ReadResponse has before the response in it.
const wrapRoom = 6

func (r *FetchResponse) appendHead(b []byte) ([]byte, error) {
	b = appendVarintField(b, fetchedTag, r.Tag)
	b = appendStringField(b, fetchedTopic, r.Topic)
	b = appendStringField(b, fetchedTopicID, r.TopicID)
	b = appendOptional(b, fetchedPartition, int64(r.Partition))
	b = appendOptional(b, fetchedNextOffset, r.NextOffset)
	b = appendOptional(b, fetchedHW, r.HighWatermark)
	b = appendOptional(b, fetchedLogStart, r.LogStart)
	b = appendOptional(b, fetchedLastStable, r.LastStable)
	b = appendOptional(b, fetchedLeaderEpoch, r.LeaderEpoch)
	b = appendBool(b, fetchedEnd, r.End)
	b, err := appendMessage(b, fetchedError, r.Error)
	if err != nil {
		return nil, err
	}
	return appendMessage(b, goawayField, r.Goaway)
}

// A FetchedBatches is a received FetchResponse in BATCHES format, for clients:
// the stored bytes stay where they are. Its slices point into the buffer it was
// parsed from.
type FetchedBatches struct {
	Tag            uint64
	Topic, TopicID []byte
	Partition      int32 // None: absent
	// Absent when None.
	NextOffset, HighWatermark, LogStart, LastStable, LeaderEpoch int64

	End    bool
	Error  *runnelv1.ItemError
	Goaway *runnelv1.Goaway

	// Batches counts the batches; Frames walks over them.
	Batches int

	buf        []byte
	start, end int
}

// Parse reads the response at b[start:end].
func (r *FetchedBatches) Parse(b []byte, start, end int) error {
	*r = FetchedBatches{
		Partition: None, NextOffset: None, HighWatermark: None, LogStart: None, LastStable: None, LeaderEpoch: None,
		buf: b, start: start, end: end,
	}
	s := scan(b, start, end)
	for s.next() {
		switch s.typ {
		case protowire.VarintType:
			r.varint(&s)
		case protowire.BytesType:
			r.bytes(&s)
		default: // unknown fields are those of newer servers
		}
	}
	return s.err
}

func (r *FetchedBatches) varint(s *scanner) {
	v := int64(s.value) //nolint:gosec // as Protobuf carries it
	switch s.num {
	case fetchedTag:
		r.Tag = s.value
	case fetchedPartition:
		r.Partition = int32(v) //nolint:gosec // as Protobuf truncates
	case fetchedNextOffset:
		r.NextOffset = v
	case fetchedHW:
		r.HighWatermark = v
	case fetchedLogStart:
		r.LogStart = v
	case fetchedLastStable:
		r.LastStable = v
	case fetchedLeaderEpoch:
		r.LeaderEpoch = v
	case fetchedEnd:
		r.End = v != 0
	default: // unknown
	}
}

func (r *FetchedBatches) bytes(s *scanner) {
	switch s.num {
	case fetchedBatches:
		r.Batches++
	case fetchedTopic:
		r.Topic = s.text("topic")
	case fetchedTopicID:
		r.TopicID = s.text("topic_id")
	case fetchedError:
		mergeMessage(s, &r.Error)
	case goawayField:
		mergeMessage(s, &r.Goaway)
	default: // records, which nobody asked for, or unknown
	}
}

// Frames yields each batch with its tag and length: a frame as
// record.ParseFrame takes it. Parse has accepted them.
func (r *FetchedBatches) Frames(yield func(frame []byte) bool) {
	s := scan(r.buf, r.start, r.end)
	for {
		from := s.pos
		if !s.next() {
			return
		}
		if s.is(fetchedBatches, protowire.BytesType) && !yield(r.buf[from:s.stop:s.stop]) {
			return
		}
	}
}
