package record

import (
	"bytes"
	"errors"
	"math"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// genBytes draws absent, empty or filled bytes.
func genBytes() *rapid.Generator[[]byte] {
	return rapid.Custom(func(t *rapid.T) []byte {
		switch rapid.IntRange(0, 3).Draw(t, "presence") {
		case 0:
			return nil
		case 1:
			return []byte{}
		case 2:
			return rapid.SliceOfN(rapid.Byte(), 1, 40).Draw(t, "bytes")
		default:
			// Lengths around the sizes of their varints.
			return make([]byte, rapid.SampledFrom([]int{126, 127, 128, 129, 16382, 16383, 16384, 16390}).Draw(t, "length"))
		}
	})
}

func genHeaders() *rapid.Generator[[]*runnelv1.Header] {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) *runnelv1.Header {
		return &runnelv1.Header{Key: rapid.StringN(1, 8, 40).Draw(t, "key"), Value: genBytes().Draw(t, "value")}
	}), 0, 3)
}

// genBatch draws any message that a producer may send, uncompressed.
func genBatch() *rapid.Generator[*runnelv1.RecordBatch] {
	return rapid.Custom(func(t *rapid.T) *runnelv1.RecordBatch {
		base := rapid.Int64Range(math.MinInt64/2, math.MaxInt64/2).Draw(t, "base")
		set := &runnelv1.RecordSet{}
		last := int64(-1)
		for i := range rapid.IntRange(1, 12).Draw(t, "records") {
			r := &runnelv1.Record{
				Key: genBytes().Draw(t, "key"), Value: genBytes().Draw(t, "value"), Headers: genHeaders().Draw(t, "headers"),
				TimestampDeltaMs: rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(math.MinInt64/2, math.MaxInt64/2)).Draw(t, "delta"),
			}
			if last >= int64(i) || rapid.Bool().Draw(t, "own offset") {
				last += int64(rapid.Uint32Range(1, 1000).Draw(t, "step"))
				r.OffsetDelta = new(uint32(last))
			} else {
				last = int64(i)
			}
			set.Records = append(set.Records, r)
		}
		return &runnelv1.RecordBatch{BaseTimestampMs: &base, Records: set}
	})
}

// Whatever a standard serializer writes is taken, and comes back as it was, from the frame and through generated code.
func TestProperty_whatGeneratedCodeWritesIsTaken(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := genBatch().Draw(t, "batch")
		msg := mustMarshal(t, m)
		b, err := parse(msg, Limits{MaxRecordBytes: MaxRecordSize})
		if err != nil {
			t.Fatal(err)
		}
		frame := b.Seal(rapid.Custom(func(t *rapid.T) Offset { return Offset(rapid.Int64Range(0, 1<<60).Draw(t, "o")) }).Draw(t, "base"),
			Epoch(rapid.Int64Range(0, 1<<60).Draw(t, "epoch")), rapid.Int64().Draw(t, "append"), CreateTime)
		f, v := CheckFrame(frame, MaxFrameSize)
		if v != OK || f.Header != b.Header {
			t.Fatalf("%v: %+v, sealed %+v", v, f.Header, b.Header)
		}
		var segment runnelv1.Segment
		if err := proto.Unmarshal(frame, &segment); err != nil {
			t.Fatal(err)
		}
		if got := segment.GetBatches()[0].GetRecords(); !proto.Equal(got, m.GetRecords()) {
			t.Fatalf("got %v\nwant %v", got, m.GetRecords())
		}
		if again := mustMarshal(t, &segment); !bytes.Equal(again, frame) {
			t.Fatalf("serialized again %x\nwant %x", again, frame)
		}
		checkIteration(t, &f, frame, m)
	})
}

func mustMarshal(t *rapid.T, m proto.Message) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// checkIteration compares the iterator with the records that were sent.
func checkIteration(t *rapid.T, f *Frame, frame []byte, m *runnelv1.RecordBatch) {
	var it Iterator
	it.Reset(f.Header, f.Payload(frame))
	lowest, highest := int64(math.MaxInt64), int64(math.MinInt64)
	for i, want := range m.GetRecords().GetRecords() {
		if !it.Next() {
			t.Fatalf("ended at %d: %v", i, it.Err())
		}
		got := it.Record()
		offset := f.Header.BaseOffset + Offset(i)
		if want.OffsetDelta != nil {
			offset = f.Header.BaseOffset + Offset(want.GetOffsetDelta())
		}
		timestamp := m.GetBaseTimestampMs() + want.GetTimestampDeltaMs()
		lowest, highest = min(lowest, timestamp), max(highest, timestamp)
		same := got.Offset == offset && got.TimestampMs == timestamp && equal(got.Key, want.Key) && equal(got.Value, want.Value)
		h := got.Headers()
		for _, kv := range want.GetHeaders() {
			same = same && h.Next() && string(h.Key()) == kv.GetKey() && equal(h.Value(), kv.Value)
		}
		if !same || h.Next() {
			t.Fatalf("record %d: got %+v, want %v", i, got, want)
		}
	}
	if it.Next() || it.Err() != nil {
		t.Fatal(it.Err())
	}
	if f.Header.MaxTimestampMs != highest {
		t.Fatalf("max timestamp %d, want %d", f.Header.MaxTimestampMs, highest)
	}
}

// equal is bytes.Equal that tells absent from empty.
func equal(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }

// The builder and generated code write the same record sets.
func TestProperty_builderWritesWhatGeneratedCodeWrites(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := genBatch().Draw(t, "batch")
		b := NewBuilder(NewCodec(), Limits{})
		want := &runnelv1.RecordSet{}
		var base int64
		for i, r := range m.GetRecords().GetRecords() {
			headers := make([]HeaderKV, len(r.GetHeaders()))
			for j, h := range r.GetHeaders() {
				headers[j] = HeaderKV{Key: h.GetKey(), Value: h.Value}
			}
			time := r.GetTimestampDeltaMs()
			err := b.Add(r.Key, r.Value, headers, time)
			if i == 0 {
				base = time
			}
			if delta := time - base; (time < base) != (delta < 0) {
				if !errors.Is(err, ErrInvalidRecord) {
					t.Fatal(err)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			want.Records = append(want.Records, &runnelv1.Record{Key: r.Key, Value: r.Value, Headers: r.Headers, TimestampDeltaMs: time - base})
		}
		size := b.Size()
		batch, err := b.Finish(CompressionNone, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := batch.Payload(); !bytes.Equal(got, mustMarshal(t, want)) || batch.FrameSize() != size {
			t.Fatalf("got %x\nwant %x", got, mustMarshal(t, want))
		}
		if _, err := parse(batch.Message(), Limits{}); err != nil {
			t.Fatal(err)
		}
	})
}

// Damage to a whole log, of the kind disks do: walking it never takes a damaged batch for a sound one, and a verdict that
// tells the next position tells a right one.
func TestProperty_damageNeverMisleads(t *testing.T) {
	var clean []byte
	starts := map[int]bool{}
	for _, s := range samples(t) {
		starts[len(clean)] = true
		clean = append(clean, s.seal()...)
	}
	starts[len(clean)] = true
	rapid.Check(t, func(t *rapid.T) {
		log := bytes.Clone(clean)
		for range rapid.IntRange(1, 4).Draw(t, "wounds") {
			at := rapid.IntRange(0, len(log)-1).Draw(t, "at")
			wound := log[at:min(len(log), at+rapid.IntRange(1, 600).Draw(t, "length"))]
			switch rapid.IntRange(0, 2).Draw(t, "kind") {
			case 0:
				clear(wound)
			case 1:
				wound[0] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
			case 2:
				for i := range wound {
					wound[i] = 0xFF
				}
			}
		}
		log = log[:rapid.IntRange(0, len(log)).Draw(t, "cut")]
		for pos := 0; ; {
			f, v := judge(log[pos:])
			if v != OK && v != CorruptEnvelope && v != CorruptPayload {
				return
			}
			next := pos + f.Size
			if !starts[next] {
				t.Fatalf("at %d: %v, and the next frame would be at %d", pos, v, next)
			}
			if v == OK && !bytes.Equal(log[pos:next], clean[pos:next]) {
				t.Fatalf("at %d: damaged, and taken for sound", pos)
			}
			pos = next
		}
	})
}
