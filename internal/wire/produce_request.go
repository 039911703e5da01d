package wire

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of runnel.v1.ProduceRequest.
const (
	produceRequestID    = 1
	produceTopic        = 2
	produceTopicID      = 3
	producePartition    = 4
	produceAcks         = 5
	produceTimeout      = 6
	produceRouting      = 7
	produceLeaderEpoch  = 8
	produceProducer     = 9
	produceBatch        = 16
	produceRecords      = 17
	produceTextRecords  = 18
	wrappedRequestField = 1 // of AppendRequest
)

// A ProduceRequest is runnel.v1.ProduceRequest with the records left where they
// are. Its byte slices point into the buffer it was parsed from.
type ProduceRequest struct {
	RequestID   uint64
	Topic       []byte
	TopicID     []byte // nil: absent
	Partition   int32
	Acks        int32
	Timeout     time.Duration
	Routing     int32
	LeaderEpoch int64
	Producer    ProducerSequence

	HasPartition, HasTimeout, HasLeaderEpoch, HasProducer, HasBatch bool

	// BatchStart and BatchEnd are where the serialized RecordBatch is.
	BatchStart, BatchEnd int
	// Records and TextRecords count the records of either kind.
	Records, TextRecords int

	buf        []byte
	start, end int
	seconds    int64
	nanos      int32
	keepAlive  bool
}

// A ProducerSequence is runnel.v1.ProducerSequence.
type ProducerSequence struct {
	ID, Epoch, BaseSequence int64
}

// Parse reads the request at b[start:end]. After an error RequestID is set when
// it came before what is wrong.
func (r *ProduceRequest) Parse(b []byte, start, end int) error {
	*r = ProduceRequest{buf: b, start: start, end: end, keepAlive: true}
	s := scan(b, start, end)
	for s.next() {
		if s.num != produceRequestID {
			r.keepAlive = false
		}
		switch s.typ {
		case protowire.VarintType:
			r.varint(&s)
		case protowire.BytesType:
			r.bytes(&s)
		default: // unknown fields are those of newer clients
		}
	}
	r.Timeout = toDuration(r.seconds, r.nanos)
	return s.err
}

// ParseWrapped is Parse for the request inside an AppendRequest.
func (r *ProduceRequest) ParseWrapped(b []byte, start, end int) error {
	*r = ProduceRequest{}
	s := scan(b, start, end)
	from, to := end, end
	found := false
	for s.next() {
		if !s.is(wrappedRequestField, protowire.BytesType) {
			continue
		}
		if found {
			return fmt.Errorf("%w: request occurs twice", ErrMalformed)
		}
		found, from, to = true, s.start, s.stop
	}
	if s.err != nil {
		return s.err
	}
	return r.Parse(b, from, to)
}

func (r *ProduceRequest) varint(s *scanner) {
	v := int64(s.value) //nolint:gosec // Protobuf carries signed numbers so
	switch s.num {
	case produceRequestID:
		r.RequestID = s.value
	case producePartition:
		r.Partition, r.HasPartition = int32(v), true //nolint:gosec // as Protobuf truncates
	case produceAcks:
		r.Acks = int32(v) //nolint:gosec // as above
	case produceRouting:
		r.Routing = int32(v) //nolint:gosec // as above
	case produceLeaderEpoch:
		r.LeaderEpoch, r.HasLeaderEpoch = v, true
	default: // unknown
	}
}

func (r *ProduceRequest) bytes(s *scanner) {
	switch s.num {
	case produceTopic:
		r.Topic = s.text("topic")
	case produceTopicID:
		r.TopicID = s.text("topic_id")
	case produceTimeout:
		r.HasTimeout = true
		s.duration(&r.seconds, &r.nanos)
	case produceProducer:
		r.HasProducer = true
		r.Producer.merge(s)
	case produceBatch:
		if r.HasBatch && s.err == nil {
			s.err = fmt.Errorf("%w: batch occurs twice: send one request for each batch", ErrMalformed)
			return
		}
		r.HasBatch, r.BatchStart, r.BatchEnd = true, s.start, s.stop
	case produceRecords:
		r.Records++
	case produceTextRecords:
		r.TextRecords++
	default: // unknown
	}
}

func (p *ProducerSequence) merge(s *scanner) {
	in := scan(s.b, s.start, s.stop)
	for in.next() {
		v := int64(in.value) //nolint:gosec // Protobuf carries signed numbers so
		switch {
		case in.is(1, protowire.VarintType):
			p.ID = v
		case in.is(2, protowire.VarintType):
			p.Epoch = v
		case in.is(3, protowire.VarintType):
			p.BaseSequence = v
		}
	}
	if s.err == nil {
		s.err = in.err
	}
}

// KeepAlive reports whether nothing but request_id was sent.
func (r *ProduceRequest) KeepAlive() bool { return r.keepAlive }
