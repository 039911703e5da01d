package record

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// describeFrames describes the records of frames, one line each, and checks that the frames are sound and
// cover the offsets of the first frame's header, in order and without a gap.
func describeFrames(tb rapid.TB, frames []byte, want Header) []string {
	var lines []string
	next := want.BaseOffset
	for len(frames) > 0 {
		f, v := CheckFrame(frames, MaxFrameSize)
		if v != OK {
			tb.Fatalf("a frame of the rewritten batch is %s", v)
		}
		h := f.Header
		if h.BaseOffset != next {
			tb.Fatalf("a batch begins at %d, want %d", h.BaseOffset, next)
		}
		if h.ProducerID != 0 && h.BaseSequence-want.BaseSequence != Sequence(h.BaseOffset-want.BaseOffset) {
			tb.Fatalf("offset %d has sequence %d", h.BaseOffset, h.BaseSequence)
		}
		next = h.NextOffset()
		var it Iterator
		for it.Reset(h, f.Payload(frames)); it.Next(); {
			lines = append(lines, describeRecord(it.Record()))
		}
		if it.Err() != nil {
			tb.Fatal(it.Err())
		}
		frames = frames[f.Size:]
	}
	if next != want.NextOffset() {
		tb.Fatalf("the batches end at %d, want %d", next, want.NextOffset())
	}
	return lines
}

func describeRecord(r Record) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%d %d key=%s value=%s", r.Offset, r.TimestampMs, show(r.Key), show(r.Value))
	for h := r.Headers(); h.Next(); {
		fmt.Fprintf(&out, " %s=%s", h.Key(), show(h.Value()))
	}
	return out.String()
}

// Whatever is taken out of a batch, the rest says what it said, and the header too but for what counts and sums up the rest.
// Taking out from what is left gives what taking out at once gives.
func TestRewriter_rapid(tt *testing.T) {
	rewriter := NewRewriter(NewCodec())
	codec := NewCodec()
	rapid.Check(tt, func(t *rapid.T) {
		batch, err := parse(marshal(tt, genBatch().Draw(t, "batch")), Limits{})
		if err != nil {
			t.Skip(err)
		}
		batch.ProducerID, batch.BaseSequence = 7, 100
		frame := bytes.Clone(batch.Seal(1000, 5, 77, rapid.SampledFrom([]TimestampType{CreateTime, LogAppendTime}).Draw(t, "type")))
		c := Compression(rapid.IntRange(int(CompressionNone), compressions-1).Draw(t, "compression"))
		if c != CompressionNone {
			f, _ := CheckFrame(frame, MaxFrameSize)
			packed, err := codec.Compress(nil, c, 0, f.Payload(frame))
			if err != nil {
				t.Fatal(err)
			}
			f.Header.Compression, f.Header.PayloadCRC = c, PayloadCRC(packed)
			frame = appendFrame(nil, &f.Header, packed)
		}
		rewriter.maxFrame = rapid.SampledFrom([]int{MaxFrameSize, MaxFrameSize, 400}).Draw(t, "max frame")
		for round := range 2 {
			frame = rewriteOnce(t, rewriter, frame, round)
			if _, v := CheckFrame(frame, MaxFrameSize); v != OK || len(frame) == 0 {
				t.Fatalf("verdict %s", v)
			}
			if f, _ := CheckFrame(frame, MaxFrameSize); f.Size != len(frame) {
				return // it became several
			}
		}
	})
}

func rewriteOnce(t *rapid.T, rewriter *Rewriter, frame []byte, round int) []byte {
	f, v := CheckFrame(frame, MaxFrameSize)
	if v != OK {
		t.Fatalf("verdict %s", v)
	}
	horizon := rapid.SampledFrom([]int64{0, 123}).Draw(t, "horizon")
	var want []string
	kept, err := rewriter.Filter(f.Header, f.Payload(frame), func(r *Record) bool {
		keep := rapid.Bool().Draw(t, "keep")
		if keep {
			want = append(want, describeRecord(*r))
		}
		return keep
	})
	if err != nil || kept != len(want) {
		t.Fatalf("kept %d of %d, %v", kept, len(want), err)
	}
	out, err := rewriter.AppendFrames([]byte("before"), horizon)
	if err != nil {
		t.Fatal(err)
	}
	out = out[len("before"):]
	if got := describeFrames(t, out, f.Header); !slices.Equal(got, want) {
		t.Fatalf("round %d: kept\n%s\nwant\n%s", round, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	first, _ := CheckFrame(out, MaxFrameSize)
	if first.Size == len(out) {
		h := first.Header
		if kept == int(f.Header.RecordCount) && h.PayloadCRC != f.Header.PayloadCRC {
			t.Fatal("nothing was taken out, and the payload changed")
		}
		h.HeaderCRC, h.PayloadCRC, h.RecordCount, h.Compression = f.Header.HeaderCRC, f.Header.PayloadCRC, f.Header.RecordCount, f.Header.Compression
		h.MaxTimestampMs, h.DeleteHorizonMs = f.Header.MaxTimestampMs, f.Header.DeleteHorizonMs
		if h != f.Header {
			t.Fatalf("header\n%+v\nwas\n%+v", h, f.Header)
		}
	}
	if first.Header.DeleteHorizonMs != horizon {
		t.Fatalf("horizon %d, want %d", first.Header.DeleteHorizonMs, horizon)
	}
	return out
}

// The records of a batch at the limit of a frame grow when they must say their offsets: it is split.
func TestRewriter_splitsWhatOutgrowsAFrame(t *testing.T) {
	b := NewBuilder(NewCodec(), Limits{MaxRecords: 1 << 20})
	value := bytes.Repeat([]byte{'v'}, 9)
	n := 0
	for ; ; n++ {
		if err := b.Add([]byte{'k'}, value, nil, 1); errors.Is(err, ErrBatchFull) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	batch, err := b.Finish(CompressionNone, 0)
	if err != nil {
		t.Fatal(err)
	}
	frame := batch.Seal(50, 1, 1, CreateTime)
	f, _ := CheckFrame(frame, MaxFrameSize)
	rewriter := NewRewriter(NewCodec())
	kept, err := rewriter.Filter(f.Header, f.Payload(frame), func(r *Record) bool { return r.Offset != 50 })
	if err != nil || kept != n-1 {
		t.Fatalf("kept %d of %d, %v", kept, n, err)
	}
	out, err := rewriter.AppendFrames(nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	if first, _ := CheckFrame(out, MaxFrameSize); first.Size == len(out) {
		t.Fatal("it was not split: the test shows nothing")
	}
	if got := describeFrames(t, out, f.Header); len(got) != n-1 {
		t.Fatalf("%d records, want %d", len(got), n-1)
	}
}

// The same for a set at the limit of what readers decompress.
func TestRewriter_splitsWhatOutgrowsReaders(t *testing.T) {
	b := NewBuilder(NewCodec(), Limits{})
	for range 50_000 {
		if err := b.Add([]byte("k"), []byte("value"), nil, 1); err != nil {
			t.Fatal(err)
		}
	}
	batch, err := b.Finish(CompressionZstd, 0)
	if err != nil {
		t.Fatal(err)
	}
	frame := batch.Seal(0, 1, 1, CreateTime)
	f, _ := CheckFrame(frame, MaxFrameSize)
	rewriter := NewRewriter(NewCodec())
	rewriter.maxSet = b.Size()
	if _, err := rewriter.Filter(f.Header, f.Payload(frame), func(r *Record) bool { return r.Offset > 0 }); err != nil {
		t.Fatal(err)
	}
	out, err := rewriter.AppendFrames(nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := describeFrames(t, out, f.Header); len(got) != 49_999 {
		t.Errorf("%d records", len(got))
	}
	parts := 0
	for rest := out; len(rest) > 0; parts++ {
		f, _ := CheckFrame(rest, MaxFrameSize)
		if _, err := NewCodec().Decompress(nil, f.Header.Compression, f.Payload(rest), rewriter.maxSet); err != nil {
			t.Errorf("part %d: %v", parts, err)
		}
		rest = rest[f.Size:]
	}
	if parts != 2 {
		t.Errorf("%d parts, want 2", parts)
	}
}

// A payload that does not decompress is refused, not emptied.
func TestRewriter_corrupt(t *testing.T) {
	h := Header{Format: Format, RecordCount: 3, LastOffsetDelta: 2, Compression: CompressionZstd}
	if _, err := NewRewriter(NewCodec()).Filter(h, []byte("no zstd frame"), func(*Record) bool { return true }); !errors.Is(err, ErrCorruptBatch) {
		t.Fatalf("error %v, want ErrCorruptBatch", err)
	}
	h.Compression = CompressionNone
	if _, err := NewRewriter(NewCodec()).Filter(h, []byte{tagRecord, 0}, func(*Record) bool { return true }); !errors.Is(err, ErrCorruptBatch) {
		t.Fatalf("error %v of a batch that lacks records, want ErrCorruptBatch", err)
	}
}
