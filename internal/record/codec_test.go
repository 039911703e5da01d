package record

import (
	"bytes"
	stdgzip "compress/gzip"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// plains are payloads of different nature and size.
func plains() map[string][]byte {
	rng := rand.New(rand.NewPCG(1, 2))
	random := make([]byte, 100_000)
	for i := range random {
		random[i] = byte(rng.Uint32())
	}
	return map[string][]byte{
		"one byte": {7},
		"short":    []byte("hello"),
		"text":     bytes.Repeat([]byte("the quick brown fox jumps over the lazy dog. "), 4000),
		"zeros":    make([]byte, 1300<<10),
		"random":   random,
	}
}

func TestCodec_roundTrip(t *testing.T) {
	codec := NewCodec()
	for name, plain := range plains() {
		for c := CompressionNone; c < compressions; c++ {
			for level := 0; CheckLevel(c, level) == nil; level++ {
				if len(plain) > 1<<10 && level > 4 {
					break
				}
				packed, err := codec.Compress([]byte("before"), c, level, plain)
				if err != nil {
					t.Fatalf("%s, %s, level %d: %v", name, c, level, err)
				}
				if !bytes.HasPrefix(packed, []byte("before")) {
					t.Fatalf("%s, %s, level %d: Compress does not append", name, c, level)
				}
				packed = packed[len("before"):]
				got, err := codec.Decompress([]byte("dirty")[:2], c, packed, len(plain))
				if err != nil || !bytes.Equal(got, plain) {
					t.Fatalf("%s, %s, level %d: %d bytes of %d, %v", name, c, level, len(got), len(plain), err)
				}
				if _, err := codec.Decompress(nil, c, packed, len(plain)-1); !errors.Is(err, ErrTooLarge) {
					t.Errorf("%s, %s, level %d, one byte over the limit: %v", name, c, level, err)
				}
			}
		}
	}
}

// Nothing shorter, and nothing longer, than one frame is taken; damage is refused or, where the compression has no
// checksum of its own, at least stays within the limit.
func TestCodec_exactlyOneFrame(t *testing.T) {
	codec := NewCodec()
	plain := bytes.Repeat([]byte("exactly one. "), 50)
	for c := CompressionGzip; c < compressions; c++ {
		packed, err := codec.Compress(nil, c, 0, plain)
		if err != nil {
			t.Fatal(err)
		}
		for n := range packed {
			if _, err := codec.Decompress(nil, c, packed[:n:n], 1<<20); !errors.Is(err, ErrCorruptBatch) && !errors.Is(err, ErrUnsupportedCompression) {
				t.Errorf("%s cut to %d of %d: %v", c, n, len(packed), err)
			}
		}
		for name, tail := range map[string][]byte{
			"a zero": {0}, "text": []byte("x"), "itself": packed, "zeros": make([]byte, 100),
			"a skippable frame": {0x50, 0x2A, 0x4D, 0x18, 1, 0, 0, 0, 9},
		} {
			if _, err := codec.Decompress(nil, c, append(bytes.Clone(packed), tail...), 1<<20); !errors.Is(err, ErrCorruptBatch) {
				t.Errorf("%s with %s behind it: %v", c, name, err)
			}
		}
		for bit := range len(packed) * 8 {
			packed[bit/8] ^= 1 << (bit % 8)
			if got, err := codec.Decompress(nil, c, packed, 1000); err == nil && len(got) > 1000 {
				t.Errorf("%s, bit %d: %d bytes", c, bit, len(got))
			} else if err != nil && !errors.Is(err, ErrCorruptBatch) && !errors.Is(err, ErrTooLarge) && !errors.Is(err, ErrUnsupportedCompression) {
				t.Errorf("%s, bit %d: %v", c, bit, err)
			}
			packed[bit/8] ^= 1 << (bit % 8)
		}
		// And the codec still works after all that.
		if got, err := codec.Decompress(nil, c, packed, 1<<20); err != nil || !bytes.Equal(got, plain) {
			t.Errorf("%s: %v", c, err)
		}
	}
}

func TestCodec_refuses(t *testing.T) {
	text := bytes.Repeat([]byte("some text to compress. "), 100)
	zstdOf := func(opts ...zstd.EOption) []byte {
		w, err := zstd.NewWriter(nil, opts...)
		if err != nil {
			t.Fatal(err)
		}
		return w.EncodeAll(text, nil)
	}
	skippable := []byte{0x50, 0x2A, 0x4D, 0x18, 1, 0, 0, 0, 9}
	lz4Of := func(opts ...lz4.Option) []byte {
		var out bytes.Buffer
		w := lz4.NewWriter(&out)
		if err := errors.Join(w.Apply(opts...), func() error { _, err := w.Write(text); return err }(), w.Close()); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	gzipOf := func(b []byte) []byte {
		var out bytes.Buffer
		w := stdgzip.NewWriter(&out)
		_, _ = w.Write(b)
		_ = w.Close()
		return out.Bytes()
	}
	var framed bytes.Buffer
	sw := s2.NewWriter(&framed, s2.WriterSnappyCompat())
	_, _ = sw.Write(text)
	_ = sw.Close()
	// An LZ4 descriptor that asks for a dictionary.
	lz4Dict := []byte{4, 0x22, 0x4D, 0x18, 0x41, 0x40, 1, 0, 0, 0, 0, 0, 0, 0, 0}
	// A literal, a copy, and a copy with the offset of the one before: the last is an extension.
	s2Only := []byte{12, 3 << 2, 'a', 'b', 'c', 'd', 1, 4, 1, 0}
	if b, err := s2.Decode(nil, s2Only); err != nil || string(b) != "abcdabcdabcd" {
		t.Fatalf("not even s2 reads it: %q, %v", b, err)
	}
	corrupt, unsupported := ErrCorruptBatch, ErrUnsupportedCompression
	tests := []struct {
		name    string
		c       Compression
		payload []byte
		kind    error
		text    string
	}{
		{"zstd: nothing", CompressionZstd, nil, corrupt, "frame header"},
		{"zstd: text", CompressionZstd, text, corrupt, "frame header"},
		{"zstd: two frames", CompressionZstd, append(zstdOf(), zstdOf()...), corrupt, "want exactly one frame"},
		{"zstd: a skippable frame first", CompressionZstd, append(bytes.Clone(skippable), zstdOf()...), corrupt, "skippable"},
		{"zstd: a window of 16 MiB", CompressionZstd, []byte{0x28, 0xB5, 0x2F, 0xFD, 0x00, 14 << 3, 1, 0, 0}, unsupported, "window of 16777216 bytes"},
		{"zstd: a single segment of 9 MiB", CompressionZstd, []byte{0x28, 0xB5, 0x2F, 0xFD, 0xA0, 0, 0, 0x90, 0, 1, 0, 0}, unsupported, "window of 9437184 bytes"},
		{"zstd: a dictionary", CompressionZstd, []byte{0x28, 0xB5, 0x2F, 0xFD, 0x21, 7, 5, 1, 0, 0}, unsupported, "dictionary (7)"},
		{"zstd: a reserved block type", CompressionZstd, []byte{0x28, 0xB5, 0x2F, 0xFD, 0x20, 0, 7, 0, 0}, corrupt, "reserved type"},
		{"zstd: an enormous content size", CompressionZstd, []byte{0x28, 0xB5, 0x2F, 0xFD, 0x80, 0x40, 0, 0, 0, 0x10, 1, 0, 0}, corrupt, "more than it can"},
		{"zstd: a wrong checksum", CompressionZstd, damageLast(zstdOf(zstd.WithEncoderCRC(true))), corrupt, "cannot be decompressed"},
		{"gzip: nothing", CompressionGzip, nil, corrupt, "header"},
		{"gzip: text", CompressionGzip, text, corrupt, "header"},
		{"gzip: two members", CompressionGzip, append(gzipOf(text), gzipOf(text)...), corrupt, "want exactly one member"},
		{"gzip: an empty second member", CompressionGzip, append(gzipOf(text), gzipOf(nil)...), corrupt, "want exactly one member"},
		{"gzip: a wrong size", CompressionGzip, damageLast(gzipOf(text)), corrupt, "cannot be decompressed"},
		{"lz4: nothing", CompressionLZ4, nil, corrupt, "no LZ4 frame"},
		{"lz4: text", CompressionLZ4, text, corrupt, "no LZ4 frame"},
		{"lz4: the legacy frame", CompressionLZ4, lz4Of(lz4.LegacyOption(true)), corrupt, "no LZ4 frame"},
		{"lz4: a skippable frame first", CompressionLZ4, append(bytes.Clone(skippable), lz4Of()...), corrupt, "no LZ4 frame"},
		{"lz4: two frames", CompressionLZ4, append(lz4Of(), lz4Of()...), corrupt, "want exactly one frame"},
		{"lz4: a dictionary", CompressionLZ4, lz4Dict, unsupported, "dictionary"},
		{"lz4: a wrong checksum", CompressionLZ4, damageLast(lz4Of(lz4.ChecksumOption(true))), corrupt, "cannot be decompressed"},
		{"lz4: a block alone", CompressionLZ4, lz4Of()[7:], corrupt, "no LZ4 frame"},
		{"snappy: nothing", CompressionSnappy, nil, corrupt, "length"},
		{"snappy: the framing format", CompressionSnappy, framed.Bytes(), corrupt, "want the block format"},
		{"snappy: what only s2 can read", CompressionSnappy, s2Only, corrupt, "cannot be decompressed"},
		{"snappy: an enormous length", CompressionSnappy, []byte{0xFF, 0xFF, 0xFF, 0x07, 0, 'x'}, corrupt, "more than it can"},
		{"compression 0", 0, text, unsupported, "none of"},
		{"compression 6", 6, text, unsupported, "none of"},
	}
	codec := NewCodec()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := codec.Decompress(nil, tt.c, tt.payload, DefaultMaxDecompressedBytes)
			if !errors.Is(err, tt.kind) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v, want %v with %q", err, tt.kind, tt.text)
			}
		})
	}
}

// damageLast changes the last byte but three, which is part of a checksum or size.
func damageLast(b []byte) []byte {
	b[len(b)-4] ^= 0xFF
	return b
}

// What other encoders make, with options ours does not use.
func TestCodec_takesWhatOthersWrite(t *testing.T) {
	text := bytes.Repeat([]byte("some text to compress. "), 20_000)
	files := map[string]Compression{".gz": CompressionGzip, ".sz": CompressionSnappy, ".lz4": CompressionLZ4, ".zst": CompressionZstd}
	found, err := filepath.Glob(filepath.Join("testdata", "foreign", "*"))
	if err != nil || len(found) < 8 {
		t.Fatalf("%d files, %v", len(found), err)
	}
	codec := NewCodec()
	for _, path := range found {
		packed, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		c, ok := files[filepath.Ext(path)]
		if !ok {
			continue
		}
		got, err := codec.Decompress(nil, c, packed, len(text))
		if err != nil || !bytes.Equal(got, text) {
			t.Errorf("%s: %d bytes, %v", path, len(got), err)
		}
		if _, err := codec.Decompress(nil, c, packed, len(text)-1); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s, one byte over the limit: %v", path, err)
		}
	}
}

// bombs are small payloads that stand for 16 MiB.
func bombs(t *testing.T) map[Compression][]byte {
	t.Helper()
	const size = 16 << 20
	chunk := make([]byte, 1<<20)
	var gz, lz bytes.Buffer
	gw := stdgzip.NewWriter(&gz)
	lw := lz4.NewWriter(&lz)
	if err := lw.Apply(lz4.ConcurrencyOption(1)); err != nil {
		t.Fatal(err)
	}
	for range size / len(chunk) {
		_, _ = gw.Write(chunk)
		_, _ = lw.Write(chunk)
	}
	if err := errors.Join(gw.Close(), lw.Close()); err != nil {
		t.Fatal(err)
	}
	// Zstandard: blocks of one repeated byte, without a content size. Snappy: 64-byte copies of a zero.
	zs := []byte{0x28, 0xB5, 0x2F, 0xFD, 0x00, 10 << 3}
	for n := 0; n < size; n += zstdBlock {
		last := 0
		if n+zstdBlock >= size {
			last = 1
		}
		block := zstdBlock<<3 | 1<<1 | last
		zs = append(zs, byte(block), byte(block>>8), byte(block>>16), 0)
	}
	sn := binary.AppendUvarint(nil, size)
	sn = append(sn, 0, 0)
	for range size / 64 {
		sn = append(sn, 63<<2|2, 1, 0)
	}
	return map[Compression][]byte{CompressionGzip: gz.Bytes(), CompressionLZ4: lz.Bytes(), CompressionZstd: zs, CompressionSnappy: sn}
}

func TestCodec_bombsStopAtTheLimit(t *testing.T) {
	all := bombs(t)
	for c, bomb := range all {
		codec := NewCodec()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := codec.Decompress(nil, c, bomb, 8<<20)
		runtime.ReadMemStats(&after)
		if !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s: %v", c, err)
		}
		if got := after.TotalAlloc - before.TotalAlloc; got > 20<<20 {
			t.Errorf("%s: %d bytes allocated for a limit of 8 MiB", c, got)
		}
		msg := raw(enum(fieldCompression, uint64(c)), fixed32(fieldPayloadCRC, crc32.Checksum(bomb, castagnoli)), compressed(bomb))
		if _, err := parse(msg, Limits{MaxDecompressedBytes: 8 << 20}); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s, as a batch: %v", c, err)
		}
	}
}

// A few bytes that claim much must not allocate much.
func TestCodec_claimsDoNotAllocate(t *testing.T) {
	// Blocks of 4 MiB that cannot hold more than a few hundred bytes.
	tiny := []byte{4, 0x22, 0x4D, 0x18, 0x60, 0x70, 0x73}
	for range 8 {
		tiny = append(tiny, 1, 0, 0, 0, 0xF0)
	}
	tiny = append(tiny, 0, 0, 0, 0)
	claims := []struct {
		c    Compression
		b    []byte
		most uint64
	}{
		{CompressionGzip, []byte{0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 3, 3, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 1}, 1 << 20},
		{CompressionSnappy, []byte{0xFF, 0xFF, 0xFF, 0x0F, 0, 0}, 1 << 20},
		{CompressionZstd, []byte{0x28, 0xB5, 0x2F, 0xFD, 0x80, 13 << 3, 0, 0, 0, 1, 1, 0, 0}, 1 << 20},
		{CompressionLZ4, []byte{4, 0x22, 0x4D, 0x18, 0x68, 0x40, 0, 0, 0, 1, 0, 0, 0, 0, 0xA3, 0, 0, 0, 0}, 1 << 20},
		{CompressionLZ4, tiny, 10 << 20}, // the library's own buffers
	}
	codec := NewCodec()
	for _, claim := range claims {
		c, b := claim.c, claim.b
		warm, err := codec.Compress(nil, c, 0, []byte("warm"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := codec.Decompress(nil, c, warm, 100); err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := codec.Decompress(nil, c, b, 32<<20); err == nil {
			t.Errorf("%s: taken", c)
		}
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; got > claim.most {
			t.Errorf("%s: %d bytes allocated", c, got)
		}
	}
}

func TestCheckLevel(t *testing.T) {
	codec := NewCodec()
	for c, highest := range map[Compression]int{
		CompressionNone: 0, CompressionSnappy: 0, CompressionGzip: 9, CompressionLZ4: 9, CompressionZstd: 22,
	} {
		for level := -1; level <= 30; level++ {
			err := CheckLevel(c, level)
			if (err == nil) != (level >= 0 && level <= highest) || (err != nil && !errors.Is(err, ErrUnsupportedCompression)) {
				t.Errorf("%s, level %d: %v", c, level, err)
			}
			if _, cerr := codec.Compress(nil, c, level, []byte("x")); (cerr == nil) != (err == nil) {
				t.Errorf("%s, level %d: Compress says %v", c, level, cerr)
			}
		}
	}
	if err := CheckLevel(0, 0); !errors.Is(err, ErrUnsupportedCompression) {
		t.Error(err)
	}
}

func TestCodec_concurrentUse(t *testing.T) {
	codec := NewCodec()
	v := NewValidator(codec, 2)
	plain := bytes.Repeat([]byte("concurrent "), 500)
	var wg sync.WaitGroup
	for c := CompressionGzip; c < compressions; c++ {
		for range 4 {
			wg.Go(func() {
				b := NewBuilder(codec, Limits{})
				for range 20 {
					b.Reset()
					if err := b.Add(nil, plain, nil, 1); err != nil {
						t.Error(err)
						return
					}
					batch, err := b.Finish(c, 0)
					if err != nil {
						t.Error(err)
						return
					}
					msg := batch.AppendMessage(make([]byte, PrefixMax))
					got, err := v.ParseBatch(msg, PrefixMax, len(msg), Limits{})
					if err != nil || got.PayloadCRC != batch.PayloadCRC || got.Compression != c {
						t.Errorf("%s: %v", c, err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
}

func TestCompression_valid(t *testing.T) {
	for c := CompressionNone; c < compressions; c++ {
		if !c.Valid() {
			t.Errorf("%s is not valid", c)
		}
	}
	if Compression(0).Valid() || Compression(6).Valid() || TimestampType(0).Valid() || TimestampType(3).Valid() {
		t.Error("0 or too much is valid")
	}
}
