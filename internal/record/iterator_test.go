package record

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

func TestIterator_refusesWhatIsNotARecordSet(t *testing.T) {
	ok := rec(key("k"))
	h := Header{Format: 1, RecordCount: 2, LastOffsetDelta: 1, Compression: CompressionNone}
	for _, tt := range []struct {
		name    string
		h       func(h Header) Header
		payload []byte
		records int
		text    string
	}{
		{"sound", nil, raw(ok, ok), 2, ""},
		{"a record too few", nil, ok, 1, "1 records, the header says 2"},
		{"a record too many", nil, raw(ok, ok, ok), 2, "record 2"},
		{"nothing", nil, nil, 0, "0 records"},
		{"garbage", nil, []byte("garbage"), 0, "record 0, at byte 0"},
		{"garbage after a record", nil, raw(ok, 7), 1, "record 1, at byte 5"},
		{"a bad header", nil, raw(ok, rec(header())), 1, "header without a key"},
		{"an offset back", nil, raw(rec(varint(0x28, 1)), rec(varint(0x28, 1))), 1, "not above"},
		{"an offset beyond the last", nil, raw(ok, rec(varint(0x28, 2))), 1, "beyond the batch's last"},
		{"an empty set after compaction", func(h Header) Header { h.RecordCount = 0; return h }, nil, 0, ""},
		{"garbage for zstd", func(h Header) Header { h.Compression = CompressionZstd; return h }, ok, 0, "zstd"},
		{"a compression nobody knows", func(h Header) Header { h.Compression = 7; return h }, ok, 0, "compression 7"},
	} {
		h := h
		if tt.h != nil {
			h = tt.h(h)
		}
		var it Iterator
		it.Reset(h, tt.payload)
		n := 0
		for it.Next() {
			n++
		}
		if n != tt.records || (tt.text == "") != (it.Err() == nil) || (it.Err() != nil && !strings.Contains(it.Err().Error(), tt.text)) {
			t.Errorf("%s: %d records, %v", tt.name, n, it.Err())
		}
		if it.Next() || it.Err() != nil && it.Record().Key != nil && tt.name == "garbage" {
			t.Errorf("%s: goes on after its end", tt.name)
		}
	}
}

// One iterator over many batches, compressed and not, sees each as a fresh one does.
func TestIterator_reuse(t *testing.T) {
	it := NewIterator(NewCodec())
	all := append(samples(t), samples(t)...)
	for _, s := range all {
		frame := s.seal()
		f, _ := CheckFrame(frame, MaxFrameSize)
		it.Reset(f.Header, f.Payload(frame))
		var fresh Iterator
		fresh.Reset(f.Header, f.Payload(frame))
		for fresh.Next() {
			if !it.Next() {
				t.Fatalf("%s: ended early: %v", s.name, it.Err())
			}
			a, b := it.Record(), fresh.Record()
			if a.Offset != b.Offset || a.TimestampMs != b.TimestampMs || !bytes.Equal(a.Key, b.Key) || !bytes.Equal(a.Value, b.Value) ||
				(a.Key == nil) != (b.Key == nil) || !bytes.Equal(a.headers, b.headers) || a.HasHeaders() != (len(b.headers) > 0) {
				t.Errorf("%s: %+v, fresh %+v", s.name, a, b)
			}
		}
		if it.Next() || it.Err() != nil {
			t.Errorf("%s: %v", s.name, it.Err())
		}
	}
}

// A large decompressed set is not kept for ever: a thousand readers would hold it a thousand times.
func TestLargeSetsAreLetGo(t *testing.T) {
	codec := NewCodec()
	big := bytes.Repeat(rec(value(strings.Repeat("x", 1000))), 6000)
	packed, err := codec.Compress(nil, CompressionZstd, 0, big)
	if err != nil {
		t.Fatal(err)
	}
	v := NewValidator(codec, 1)
	msg := raw(bytes.Repeat([]byte{0}, PrefixMax), enum(fieldCompression, uint64(CompressionZstd)), compressed(packed))
	if _, err := v.ParseBatch(msg, PrefixMax, len(msg), Limits{}); err != nil {
		t.Fatal(err)
	}
	if kept := <-v.sets; cap(kept) > scratchKept {
		t.Errorf("the validator keeps %d bytes", cap(kept))
	}
	it := NewIterator(codec)
	it.Reset(Header{Compression: CompressionZstd, RecordCount: 6000, LastOffsetDelta: 5999}, packed)
	for it.Next() {
	}
	if it.Err() != nil || it.index != 6000 {
		t.Fatal(it.Err())
	}
	it.Reset(Header{Compression: CompressionNone, RecordCount: 1}, rec())
	if cap(it.scratch) > scratchKept {
		t.Errorf("%d bytes kept", cap(it.scratch))
	}
}

func TestRecord_slicesCannotGrowIntoTheirNeighbours(t *testing.T) {
	b := built(t, CompressionNone, func(b *Builder) error {
		return b.Add([]byte("key"), []byte("value"), []HeaderKV{{Key: "h", Value: []byte("x")}}, 1)
	})
	var it Iterator
	it.Reset(b.Header, b.Payload())
	if !it.Next() {
		t.Fatal(it.Err())
	}
	r := it.Record()
	h := r.Headers()
	h.Next()
	for name, s := range map[string][]byte{"key": r.Key, "value": r.Value, "header key": h.Key(), "header value": h.Value()} {
		if cap(s) != len(s) {
			t.Errorf("%s: capacity %d, length %d", name, cap(s), len(s))
		}
	}
}

func TestIterator_errorsAreCorruptBatch(t *testing.T) {
	var it Iterator
	it.Reset(Header{Compression: CompressionNone, RecordCount: 1}, []byte{1})
	it.Next()
	var e *BatchError
	if !errors.As(it.Err(), &e) || !errors.Is(it.Err(), ErrCorruptBatch) {
		t.Errorf("got %v", it.Err())
	}
}

// A batch stored under a higher limit is still read when the limit has been lowered.
func TestIterator_readsBeyondTheProducersLimit(t *testing.T) {
	codec := NewCodec()
	const records = 40
	big := bytes.Repeat(rec(value(strings.Repeat("x", 1<<20))), records)
	packed, err := codec.Compress(nil, CompressionZstd, 0, big)
	if err != nil {
		t.Fatal(err)
	}
	if len(big) <= DefaultMaxDecompressedBytes {
		t.Fatalf("only %d bytes", len(big))
	}
	it := NewIterator(codec)
	it.Reset(Header{Compression: CompressionZstd, RecordCount: records, LastOffsetDelta: records - 1}, packed)
	n := 0
	for it.Next() {
		n++
	}
	if n != records || it.Err() != nil {
		t.Errorf("%d records, %v", n, it.Err())
	}
}
