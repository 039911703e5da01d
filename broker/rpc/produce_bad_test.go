package rpc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/wire"
)

// rawRequest puts a serialized RecordBatch, good or bad, into a request.
func rawRequest(topic string, n int32, batch []byte) []byte {
	b := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 77)
	b = protowire.AppendString(protowire.AppendTag(b, 2, protowire.BytesType), topic)
	b = protowire.AppendVarint(protowire.AppendTag(b, 4, protowire.VarintType), uint64(n))
	return protowire.AppendBytes(protowire.AppendTag(b, 16, protowire.BytesType), batch)
}

// buildBatch makes a good RecordBatch message.
func buildBatch(tb testing.TB, c record.Compression, timestampMs int64, values ...[]byte) []byte {
	tb.Helper()
	b := record.NewBuilder(record.NewCodec(), record.Limits{MaxRecordBytes: record.MaxRecordSize})
	for _, v := range values {
		if err := b.Add(nil, v, nil, timestampMs); err != nil {
			tb.Fatal(err)
		}
	}
	batch, err := b.Finish(c, 0)
	if err != nil {
		tb.Fatal(err)
	}
	return batch.AppendMessage(nil)
}

// payloadBatch is a RecordBatch message around any payload.
func payloadBatch(c record.Compression, payload []byte) []byte {
	field := protowire.Number(32)
	var b []byte
	if c != record.CompressionNone {
		field = 33
		b = protowire.AppendVarint(protowire.AppendTag(b, 11, protowire.VarintType), uint64(c))
	}
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), payload)
}

func TestProduce_refusesBadInputAndGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		id := b.topic("t", 2)
		b.topic("small", 1, "max.message.bytes", "2000")
		b.topic("dated", 1, "message.timestamp.before.max.ms", "60000")
		b.topic("stamped", 1, "message.timestamp.type", "LogAppendTime")
		b.topic("__system", 1)
		b.change("t", 2, 3)
		now := time.Now().UnixMilli()
		codec := record.NewCodec()
		good := buildBatch(t, record.CompressionNone, now, []byte("a"), []byte("b"))
		flip := func(at int) []byte {
			c := bytes.Clone(good)
			c[(at+len(c))%len(c)] ^= 1
			return c
		}
		bomb, err := codec.Compress(nil, record.CompressionZstd, 0, make([]byte, 64<<20))
		if err != nil {
			t.Fatal(err)
		}
		zipped, err := codec.Compress(nil, record.CompressionGzip, 0, bytes.Repeat([]byte{0x0a, 3, 0x12, 1, 'v'}, 100))
		if err != nil {
			t.Fatal(err)
		}
		p0 := new(int32(0))
		value := []*runnelv1.ProduceTextRecord{{Value: new("v")}}
		batch := func(topic string, msg []byte) []byte { return rawRequest(topic, 0, msg) }
		typed := func(r *runnelv1.ProduceRequest) []byte { return marshal(t, r) }

		for name, c := range map[string]struct {
			request []byte
			code    codes.Code
			reason  runnelv1.ErrorReason
		}{
			"garbage":                     {[]byte{0xff, 0xff}, codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"a topic that is not UTF-8":   {[]byte{0x12, 2, 0xff, 0xfe}, codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"a cut message":               {typed(&runnelv1.ProduceRequest{Topic: "t", Partition: p0, TextRecords: value})[:8], codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"no records":                  {typed(&runnelv1.ProduceRequest{Topic: "t", Partition: p0}), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"both kinds":                  {typed(&runnelv1.ProduceRequest{Topic: "t", TextRecords: value, Records: []*runnelv1.ProduceRecord{{}}}), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"two batches":                 {append(batch("t", good), protowire.AppendBytes(protowire.AppendTag(nil, 16, protowire.BytesType), good)...), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"unknown acks":                {typed(&runnelv1.ProduceRequest{Topic: "t", Acks: 9, TextRecords: value}), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"unknown routing":             {typed(&runnelv1.ProduceRequest{Topic: "t", Routing: -1, TextRecords: value}), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"no time":                     {typed(&runnelv1.ProduceRequest{Topic: "t", Timeout: durationpb.New(-1), TextRecords: value}), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"a batch without partition":   {typed(&runnelv1.ProduceRequest{Topic: "t", Batch: &runnelv1.RecordBatch{}}), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"a negative partition":        {typed(&runnelv1.ProduceRequest{Topic: "t", Partition: new(int32(-1)), TextRecords: value}), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"a producer and no partition": {typed(&runnelv1.ProduceRequest{Topic: "t", Producer: &runnelv1.ProducerSequence{ProducerId: 1}, TextRecords: value}), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"a producer beside a batch":   {typed(&runnelv1.ProduceRequest{Topic: "t", Partition: p0, Producer: &runnelv1.ProducerSequence{ProducerId: 1}, Batch: &runnelv1.RecordBatch{}}), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"a negative epoch":            {typed(&runnelv1.ProduceRequest{Topic: "t", Partition: p0, Producer: &runnelv1.ProducerSequence{ProducerId: 1, ProducerEpoch: -1}, TextRecords: value}), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"a negative sequence":         {typed(&runnelv1.ProduceRequest{Topic: "t", Partition: p0, Producer: &runnelv1.ProducerSequence{ProducerId: 1, BaseSequence: -1}, TextRecords: value}), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"a sequence without room":     {typed(&runnelv1.ProduceRequest{Topic: "t", Partition: p0, Producer: &runnelv1.ProducerSequence{ProducerId: 1, BaseSequence: math.MaxInt64}, TextRecords: value}), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"an unknown producer":         {typed(&runnelv1.ProduceRequest{Topic: "t", Partition: p0, Producer: &runnelv1.ProducerSequence{ProducerId: 1, BaseSequence: 1}, TextRecords: value}), codes.FailedPrecondition, runnelv1.ErrorReason_ERROR_REASON_PRODUCER_STATE_LOST},
			"an empty producer":           {typed(&runnelv1.ProduceRequest{Topic: "t", Partition: p0, Producer: &runnelv1.ProducerSequence{}, TextRecords: value}), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"an unknown producer's batch": {batch("t", append([]byte{0x79, 1, 0, 0, 0, 0, 0, 0, 0, 0x81, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0x89, 1, 7, 0, 0, 0, 0, 0, 0, 0}, good...)), codes.FailedPrecondition, runnelv1.ErrorReason_ERROR_REASON_PRODUCER_STATE_LOST},
			"a transactional batch":       {batch("t", append([]byte{0x68, 1, 0x79, 1, 0, 0, 0, 0, 0, 0, 0, 0x81, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0x89, 1, 0, 0, 0, 0, 0, 0, 0, 0}, good...)), codes.Unimplemented, runnelv1.ErrorReason_ERROR_REASON_UNSUPPORTED},
			"an unknown topic":            {typed(&runnelv1.ProduceRequest{Topic: "none", TextRecords: value}), codes.NotFound, runnelv1.ErrorReason_ERROR_REASON_TOPIC_NOT_FOUND},
			"no topic":                    {typed(&runnelv1.ProduceRequest{TextRecords: value}), codes.NotFound, runnelv1.ErrorReason_ERROR_REASON_TOPIC_NOT_FOUND},
			"an internal topic":           {typed(&runnelv1.ProduceRequest{Topic: "__system", TextRecords: value}), codes.FailedPrecondition, runnelv1.ErrorReason_ERROR_REASON_TOPIC_INTERNAL},
			"another topic's id":          {typed(&runnelv1.ProduceRequest{Topic: "t", TopicId: new(uuid.NewString()), TextRecords: value}), codes.FailedPrecondition, runnelv1.ErrorReason_ERROR_REASON_TOPIC_ID_MISMATCH},
			"no id":                       {typed(&runnelv1.ProduceRequest{Topic: "t", TopicId: new("x"), TextRecords: value}), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"an unknown partition":        {typed(&runnelv1.ProduceRequest{Topic: "t", TopicId: new(id.String()), Partition: new(int32(2)), TextRecords: value}), codes.NotFound, runnelv1.ErrorReason_ERROR_REASON_PARTITION_NOT_FOUND},
			"an old epoch":                {typed(&runnelv1.ProduceRequest{Topic: "t", Partition: p0, Routing: 2, LeaderEpoch: new(int64(1)), TextRecords: value}), codes.FailedPrecondition, runnelv1.ErrorReason_ERROR_REASON_FENCED_LEADER_EPOCH},
			"a future epoch":              {typed(&runnelv1.ProduceRequest{Topic: "t", Partition: p0, Routing: 2, LeaderEpoch: new(int64(9)), TextRecords: value}), codes.Unavailable, runnelv1.ErrorReason_ERROR_REASON_STALE_METADATA},
			"an empty batch":              {batch("t", payloadBatch(record.CompressionNone, nil)), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_CORRUPT_BATCH},
			"no payload":                  {batch("t", nil), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_CORRUPT_BATCH},
			"a wrong checksum":            {batch("t", flip(-1)), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_CORRUPT_BATCH},
			"a cut payload":               {batch("t", good[:len(good)-2]), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_CORRUPT_BATCH},
			"a count that lies":           {batch("t", binary.LittleEndian.AppendUint32(append(payloadBatch(record.CompressionNone, []byte{0x0a, 3, 0x12, 1, 'v'}), 0x35), 2)), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_CORRUPT_BATCH},
			"a payload of garbage":        {batch("t", payloadBatch(record.CompressionNone, []byte("garbage"))), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_CORRUPT_BATCH},
			"compressed garbage":          {batch("t", payloadBatch(record.CompressionGzip, []byte("garbage"))), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_CORRUPT_BATCH},
			"cut compression":             {batch("t", payloadBatch(record.CompressionGzip, zipped[:len(zipped)-9])), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_CORRUPT_BATCH},
			"an unknown compression":      {batch("t", payloadBatch(6, zipped)), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_UNSUPPORTED_COMPRESSION},
			"a bomb":                      {batch("t", payloadBatch(record.CompressionZstd, bomb)), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE},
			"a control batch":             {batch("t", append([]byte{0x70, 1}, good...)), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_CORRUPT_BATCH},
			"a record over the limit":     {typed(&runnelv1.ProduceRequest{Topic: "small", Records: []*runnelv1.ProduceRecord{{Value: make([]byte, 2000)}}}), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE},
			"a batch's record over it":    {batch("small", buildBatch(t, record.CompressionNone, now, make([]byte, 1998))), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE},
			"compressed, over it":         {batch("small", buildBatch(t, record.CompressionZstd, now, make([]byte, 1998))), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE},
			"a time too far ahead":        {batch("t", buildBatch(t, record.CompressionNone, now+2*time.Hour.Milliseconds(), []byte("v"))), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_INVALID_TIMESTAMP},
			"a time too far back":         {typed(&runnelv1.ProduceRequest{Topic: "dated", TextRecords: []*runnelv1.ProduceTextRecord{{Timestamp: timestamppb.New(time.Now().Add(-time.Hour))}}}), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_INVALID_TIMESTAMP},
			"no such time":                {typed(&runnelv1.ProduceRequest{Topic: "t", TextRecords: []*runnelv1.ProduceTextRecord{{Timestamp: &timestamppb.Timestamp{Nanos: -1}}}}), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_INVALID_TIMESTAMP},
			"a time before all years":     {batch("t", buildBatch(t, record.CompressionNone, -62_135_596_800_001, []byte("v"))), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_INVALID_TIMESTAMP},
			"a record's time before them": {typed(&runnelv1.ProduceRequest{Topic: "t", TextRecords: []*runnelv1.ProduceTextRecord{{Timestamp: &timestamppb.Timestamp{Seconds: -62_135_596_801}}}}), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_INVALID_TIMESTAMP},
			"a time after all years":      {batch("stamped", buildBatch(t, record.CompressionZstd, 253_402_300_800_000, []byte("v"))), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_INVALID_TIMESTAMP},
			"unused, and no time":         {batch("stamped", buildBatch(t, record.CompressionNone, 1<<62, []byte("v"))), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_INVALID_TIMESTAMP},
			"a header without key":        {typed(&runnelv1.ProduceRequest{Topic: "t", Records: []*runnelv1.ProduceRecord{{Headers: []*runnelv1.Header{{}}}}}), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_INVALID_RECORD},
			"text that is none":           {append(typed(&runnelv1.ProduceRequest{Topic: "t"}), 0x92, 1, 4, 0x12, 2, 0xff, 0xfe), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
		} {
			before := len(b.ends())
			resp, err := b.oneOf(c.request)
			if err != nil {
				t.Errorf("%s: the stream is not usable any more: %v", name, err)
				continue
			}
			got := resp.GetError()
			unknown := c.reason == runnelv1.ErrorReason_ERROR_REASON_PRODUCER_STATE_LOST // it may have been sent, and stored, before
			if codes.Code(got.GetCode()) != c.code || got.GetReason() != c.reason || got.GetOutcomeUnknown() != unknown || got.GetMessage() == "" {
				t.Errorf("%s: got %v, want %v %v", name, resp, c.code, c.reason)
			}
			if len(b.ends()) != before {
				t.Errorf("%s: something was stored: %v", name, b.ends())
			}
		}
		if ends := b.ends(); len(ends) != 0 {
			t.Errorf("stored: %v", ends)
		}
	})
}

// oneOf sends a request, and behind it a keep-alive that must be answered. It
// returns the answer to the request.
func (b *testBroker) oneOf(request []byte) (*runnelv1.ProduceResponse, error) {
	stream, err := b.log.Produce(b.t.Context())
	if err != nil {
		return nil, err
	}
	if err := stream.SendMsg(wire.NewMessage(request)); err != nil {
		return nil, err
	}
	resp, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	if err := stream.Send(&runnelv1.ProduceRequest{RequestId: 5}); err != nil {
		return nil, err
	}
	alive, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	if alive.GetRequestId() != 5 || alive.GetError() != nil {
		b.t.Errorf("keep-alive: %v", alive)
	}
	if err := stream.CloseSend(); err != nil {
		return nil, err
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		b.t.Errorf("after half-closing: %v, want the end", err)
	}
	return resp, nil
}

// The limit counts the serialized record; exactly that many bytes are fine.
func TestProduce_takesARecordOfExactlyTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		b.topic("small", 1, "max.message.bytes", "2000")
		for size, ok := range map[int]bool{1997: true, 1998: false} { // and 3 bytes of tag and length
			req := &runnelv1.ProduceRequest{Topic: "small", Records: []*runnelv1.ProduceRecord{{Value: make([]byte, size)}}}
			if resp := b.produce(req); (resp.GetError() == nil) != ok {
				t.Errorf("%d bytes: %v", size, resp)
			} else if !ok && (resp.GetError().GetMetadata()["maxBytes"] != "2000" || resp.GetError().GetMetadata()["size"] != "2001") {
				t.Errorf("facts: %v", resp.GetError().GetMetadata())
			}
		}
	})
}

// The first and the last time that can be printed are taken.
func TestProduce_takesAllTimesThatThereAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		b.topic("t", 1, "message.timestamp.type", "LogAppendTime") // which has no bounds of its own
		times := []*timestamppb.Timestamp{{Seconds: -62_135_596_800}, {Seconds: 253_402_300_799, Nanos: 999_999_999}}
		for _, at := range times {
			req := &runnelv1.ProduceRequest{Topic: "t", TextRecords: []*runnelv1.ProduceTextRecord{{Value: new("v"), Timestamp: at}}}
			if resp := b.produce(req); resp.GetError() != nil {
				t.Errorf("%v: %v", at, resp)
			}
		}
	})
}
