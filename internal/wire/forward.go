package wire

import (
	"fmt"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// Field numbers of runnel.replica.v1.ForwardProduceRequest and -Response.
const (
	forwardSequence       = 1
	forwardTopicID        = 2
	forwardPartition      = 3
	forwardLeaderEpoch    = 4
	forwardPipeline       = 5
	forwardPipelineNumber = 6
	forwardAcks           = 7
	forwardTimeout        = 8
	forwardPrincipal      = 9
	forwardBatch          = 16

	forwardedSequence   = 1
	forwardedError      = 2
	forwardedBaseOffset = 3
	forwardedLastOffset = 4
	forwardedAppendTime = 5
	forwardedLogStart   = 6
	forwardedDuplicate  = 7
)

// A ForwardProduce is a ForwardProduceRequest, to send or received. Its topic id
// and principal are copies, its batch is not.
type ForwardProduce struct {
	Sequence       uint64
	TopicID        string
	Partition      int32
	LeaderEpoch    int64
	Pipeline       uint64
	PipelineNumber uint64
	Acks           int32
	Timeout        time.Duration // what is left
	Principal      string

	// Batch is a serialized RecordBatch to send. Sending frees it once.
	Batch mem.Buffer
	// BatchStart and BatchEnd are where it is in what was parsed.
	BatchStart, BatchEnd int
}

// marshal implements marshaler: a small header, then the batch.
func (r *ForwardProduce) marshal(*Pool) (mem.BufferSlice, error) { //nolint:unparam // it is a marshaler
	b := make([]byte, 0, 112+len(r.TopicID)+len(r.Principal))
	b = appendVarintField(b, forwardSequence, r.Sequence)
	b = appendStringField(b, forwardTopicID, r.TopicID)
	b = appendVarintField(b, forwardPartition, uint64(int64(r.Partition))) //nolint:gosec // as Protobuf carries it
	b = appendVarintField(b, forwardLeaderEpoch, uint64(r.LeaderEpoch))    //nolint:gosec // as above
	b = appendVarintField(b, forwardPipeline, r.Pipeline)
	b = appendVarintField(b, forwardPipelineNumber, r.PipelineNumber)
	b = appendVarintField(b, forwardAcks, uint64(r.Acks)) //nolint:gosec // an enum number
	b = protowire.AppendTag(b, forwardTimeout, protowire.BytesType)
	b = appendTime(b, int64(r.Timeout/time.Second), int32(r.Timeout%time.Second)) //nolint:gosec // below 1e9
	b = appendStringField(b, forwardPrincipal, r.Principal)
	b = protowire.AppendTag(b, forwardBatch, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(r.Batch.Len())) //nolint:gosec // a length
	out := mem.BufferSlice{mem.SliceBuffer(b), r.Batch}
	r.Batch = nil
	return out, nil
}

// Parse reads the request at b[start:end]. After an error Sequence is set when
// it came before what is wrong.
func (r *ForwardProduce) Parse(b []byte, start, end int) error {
	*r = ForwardProduce{}
	s := scan(b, start, end)
	var seconds int64
	var nanos int32
	found := false
	for s.next() {
		v := int64(s.value) //nolint:gosec // as Protobuf carries it
		switch {
		case s.is(forwardSequence, protowire.VarintType):
			r.Sequence = s.value
		case s.is(forwardTopicID, protowire.BytesType):
			r.TopicID = string(s.text("topic_id"))
		case s.is(forwardPartition, protowire.VarintType):
			r.Partition = int32(v) //nolint:gosec // as Protobuf truncates
		case s.is(forwardLeaderEpoch, protowire.VarintType):
			r.LeaderEpoch = v
		case s.is(forwardPipeline, protowire.VarintType):
			r.Pipeline = s.value
		case s.is(forwardPipelineNumber, protowire.VarintType):
			r.PipelineNumber = s.value
		case s.is(forwardAcks, protowire.VarintType):
			r.Acks = int32(v) //nolint:gosec // as above
		case s.is(forwardTimeout, protowire.BytesType):
			s.duration(&seconds, &nanos)
		case s.is(forwardPrincipal, protowire.BytesType):
			r.Principal = string(s.text("principal"))
		case s.is(forwardBatch, protowire.BytesType):
			if found {
				return fmt.Errorf("%w: batch occurs twice", ErrMalformed)
			}
			found, r.BatchStart, r.BatchEnd = true, s.start, s.stop
		}
	}
	r.Timeout = toDuration(seconds, nanos)
	if s.err == nil && !found {
		return fmt.Errorf("%w: no batch", ErrMalformed)
	}
	return s.err
}

// A ForwardProduced is a ForwardProduceResponse, to send or received. Offsets
// are absent when None.
type ForwardProduced struct {
	Sequence               uint64
	Error                  *runnelv1.ItemError
	BaseOffset, LastOffset int64
	AppendTimeMs, LogStart int64
	Duplicate              bool
}

// marshal implements marshaler.
func (r *ForwardProduced) marshal(*Pool) (mem.BufferSlice, error) {
	b := make([]byte, 0, 64)
	b = appendVarintField(b, forwardedSequence, r.Sequence)
	b, err := appendMessage(b, forwardedError, r.Error)
	if err != nil {
		return nil, err
	}
	b = appendOptional(b, forwardedBaseOffset, r.BaseOffset)
	b = appendOptional(b, forwardedLastOffset, r.LastOffset)
	b = appendVarintField(b, forwardedAppendTime, uint64(r.AppendTimeMs)) //nolint:gosec // as Protobuf carries it
	b = appendVarintField(b, forwardedLogStart, uint64(r.LogStart))       //nolint:gosec // as above
	b = appendBool(b, forwardedDuplicate, r.Duplicate)
	return mem.BufferSlice{mem.SliceBuffer(b)}, nil
}

// Parse reads the response at b[start:end]. Its texts are copies.
func (r *ForwardProduced) Parse(b []byte, start, end int) error {
	*r = ForwardProduced{BaseOffset: None, LastOffset: None}
	s := scan(b, start, end)
	for s.next() {
		v := int64(s.value) //nolint:gosec // as Protobuf carries it
		switch {
		case s.is(forwardedSequence, protowire.VarintType):
			r.Sequence = s.value
		case s.is(forwardedError, protowire.BytesType):
			mergeMessage(&s, &r.Error)
		case s.is(forwardedBaseOffset, protowire.VarintType):
			r.BaseOffset = v
		case s.is(forwardedLastOffset, protowire.VarintType):
			r.LastOffset = v
		case s.is(forwardedAppendTime, protowire.VarintType):
			r.AppendTimeMs = v
		case s.is(forwardedLogStart, protowire.VarintType):
			r.LogStart = v
		case s.is(forwardedDuplicate, protowire.VarintType):
			r.Duplicate = v != 0
		}
	}
	return s.err
}

// ParseWrapped is Parse for the response inside a ForwardFetchResponse, and
// returns its size.
func (r *FetchedBatches) ParseWrapped(b []byte, start, end int) (size int, err error) {
	*r = FetchedBatches{}
	s := scan(b, start, end)
	from, to := end, end
	found := false
	for s.next() {
		if !s.is(wrappedResponse, protowire.BytesType) {
			continue
		}
		if found {
			return 0, fmt.Errorf("%w: response occurs twice", ErrMalformed)
		}
		found, from, to = true, s.start, s.stop
	}
	if s.err != nil {
		return 0, s.err
	}
	return to - from, r.Parse(b, from, to)
}

// Place returns where in the parsed buffer the batches are, which must lie
// together; false when they do not.
func (r *FetchedBatches) Place() (start, end int, ok bool) {
	s := scan(r.buf, r.start, r.end)
	for {
		from := s.pos
		if !s.next() {
			return start, end, true
		}
		if !s.is(fetchedBatches, protowire.BytesType) {
			continue
		}
		if end == 0 {
			start = from
		} else if end != from {
			return 0, 0, false
		}
		end = s.stop
	}
}
