package commitlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// readWhole reads all that can be read, as a reader that goes on behind
// damage, and returns the ranges it could not.
func readWhole(t *testing.T, l *Log) (frames []byte, lost []Range) {
	t.Helper()
	for from := l.Start(); from < l.End(); {
		b, err := readAll(l, from, l.End())
		frames = append(frames, b...)
		for len(b) > 0 {
			f, _ := record.CheckFrame(b, record.MaxFrameSize)
			from, b = f.Header.NextOffset(), b[f.Size:]
		}
		if err == nil {
			break
		}
		c, ok := errors.AsType[*CorruptError](err)
		if !ok || !errors.Is(err, ErrCorrupt) || c.NextOffset <= c.Offset || c.Path == "" {
			t.Fatalf("read at %d: %v", from, err)
		}
		lost = addRange(lost, Range{from, c.NextOffset})
		from = c.NextOffset
	}
	return frames, lost
}

// A flipped bit below the durable mark is never served, never cut, and said.
// One above it cuts the log there, and the bytes are kept.
func TestRecovery_bitFlips(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 8))
	for range 250 {
		h := newHarness(testConfig())
		h.mustOpen(t, false)
		h.startEpoch(t)
		for range 12 {
			h.append(t, 60, record.CreateTime, h.nowMs)
		}
		h.sync(t)
		must(t, h.log.Checkpoint())
		for range 6 {
			h.append(t, 60, record.CreateTime, h.nowMs)
		}
		active := h.log.view.Load().active()
		h.mem.Kill()
		name := segmentName(active.base, logSuffix)
		file := h.readFile(t, name)
		bit := rng.IntN(8 * len(file))
		file[bit/8] ^= 1 << (bit % 8)
		h.write(t, name, file)
		checkFlip(t, h, active.base, int64(bit/8))
	}
}

// checkFlip opens the log after a bit of the segment at base was flipped.
func checkFlip(t *testing.T, h *harness, base record.Offset, at int64) {
	t.Helper()
	hit, pos := modelBatch{}, int64(0)
	for _, b := range h.m.batches {
		if b.base < base {
			continue
		}
		if hit = b; at < pos+int64(len(b.frame)) {
			break
		}
		pos += int64(len(b.frame))
	}
	rec, err := h.open(false)
	if errors.Is(err, ErrUnknownFormat) {
		return // a bit of the format: the partition is refused
	}
	must(t, err)
	switch {
	case hasEvent(rec.Events, EventEnvelopeRepaired, logSuffix):
		h.check(t)
	case hit.base >= h.m.durable:
		if rec.End != hit.base || rec.TornBytes == 0 || rec.Suspicion != NotSuspect || len(rec.Damage) > 0 {
			t.Fatalf("flip in batch %d above the mark %d: %+v", hit.base, h.m.durable, rec)
		}
		kept := h.names(t, keptSuffix)
		if len(kept) != 1 || int64(len(h.readFile(t, kept[0]))) != rec.TornBytes {
			t.Fatalf("kept %v of %d bytes", kept, rec.TornBytes)
		}
		h.m.truncate(hit.base)
		h.check(t)
	default:
		// Durable, so it is still known to be there, and it is not served.
		frames, lost := readWhole(t, h.log)
		if rec.End < h.m.durable || bytes.Contains(frames, hit.frame) {
			t.Fatalf("flip in batch %d below the mark %d: %+v", hit.base, h.m.durable, rec)
		}
		if len(lost) == 0 || lost[0].From > hit.base || lost[len(lost)-1].To <= hit.base {
			t.Fatalf("flip in batch %d: lost %v", hit.base, lost)
		}
		// What is not said to be lost is there.
		for _, b := range h.m.batches {
			gone := b.base >= rec.End
			for _, r := range lost {
				gone = gone || b.base >= r.From && b.base < r.To
			}
			if !gone && !bytes.Contains(frames, b.frame) {
				t.Fatalf("batch %d is missing and not said to be: lost %v", b.base, lost)
			}
		}
	}
}

// Damage that was found is written down: no later start serves it, whether it
// scans that far or not. A truncation below it forgets it.
func TestRecovery_damageIsRememberedAndHealed(t *testing.T) {
	h := openWith(t, testConfig(), 27)
	victim := h.m.batches[20]
	h.mem.Kill()
	seg := record.Offset(0)
	for _, name := range h.names(t, logSuffix) {
		if base, _ := parseSegmentName(name, logSuffix); base <= victim.base {
			seg = base
		}
	}
	name := segmentName(seg, logSuffix)
	file := h.readFile(t, name)
	at := bytes.Index(file, victim.frame) + len(victim.frame) - 1
	file[at] ^= 0x10 // its payload
	h.write(t, name, file)
	// Only a scan finds it, and a scan of all is what a lost checkpoint gets.
	must(t, h.mem.Remove(h.path(checkpointName)))

	want := []Range{{victim.base, victim.last + 1}}
	for _, clean := range []bool{false, false, true} {
		rec := h.mustOpen(t, clean)
		if diff := cmp.Diff(want, rec.Damage); diff != "" || rec.Suspicion == NotSuspect || rec.End != h.m.end {
			t.Fatalf("%s\n%+v", diff, rec)
		}
		_, _, _, err := h.log.OffsetForTime(math.MaxInt64, h.m.end)
		if c, ok := errors.AsType[*CorruptError](err); !ok || c.Offset != victim.base || c.NextOffset != victim.last+1 {
			t.Fatalf("a lookup by time: %v", err)
		}
		_, err = h.log.Read(make([]byte, 4096), victim.base, h.m.end)
		if c, ok := errors.AsType[*CorruptError](err); !ok || c.NextOffset != victim.last+1 {
			t.Fatalf("read of the damage: %v", err)
		}
		if _, lost := readWhole(t, h.log); !cmp.Equal(lost, want) {
			t.Fatalf("lost %v, want %v", lost, want)
		}
		must(t, h.log.Close())
	}
	h.mustOpen(t, true)
	must(t, h.log.SetSuspicion(NotSuspect))
	must(t, h.log.TruncateTo(victim.base))
	h.m.truncate(victim.base)
	h.append(t, 10, record.CreateTime, h.nowMs)
	h.sync(t)
	h.reopen(t, false)
	h.check(t)
}

// A segment that was durable and is gone is damage too.
func TestRecovery_missingSegment(t *testing.T) {
	h := openWith(t, testConfig(), 27)
	v := h.log.view.Load()
	last := v.segments[len(v.segments)-1].base
	h.mem.Kill()
	must(t, h.mem.Remove(h.path(segmentName(last, logSuffix))))
	rec := h.mustOpen(t, false)
	if rec.Suspicion == NotSuspect || rec.End > h.m.end {
		t.Fatalf("%+v", rec)
	}
	frames, _ := readWhole(t, h.log)
	if !bytes.HasPrefix(h.m.from(0, h.m.end), frames) {
		t.Error("something else is read")
	}
}

// Loss that was found once is not forgotten by the next start.
func TestRecovery_lossIsRemembered(t *testing.T) {
	h := openWith(t, testConfig(), 4)
	h.log.SetHighWatermark(100)
	must(t, h.log.Checkpoint())
	for _, clean := range []bool{false, true, false} {
		stop(t, h, clean)
		if rec := h.mustOpen(t, clean); rec.Suspicion != SuspectBelowHighWatermark || rec.HighWatermark != 100 {
			t.Fatalf("%+v", rec)
		}
	}
	must(t, h.log.SetSuspicion(NotSuspect))
	h.log.SetHighWatermark(h.m.end)
	must(t, h.log.Checkpoint())
	h.reopen(t, false)
}

func TestRecovery_envelopeIsRepaired(t *testing.T) {
	for _, at := range []int{0, 1} {
		h := openWith(t, testConfig(), 5)
		name := segmentName(0, logSuffix)
		good := h.readFile(t, name)
		bad := bytes.Clone(good)
		pos := len(h.m.batches[0].frame)
		bad[pos+at] ^= 0x04
		h.write(t, name, bad)
		// A reader gets the right bytes at once.
		h.check(t)
		h.mem.Kill()
		must(t, h.mem.Remove(h.path(checkpointName)))
		rec := h.mustOpen(t, false)
		if !hasEvent(rec.Events, EventEnvelopeRepaired, name) || !bytes.Equal(h.readFile(t, name), good) {
			t.Errorf("byte %d: %+v", at, rec)
		}
		h.check(t)
	}
}

func TestRecovery_unknownFormatIsRefused(t *testing.T) {
	h := openWith(t, testConfig(), 3)
	h.mem.Kill()
	name := segmentName(0, logSuffix)
	file := h.readFile(t, name)
	at := bytes.Index(file, h.m.batches[2].frame)
	// Tag and value of the format, after the outer prefix and the header CRC.
	i := at + bytes.Index(file[at:], []byte{0x10, 1, 0x1D})
	file[i+1] = 2
	h.write(t, name, file)
	must(t, h.mem.Remove(h.path(checkpointName)))
	if _, err := h.open(false); !errors.Is(err, ErrUnknownFormat) {
		t.Fatalf("open: %v", err)
	}
	if !bytes.Equal(h.readFile(t, name), file) || len(h.names(t, keptSuffix)) > 0 {
		t.Error("the refused log was changed")
	}
	if n := h.mem.OpenFiles(); n != 0 {
		t.Errorf("%d files open after a refusal", n)
	}
}

func TestRecovery_unknownVersionOfSideFiles(t *testing.T) {
	next := func(b []byte, sum int) []byte {
		b = bytes.Clone(b)
		binary.LittleEndian.PutUint32(b[4:], 2)
		binary.LittleEndian.PutUint32(b[sum:], crc32.Checksum(b[:sum], castagnoli))
		return b
	}
	h := openWith(t, testConfig(), 3)
	must(t, h.log.Close())
	cp, ep := h.readFile(t, checkpointName), h.readFile(t, epochsName)
	for name, b := range map[string][]byte{
		checkpointName: next(cp[:checkpointSize], checkpointSize-4), epochsName: next(ep, len(ep)-4),
	} {
		old := h.readFile(t, name)
		h.write(t, name, b)
		if _, err := h.open(true); !errors.Is(err, ErrUnknownFormat) {
			t.Errorf("%s of a later version: %v", name, err)
		}
		h.write(t, name, old)
	}
	h.reopenAsIs(t)
}

func (h *harness) reopenAsIs(t *testing.T) {
	t.Helper()
	h.mustOpen(t, true)
	h.check(t)
}

func TestRecovery_epochsAreRebuilt(t *testing.T) {
	for what, damage := range map[string]func(h *harness){
		"removed": func(h *harness) { must(t, h.mem.Remove(h.path(epochsName))) },
		"garbage": func(h *harness) { h.write(t, epochsName, []byte("no epochs at all")) },
		"short":   func(h *harness) { h.write(t, epochsName, h.readFile(t, epochsName)[:15]) },
	} {
		for _, clean := range []bool{true, false} {
			h := openWith(t, testConfig(), 5)
			for range 3 {
				h.startEpoch(t)
				for range 9 {
					h.append(t, 100, record.CreateTime, h.nowMs)
				}
			}
			want := *h.log.epochs.Load()
			must(t, h.log.Sync())
			must(t, h.log.Checkpoint())
			stop(t, h, clean)
			damage(h)
			rec := h.mustOpen(t, clean)
			if diff := cmp.Diff(want, *h.log.epochs.Load(), cmp.AllowUnexported(epochStart{})); diff != "" {
				t.Errorf("%s: %s", what, diff)
			}
			if !hasEvent(rec.Events, EventEpochsRebuilt, epochsName) {
				t.Errorf("%s: no event", what)
			}
			h.check(t)
			must(t, h.log.Close())
			if rec = h.mustOpen(t, true); !rec.Clean || len(rec.Events) > 0 {
				t.Errorf("%s: the start after that: %+v", what, rec)
			}
		}
	}
}

// One slot of the checkpoint may be torn; the other one counts then.
func TestRecovery_oneSlotIsEnough(t *testing.T) {
	h := openWith(t, testConfig(), 5)
	must(t, h.log.Close())
	b := h.readFile(t, checkpointName)
	c, ok, err := parseCheckpoint(b)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	b[c.slot()+20] ^= 1
	h.write(t, checkpointName, b)
	rec := h.mustOpen(t, false)
	if rec.Suspicion != NotSuspect || rec.End != h.m.end {
		t.Errorf("%+v", rec)
	}
	h.check(t)
}

// A full disk must not keep a log with a torn tail from opening.
func TestRecovery_onAFullDisk(t *testing.T) {
	h := openWith(t, testConfig(), 3)
	h.append(t, 100, record.CreateTime, h.nowMs)
	h.mem.Kill()
	name := segmentName(0, logSuffix)
	file := h.readFile(t, name)
	h.write(t, name, file[:len(file)-1])
	h.mem.SetCapacity(usedBytes(t, h.mem, "/"))
	h.m.truncate(h.m.end - 1)
	if rec := h.mustOpen(t, false); rec.End != h.m.end || rec.TornBytes == 0 {
		t.Errorf("%+v", rec)
	}
	h.check(t)
	h.deleteBefore(t, 3) // retention works on it too
	h.mem.SetCapacity(0)
	h.reopen(t, false)
	h.check(t)
}

// An index entry of a batch that was lost goes with it.
func TestRecovery_entryOfALostBatch(t *testing.T) {
	h := openWith(t, testConfig(), 4)
	h.append(t, 100, record.CreateTime, h.nowMs)
	must(t, h.log.Checkpoint()) // writes the entry, and moves no mark
	h.mem.Kill()
	name := segmentName(0, logSuffix)
	file := h.readFile(t, name)
	clear(file[len(file)-len(h.m.batches[4].frame):])
	h.write(t, name, file)
	if rec := h.mustOpen(t, false); rec.End != h.m.durable {
		t.Fatalf("%+v", rec)
	}
	h.m.truncate(h.m.durable)
	h.check(t)
	must(t, checkIndexes(h.log, h.cfg.IndexIntervalBytes))
}

// What the owner declared stays until the owner lifts it.
func TestRecovery_suspicionIsRemembered(t *testing.T) {
	h := openWith(t, testConfig(), 4)
	must(t, h.log.SetSuspicion(SuspectOther))
	for _, clean := range []bool{true, false, true} {
		stop(t, h, clean)
		if rec := h.mustOpen(t, clean); rec.Suspicion != SuspectOther || h.log.Suspicion() != SuspectOther {
			t.Fatalf("%+v", rec)
		}
	}
	must(t, h.log.SetSuspicion(NotSuspect))
	h.reopen(t, true)
}

// The index of a segment that was sealed when all was synced already is
// durable before the recovery point moves beyond the segment.
func TestRecovery_indexOfASegmentSealedLate(t *testing.T) {
	h := openWith(t, testConfig(), 5)
	must(t, h.log.Roll())
	h.reopen(t, true)
	h.append(t, 100, record.CreateTime, h.nowMs)
	h.sync(t)
	must(t, h.log.Checkpoint())
	disk := h.mem.CrashClone(rand.New(rand.NewPCG(1, 1)), vfs.CrashOptions{})
	b, err := vfs.ReadFile(disk, h.path(segmentName(0, indexSuffix)))
	must(t, err)
	if _, entries, whole, err := parseIndex(b, 0); err != nil || !whole || len(entries) == 0 {
		t.Errorf("index of the sealed segment: %v, %v, %v", entries, whole, err)
	}
}

// A sealed segment that is gone, or emptied, is below what a start reads. Its
// offsets are not skipped: readers are told, once in the log, and go on behind
// it.
func TestRead_missingSegment(t *testing.T) {
	for name, lose := range map[string]func(h *harness, base record.Offset){
		"gone": func(h *harness, base record.Offset) {
			must(t, h.mem.Remove(h.path(segmentName(base, logSuffix))))
			must(t, h.mem.Remove(h.path(segmentName(base, indexSuffix))))
		},
		"emptied": func(h *harness, base record.Offset) { h.write(t, segmentName(base, logSuffix), nil) },
	} {
		for _, clean := range []bool{false, true} {
			h := openWith(t, testConfig(), 40)
			segments := h.log.view.Load().segments
			gone := Range{segments[2].base, segments[3].base}
			must(t, h.log.Close())
			lose(h, gone.From)
			var events []Event
			l, rec, err := OpenLog(h.fault, testDir, h.cfg, OpenOptions{Clean: clean, Now: h.now, OnEvent: func(e Event) { events = append(events, e) }})
			must(t, err)
			if h.log = l; rec.End != h.m.end {
				t.Fatalf("%s: the log ends at %d, want %d", name, rec.End, h.m.end)
			}
			for range 2 {
				frames, lost := readWhole(t, l)
				if diff := cmp.Diff([]Range{gone}, lost); diff != "" {
					t.Fatalf("%s: lost:\n%s", name, diff)
				}
				want := append(h.m.from(0, gone.From), h.m.from(gone.To, h.m.end)...)
				if !bytes.Equal(frames, want) {
					t.Fatalf("%s: %d bytes were read, want %d", name, len(frames), len(want))
				}
			}
			if _, err := l.Read(make([]byte, 4096), gone.To-1, gone.To); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%s: the last of them: %v", name, err)
			}
			// A lookup by time does not skip them either, unless the answer is before them.
			first := h.m.batches[0]
			if off, _, found, err := l.OffsetForTime(first.times[0], h.m.end); err != nil || !found || off != first.base {
				t.Fatalf("%s: an earlier time: %d, %v, %v", name, off, found, err)
			}
			later := int64(0) // than all that is before them
			for _, b := range h.m.batches {
				if b.base < gone.From {
					later = max(later, slices.Max(b.times)+1)
				}
			}
			for _, ms := range []int64{later, math.MaxInt64} {
				_, _, _, err := l.OffsetForTime(ms, h.m.end)
				if c, ok := errors.AsType[*CorruptError](err); !ok || c.Offset != gone.From || c.NextOffset != gone.To {
					t.Fatalf("%s: time %d: %v", name, ms, err)
				}
			}
			if diff := cmp.Diff([]Range{gone}, l.Damage()); diff != "" {
				t.Fatalf("%s: damage:\n%s", name, diff)
			}
			if n := len(slices.DeleteFunc(events, func(e Event) bool { return e.Kind != EventDamage })); n != 1 {
				t.Fatalf("%s: damage was told %d times, want once: %+v", name, n, events)
			}
			must(t, l.TruncateTo(gone.From))
			if d := l.Damage(); len(d) > 0 {
				t.Fatalf("%s: damage after it was truncated: %v", name, d)
			}
		}
	}
}
