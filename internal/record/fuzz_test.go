package record

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// seeds hands the files of a folder of testdata to add.
func seeds(f *testing.F, folder, pattern string, add func([]byte)) {
	f.Helper()
	paths, err := filepath.Glob(filepath.Join("testdata", folder, pattern))
	if err != nil || len(paths) == 0 {
		f.Fatalf("no seeds in %s: %v", folder, err)
	}
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			f.Fatal(err)
		}
		if len(b) < 8<<10 {
			add(b)
		}
	}
}

// A sound frame is what this package would write; any verdict keeps to the file and to the limit.
func FuzzParseFrame(f *testing.F) {
	seeds(f, "frames", "*.bin", func(b []byte) {
		f.Add(b)
		f.Add(append(bytes.Clone(b), b...))
		f.Add(b[:len(b)/2])
	})
	f.Add([]byte{0})
	f.Fuzz(func(t *testing.T, file []byte) {
		const limit = 4000
		frame, v := ParseFrame(file[:min(len(file), PrefixMax)], int64(len(file)), limit)
		if whole, w := ParseFrame(file, int64(len(file)), limit); whole != frame || w != v {
			t.Fatalf("%v %+v from the prefix, %v %+v from the whole file", v, frame, w, whole)
		}
		if v == NeedMore {
			t.Fatal("asks for more than there is")
		}
		if v != OK && v != CorruptEnvelope {
			return
		}
		if frame.Size > len(file) || frame.Size > limit || frame.PayloadEnd != frame.Size {
			t.Fatalf("%v: %+v in %d bytes", v, frame, len(file))
		}
		b := Batch{Header: frame.Header, buf: append(make([]byte, PrefixMax), frame.Payload(file)...), start: PrefixMax}
		b.end = len(b.buf)
		again := b.Seal(frame.Header.BaseOffset, frame.Header.LeaderEpoch, frame.Header.AppendTimeMs, frame.Header.TimestampType)
		want := append(frame.AppendEnvelope(nil), file[frame.Size-frame.bodySize():frame.Size]...)
		if !bytes.Equal(again, want) {
			t.Fatalf("written again %x\nwant %x", again, want)
		}
	})
}

// What ParseBatch takes is canonical, whole and readable by generated code.
func FuzzParseBatch(f *testing.F) {
	seeds(f, "messages", "*.bin", func(b []byte) { f.Add(b) })
	seeds(f, "frames", "*.bin", func(b []byte) {
		var m runnelv1.Segment
		if err := proto.Unmarshal(b, &m); err == nil && len(m.GetBatches()) == 1 {
			msg, err := proto.Marshal(m.GetBatches()[0])
			if err != nil {
				f.Fatal(err)
			}
			f.Add(msg)
		}
	})
	f.Add(set(rec(key("k"), value("v"), header(key("h"), value("x")), varint(0x20, 2), varint(0x28, 7))))
	v := NewValidator(NewCodec(), 1)
	f.Fuzz(func(t *testing.T, msg []byte) {
		buf := append(bytes.Repeat([]byte{0xEE}, PrefixMax), msg...)
		b, err := v.ParseBatch(buf, PrefixMax, len(buf), Limits{MaxDecompressedBytes: 1 << 20})
		if !bytes.Equal(buf[PrefixMax:], msg) {
			t.Fatal("the message was changed")
		}
		if err != nil {
			if !errors.Is(err, ErrCorruptBatch) && !errors.Is(err, ErrTooLarge) && !errors.Is(err, ErrUnsupportedCompression) && !errors.Is(err, ErrInvalidRecord) {
				t.Fatalf("an error of no kind: %v", err)
			}
			return
		}
		checkSealed(t, b)
	})
}

// The iterator reads what generated code reads, or says that something is wrong.
func FuzzIterator(f *testing.F) {
	for _, s := range samples(f) {
		f.Add(s.batch.Payload(), byte(s.batch.Compression), s.batch.RecordCount, s.batch.LastOffsetDelta)
	}
	f.Fuzz(func(t *testing.T, payload []byte, compression byte, count, last uint32) {
		h := Header{Compression: Compression(compression), RecordCount: count, LastOffsetDelta: last}
		if h.Compression != CompressionNone && len(payload) > 1000 {
			return // bombs have a test of their own
		}
		var it Iterator
		it.Reset(h, payload)
		n := uint32(0)
		for it.Next() {
			r := it.Record()
			for kv := r.Headers(); kv.Next(); {
				if len(kv.Key()) == 0 {
					t.Fatal("a header without a key")
				}
			}
			n++
		}
		if it.Err() != nil {
			return
		}
		var m runnelv1.RecordSet
		if err := proto.Unmarshal(it.set, &m); err != nil || n != count || len(m.GetRecords()) != int(n) {
			t.Fatalf("%d records of %d, generated code reads %d, %v", n, count, len(m.GetRecords()), err)
		}
		if again := marshal(t, &m); !bytes.Equal(again, it.set) {
			t.Fatalf("serialized again %x\nwant %x", again, it.set)
		}
	})
}

// Decompress keeps to its limit, takes one frame only, and gives back what compressing the result gives back.
func FuzzDecompress(f *testing.F) {
	codec := NewCodec()
	for c := CompressionNone; c < compressions; c++ {
		for _, plain := range []string{"", "a", "some text, some text, some text"} {
			b, err := codec.Compress(nil, c, 0, []byte(plain))
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b, byte(c))
		}
	}
	seeds(f, "foreign", "*.*", func(b []byte) {
		for c := CompressionGzip; c < compressions; c++ {
			f.Add(b, byte(c))
		}
	})
	f.Fuzz(func(t *testing.T, payload []byte, compression byte) {
		const limit = 1 << 20
		c := Compression(compression)
		plain, err := codec.Decompress(nil, c, payload, limit)
		if err != nil {
			if !errors.Is(err, ErrCorruptBatch) && !errors.Is(err, ErrTooLarge) && !errors.Is(err, ErrUnsupportedCompression) {
				t.Fatalf("an error of no kind: %v", err)
			}
			return
		}
		if len(plain) > limit {
			t.Fatalf("%d bytes", len(plain))
		}
		packed, err := codec.Compress(nil, c, 0, plain)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := codec.Decompress(nil, c, packed, limit); err != nil || !bytes.Equal(again, plain) {
			t.Fatalf("compressed again: %d bytes of %d, %v", len(again), len(plain), err)
		}
		if c != CompressionNone {
			if _, err := codec.Decompress(nil, c, append(bytes.Clone(payload), payload...), limit); err == nil {
				t.Fatal("took it twice in a row")
			}
		}
	})
}
