package wire

import (
	"bytes"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/record"
)

// dropUnknown forgets unknown fields at every level.
func dropUnknown(m proto.Message) {
	r := m.ProtoReflect()
	r.SetUnknown(nil)
	r.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap() || fd.Message() == nil:
		case fd.IsList():
			for i := range v.List().Len() {
				dropUnknown(v.List().Get(i).Message().Interface())
			}
		default:
			dropUnknown(v.Message().Interface())
		}
		return true
	})
}

// batchOf makes a stored batch of three records, and returns its frame.
func batchOf(tb testing.TB, base record.Offset) []byte {
	tb.Helper()
	b := record.NewBuilder(record.NewCodec(), record.Limits{})
	for _, add := range []error{
		b.Add(nil, []byte("v"), nil, 1000),
		b.Add([]byte{0xff}, []byte{}, []record.HeaderKV{{Key: "a", Value: []byte{0xfe}}, {Key: "b"}, {Key: "a", Value: []byte("x")}}, 2500),
		b.Add([]byte("k"), nil, []record.HeaderKV{{Key: "a", Value: []byte("x")}, {Key: "a", Value: []byte{0xfe}}}, -1),
	} {
		if add != nil {
			tb.Fatal(add)
		}
	}
	batch, err := b.Finish(record.CompressionNone, 0)
	if err != nil {
		tb.Fatal(err)
	}
	return batch.Seal(base, 1, 5, record.CreateTime)
}

func recordsOf(tb testing.TB, frame []byte) []record.Record {
	tb.Helper()
	f, v := record.CheckFrame(frame, record.MaxFrameSize)
	if v != record.OK {
		tb.Fatal(v)
	}
	it := record.NewIterator(record.NewCodec())
	it.Reset(f.Header, f.Payload(frame))
	var out []record.Record
	for it.Next() {
		out = append(out, it.Record())
	}
	if it.Err() != nil {
		tb.Fatal(it.Err())
	}
	return out
}

func TestAppendRecord_isReadByTheGeneratedCode(t *testing.T) {
	var b []byte
	for _, r := range recordsOf(t, batchOf(t, 7)) {
		before := len(b)
		b = AppendRecord(b, &r, RecordSize(&r))
		if got := len(b) - before; got != ElementSize(RecordSize(&r)) {
			t.Errorf("%d bytes, RecordSize says %d", got, ElementSize(RecordSize(&r)))
		}
	}
	got := &runnelv1.FetchResponse{}
	if err := proto.Unmarshal(b, got); err != nil {
		t.Fatal(err)
	}
	want := []*runnelv1.ConsumedRecord{
		{Offset: new(int64(7)), TimestampMs: new(int64(1000)), Value: []byte("v")},
		{
			Offset: new(int64(8)), TimestampMs: new(int64(2500)), Key: []byte{0xff}, Value: []byte{},
			Headers: []*runnelv1.Header{{Key: "a", Value: []byte{0xfe}}, {Key: "b"}, {Key: "a", Value: []byte("x")}},
		},
		{
			Offset: new(int64(9)), TimestampMs: new(int64(-1)), Key: []byte("k"),
			Headers: []*runnelv1.Header{{Key: "a", Value: []byte("x")}, {Key: "a", Value: []byte{0xfe}}},
		},
	}
	if diff := cmp.Diff(want, got.GetRecords(), protocmp.Transform()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestAppendTextRecord_isReadByTheGeneratedCode(t *testing.T) {
	var b []byte
	for _, r := range recordsOf(t, batchOf(t, 0)) {
		before := len(b)
		b = AppendTextRecord(b, &r, TextRecordSize(&r))
		if got := len(b) - before; got != ElementSize(TextRecordSize(&r)) {
			t.Errorf("%d bytes, TextRecordSize says %d", got, ElementSize(TextRecordSize(&r)))
		}
	}
	got := &runnelv1.FetchResponse{}
	if err := proto.Unmarshal(b, got); err != nil {
		t.Fatal(err)
	}
	want := []*runnelv1.ConsumedTextRecord{
		{Offset: new(int64(0)), Timestamp: &timestamppb.Timestamp{Seconds: 1}, Value: new("v")},
		{
			Offset: new(int64(1)), Timestamp: &timestamppb.Timestamp{Seconds: 2, Nanos: 500_000_000}, KeyBytes: []byte{0xff}, Value: new(""),
			Headers: map[string]string{"a": "x", "b": ""},
		},
		// The last "a" is not text, so there is none.
		{Offset: new(int64(2)), Timestamp: &timestamppb.Timestamp{Seconds: -1, Nanos: 999_000_000}, Key: new("k")},
	}
	if diff := cmp.Diff(want, got.GetTextRecords(), protocmp.Transform()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestAppendTextRecord_manyHeadersTakeTheLast(t *testing.T) {
	b := record.NewBuilder(record.NewCodec(), record.Limits{})
	var headers []record.HeaderKV
	for i := range 40 {
		headers = append(headers, record.HeaderKV{Key: string(rune('a' + i%3)), Value: []byte{byte('0' + i%10)}})
	}
	if err := b.Add(nil, nil, headers, 0); err != nil {
		t.Fatal(err)
	}
	batch, _ := b.Finish(record.CompressionNone, 0)
	r := recordsOf(t, batch.Seal(0, 1, 0, record.CreateTime))[0]
	out := AppendTextRecord(nil, &r, TextRecordSize(&r))
	got := &runnelv1.FetchResponse{}
	if err := proto.Unmarshal(out, got); err != nil || len(out) != ElementSize(TextRecordSize(&r)) {
		t.Fatal(err, len(out), ElementSize(TextRecordSize(&r)))
	}
	want := map[string]string{"a": "9", "b": "7", "c": "8"}
	if diff := cmp.Diff(want, got.GetTextRecords()[0].GetHeaders()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// heads are responses of every kind, without records.
func heads() []*runnelv1.FetchResponse {
	return []*runnelv1.FetchResponse{
		{},
		{
			Tag: 1 << 60, Topic: "t", TopicId: "id", Partition: new(int32(0)), NextOffset: new(int64(0)), HighWatermark: new(int64(1)),
			LogStartOffset: new(int64(2)), LastStableOffset: new(int64(3)), LeaderEpoch: new(int64(math.MaxInt64)), End: true,
		},
		{Topic: "t", Error: &runnelv1.ItemError{Reason: 40, Message: "m", Metadata: map[string]string{"a": string(bytes.Repeat([]byte("x"), 5000))}}},
		{Goaway: &runnelv1.Goaway{Reason: 1, Grace: durationpb.New(time.Second)}},
	}
}

func handMadeFetch(m *runnelv1.FetchResponse) *FetchResponse {
	or := func(p *int64) int64 {
		if p == nil {
			return None
		}
		return *p
	}
	r := &FetchResponse{
		Tag: m.GetTag(), Topic: m.GetTopic(), TopicID: m.GetTopicId(), Partition: None, NextOffset: or(m.NextOffset),
		HighWatermark: or(m.HighWatermark), LogStart: or(m.LogStartOffset), LastStable: or(m.LastStableOffset), LeaderEpoch: or(m.LeaderEpoch),
		End: m.GetEnd(), Error: m.GetError(), Goaway: m.GetGoaway(),
	}
	if m.Partition != nil {
		r.Partition = m.GetPartition()
	}
	return r
}

// countingPool checks that what was taken comes back.
type countingPool struct {
	*Pool
	out int
}

func (p *countingPool) Get(n int) *[]byte { p.out++; return p.Pool.Get(n) }
func (p *countingPool) Put(b *[]byte)     { p.out--; p.Pool.Put(b) }

func TestFetchResponse_bothWays(t *testing.T) {
	codec := NewCodec(NewPool())
	frames := append(batchOf(t, 0), batchOf(t, 3)...)
	for _, want := range heads() {
		for _, wrapped := range []bool{false, true} {
			pool := &countingPool{Pool: NewPool()}
			r := handMadeFetch(want)
			r.Payload = mem.BufferSlice{mem.SliceBuffer(frames)}
			var m Message
			size, err := r.Encode(&m, pool, wrapped)
			if err != nil {
				t.Fatal(err)
			}
			out, err := codec.Marshal(&m)
			if err != nil {
				t.Fatal(err)
			}
			b := out.Materialize()
			out.Free()
			if pool.out != 0 {
				t.Errorf("%d buffers were not given back", pool.out)
			}
			got := &runnelv1.FetchResponse{}
			if wrapped {
				outer := &runnelv1.ReadResponse{}
				if err := proto.Unmarshal(b, outer); err != nil {
					t.Fatal(err)
				}
				got = outer.GetResponse()
				if n := proto.Size(got); n != size {
					t.Errorf("size %d, want %d", size, n)
				}
			} else if err := proto.Unmarshal(b, got); err != nil || len(b) != size {
				t.Fatal(err, len(b), size)
			}
			if len(got.GetBatches()) != 2 {
				t.Fatalf("%d batches", len(got.GetBatches()))
			}
			got.Batches = nil
			if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if wrapped {
				continue
			}
			var f FetchedBatches
			if err := f.Parse(b, 0, len(b)); err != nil {
				t.Fatal(err)
			}
			var again []byte
			for frame := range f.Frames {
				again = append(again, frame...)
			}
			if !bytes.Equal(again, frames) || f.Batches != 2 || f.Tag != want.GetTag() || string(f.Topic) != want.GetTopic() {
				t.Errorf("parsed %+v", f)
			}
		}
	}
}

func FuzzFetchedBatches(f *testing.F) {
	for _, m := range heads() {
		m.Batches = []*runnelv1.RecordBatch{{}, {Format: new(uint32(1))}}
		if m.Error != nil {
			m.Error.Metadata = nil // a large seed is minimized for long
		}
		b, _ := proto.Marshal(m)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var r FetchedBatches
		err := r.Parse(b, 0, len(b))
		want := &runnelv1.FetchResponse{}
		wantErr := proto.Unmarshal(b, want)
		if wantErr != nil {
			return // the content of batches and records is not looked at
		}
		if err != nil {
			t.Fatalf("refused %x: %v", b, err)
		}
		frames := 0
		for frame := range r.Frames {
			if err := proto.Unmarshal(frame, &runnelv1.Segment{}); err != nil {
				t.Errorf("%x: frame %x: %v", b, frame, err)
			}
			frames++
		}
		if frames != len(want.GetBatches()) || r.Batches != frames || r.Tag != want.GetTag() || string(r.Topic) != want.GetTopic() ||
			want.NextOffset != nil && r.NextOffset != want.GetNextOffset() || r.End != want.GetEnd() ||
			!proto.Equal(r.Error, want.GetError()) && want.GetError() != nil {
			t.Errorf("%x: got %+v, want %v", b, r, want)
		}
	})
}
