package wire

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// requests are some of each kind.
func requests() []*runnelv1.ProduceRequest {
	return []*runnelv1.ProduceRequest{
		{},
		{RequestId: 7},
		{RequestId: 1<<64 - 1, Topic: "t", Partition: new(int32(0)), Batch: &runnelv1.RecordBatch{}},
		{
			RequestId: 9, Topic: "orders", TopicId: new("x"), Partition: new(int32(-12)), Acks: runnelv1.Acks_ACKS_LEADER,
			Timeout: durationpb.New(1500 * time.Millisecond), Routing: runnelv1.Routing_ROUTING_DIRECT, LeaderEpoch: new(int64(-3)),
			Producer: &runnelv1.ProducerSequence{ProducerId: 1, ProducerEpoch: 2, BaseSequence: 3},
			Batch:    &runnelv1.RecordBatch{Records: &runnelv1.RecordSet{Records: []*runnelv1.Record{{Value: []byte("v")}}}},
		},
		{
			Topic: "t", TopicId: new(""), Acks: 77,
			Records: []*runnelv1.ProduceRecord{
				{},
				{Key: []byte{}, Value: []byte{}},
				{Key: []byte{0xff}, Headers: []*runnelv1.Header{{Key: "a", Value: []byte{1}}, {Key: "a"}, {Key: "b", Value: []byte{}}}},
				{Value: bytes.Repeat([]byte("x"), 300), Timestamp: &timestamppb.Timestamp{Seconds: -5, Nanos: 7}},
			},
		},
		{
			Topic: "t",
			TextRecords: []*runnelv1.ProduceTextRecord{
				{Key: new(""), Value: new("ü")},
				{Headers: map[string]string{"one": "1", "two": ""}, Timestamp: &timestamppb.Timestamp{Seconds: 1}},
			},
		},
	}
}

// parsed rebuilds the generated form of what the hand-written parser saw.
func parsed(tb testing.TB, b []byte) (*runnelv1.ProduceRequest, error) {
	tb.Helper()
	// What lies around the message must not matter.
	buf := append(bytes.Repeat([]byte{0xff}, 5), b...)
	buf = append(buf, 0xff, 0xff)
	var r ProduceRequest
	if err := r.Parse(buf, 5, 5+len(b)); err != nil {
		return nil, err
	}
	m := &runnelv1.ProduceRequest{
		RequestId: r.RequestID, Topic: string(r.Topic), Acks: runnelv1.Acks(r.Acks), Routing: runnelv1.Routing(r.Routing),
	}
	if r.TopicID != nil {
		m.TopicId = new(string(r.TopicID))
	}
	if r.HasPartition {
		m.Partition = &r.Partition
	}
	if r.HasTimeout {
		m.Timeout = &durationpb.Duration{Seconds: r.seconds, Nanos: r.nanos}
	}
	if r.HasLeaderEpoch {
		m.LeaderEpoch = &r.LeaderEpoch
	}
	if r.HasProducer {
		m.Producer = &runnelv1.ProducerSequence{ProducerId: r.Producer.ID, ProducerEpoch: r.Producer.Epoch, BaseSequence: r.Producer.BaseSequence}
	}
	if r.HasBatch {
		m.Batch = &runnelv1.RecordBatch{}
		if err := proto.Unmarshal(buf[r.BatchStart:r.BatchEnd], m.Batch); err != nil {
			return nil, err
		}
	}
	var it Records
	if r.Records > 0 {
		only := r
		only.TextRecords = 0
		for it.Reset(&only); it.Next(); {
			m.Records = append(m.Records, bytesRecord(it.Record()))
		}
	}
	if it.Err() == nil && r.TextRecords > 0 {
		for it.Reset(&r); it.Next(); {
			m.TextRecords = append(m.TextRecords, textRecord(it.Record()))
		}
	}
	return m, it.Err()
}

func timestamp(r *Record) *timestamppb.Timestamp {
	if !r.HasTimestamp {
		return nil
	}
	return &timestamppb.Timestamp{Seconds: r.Seconds, Nanos: r.Nanos}
}

func bytesRecord(r *Record) *runnelv1.ProduceRecord {
	m := &runnelv1.ProduceRecord{Key: bytes.Clone(r.Key), Value: bytes.Clone(r.Value), Timestamp: timestamp(r)}
	for _, h := range r.Headers {
		m.Headers = append(m.Headers, &runnelv1.Header{Key: string([]byte(h.Key)), Value: bytes.Clone(h.Value)})
	}
	return m
}

func textRecord(r *Record) *runnelv1.ProduceTextRecord {
	m := &runnelv1.ProduceTextRecord{Timestamp: timestamp(r)}
	if r.Key != nil {
		m.Key = new(string(r.Key))
	}
	if r.Value != nil {
		m.Value = new(string(r.Value))
	}
	for _, h := range r.Headers {
		if m.Headers == nil {
			m.Headers = map[string]string{}
		}
		m.Headers[string([]byte(h.Key))] = string(h.Value)
	}
	return m
}

func TestProduceRequest_parsesAsTheGeneratedCode(t *testing.T) {
	for _, want := range requests() {
		b, err := proto.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := parsed(t, b)
		if err != nil {
			t.Fatalf("%v: %v", want, err)
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
}

func FuzzProduceRequest(f *testing.F) {
	for _, r := range requests() {
		b, _ := proto.Marshal(r)
		f.Add(b)
	}
	f.Add([]byte{0x32, 2, 8, 1, 0x32, 2, 16, 5})                  // timeout twice: merged
	f.Add([]byte{0x92, 1, 8, 0x1a, 2, 10, 0, 0x1a, 2, 0x12, 0})   // map entries with an absent side
	f.Add([]byte{0x8a, 1, 4, 0x1a, 2, 0x0a, 0, 0x0b, 0x0c, 0, 0}) // an empty group
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := parsed(t, b)
		want := &runnelv1.ProduceRequest{}
		wantErr := proto.Unmarshal(b, want)
		if err != nil && wantErr != nil {
			return
		}
		if err != nil {
			var r ProduceRequest
			if twice := r.Parse(b, 0, len(b)) != nil && countField(b, produceBatch) > 1; twice {
				return // refused on purpose
			}
			t.Fatalf("refused %x: %v", b, err)
		}
		if wantErr != nil {
			t.Fatalf("took %x: the generated code says %v", b, wantErr)
		}
		dropUnknown(want)
		dropUnknown(got)
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("%x -want +got:\n%s", b, diff)
		}
	})
}

func countField(b []byte, num int) int {
	n := 0
	for s := scan(b, 0, len(b)); s.next(); {
		if int(s.num) == num {
			n++
		}
	}
	return n
}

func TestProduceRequest_keepAliveIsNothingButTheID(t *testing.T) {
	for want, b := range map[bool][]byte{true: {0x08, 5}, false: {0x08, 5, 0x28, 0}} {
		var r ProduceRequest
		if err := r.Parse(b, 0, len(b)); err != nil || r.KeepAlive() != want || r.RequestID != 5 {
			t.Errorf("%x: keep-alive %v, id %d, %v", b, r.KeepAlive(), r.RequestID, err)
		}
	}
}

func TestProduceRequest_unwrapsAppend(t *testing.T) {
	for _, want := range requests() {
		b, _ := proto.Marshal(&runnelv1.AppendRequest{Request: want})
		var r ProduceRequest
		if err := r.ParseWrapped(b, 0, len(b)); err != nil || r.RequestID != want.GetRequestId() || string(r.Topic) != want.GetTopic() {
			t.Errorf("%v: %v", want, err)
		}
	}
	twice := []byte{0x0a, 2, 8, 1, 0x0a, 2, 8, 2}
	if err := new(ProduceRequest).ParseWrapped(twice, 0, len(twice)); err == nil {
		t.Error("two requests were taken for one")
	}
}

func TestProduceBatch_isReadAsTheGeneratedCodeWould(t *testing.T) {
	batch, _ := proto.Marshal(requests()[3].GetBatch())
	send := &ProduceBatch{
		RequestID: 9, Topic: "orders", TopicID: "x", Partition: -12, Acks: 2, Timeout: 1500 * time.Millisecond, Routing: 2, LeaderEpoch: 4,
		Batch: mem.SliceBuffer(batch),
	}
	out, err := NewCodec(NewPool()).Marshal(send)
	if err != nil {
		t.Fatal(err)
	}
	if &out[1].ReadOnlyData()[0] != &batch[0] {
		t.Error("the batch was copied")
	}
	got := &runnelv1.ProduceRequest{}
	if err := proto.Unmarshal(out.Materialize(), got); err != nil {
		t.Fatal(err)
	}
	want := proto.CloneOf(requests()[3])
	want.LeaderEpoch, want.Producer = new(int64(4)), nil
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestRecords_allocateNothingEach(t *testing.T) {
	req := &runnelv1.ProduceRequest{}
	for range 1000 {
		req.Records = append(req.Records, &runnelv1.ProduceRecord{Key: []byte("k"), Value: []byte("v"), Headers: []*runnelv1.Header{{Key: "h"}}})
	}
	b, _ := proto.Marshal(req)
	var r ProduceRequest
	var it Records
	if n := testing.AllocsPerRun(10, func() {
		if err := r.Parse(b, 0, len(b)); err != nil {
			t.Fatal(err)
		}
		for it.Reset(&r); it.Next(); {
		}
	}); n > 1 {
		t.Errorf("%v allocations for 1000 records", n)
	}
}

func responses() []*runnelv1.ProduceResponse {
	return []*runnelv1.ProduceResponse{
		{},
		{RequestId: 3, Partition: new(int32(0)), BaseOffset: new(int64(0)), LogStartOffset: new(int64(5))},
		{RequestId: 3, AppendTime: &timestamppb.Timestamp{Seconds: 12, Nanos: 345_000_000}, Duplicate: true},
		{Error: &runnelv1.ItemError{Reason: 3, Code: 5, Message: "m", Metadata: map[string]string{"a": "b"}}},
		{Results: []*runnelv1.ProduceRecordResult{
			{}, {Partition: new(int32(300)), Offset: new(int64(1 << 40))}, {Error: &runnelv1.ItemError{OutcomeUnknown: true}},
		}},
		{Goaway: &runnelv1.Goaway{Final: true, Grace: durationpb.New(time.Second)}},
	}
}

func handMade(m *runnelv1.ProduceResponse) *ProduceResponse {
	r := &ProduceResponse{
		RequestID: m.GetRequestId(), Error: m.GetError(), Partition: None, BaseOffset: None, AppendTimeMs: None, LogStart: None,
		Duplicate: m.GetDuplicate(), Goaway: m.GetGoaway(),
	}
	if m.Partition != nil {
		r.Partition = m.GetPartition()
	}
	if m.BaseOffset != nil {
		r.BaseOffset = m.GetBaseOffset()
	}
	if m.AppendTime != nil {
		r.AppendTimeMs = m.GetAppendTime().AsTime().UnixMilli()
	}
	if m.LogStartOffset != nil {
		r.LogStart = m.GetLogStartOffset()
	}
	for _, res := range m.GetResults() {
		one := ProduceResult{Partition: None, Offset: None, Error: res.GetError()}
		if res.Partition != nil {
			one.Partition = res.GetPartition()
		}
		if res.Offset != nil {
			one.Offset = res.GetOffset()
		}
		r.Results = append(r.Results, one)
	}
	return r
}

func TestProduceResponse_bothWays(t *testing.T) {
	codec := NewCodec(NewPool())
	for _, want := range responses() {
		for _, wrapped := range []bool{false, true} {
			send := handMade(want)
			send.Wrapped = wrapped
			out, err := codec.Marshal(send)
			if err != nil {
				t.Fatal(err)
			}
			b := out.Materialize()
			got := &runnelv1.ProduceResponse{}
			if wrapped {
				outer := &runnelv1.AppendResponse{}
				if err := proto.Unmarshal(b, outer); err != nil {
					t.Fatal(err)
				}
				got = outer.GetResponse()
			} else if err := proto.Unmarshal(b, got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		}
		b, _ := proto.Marshal(want)
		var r ProduceResponse
		if err := r.Parse(b, 0, len(b)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(*handMade(want), r, protocmp.Transform(), cmp.Comparer(func(a, b []ProduceResult) bool {
			return cmp.Equal(append([]ProduceResult{}, a...), append([]ProduceResult{}, b...), protocmp.Transform())
		})); diff != "" {
			t.Errorf("parse: -want +got:\n%s", diff)
		}
	}
}

func TestProduceResponse_largeOnesComeFromThePool(t *testing.T) {
	r := ProduceResponse{Partition: None, BaseOffset: None, AppendTimeMs: None, LogStart: None}
	for i := range 5000 {
		// Errors make a result larger than the estimate of its size.
		r.Results = append(r.Results, ProduceResult{Partition: None, Offset: None, Error: &runnelv1.ItemError{Code: int32(i), Message: "some text that is long"}})
	}
	out, err := NewCodec(NewPool()).Marshal(&r)
	if err != nil {
		t.Fatal(err)
	}
	got := &runnelv1.ProduceResponse{}
	if err := proto.Unmarshal(out.Materialize(), got); err != nil || len(got.GetResults()) != 5000 {
		t.Fatalf("%d results, %v", len(got.GetResults()), err)
	}
	out.Free()
}

func FuzzProduceResponse(f *testing.F) {
	for _, r := range responses() {
		b, _ := proto.Marshal(r)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var r ProduceResponse
		err := r.Parse(b, 0, len(b))
		want := &runnelv1.ProduceResponse{}
		if wantErr := proto.Unmarshal(b, want); (err == nil) != (wantErr == nil) {
			t.Fatalf("%x: %v, the generated code says %v", b, err, wantErr)
		}
		if err == nil && (r.RequestID != want.GetRequestId() || len(r.Results) != len(want.GetResults()) || r.Duplicate != want.GetDuplicate() ||
			want.BaseOffset != nil && r.BaseOffset != want.GetBaseOffset()) {
			t.Errorf("%x: got %+v, want %v", b, r, want)
		}
	})
}
