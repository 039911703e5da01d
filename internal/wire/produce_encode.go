package wire

import (
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// A ProduceBatch is a ProduceRequest to send whose batch is already serialized.
// The batch is not copied: its buffer goes to the transport as it is.
type ProduceBatch struct {
	RequestID   uint64
	Topic       string
	TopicID     string // "": none
	Partition   int32
	Acks        int32
	Timeout     time.Duration // 0: the server's default
	Routing     int32
	LeaderEpoch int64 // -1: none
	// Batch is a serialized RecordBatch. Sending frees it once.
	Batch mem.Buffer
}

// marshal implements marshaler: a small header, then the batch.
func (r *ProduceBatch) marshal(*Pool) (mem.BufferSlice, error) { //nolint:unparam // it is a marshaler
	b := make([]byte, 0, 96+len(r.Topic)+len(r.TopicID))
	b = appendVarintField(b, produceRequestID, r.RequestID)
	b = appendStringField(b, produceTopic, r.Topic)
	b = appendStringField(b, produceTopicID, r.TopicID)
	b = protowire.AppendTag(b, producePartition, protowire.VarintType)
	b = protowire.AppendVarint(b, uint64(int64(r.Partition))) //nolint:gosec // as Protobuf carries it
	b = appendVarintField(b, produceAcks, uint64(r.Acks))     //nolint:gosec // an enum number
	if r.Timeout != 0 {
		b = protowire.AppendTag(b, produceTimeout, protowire.BytesType)
		b = appendTime(b, int64(r.Timeout/time.Second), int32(r.Timeout%time.Second)) //nolint:gosec // below 1e9
	}
	b = appendVarintField(b, produceRouting, uint64(r.Routing)) //nolint:gosec // an enum number
	if r.LeaderEpoch >= 0 {
		b = protowire.AppendTag(b, produceLeaderEpoch, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(r.LeaderEpoch))
	}
	b = protowire.AppendTag(b, produceBatch, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(r.Batch.Len())) //nolint:gosec // a length
	out := mem.BufferSlice{mem.SliceBuffer(b), r.Batch}
	r.Batch = nil
	return out, nil
}

// appendVarintField appends a field that proto3 leaves out when it is zero.
func appendVarintField(b []byte, num protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), v)
}

// appendStringField appends a field that is left out when it is empty.
func appendStringField(b []byte, num protowire.Number, v string) []byte {
	if v == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), v)
}

// appendTime appends a Duration or a Timestamp with its length.
func appendTime(b []byte, seconds int64, nanos int32) []byte {
	var in [22]byte
	msg := appendVarintField(in[:0], 1, uint64(seconds))  //nolint:gosec // as Protobuf carries it
	msg = appendVarintField(msg, 2, uint64(int64(nanos))) //nolint:gosec // as above
	return protowire.AppendBytes(b, msg)
}

// appendMillis appends a Timestamp of Unix milliseconds with its length.
func appendMillis(b []byte, ms int64) []byte {
	seconds, rest := ms/1000, ms%1000
	if rest < 0 {
		seconds, rest = seconds-1, rest+1000
	}
	return appendTime(b, seconds, int32(rest)*1_000_000) //nolint:gosec // below 1e9
}

// millis returns a Timestamp's Unix milliseconds, rounded down.
func millis(seconds int64, nanos int32) int64 { return seconds*1000 + int64(nanos)/1_000_000 }
