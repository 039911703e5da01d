package record

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

var update = flag.Bool("update", false, "rewrite the golden files; commit only differences you understand")

// A sample is one batch of the corpus that most tests share.
type sample struct {
	name  string
	batch Batch
	// How it is sealed.
	base   Offset
	epoch  Epoch
	append int64
	tt     TimestampType
}

// seal returns a copy of the sample's frame.
func (s *sample) seal() []byte {
	return bytes.Clone(s.batch.Seal(s.base, s.epoch, s.append, s.tt))
}

// samples returns a batch of every kind, in offset order.
func samples(tb testing.TB) []sample {
	tb.Helper()
	const now = 1_700_000_000_000
	var all []sample
	next := Offset(0)
	add := func(name string, b Batch, tt TimestampType) *sample {
		all = append(all, sample{name: name, batch: b, base: next, epoch: Epoch(len(all) / 3), append: now + int64(len(all)), tt: tt})
		next += Offset(b.LastOffsetDelta) + 1
		return &all[len(all)-1]
	}
	add("one", built(tb, CompressionNone, func(b *Builder) error {
		return b.Add([]byte("k"), []byte("hello"), nil, now)
	}), CreateTime)
	add("presence", built(tb, CompressionNone, addPresence), CreateTime)
	s := add("transactional", built(tb, CompressionNone, func(b *Builder) error {
		return b.Add([]byte("acct"), []byte("42"), []HeaderKV{{Key: "trace", Value: []byte{0xFF, 0}}}, now-1)
	}), LogAppendTime)
	s.batch.ProducerID, s.batch.ProducerEpoch, s.batch.BaseSequence, s.batch.Transactional = 1<<40, 3, 17, true
	s = add("compacted", parsed(tb, gapBatch(now)), CreateTime)
	s.batch.DeleteHorizonMs = now + 86_400_000
	empty := Batch{Header: Header{Format: Format, LastOffsetDelta: 4, Compression: CompressionNone, BaseSequence: NoSequence}}
	empty.buf = make([]byte, PrefixMax)
	empty.start, empty.end = PrefixMax, PrefixMax
	add("emptied", empty, CreateTime)
	control := built(tb, CompressionNone, func(b *Builder) error { return b.Add([]byte{0, 1}, []byte{0}, nil, now) })
	control.Control, control.Transactional, control.ProducerID, control.ProducerEpoch, control.BaseSequence = true, true, 9, 1, -1
	add("control", control, CreateTime)
	for c := CompressionGzip; c < compressions; c++ {
		add(c.String(), built(tb, c, func(b *Builder) error {
			for i := range 40 {
				key := fmt.Appendf(nil, "key-%d", i%3)
				if err := b.Add(key, bytes.Repeat([]byte("value "), i%7), nil, now+int64(i)); err != nil {
					return err
				}
			}
			return nil
		}), CreateTime)
		if got := all[len(all)-1].batch.Compression; got != c {
			tb.Fatalf("the %s sample came out as %s", c, got)
		}
	}
	return all
}

// addPresence adds every combination of absent, empty and filled, and times before and after the first.
func addPresence(b *Builder) error {
	const now = 1_700_000_000_000
	choices := [][]byte{nil, {}, []byte("\xff\xfe\x80")}
	n := int64(0)
	for _, k := range choices {
		for _, v := range choices {
			headers := []HeaderKV{{Key: "ключ", Value: v}, {Key: "a", Value: k}, {Key: "a", Value: []byte("again")}}[:n%4]
			if err := b.Add(k, v, headers, now+(n%3-1)*100_000); err != nil {
				return err
			}
			n++
		}
	}
	return nil
}

// gapBatch is a batch whose records have offsets of their own, as after compaction.
func gapBatch(now int64) *runnelv1.RecordBatch {
	return &runnelv1.RecordBatch{
		BaseTimestampMs: &now,
		Records: &runnelv1.RecordSet{Records: []*runnelv1.Record{
			{Key: []byte("a"), Value: []byte("1"), OffsetDelta: proto.Uint32(2)},
			{Key: []byte("b"), OffsetDelta: proto.Uint32(3), TimestampDeltaMs: -5},
			{Key: []byte("c"), Value: []byte("3"), OffsetDelta: proto.Uint32(300), TimestampDeltaMs: 7},
		}},
	}
}

// parsed is the batch that the broker makes of a producer's message.
func parsed(tb testing.TB, m *runnelv1.RecordBatch) Batch {
	tb.Helper()
	b, err := parse(marshal(tb, m), Limits{})
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func marshal(tb testing.TB, m proto.Message) []byte {
	tb.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// parse hands a message to ParseBatch with the room it needs.
func parse(msg []byte, lim Limits) (Batch, error) {
	buf := append(bytes.Repeat([]byte{0xEE}, PrefixMax), msg...)
	return NewValidator(NewCodec(), 1).ParseBatch(buf, PrefixMax, len(buf), lim)
}

func built(tb testing.TB, c Compression, fill func(*Builder) error) Batch {
	tb.Helper()
	b := NewBuilder(NewCodec(), Limits{})
	if err := fill(b); err != nil {
		tb.Fatal(err)
	}
	batch, err := b.Finish(c, 0)
	if err != nil {
		tb.Fatal(err)
	}
	return batch
}

// describe writes out what a frame says, one line for the header and one for each record.
func describe(tb testing.TB, frame []byte) string {
	tb.Helper()
	f, v := CheckFrame(frame, MaxFrameSize)
	if v != OK {
		tb.Fatalf("verdict %v", v)
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%+v\n", f.Header)
	var it Iterator
	it.Reset(f.Header, f.Payload(frame))
	for it.Next() {
		r := it.Record()
		fmt.Fprintf(&out, "%d %d key=%s value=%s", r.Offset, r.TimestampMs, show(r.Key), show(r.Value))
		for h := r.Headers(); h.Next(); {
			fmt.Fprintf(&out, " %s=%s", h.Key(), show(h.Value()))
		}
		out.WriteByte('\n')
	}
	if it.Err() != nil {
		tb.Fatal(it.Err())
	}
	return out.String()
}

func show(b []byte) string {
	if b == nil {
		return "absent"
	}
	return fmt.Sprintf("%q", b)
}

// golden compares got with a file under testdata, or writes it with -update.
func golden(tb testing.TB, name string, got []byte) {
	tb.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			tb.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			tb.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		tb.Fatalf("%v (run with -update to make it)", err)
	}
	if !bytes.Equal(got, want) {
		tb.Errorf("%s differs from what was frozen:\n got %x\nwant %x", path, got, want)
	}
}

// describeBatch is describe for a batch that generated code has decoded.
func describeBatch(tb testing.TB, b *runnelv1.RecordBatch) string {
	tb.Helper()
	h := Header{
		HeaderCRC:       b.GetHeaderCrc32C(),
		PayloadCRC:      b.GetPayloadCrc32C(),
		Format:          uint8(b.GetFormat()),
		BaseOffset:      Offset(b.GetBaseOffset()),
		LastOffsetDelta: b.GetLastOffsetDelta(),
		RecordCount:     b.GetRecordCount(),
		LeaderEpoch:     Epoch(b.GetLeaderEpoch()),
		BaseTimestampMs: b.GetBaseTimestampMs(),
		MaxTimestampMs:  b.GetMaxTimestampMs(),
		AppendTimeMs:    b.GetAppendTimeMs(),
		Compression:     Compression(b.GetCompression()),
		TimestampType:   TimestampType(b.GetTimestampType()),
		Transactional:   b.GetTransactional(),
		Control:         b.GetControl(),
		ProducerID:      ProducerID(b.GetProducerId()),
		ProducerEpoch:   ProducerEpoch(b.GetProducerEpoch()),
		BaseSequence:    Sequence(b.GetBaseSequence()),
		DeleteHorizonMs: b.GetDeleteHorizonMs(),
	}
	set := b.GetRecords()
	if h.Compression != CompressionNone {
		raw, err := NewCodec().Decompress(nil, h.Compression, b.GetCompressedRecords(), DefaultMaxDecompressedBytes)
		if err != nil {
			tb.Fatal(err)
		}
		set = new(runnelv1.RecordSet)
		if err := proto.Unmarshal(raw, set); err != nil {
			tb.Fatal(err)
		}
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%+v\n", h)
	for i, r := range set.GetRecords() {
		offset, timestamp := b.GetBaseOffset()+int64(i), b.GetBaseTimestampMs()+r.GetTimestampDeltaMs()
		if r.OffsetDelta != nil {
			offset = b.GetBaseOffset() + int64(r.GetOffsetDelta())
		}
		if h.TimestampType == LogAppendTime {
			timestamp = b.GetAppendTimeMs()
		}
		fmt.Fprintf(&out, "%d %d key=%s value=%s", offset, timestamp, show(r.Key), show(r.Value))
		for _, kv := range r.GetHeaders() {
			fmt.Fprintf(&out, " %s=%s", kv.GetKey(), show(kv.Value))
		}
		out.WriteByte('\n')
	}
	return out.String()
}
