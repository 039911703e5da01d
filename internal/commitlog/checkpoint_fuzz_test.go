package commitlog

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/runnelmq/runnel/internal/record"
)

func FuzzParseCheckpoint(f *testing.F) {
	c := checkpoint{seq: 3, recoveryPoint: 10, highWatermark: 9, logStart: 2, lastAppendMs: 7}
	file := make([]byte, checkpointFile)
	copy(file[c.slot():], encodeCheckpoint(&c))
	f.Add(file)
	f.Add(file[:checkpointSize])
	f.Fuzz(func(t *testing.T, b []byte) {
		c, ok, err := parseCheckpoint(b)
		if err != nil && !errors.Is(err, ErrUnknownFormat) {
			t.Fatal(err)
		}
		if !ok {
			return
		}
		if c.recoveryPoint < 0 || c.logStart < 0 || c.highWatermark < 0 {
			t.Fatalf("negative offsets: %+v", c)
		}
		if again, ok, err := parseSlot(encodeCheckpoint(&c)); !ok || err != nil || again != c {
			t.Fatalf("%+v came back as %+v", c, again)
		}
	})
}

func FuzzParseIndex(f *testing.F) {
	b := encodeIndexHeader(5, 300)
	b = appendIndexEntry(b, 5, entry{7, 350, 1000})
	b = appendIndexEntry(b, 5, entry{9, 700, 2000})
	f.Add(b)
	f.Add(b[:30])
	f.Fuzz(func(t *testing.T, b []byte) {
		interval, entries, whole, err := parseIndex(b, 5)
		if err != nil {
			if len(entries) > 0 || whole {
				t.Fatal("entries behind a bad header")
			}
			return
		}
		again := encodeIndexHeader(5, interval)
		last := entry{maxTimestamp: noTimestamp}
		for i, e := range entries {
			if e.pos <= last.pos || e.maxTimestamp < last.maxTimestamp || i > 0 && e.offset <= last.offset {
				t.Fatalf("not in order: %v", entries)
			}
			last = e
			again = appendIndexEntry(again, 5, e)
		}
		if !bytes.HasPrefix(b, again) || whole != (len(again) == len(b)) {
			t.Fatalf("%d of %d bytes, whole %v", len(again), len(b), whole)
		}
	})
}

func FuzzParseEpochs(f *testing.F) {
	good := encodePairs(epochsMagic, [][2]int64{{1, 0}, {4, 10}})
	f.Add(good)
	f.Add(encodePairs(epochsMagic, [][2]int64{{4, 0}, {1, 10}}))
	f.Add(good[:20])
	f.Fuzz(func(t *testing.T, b []byte) {
		pairs, err := parsePairs(epochsMagic, b)
		if err != nil {
			return
		}
		if !bytes.Equal(encodePairs(epochsMagic, pairs), b) {
			t.Fatal("the bytes are not those of the pairs")
		}
		list, err := parseEpochs(pairs)
		if err != nil {
			return
		}
		for i := 1; i < len(list); i++ {
			if list[i].epoch <= list[i-1].epoch || list[i].start <= list[i-1].start {
				t.Fatalf("not in order: %v", list)
			}
		}
	})
}

func FuzzParseDamage(f *testing.F) {
	f.Add(encodePairs(damageMagic, [][2]int64{{1, 2}, {4, 10}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		pairs, err := parsePairs(damageMagic, b)
		if err != nil {
			return
		}
		ranges, err := parseDamage(pairs)
		if err != nil {
			return
		}
		last := record.Offset(0)
		for _, r := range ranges {
			if r.From < last || r.To <= r.From {
				t.Fatalf("not in order: %v", ranges)
			}
			last = r.To
		}
	})
}

// The numbers of the side files are part of the format.
func TestCheckpointFormat_isFrozen(t *testing.T) {
	c := checkpoint{1, 2, 3, 4, 5, 6, 7, SuspectDamage, false}
	for name, got := range map[string][]byte{
		"checkpoint": encodeCheckpoint(&c),
		"index":      appendIndexEntry(encodeIndexHeader(1, 4096), 1, entry{2, 3, 4}),
		"epochs":     encodePairs(epochsMagic, [][2]int64{{1, 2}}),
		"damage":     encodePairs(damageMagic, [][2]int64{{3, 4}}),
	} {
		want := map[string]string{
			"checkpoint": checkpointGolden, "index": indexGolden, "epochs": epochsGolden, "damage": damageGolden,
		}[name]
		if hex.EncodeToString(got) != want {
			t.Errorf("%s: %x\nwant %s", name, got, want)
		}
	}
}

// Made by another program, from FORMAT.md.
const (
	checkpointGolden = "524e4c4301000000010000000000000002000000000000000300000000000000040000000000000005000000000000000600000000000000070000000000000001000000000000002435c4a3"
	indexGolden      = "524e4c5801000000010000000000000000100000c3c2294102000000000000000300000004000000000000001a5dd449"
	epochsGolden     = "524e4c450100000001000000010000000000000002000000000000003989ed14"
	damageGolden     = "524e4c440100000001000000030000000000000004000000000000008a574868"
)

func TestAddRange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var ranges []Range
		want := map[record.Offset]bool{}
		for range rapid.IntRange(0, 8).Draw(t, "ranges") {
			from := record.Offset(rapid.IntRange(0, 30).Draw(t, "from"))
			r := Range{from, from + record.Offset(rapid.IntRange(1, 6).Draw(t, "length"))}
			ranges = addRange(ranges, r)
			for o := r.From; o < r.To; o++ {
				want[o] = true
			}
		}
		got := map[record.Offset]bool{}
		last := record.Offset(-1)
		for _, r := range ranges {
			if r.From <= last {
				t.Fatalf("not apart and in order: %v", ranges)
			}
			last = r.To
			for o := r.From; o < r.To; o++ {
				got[o] = true
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

func FuzzParseCleanState(f *testing.F) {
	f.Add(encodePairs(cleanerMagic, [][2]int64{{7, 1000}}))
	f.Add(encodePairs(cleanerMagic, [][2]int64{{-1, 0}}))
	f.Add(encodePairs(cleanerMagic, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		pairs, err := parsePairs(cleanerMagic, b)
		if err != nil {
			return
		}
		s, err := parseCleanState(pairs)
		if err == nil && (s.dirtyFrom < 0 || s.horizonMs < 0) {
			t.Fatalf("negative: %+v", s)
		}
	})
}
