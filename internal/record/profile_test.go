package record

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// raw concatenates bytes and strings of wire format.
func raw(parts ...any) []byte {
	var b []byte
	for _, p := range parts {
		switch p := p.(type) {
		case int:
			b = append(b, byte(p))
		case string:
			b = append(b, p...)
		case []byte:
			b = append(b, p...)
		}
	}
	return b
}

// sub is a length-delimited field with a one-byte tag.
func sub(tag int, parts ...any) []byte { return raw(tag, protowire.AppendBytes(nil, raw(parts...))) }

// rec is a Record in its set.
func rec(parts ...any) []byte { return sub(tagRecord, parts...) }

func key(s string) []byte        { return sub(tagKey, s) }
func value(s string) []byte      { return sub(tagValue, s) }
func header(parts ...any) []byte { return sub(tagHeaders, parts...) }
func varint(tag int, v uint64) []byte {
	return raw(tag, protowire.AppendVarint(nil, v))
}

// set is a RecordSet as the records field of a batch.
func set(parts ...any) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, fieldRecords, protowire.BytesType), raw(parts...))
}

func compressed(b []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, fieldCompressedRecords, protowire.BytesType), b)
}

func fixed32(field protowire.Number, v uint32) []byte {
	return protowire.AppendFixed32(protowire.AppendTag(nil, field, protowire.Fixed32Type), v)
}

func fixed64(field protowire.Number, v int64) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(nil, field, protowire.Fixed64Type), uint64(v))
}

func enum(field protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, field, protowire.VarintType), v)
}

// What must be refused, a line for each clause of the profile: what it is, the bytes, the kind, and a part of the text that
// says what and where.
func TestParseBatch_refuses(t *testing.T) {
	ok := rec(key("k"), value("v"))
	okSet := raw(ok)
	zstd, err := NewCodec().Compress(nil, CompressionZstd, 0, okSet)
	if err != nil {
		t.Fatal(err)
	}
	bad, big, comp, inv := ErrCorruptBatch, ErrTooLarge, ErrUnsupportedCompression, ErrInvalidRecord
	producer := func(id, epoch, seq int64) []byte { return raw(fixed64(15, id), fixed64(16, epoch), fixed64(17, seq)) }
	tests := []struct {
		name string
		msg  []byte
		kind error
		text string
	}{
		// The batch message.
		{"an empty message", nil, bad, "neither records nor compressed_records"},
		{"garbage", []byte("hello, world"), bad, "at byte 2 of the batch: field 13 comes twice"},
		{"a header without a payload", fixed64(8, 1), bad, "neither"},
		{"an unknown field", raw(set(ok), enum(19, 1)), bad, "unknown field 19"},
		{"a field beyond all", raw(set(ok), enum(34, 1)), bad, "unknown field 34"},
		{"field 0", raw(set(ok), 0, 0), bad, "unknown field 0"},
		{"a tag cut off", raw(set(ok), 0x80), bad, "tag is cut off"},
		{"a tag over 64 bits", raw(set(ok), bytes.Repeat([]byte{0xFF}, 11)), bad, "tag is cut off or too long"},
		{"a wrong wire type", raw(protowire.AppendTag(nil, 8, protowire.VarintType), 1, set(ok)), bad, "field 8 has wire type 0, want 1"},
		{"records as a varint", enum(32, 1), bad, "field 32 has wire type 0"},
		{"a group", raw(0x0B, 0x0C), bad, "wire type 3"},
		{"a fixed32 cut off", raw(set(ok), 0x1D, 1, 2, 3), bad, "field 3 is cut off"},
		{"a fixed64 cut off", raw(set(ok), 0x41, 1, 2, 3), bad, "field 8 is cut off"},
		{"a varint cut off", raw(set(ok), 0x58), bad, "field 11 is cut off"},
		{"a varint over 64 bits", raw(set(ok), 0x58, bytes.Repeat([]byte{0xFF}, 10), 1), bad, "field 11 is cut off"},
		{"a payload cut off", set(ok)[:8], bad, "goes beyond the batch"},
		{"a payload length cut off", set(ok)[:2], bad, "goes beyond the batch"},
		{"a payload length near 2^64", raw(0x82, 2, bytes.Repeat([]byte{0xFF}, 9), 1), bad, "goes beyond the batch"},
		{"a scalar twice", raw(fixed64(8, 1), fixed64(8, 2), set(ok)), bad, "field 8 comes twice"},
		{"the payload twice", raw(set(ok), set(ok)), bad, "field 32 comes twice"},
		{"both payloads", raw(enum(11, 5), set(ok), compressed(zstd)), bad, "both records and compressed_records"},
		{"format 0", raw(enum(2, 0), set(ok)), bad, "format 0"},
		{"format 2", raw(enum(2, 2), set(ok)), bad, "format 2"},
		{"format 257", raw(enum(2, 257), set(ok)), bad, "format 257"},
		{"a wrong checksum", raw(fixed32(3, 1), set(ok)), bad, "payload_crc32c says 00000001"},
		{"a wrong checksum of zero", raw(fixed32(3, 0), set(ok)), bad, "payload_crc32c says 00000000"},
		{"a wrong checksum, compressed", raw(fixed32(3, PayloadCRC(okSet)), enum(11, 5), compressed(zstd)), bad, "payload_crc32c says"},
		{"a record_count too low", raw(fixed32(6, 1), set(ok, ok)), bad, "record_count says 1, the record set has 2"},
		{"a record_count too high", raw(fixed32(6, 3), set(ok, ok)), bad, "record_count says 3"},
		{"a record_count of zero", raw(fixed32(6, 0), set(ok)), bad, "record_count says 0"},
		{"a wrong last_offset_delta", raw(fixed32(5, 2), set(ok, ok)), bad, "last_offset_delta says 2, the last record's is 1"},
		{"a control batch", raw(enum(14, 1), set(ok)), bad, "control is true"},
		{"compression with records", raw(enum(11, 5), set(ok)), bad, "compression is zstd but records is set"},
		{"no compression with compressed_records", compressed(zstd), bad, "compression is none or absent"},
		{"NONE with compressed_records", raw(enum(11, 1), compressed(zstd)), bad, "compression is none or absent"},
		{"an unknown compression", raw(enum(11, 6), compressed(zstd)), comp, "compression 6"},
		{"an unknown compression, with records", raw(enum(11, 6), set(ok)), comp, "compression 6"},
		{"a compression over 8 bits", raw(enum(11, 256+5), compressed(zstd)), comp, "compression 261"},
		{"the wrong compression", raw(enum(11, 4), compressed(zstd)), bad, "lz4"},
		{"an empty compressed payload", raw(enum(11, 5), compressed(nil)), bad, "zstd"},
		{"a sequence without a producer", raw(fixed64(17, 0), set(ok)), bad, "without a producer_id"},
		{"an epoch without a producer", raw(fixed64(16, 1), set(ok)), bad, "without a producer_id"},
		{"a producer without a sequence", raw(fixed64(15, 1), set(ok)), bad, "must all be set"},
		{"a negative producer", raw(producer(-1, 0, 0), set(ok)), bad, "not negative"},
		{"a negative producer epoch", raw(producer(1, -1, 0), set(ok)), bad, "not negative"},
		{"a negative sequence", raw(producer(1, 0, -1), set(ok)), bad, "not negative"},
		{"a sequence that overflows", raw(producer(1, 0, math.MaxInt64), set(ok)), bad, "leaves no room"},
		{"a transaction without a producer", raw(enum(13, 1), set(ok)), bad, "transactional is true without"},

		// The record set.
		{"no records", set(), bad, "no records"},
		{"no records, compressed", raw(enum(11, 3), compressed(raw(0))), bad, "no records"},
		{"another field in the set", set(ok, varint(0x10, 1)), bad, "record 1, at byte 8"},
		{"records with another wire type", set(varint(0x08, 1)), bad, "want a record"},
		{"a two-byte tag for records", set(0x8A, 0x00, 1, 0), bad, "want a record"},
		{"zeros", set(0, 0, 0), bad, "want a record"},
		{"a record cut off", set(ok[:5]), bad, "record 0, at byte 1 of the record set: the record's length"},
		{"a record's length cut off", set(ok, 0x0A), bad, "record 1, at byte 9 of the record set: the record's length"},
		{"a record's length of five bytes", set(0x0A, 0x80, 0x80, 0x80, 0x80, 0), bad, "the record's length"},
		{"a record's length not minimal", set(0x0A, 0x86, 0x00, ok[2:]), bad, "not a minimal varint"},

		// The record.
		{"an unknown field", set(rec(varint(0x30, 1))), bad, "unknown field"},
		{"an unknown field after a value", set(rec(value("v"), varint(0x30, 1))), bad, "unknown field"},
		{"an unknown two-byte tag", set(rec(0x82, 0x02, 0)), bad, "unknown field, or a tag of more than one byte"},
		{"a known field with a two-byte tag", set(rec(0x8A, 0x00, 0)), bad, "tag of more than one byte"},
		{"tag 0", set(rec(0)), bad, "unknown field"},
		{"a key that is a varint", set(rec(varint(0x08, 1))), bad, "wire type"},
		{"a value that is fixed", set(rec(0x11, "12345678")), bad, "wire type"},
		{"a group", set(rec(0x0B, 0x0C)), bad, "wire type"},
		{"a timestamp that is fixed", set(rec(0x21, "12345678")), bad, "wire type"},
		{"an offset that is bytes", set(rec(sub(0x2A, "x"))), bad, "wire type"},
		{"the value before the key", set(rec(value("v"), key("k"))), bad, "twice or out of order"},
		{"two keys", set(rec(key("k"), key("k"))), bad, "twice or out of order"},
		{"two values", set(rec(value("v"), value("v"))), bad, "twice or out of order"},
		{"a header after the timestamp", set(rec(varint(0x20, 2), header(key("h")))), bad, "out of order"},
		{"a timestamp before the value", set(rec(varint(0x20, 2), value("v"))), bad, "out of order"},
		{"an offset before the timestamp", set(rec(varint(0x28, 0), varint(0x20, 2))), bad, "out of order"},
		{"two timestamps", set(rec(varint(0x20, 2), varint(0x20, 2))), bad, "twice or out of order"},
		{"two offsets", set(rec(varint(0x28, 0), varint(0x28, 0))), bad, "twice or out of order"},
		{"a header, a value, a header", set(rec(header(key("h")), value("v"), header(key("h")))), bad, "out of order"},
		{"a key beyond its record", set(rec(tagKey, 9, "k")), bad, "beyond its record"},
		{"a key beyond its record, inside the set", set(rec(tagKey, 9, "k"), ok, ok), bad, "record 0, at byte 2 of the record set: a field's length"},
		{"a value beyond its record", set(rec(key("k"), tagValue, 2, "v"), ok), bad, "beyond its record"},
		{"a value's length cut off", set(rec(tagValue)), bad, "cut off"},
		{"a value's length near 2^64", set(rec(tagValue, bytes.Repeat([]byte{0xFF}, 9), 1)), bad, "a field's length"},
		{"a value's length not minimal", set(rec(tagValue, 0x81, 0x00, "v")), bad, "not a minimal varint"},
		{"an empty value's length not minimal", set(rec(tagValue, 0x80, 0x00)), bad, "not a minimal varint"},
		{"a timestamp cut off", set(rec(0x20)), bad, "timestamp_delta_ms is cut off"},
		{"a timestamp cut off by its record", set(rec(0x20, 0x80), ok), bad, "timestamp_delta_ms is cut off"},
		{"a timestamp not minimal", set(rec(0x20, 0x82, 0x00)), bad, "not a minimal varint"},
		{"a timestamp over 64 bits", set(rec(0x20, bytes.Repeat([]byte{0xFF}, 9), 2)), bad, "timestamp_delta_ms"},
		{"a timestamp of eleven bytes", set(rec(0x20, bytes.Repeat([]byte{0xFF}, 10), 1)), bad, "timestamp_delta_ms"},
		{"a timestamp that is written though zero", set(rec(varint(0x20, 0))), bad, "although it is 0"},
		{"an offset cut off", set(rec(0x28)), bad, "offset_delta is cut off"},
		{"an offset not minimal", set(rec(0x28, 0x81, 0x00)), bad, "offset_delta"},
		{"an offset over 32 bits", set(rec(varint(0x28, 1<<32))), bad, "over 4294967295"},
		{"an offset again", set(rec(varint(0x28, 1)), rec(varint(0x28, 1))), bad, "record 1, at byte 4 of the record set: its offset is not above"},
		{"an offset going back", set(rec(varint(0x28, 5)), rec(varint(0x28, 4))), bad, "its offset is not above"},
		{"an offset, then an index below it", set(rec(varint(0x28, 5)), ok), bad, "its offset is not above"},
		{"times that overflow", raw(fixed64(8, math.MaxInt64), set(rec(varint(0x20, 2)))), inv, "overflows"},
		{"times that underflow", raw(fixed64(8, math.MinInt64), set(rec(varint(0x20, 1)))), inv, "overflows"},

		// Headers.
		{"a header without anything", set(rec(header())), bad, "header without a key"},
		{"a header without a key", set(rec(header(value("v")))), bad, "header without a key"},
		{"a header with an empty key", set(rec(header(key("")))), bad, "header with an empty key"},
		{"a header key that is not UTF-8", set(rec(header(key("\xff\xfe\x80")))), bad, "not valid UTF-8"},
		{"a header key cut inside a rune", set(rec(header(key("\xd0")))), bad, "not valid UTF-8"},
		{"a header key that is a surrogate", set(rec(header(key("\xed\xa0\x80")))), bad, "not valid UTF-8"},
		{"a header with two keys", set(rec(header(key("h"), key("h")))), bad, "nothing else"},
		{"a header with two values", set(rec(header(key("h"), value("v"), value("v")))), bad, "nothing else"},
		{"a header with its value first", set(rec(header(value("v"), key("h")))), bad, "header without a key"},
		{"a header with an unknown field", set(rec(header(key("h"), varint(0x18, 1)))), bad, "nothing else"},
		{"a header key beyond its header", set(rec(header(tagKey, 2, "h"))), bad, "a field's length"},
		{"a header value beyond its header", set(rec(header(key("h"), tagValue, 2, "v"))), bad, "a field's length"},
		{"a header's length beyond its record", set(rec(tagHeaders, 9, key("h"))), bad, "a field's length"},
		{"a header's length not minimal", set(rec(tagHeaders, 0x83, 0, key("h"))), bad, "a field's length"},
		{"a second header that is bad", set(rec(header(key("h")), header())), bad, "header without a key"},

		// Limits.
		{"a record over the limit", set(ok, rec(value(strings.Repeat("x", 1000)))), big, "record 1, at byte 8 of the record set: it takes 1003 bytes serialized and uncompressed, the limit is 1000"},
		{"more records than allowed", set(bytes.Repeat(ok, 6)), big, "more than 5 records"},
		{"a batch over the limit", set(bytes.Repeat(rec(value(strings.Repeat("x", 900))), 5)), big, "as stored, the limit is 4096"},
	}
	lim := Limits{MaxRecordBytes: 1000, MaxRecords: 5, MaxBatchBytes: 4096}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := bytes.Clone(tt.msg)
			_, err := parse(tt.msg, lim)
			if !errors.Is(err, tt.kind) {
				t.Fatalf("got %v, want %v", err, tt.kind)
			}
			if !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%q does not say %q", err, tt.text)
			}
			if !utf8.ValidString(err.Error()) || !bytes.Equal(before, tt.msg) {
				t.Errorf("the text is not UTF-8, or the input was changed: %q", err)
			}
		})
	}
}

// What looks unusual and is right.
func TestParseBatch_takes(t *testing.T) {
	ok := rec(key("k"), value("v"))
	tests := []struct {
		name    string
		msg     []byte
		records int
		last    uint32
	}{
		{"nothing but records", set(ok, ok), 2, 1},
		{"an empty record", set(rec()), 1, 0},
		{"everything empty", set(rec(key(""), value(""))), 1, 0},
		{"header fields after the payload, in any order", raw(fixed64(9, 5), set(ok), enum(12, 2), fixed32(6, 1), fixed64(8, 3), enum(2, 1)), 1, 0},
		{"what belongs to the leader is ignored", raw(fixed32(1, 7), fixed64(4, 99), fixed64(7, 9), fixed64(10, 8), enum(12, 2), fixed64(18, 4), set(ok)), 1, 0},
		{"a timestamp type nobody knows is ignored", raw(enum(12, 99), set(ok)), 1, 0},
		{"a wrong max_timestamp_ms is recomputed", raw(fixed64(9, 1), set(ok)), 1, 0},
		{"a payload length that is not minimal", raw(0x82, 0x82, 0x00, 0x88, 0x00, ok), 1, 0},
		{"compression NONE", raw(enum(11, 1), set(ok)), 1, 0},
		{"compression unspecified", raw(enum(11, 0), set(ok)), 1, 0},
		{"a right checksum", raw(set(ok), fixed32(3, PayloadCRC(ok))), 1, 0},
		{"right counts", raw(fixed32(5, 1), fixed32(6, 2), set(ok, ok)), 2, 1},
		{"offsets of its own", raw(fixed32(5, 9), set(rec(varint(0x28, 3)), rec(varint(0x28, 9)))), 2, 9},
		{"an offset equal to the index", set(ok, rec(varint(0x28, 1))), 2, 1},
		{"the highest offset", set(rec(varint(0x28, math.MaxUint32))), 1, math.MaxUint32},
		{"sequence -1 without a producer", raw(fixed64(15, 0), fixed64(16, 0), fixed64(17, -1), set(ok)), 1, 0},
		{"exactly the records allowed", set(bytes.Repeat(ok, 5)), 5, 4},
		{"exactly the record size allowed", set(rec(value(strings.Repeat("x", 997)))), 1, 0},
		{"equal header keys", set(rec(header(key("h")), header(key("h"), value("")))), 1, 0},
		{"the earliest and latest time", raw(fixed64(8, -1), set(rec(varint(0x20, math.MaxUint64-2)), rec(varint(0x20, math.MaxUint64-1)))), 2, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b, err := parse(tt.msg, Limits{MaxRecordBytes: 1000, MaxRecords: 5})
			if err != nil {
				t.Fatal(err)
			}
			if b.RecordCount != uint32(tt.records) || b.LastOffsetDelta != tt.last {
				t.Errorf("%d records, last %d; want %d, %d", b.RecordCount, b.LastOffsetDelta, tt.records, tt.last)
			}
			checkSealed(t, b)
		})
	}
}

// checkSealed seals b and verifies that the frame is sound and canonical.
func checkSealed(tb testing.TB, b Batch) {
	tb.Helper()
	frame := b.Seal(1000, 7, 123, CreateTime)
	if len(frame) != b.FrameSize() {
		tb.Fatalf("%d bytes, FrameSize said %d", len(frame), b.FrameSize())
	}
	f, v := CheckFrame(frame, MaxFrameSize)
	if v != OK || f.Header != b.Header || f.Size != len(frame) {
		tb.Fatalf("%v\n got %+v\nwant %+v", v, f.Header, b.Header)
	}
	var m runnelv1.Segment
	if err := proto.Unmarshal(frame, &m); err != nil {
		tb.Fatal(err)
	}
	if again := marshal(tb, &m); !bytes.Equal(again, frame) {
		tb.Fatalf("serialized again:\n got %x\nwant %x", again, frame)
	}
	if got, want := describeSegment(tb, &m), describe(tb, frame); got != want {
		tb.Fatalf("generated code reads %s\nthe iterator %s", got, want)
	}
}

func TestParseBatch_factsOfTheBatch(t *testing.T) {
	msg := raw(
		fixed64(8, 1000), fixed64(15, 77), fixed64(16, 2), fixed64(17, 500), enum(13, 1),
		set(rec(varint(0x20, protowire.EncodeZigZag(-7))), rec(), rec(varint(0x20, protowire.EncodeZigZag(9)))),
	)
	b, err := parse(msg, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	want := Header{
		PayloadCRC: b.PayloadCRC, Format: 1, LastOffsetDelta: 2, RecordCount: 3, BaseTimestampMs: 1000, MaxTimestampMs: 1009,
		Compression: CompressionNone, Transactional: true, ProducerID: 77, ProducerEpoch: 2, BaseSequence: 500,
	}
	if b.Header != want || b.MinTimestampMs != 993 {
		t.Errorf("got %+v, min %d\nwant %+v", b.Header, b.MinTimestampMs, want)
	}
}

func TestParseBatch_keysRequired(t *testing.T) {
	for _, tt := range []struct {
		name string
		msg  []byte
		ok   bool
	}{
		{"a key", set(rec(key("k"))), true},
		{"an empty key", set(rec(key(""), value("v"))), true},
		{"no key", set(rec(key("k")), rec(value("v"))), false},
	} {
		_, err := parse(tt.msg, Limits{RequireKeys: true})
		if (err == nil) != tt.ok || (err != nil && (!errors.Is(err, ErrInvalidRecord) || !strings.Contains(err.Error(), "record 1"))) {
			t.Errorf("%s: %v", tt.name, err)
		}
		if _, err := parse(tt.msg, Limits{}); err != nil {
			t.Errorf("%s, not required: %v", tt.name, err)
		}
	}
}

// The limits at the byte, each against the count its documentation names.
func TestParseBatch_limitsAtTheByte(t *testing.T) {
	value := bytes.Repeat([]byte("abcdefgh"), 500)
	batch := built(t, CompressionNone, func(b *Builder) error { return b.Add([]byte("key"), value, nil, 5) })
	msg := batch.AppendMessage(nil)
	packed := built(t, CompressionZstd, func(b *Builder) error { return b.Add([]byte("key"), value, nil, 5) })
	packedMsg := packed.AppendMessage(nil)
	record := len(raw(key("key"), sub(tagValue, value)))
	stored := len(batch.Seal(0, 0, 0, CreateTime))
	storedPacked := len(packed.Seal(0, 0, 0, CreateTime))
	if storedPacked >= stored/2 {
		t.Fatalf("%d bytes compressed, %d not", storedPacked, stored)
	}
	set := len(batch.Payload())
	for _, tt := range []struct {
		name string
		msg  []byte
		lim  func(delta int) Limits
	}{
		{"a record", msg, func(d int) Limits { return Limits{MaxRecordBytes: record + d} }},
		{"a record in a compressed batch counts uncompressed", packedMsg, func(d int) Limits { return Limits{MaxRecordBytes: record + d} }},
		{"a batch", msg, func(d int) Limits { return Limits{MaxBatchBytes: stored + d} }},
		{"a compressed batch counts compressed", packedMsg, func(d int) Limits { return Limits{MaxBatchBytes: storedPacked + d} }},
		{"a decompressed set", packedMsg, func(d int) Limits { return Limits{MaxDecompressedBytes: set + d} }},
	} {
		if _, err := parse(tt.msg, tt.lim(0)); err != nil {
			t.Errorf("%s of exactly the limit: %v", tt.name, err)
		}
		_, err := parse(tt.msg, tt.lim(-1))
		var e *BatchError
		if !errors.As(err, &e) || !errors.Is(err, ErrTooLarge) || e.Size != e.Limit+1 {
			t.Errorf("%s one byte over: %v", tt.name, err)
			continue
		}
		m := e.Metadata()
		if m["size"] != fmt.Sprint(e.Size) || m["maxBytes"] != fmt.Sprint(e.Limit) {
			t.Errorf("%s: metadata %v", tt.name, m)
		}
	}
}

func TestLimits_capsHold(t *testing.T) {
	got := Limits{MaxRecordBytes: 1 << 30, MaxBatchBytes: 1 << 30, MaxDecompressedBytes: 1 << 30}.withDefaults()
	want := Limits{MaxRecordBytes: MaxRecordSize, MaxBatchBytes: MaxFrameSize, MaxRecords: 100_000, MaxDecompressedBytes: 256 << 20}
	if got != want {
		t.Errorf("got %+v", got)
	}
	if got := (Limits{}).withDefaults(); got.MaxRecordBytes != 1<<20 || got.MaxBatchBytes != 3840<<10 || got.MaxDecompressedBytes != 32<<20 {
		t.Errorf("got %+v", got)
	}
	// A record at the cap must fit into a batch at the cap, with everything around it.
	if frameSize(1+lengthMax+MaxRecordSize) > MaxFrameSize || MaxFrameSize >= 4<<20 {
		t.Error("the caps contradict each other")
	}
}

func TestBatchError_metadata(t *testing.T) {
	_, err := parse(set(bytes.Repeat(rec(), 3)), Limits{MaxRecords: 2})
	var e *BatchError
	if !errors.As(err, &e) {
		t.Fatal(err)
	}
	if m := e.Metadata(); m["size"] != "3" || m["maxRecords"] != "2" || m["recordIndex"] != "2" || m["maxBytes"] != "" {
		t.Errorf("got %v", m)
	}
	_, err = parse(raw(enum(11, 9), compressed([]byte("x"))), Limits{})
	if !errors.As(err, &e) || e.Metadata()["compression"] != "compression 9" {
		t.Errorf("got %v", err)
	}
}

func TestParseBatch_withoutRoomPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	buf := make([]byte, 200)
	_, _ = NewValidator(NewCodec(), 1).ParseBatch(buf, PrefixMax-1, len(buf), Limits{})
}

// The payload stays where it is, and what is behind the batch is not touched.
func TestParseBatch_inPlace(t *testing.T) {
	msg := raw(fixed64(8, 1), set(rec(value("hello"))), fixed64(9, 2))
	buf := raw(bytes.Repeat([]byte{0xEE}, PrefixMax+3), msg, "behind")
	b, err := NewValidator(NewCodec(), 1).ParseBatch(buf, PrefixMax+3, PrefixMax+3+len(msg), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	tail := bytes.Clone(buf[PrefixMax+3+9+3+len(b.Payload()):])
	frame := b.Seal(0, 0, 0, CreateTime)
	if &frame[len(frame)-1] != &b.Payload()[len(b.Payload())-1] || cap(frame) != len(frame) {
		t.Error("the payload was copied, or the frame can grow into what follows")
	}
	if !bytes.Equal(tail, buf[len(buf)-len(tail):]) {
		t.Error("bytes behind the payload were changed")
	}
	again := bytes.Clone(frame)
	if !bytes.Equal(b.Seal(0, 0, 0, CreateTime), again) {
		t.Error("sealing again gives other bytes")
	}
}
