package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"
)

// judge is what recovery does at a position: the header from a prefix, then the payload.
func judge(file []byte) (Frame, Verdict) {
	f, v := ParseFrame(file[:min(len(file), PrefixMax)], int64(len(file)), MaxFrameSize)
	if v == OK && VerifyPayload(f.Header, f.Payload(file)) != nil {
		return f, CorruptPayload
	}
	return f, v
}

// flipFrames are small frames of every shape, each with what may follow it in a file.
func flipFrames(t *testing.T) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for _, s := range samples(t) {
		all[s.name] = s.seal()
	}
	// Outer and payload lengths of one to three bytes.
	for _, size := range []int{100, 5000, 20000} {
		b := built(t, CompressionNone, func(b *Builder) error { return b.Add(nil, bytes.Repeat([]byte("x"), size), nil, 1) })
		all[fmt.Sprintf("%dB", size)] = bytes.Clone(b.Seal(5, 2, 3, CreateTime))
	}
	return all
}

// parts of a frame, by byte.
type part uint8

const (
	partEnvelope part = iota
	partFormat
	partHeader
	partPayload
)

func partOf(f Frame, pos int) part {
	header := f.Size - f.bodySize()
	switch {
	case pos < header:
		return partEnvelope
	case pos == header+posFormat:
		return partFormat
	case pos < f.PayloadStart:
		return partHeader
	default:
		return partPayload
	}
}

// Every single-bit flip of every frame is found, and is named for what it is; a verdict that tells the next position tells
// the right one. With another frame behind it, with the end of the file, and with garbage.
func TestFrame_everyBitFlipIsFound(t *testing.T) {
	follower := samples(t)[0]
	after := map[string][]byte{"frame": follower.seal(), "end": nil, "garbage": bytes.Repeat([]byte{0x0A, 0xFF}, 40)}
	for name, frame := range flipFrames(t) {
		want, v := judge(frame)
		if v != OK || want.Size != len(frame) {
			t.Fatalf("%s: %v, size %d of %d", name, v, want.Size, len(frame))
		}
		for what, tail := range after {
			file := append(bytes.Clone(frame), tail...)
			for bit := range len(frame) * 8 {
				if len(frame) > 1000 && bit/8 > want.PayloadStart+40 && bit/8 < len(frame)-4 {
					continue // the middle of a long value
				}
				file[bit/8] ^= 1 << (bit % 8)
				checkFlip(t, fmt.Sprintf("%s then %s, bit %d", name, what, bit), file, frame, want, bit/8)
				file[bit/8] ^= 1 << (bit % 8)
			}
		}
	}
}

func checkFlip(t *testing.T, where string, file, frame []byte, want Frame, pos int) {
	t.Helper()
	got, v := judge(file)
	switch partOf(want, pos) {
	case partEnvelope:
		if v != CorruptEnvelope || got != want {
			t.Errorf("%s: %v, %+v", where, v, got)
			return
		}
		envelope := got.AppendEnvelope(nil)
		if !bytes.HasPrefix(frame, envelope) || len(envelope) != want.Size-want.bodySize() {
			t.Errorf("%s: repaired with %x, want a prefix of %x", where, envelope, frame[:5])
		}
	case partFormat:
		// 1 is odd, so a flip of bit 0 gives 0, which is damage; a flip of bit 7 is no format either.
		if v != UnknownFormat && v != CorruptHeader {
			t.Errorf("%s: %v", where, v)
		}
	case partHeader:
		if v != CorruptHeader {
			t.Errorf("%s: %v", where, v)
		}
	case partPayload:
		if v != CorruptPayload || got.Size != want.Size {
			t.Errorf("%s: %v, size %d", where, v, got.Size)
		}
	}
}

// Any change of any one byte: never taken for sound, and never a wrong next position.
func TestFrame_everyByteChangeIsFound(t *testing.T) {
	frame := flipFrames(t)["transactional"]
	for pos := range frame {
		file := append(bytes.Clone(frame), frame...)
		for change := 1; change < 256; change++ {
			file[pos] = frame[pos] ^ byte(change)
			f, v := judge(file)
			switch v {
			case CorruptPayload, CorruptEnvelope:
				if f.Size != len(frame) {
					t.Fatalf("byte %d ^ %02x: %v with size %d, want %d", pos, change, v, f.Size, len(frame))
				}
			case CorruptHeader, UnknownFormat:
			case ZeroFill:
				if pos != 0 || file[0] != 0 {
					t.Fatalf("byte %d ^ %02x: %v", pos, change, v)
				}
			default:
				t.Fatalf("byte %d ^ %02x: %v", pos, change, v)
			}
		}
	}
}

// A file cut inside a frame is torn at every length, as long as nothing else is wrong.
func TestFrame_everyCutIsTorn(t *testing.T) {
	for name, frame := range flipFrames(t) {
		for n := range len(frame) {
			want := Torn
			if n == 0 {
				want = End
			}
			if _, v := judge(frame[:n:n]); v != want {
				t.Fatalf("%s cut to %d of %d: %v", name, n, len(frame), v)
			}
		}
	}
}

// A cut and a flip together: torn only while the flipped part cannot be verified yet, and never sound.
func TestFrame_cutAndFlippedIsNotTornOnceTheHeaderIsThere(t *testing.T) {
	for _, name := range []string{"transactional", "gzip", "5000B"} {
		frame := flipFrames(t)[name]
		want, _ := judge(frame)
		for n := 1; n < min(len(frame), want.PayloadStart+3); n++ {
			for bit := range n * 8 {
				cut := bytes.Clone(frame[:n])
				cut[bit/8] ^= 1 << (bit % 8)
				_, v := judge(cut)
				flippedHeader := partOf(want, bit/8) != partPayload
				switch {
				case v == OK || v == End || v == NeedMore || v == CorruptEnvelope || v == CorruptPayload:
					t.Fatalf("%s cut to %d, bit %d: %v", name, n, bit, v)
				case v == Torn && n >= want.PayloadStart-want.prefixRest() && flippedHeader:
					t.Fatalf("%s cut to %d, bit %d of the header: torn", name, n, bit)
				}
			}
		}
	}
}

// Tags and small values are verified also while the header is not complete.
func TestFrame_cutHeaderWithAWrongTagIsCorrupt(t *testing.T) {
	frame := flipFrames(t)["transactional"]
	want, _ := judge(frame)
	start := want.Size - want.bodySize()
	for _, tag := range headerTags {
		cut := bytes.Clone(frame[:start+int(tag[0])+1])
		cut[len(cut)-1] ^= 0x40
		if _, v := judge(cut); v != CorruptHeader {
			t.Errorf("wrong tag at %d of the header: %v", tag[0], v)
		}
	}
	for _, pos := range []int{posCompression, posTimestampType, posTransactional, posControl} {
		cut := bytes.Clone(frame[:start+pos+1])
		cut[len(cut)-1] = 9
		if _, v := judge(cut); v != CorruptHeader {
			t.Errorf("9 at %d of the header: %v", pos, v)
		}
	}
}

func TestFrame_verdicts(t *testing.T) {
	s := samples(t)[0]
	frame := s.seal()
	second := samples(t)[1].seal()
	edit := func(f func(b []byte)) []byte {
		b := append(bytes.Clone(frame), second...)
		f(b)
		return b
	}
	// In the header of this frame, whose outer length takes two bytes.
	const header = 3
	reseal := func(b []byte) {
		end := header + HeaderSize + payloadTagSize + 1
		binary.LittleEndian.PutUint32(b[header+posHeaderCRC:], crc32.Checksum(b[header+coveredFrom:end], castagnoli))
	}
	tests := []struct {
		name string
		file []byte
		max  int
		want Verdict
	}{
		{"nothing left", nil, MaxFrameSize, End},
		{"a sound frame", frame, MaxFrameSize, OK},
		{"a frame of exactly the limit", frame, len(frame), OK},
		{"a frame over the limit", frame, len(frame) - 1, CorruptHeader},
		{"zeros to the end", make([]byte, 4096), MaxFrameSize, ZeroFill},
		{"one zero", make([]byte, 1), MaxFrameSize, ZeroFill},
		{"a zero before a sound header", edit(func(b []byte) { b[0] = 0 }), MaxFrameSize, ZeroFill},
		{"another tag", edit(func(b []byte) { b[0] = 0x12 }), MaxFrameSize, CorruptEnvelope},
		{"outer length zero", edit(func(b []byte) { b[1], b[2] = 0x80, 0 }), MaxFrameSize, CorruptEnvelope},
		{"outer length beyond the limit", edit(func(b []byte) { b[1], b[2] = 0xFF, 0x7F }), 200, CorruptEnvelope},
		{"tag and length gone", edit(func(b []byte) { b[0], b[1], b[2] = 0xFF, 0xFF, 0xFF }), MaxFrameSize, CorruptEnvelope},
		{"damaged envelope and cut payload", edit(func(b []byte) { b[1] ^= 1 })[:len(frame)-1], MaxFrameSize, CorruptHeader},
		{"outer length far beyond the limit, file ends", []byte{outerTag, 0xFF, 0xFF, 0xFF, 0x7F}, MaxFrameSize, CorruptHeader},
		{"outer length too small, file ends", []byte{outerTag, 5, 0x0D}, MaxFrameSize, CorruptHeader},
		{"only a wrong tag", []byte{0x12}, MaxFrameSize, CorruptHeader},
		{"garbage", bytes.Repeat([]byte{0xA5}, 300), MaxFrameSize, CorruptHeader},
		{"text", []byte(strings.Repeat("not a log ", 30)), MaxFrameSize, CorruptHeader},
		{"format 2", edit(func(b []byte) { b[header+posFormat] = 2 }), MaxFrameSize, UnknownFormat},
		{"format 127, right checksum", edit(func(b []byte) { b[header+posFormat] = 127; reseal(b) }), MaxFrameSize, UnknownFormat},
		{"format 2, cut off right there", edit(func(b []byte) { b[header+posFormat] = 2 })[:header+posFormat+1], MaxFrameSize, UnknownFormat},
		{"format 2, a longer header", edit(func(b []byte) { b[header+posFormat] = 2; b[header+posFormat+1] = 0x77 }), MaxFrameSize, UnknownFormat},
		{"format 0", edit(func(b []byte) { b[header+posFormat] = 0; reseal(b) }), MaxFrameSize, CorruptHeader},
		{"format 128", edit(func(b []byte) { b[header+posFormat] = 128; reseal(b) }), MaxFrameSize, CorruptHeader},
		{"right checksum, negative base offset", edit(func(b []byte) { putInt64(b[header+posBaseOffset:], -1); reseal(b) }), MaxFrameSize, CorruptHeader},
		{"right checksum, offsets overflow", edit(func(b []byte) { putInt64(b[header+posBaseOffset:], 1<<63-1); reseal(b) }), MaxFrameSize, CorruptHeader},
		{"right checksum, negative epoch", edit(func(b []byte) { putInt64(b[header+posLeaderEpoch:], -1); reseal(b) }), MaxFrameSize, CorruptHeader},
		{"right checksum, more records than offsets", edit(func(b []byte) { b[header+posRecordCount] = 2; reseal(b) }), MaxFrameSize, CorruptHeader},
		{"right checksum, no records in a payload", edit(func(b []byte) { b[header+posRecordCount] = 0; reseal(b) }), MaxFrameSize, CorruptHeader},
		{"right checksum, compression 0", edit(func(b []byte) { b[header+posCompression] = 0; reseal(b) }), MaxFrameSize, CorruptHeader},
		{"right checksum, compression without its field", edit(func(b []byte) { b[header+posCompression] = 5; reseal(b) }), MaxFrameSize, CorruptHeader},
		{"right checksum, field without its compression", edit(func(b []byte) { b[header+HeaderSize] = compressedTag; reseal(b) }), MaxFrameSize, CorruptHeader},
		{"right checksum, timestamp type 0", edit(func(b []byte) { b[header+posTimestampType] = 0; reseal(b) }), MaxFrameSize, CorruptHeader},
		{"right checksum, control 2", edit(func(b []byte) { b[header+posControl] = 2; reseal(b) }), MaxFrameSize, CorruptHeader},
		{"right checksum, another tag", edit(func(b []byte) { b[header+12] = 0x29; reseal(b) }), MaxFrameSize, CorruptHeader},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f, v := ParseFrame(tt.file[:min(len(tt.file), PrefixMax)], int64(len(tt.file)), tt.max)
			if v != tt.want {
				t.Fatalf("verdict %v, want %v", v, tt.want)
			}
			if (v == OK || v == CorruptEnvelope) && f.Size != len(frame) {
				t.Errorf("size %d, want %d", f.Size, len(frame))
			}
		})
	}
}

// The smallest frame there is, without a payload, where the outer length takes one byte.
func TestFrame_verdictsWithoutAPayload(t *testing.T) {
	frame := flipFrames(t)["emptied"]
	edit := func(f func(b []byte)) []byte {
		b := bytes.Clone(frame)
		f(b)
		binary.LittleEndian.PutUint32(b[2+posHeaderCRC:], crc32.Checksum(b[2+coveredFrom:], castagnoli))
		return b
	}
	for _, tt := range []struct {
		name string
		file []byte
		want Verdict
	}{
		{"sound", edit(func([]byte) {}), OK},
		{"right checksum, another payload tag", edit(func(b []byte) { b[2+HeaderSize+1] = 3 }), CorruptHeader},
		{"right checksum, compressed and empty", edit(func(b []byte) {
			b[2+posCompression], b[2+HeaderSize] = byte(CompressionSnappy), compressedTag
		}), CorruptHeader},
		{"right checksum, negative epoch, nothing behind", edit(func(b []byte) { putInt64(b[2+posLeaderEpoch:], -1) }), CorruptHeader},
		{"an outer length of two bytes", append([]byte{outerTag, 0xF5, 0x01}, frame[2:]...), CorruptHeader},
		{"an outer length of two bytes, and another frame", append(append([]byte{outerTag, 0xF5, 0x01}, frame[2:]...), frame...), CorruptHeader},
		{"a size that no batch has", append([]byte{outerTag, HeaderSize + payloadTagSize + 129 - 128 + 0x80, 1}, frame[2:20]...), CorruptHeader},
	} {
		if f, v := judge(tt.file); v != tt.want {
			t.Errorf("%s: %v, %+v", tt.name, v, f)
		}
	}
}

func TestFrame_tooFewBytesAskForMore(t *testing.T) {
	frame := flipFrames(t)["5000B"]
	for n := range PrefixMax {
		if _, v := ParseFrame(frame[:n], int64(len(frame)), MaxFrameSize); v != NeedMore {
			t.Fatalf("%d bytes: %v", n, v)
		}
	}
	if _, v := ParseFrame(frame[:PrefixMax], int64(len(frame)), MaxFrameSize); v != OK {
		t.Fatal(v)
	}
}

// Bytes beyond the end of the file, as a reused buffer has them, are not looked at.
func TestFrame_bytesBeyondTheFileDoNotCount(t *testing.T) {
	frame := flipFrames(t)["transactional"]
	for n := 1; n < len(frame); n++ {
		buf := append(bytes.Clone(frame[:n]), bytes.Repeat([]byte{0xA5}, PrefixMax)...)
		for _, b := range [][]byte{buf, frame} {
			if _, v := ParseFrame(b[:min(len(b), PrefixMax)], int64(n), MaxFrameSize); v != Torn {
				t.Fatalf("file of %d bytes: %v", n, v)
			}
		}
	}
}

// A value may hold a whole batch: nothing is found by pattern inside a damaged frame.
func TestFrame_aBatchInsideAValueIsNotAFrame(t *testing.T) {
	inner := flipFrames(t)["one"]
	b := built(t, CompressionNone, func(b *Builder) error { return b.Add(nil, inner, nil, 1) })
	outer := bytes.Clone(b.Seal(100, 1, 1, CreateTime))
	outer[20] ^= 0xFF
	if f, v := judge(outer); v != CorruptHeader {
		t.Errorf("%v, %+v", v, f)
	}
}

func TestCheckFrame(t *testing.T) {
	frame := flipFrames(t)["one"]
	damaged := bytes.Clone(frame)
	damaged[len(damaged)-1] ^= 1
	both := bytes.Clone(damaged)
	both[0] = 0x12
	for _, tt := range []struct {
		name string
		b    []byte
		want Verdict
	}{
		{"sound", frame, OK},
		{"payload damaged", damaged, CorruptPayload},
		{"payload and envelope damaged", both, CorruptHeader},
		{"cut", frame[:len(frame)-1], Torn},
		{"empty", nil, End},
	} {
		if _, v := CheckFrame(tt.b, MaxFrameSize); v != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, v, tt.want)
		}
	}
}

func TestVerifyPayload_saysWhatAndWhere(t *testing.T) {
	frame := flipFrames(t)["one"]
	f, _ := judge(frame)
	if err := VerifyPayload(f.Header, f.Payload(frame)); err != nil {
		t.Error(err)
	}
	err := VerifyPayload(f.Header, []byte("something else"))
	if !errors.Is(err, ErrCorruptBatch) || !strings.Contains(err.Error(), "offset 0") {
		t.Errorf("got %v", err)
	}
}

func TestVerdict_hasAName(t *testing.T) {
	seen := map[string]bool{}
	for v := OK; v <= UnknownFormat; v++ {
		if name := v.String(); seen[name] || strings.Contains(name, "unknown verdict") {
			t.Errorf("%d is %q", v, name)
		} else {
			seen[name] = true
		}
	}
	if got := (UnknownFormat + 1).String(); got != "unknown verdict" {
		t.Error(got)
	}
}
