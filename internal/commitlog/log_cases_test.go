package commitlog

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// open makes a harness with n batches of two records, and its log durable.
func openWith(t *testing.T, cfg Config, n int) *harness {
	t.Helper()
	h := newHarness(cfg)
	h.mustOpen(t, false)
	h.startEpoch(t)
	for range n {
		h.append(t, 100, record.CreateTime, h.nowMs, h.nowMs+1)
	}
	h.sync(t)
	must(t, h.log.Checkpoint())
	return h
}

func (h *harness) path(name string) string { return filepath.Join(testDir, name) }

func (h *harness) write(t *testing.T, name string, b []byte) {
	t.Helper()
	f, err := h.mem.OpenOrCreate(h.path(name))
	must(t, err)
	must(t, f.Truncate(0))
	_, err = f.WriteAt(b, 0)
	must(t, err)
	must(t, f.Sync())
	must(t, f.Close())
}

func (h *harness) readFile(t *testing.T, name string) []byte {
	t.Helper()
	b, err := vfs.ReadFile(h.mem, h.path(name))
	must(t, err)
	return b
}

func (h *harness) names(t *testing.T, suffix string) []string {
	t.Helper()
	entries, err := h.mem.ReadDir(testDir)
	must(t, err)
	var names []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name, suffix) {
			names = append(names, e.Name)
		}
	}
	return names
}

func hasEvent(events []Event, kind EventKind, name string) bool {
	for _, e := range events {
		if e.Kind == kind && strings.HasSuffix(e.Path, name) {
			return true
		}
	}
	return false
}

func TestST01_leftoversOfARollAreAdopted(t *testing.T) {
	for _, clean := range []bool{true, false} {
		for name, files := range map[string][]string{
			"log only": {logSuffix}, "index only": {indexSuffix}, "both": {logSuffix, indexSuffix},
		} {
			t.Run(name, func(t *testing.T) {
				h := openWith(t, testConfig(), 5)
				end := h.m.end
				stop(t, h, clean)
				for _, suffix := range files {
					h.write(t, segmentName(end, suffix), nil)
				}
				h.mustOpen(t, clean)
				for range 20 {
					h.append(t, 100, record.CreateTime, h.nowMs)
				}
				h.check(t)
				must(t, checkIndexes(h.log, h.cfg.IndexIntervalBytes))
				if got, want := len(h.names(t, logSuffix)), h.log.Segments(); got != want {
					t.Errorf("%d segment files, %d segments", got, want)
				}
			})
		}
	}
}

// stop closes the log, or kills its process, and leaves it closed.
func stop(t *testing.T, h *harness, clean bool) {
	t.Helper()
	if clean {
		must(t, h.log.Close())
		h.m.durable = h.m.end
	} else {
		h.mem.Kill()
	}
}

func TestST01_nonEmptyLeftoverIsSetAside(t *testing.T) {
	h := openWith(t, testConfig(), 3)
	foreign := []byte("somebody's bytes")
	h.write(t, segmentName(h.m.end, logSuffix), foreign)
	must(t, h.log.Roll())
	h.append(t, 100, record.CreateTime, h.nowMs)
	h.check(t)
	kept := h.names(t, keptSuffix)
	if len(kept) != 1 || !bytes.Equal(h.readFile(t, kept[0]), foreign) {
		t.Errorf("set aside: %v", kept)
	}
}

func TestST03_indexIsRebuilt(t *testing.T) {
	random := rand.NewChaCha8([32]byte{3})
	damages := map[string]func(b []byte) []byte{
		"removed":        func([]byte) []byte { return nil },
		"empty":          func([]byte) []byte { return []byte{} },
		"1 byte":         func(b []byte) []byte { return b[:1] },
		"7 bytes":        func(b []byte) []byte { return b[:7] },
		"half":           func(b []byte) []byte { return b[:len(b)/2] },
		"one entry less": func(b []byte) []byte { return b[:len(b)-indexEntrySize] },
		"random bytes": func(b []byte) []byte {
			_, _ = random.Read(b)
			return b
		},
		"another segment's": func(b []byte) []byte {
			return append(encodeIndexHeader(4711, 300), b[indexHeaderSize:]...)
		},
	}
	for what, damage := range damages {
		for _, which := range []string{"active", "sealed"} {
			for _, clean := range []bool{true, false} {
				t.Run(what+" "+which, func(t *testing.T) {
					h := openWith(t, testConfig(), 27)
					segment := h.log.view.Load().segments[1]
					if which == "active" {
						segment = h.log.view.Load().active()
					}
					stop(t, h, clean)
					name := segmentName(segment.base, indexSuffix)
					b := damage(h.readFile(t, name))
					must(t, h.mem.Remove(h.path(name)))
					if b != nil {
						h.write(t, name, b)
					}
					var events []Event
					l, rec, err := OpenLog(h.fault, testDir, h.cfg, OpenOptions{
						Clean: clean, Now: h.now, OnEvent: func(e Event) { events = append(events, e) },
					})
					must(t, err)
					h.log = l
					h.check(t)
					for at := h.m.start; at < h.m.end; at += 5 {
						if _, err := readAll(l, at, h.m.end); err != nil {
							t.Fatal(err)
						}
					}
					if _, _, _, err := l.OffsetForTime(h.nowMs+1, h.m.end); err != nil {
						t.Fatal(err)
					}
					must(t, checkIndexes(l, h.cfg.IndexIntervalBytes))
					events = append(events, rec.Events...)
					// An active index may end early: it is written in turns.
					early := which == "active" && (what == "one entry less" || what == "half")
					if !early && !hasEvent(events, EventIndexRebuilt, name) {
						t.Errorf("no event names %s: %v", name, events)
					}
					if rec.Suspicion != NotSuspect || rec.TornBytes > 0 {
						t.Errorf("%+v", rec)
					}
				})
			}
		}
	}
}

func TestST05_fullDiskInMidAppend(t *testing.T) {
	h := openWith(t, testConfig(), 3)
	b := h.batch(t, 100, h.nowMs)
	full := 0
	for room := range int64(b.FrameSize()) + 200 {
		_, total, _ := h.mem.Free("/")
		h.mem.SetCapacity(0)
		used := usedBytes(t, h.mem, "/")
		h.mem.SetCapacity(used + room + 1)
		before := h.readFile(t, segmentName(h.log.view.Load().active().base, logSuffix))
		_, err := h.log.Append(&b, h.m.epoch, record.CreateTime)
		if err == nil {
			h.mem.SetCapacity(0)
			h.truncate(t, h.m.end)
			// The model does not have it.
			must(t, h.log.TruncateTo(h.m.end))
			continue
		}
		full++
		if !errors.Is(err, ErrStorageFull) || errors.Is(err, ErrFailed) {
			t.Fatalf("append with room for %d of %d bytes (of %d): %v", room, b.FrameSize(), total, err)
		}
		h.check(t)
		after := h.readFile(t, segmentName(h.log.view.Load().active().base, logSuffix))
		if !bytes.Equal(before, after) {
			t.Fatalf("with room for %d bytes the file has %d, had %d", room, len(after), len(before))
		}
	}
	h.mem.SetCapacity(0)
	if full == 0 {
		t.Fatal("the disk was never full")
	}
	h.append(t, 100, record.CreateTime, h.nowMs)
	h.check(t)
	h.reopen(t, false)
	h.check(t)
}

func usedBytes(t *testing.T, mem *vfs.Mem, dir string) int64 {
	t.Helper()
	entries, err := mem.ReadDir(dir)
	must(t, err)
	var n int64
	for _, e := range entries {
		if e.IsDir {
			n += usedBytes(t, mem, filepath.Join(dir, e.Name))
		} else {
			n += e.Size
		}
	}
	return n
}

func TestST07_nextOffsetSurvivesAnEmptyLog(t *testing.T) {
	for _, name := range []string{"retention", "delete records"} {
		for _, how := range []string{"clean", "killed", "power cut"} {
			t.Run(name+" "+how, func(t *testing.T) {
				h := openWith(t, testConfig(), 5)
				if name == "retention" {
					h.nowMs += 2 * time.Hour.Milliseconds()
					h.retain(t, h.m.end)
				} else {
					h.deleteBefore(t, h.m.end)
				}
				if h.log.Start() != 10 || h.log.End() != 10 || h.log.Size() != 0 {
					t.Fatalf("log is %d to %d, %d bytes", h.log.Start(), h.log.End(), h.log.Size())
				}
				if how == "power cut" {
					h.mem = h.mem.CrashClone(rand.New(rand.NewPCG(1, 1)), vfs.CrashOptions{})
					h.fault = vfs.NewFault(h.mem)
					h.mustOpen(t, false)
				} else {
					h.reopen(t, how == "clean")
				}
				h.check(t)
				if e := h.log.EpochAt(9); e != 1 {
					t.Errorf("epoch of the last removed record is %d", e)
				}
				h.append(t, 10, record.CreateTime, h.nowMs)
				if h.m.batches[0].base != 10 {
					t.Errorf("the new record has offset %d", h.m.batches[0].base)
				}
				h.check(t)
			})
		}
	}
}

func TestST09_endIsTheNextOffset(t *testing.T) {
	h := newHarness(testConfig())
	h.mustOpen(t, false)
	h.startEpoch(t)
	for range 25 {
		h.append(t, 10, record.CreateTime, h.nowMs)
	}
	h.deleteBefore(t, 7)
	if h.log.Start() != 7 || h.log.End() != 25 {
		t.Errorf("log is %d to %d, want 7 to 25", h.log.Start(), h.log.End())
	}
	h.reopen(t, false)
	h.check(t)
}

func TestST10_futureTimestampDoesNotPinASegment(t *testing.T) {
	cfg := testConfig()
	cfg.RetentionTime = time.Minute
	h := newHarness(cfg)
	h.mustOpen(t, false)
	h.startEpoch(t)
	for range 20 {
		h.append(t, 10, record.CreateTime, h.nowMs)
	}
	h.append(t, 10, record.CreateTime, h.nowMs+10*365*24*time.Hour.Milliseconds())
	must(t, h.log.Roll())
	h.nowMs += 2 * time.Minute.Milliseconds()
	h.retain(t, h.m.end)
	if h.log.Start() != h.m.end || h.log.Size() != 0 {
		t.Errorf("log still begins at %d of %d", h.log.Start(), h.m.end)
	}
}

func TestST12_oneBoundaryAndIdempotent(t *testing.T) {
	const limit = int64(time.Hour / time.Millisecond)
	for _, c := range []struct {
		age  int64
		gone bool
	}{{limit - 1, false}, {limit, false}, {limit + 1, true}} {
		// A leader's log, and a follower's that has the same bytes and was
		// restarted since.
		h := openWith(t, testConfig(), 4)
		must(t, h.log.Roll())
		h.reopen(t, true)
		h.nowMs += c.age
		h.retain(t, h.m.end)
		if gone := h.log.Start() == h.m.end; gone != c.gone {
			t.Errorf("a segment %d ms from the limit: removed %v, want %v", c.age-limit, gone, c.gone)
		}
	}
}

func TestST12_afterDeleteRecordsIntoASegment(t *testing.T) {
	h := openWith(t, testConfig(), 30)
	second := h.log.view.Load().segments[1].base
	h.deleteBefore(t, second+3)
	if got := h.log.view.Load().segments[0].base; got != second {
		t.Fatalf("first segment is %d, want %d", got, second)
	}
	h.nowMs += 10
	h.retain(t, h.m.end)
	h.check(t)
}

func TestRetain_bySizeNeverCutsBelow(t *testing.T) {
	cfg := testConfig()
	cfg.RetentionTime = -1
	h := openWith(t, cfg, 40)
	sizes := []int64{}
	for _, s := range h.log.view.Load().segments {
		sizes = append(sizes, s.size.Load())
	}
	total := h.log.Size()
	for _, c := range []struct {
		limit int64
		want  int
	}{{total, 0}, {total - sizes[0] + 1, 0}, {total - sizes[0], 1}, {0, len(sizes) - 2}} {
		cfg.RetentionBytes = c.limit
		if c.limit == 0 {
			cfg.RetentionBytes = 1 // zero is the default
		}
		must(t, h.log.SetConfig(cfg))
		n, err := h.log.Retain(h.nowMs, h.m.end)
		if n != c.want || err != nil {
			t.Errorf("limit %d: removed %d, %v; want %d", c.limit, n, err, c.want)
		}
	}
	if h.log.Segments() != 1 || h.log.Size() == 0 {
		t.Errorf("size removed the active segment: %d segments, %d bytes", h.log.Segments(), h.log.Size())
	}
}

func TestRetain_nothingAboveTheHighWatermark(t *testing.T) {
	h := openWith(t, testConfig(), 30)
	v := h.log.view.Load()
	h.nowMs += 3 * time.Hour.Milliseconds()
	h.retain(t, v.segments[2].base-1)
	if got := h.log.Start(); got != v.segments[1].base {
		t.Errorf("log begins at %d, want %d", got, v.segments[1].base)
	}
}

func TestRetain_clockJump(t *testing.T) {
	h := openWith(t, testConfig(), 10)
	// The monotonic clock has not moved; the wall clock has, by a day.
	day := 24 * time.Hour.Milliseconds()
	if n, err := h.log.Retain(h.nowMs+day, h.m.end); n != 0 || !errors.Is(err, ErrClockJumped) {
		t.Fatalf("removed %d, %v; want ErrClockJumped", n, err)
	}
	h.check(t)
	// The next pass takes the new time for granted.
	if n, err := h.log.Retain(h.nowMs+day, h.m.end); n == 0 || err != nil {
		t.Fatalf("removed %d, %v", n, err)
	}
}

func TestST13_offsetForTime(t *testing.T) {
	for _, split := range []bool{true, false} {
		h := newHarness(testConfig())
		h.mustOpen(t, false)
		h.startEpoch(t)
		if split {
			for _, ms := range []int64{2, 4, 6, 8} {
				h.append(t, 10, record.CreateTime, ms)
			}
		} else {
			h.append(t, 10, record.CreateTime, 2, 4, 6, 8)
		}
		for ms, want := range []record.Offset{0, 0, 0, 1, 1, 2, 2, 3, 3, -1} {
			off, ts, found, err := h.log.OffsetForTime(int64(ms), h.m.end)
			must(t, err)
			if found != (want >= 0) || found && (off != want || ts != 2*int64(want)+2) {
				t.Errorf("offset for %d: %d at %d, %v; want %d", ms, off, ts, found, want)
			}
		}
	}
}

func TestST22_logStartInsideABatch(t *testing.T) {
	times := make([]int64, 100)
	for i := range times {
		times[i] = int64(i)
	}
	leader := newHarness(testConfig())
	leader.mustOpen(t, false)
	leader.startEpoch(t)
	leader.append(t, 10, record.CreateTime, times...)
	leader.deleteBefore(t, 50)
	leader.append(t, 10, record.CreateTime, 1000)
	leader.check(t)
	if off, _, found, err := leader.log.OffsetForTime(10, 101); off != 50 || !found || err != nil {
		t.Errorf("offset for a time below the log start: %d, %v, %v", off, found, err)
	}

	follower := newHarness(testConfig())
	follower.mustOpen(t, false)
	must(t, follower.log.Reset(50, 1))
	frames, err := readAll(leader.log, 50, leader.m.end)
	must(t, err)
	next, err := follower.log.AppendFrames(frames)
	if next != 101 || err != nil {
		t.Fatalf("the follower's log ends at %d, %v", next, err)
	}
	for _, clean := range []bool{true, false, true} {
		follower.m = leader.m.clone()
		follower.reopen(t, clean)
		if err := compare(follower.log, &leader.m); err != nil {
			t.Fatal(err)
		}
		leader.reopen(t, clean)
		leader.check(t)
	}
}

func TestOP07_startReadsOnlyWhatIsNeeded(t *testing.T) {
	cfg := testConfig()
	cfg.SegmentBytes, cfg.IndexIntervalBytes = 20_000, 1000
	h := openWith(t, cfg, 2000)
	segments := h.log.Segments()
	if segments < 20 {
		t.Fatalf("only %d segments", segments)
	}
	must(t, h.log.Close())
	h.mustOpen(t, false)
	active := h.log.view.Load().active()
	limit := 2 * active.size.Load() // it, its index, and the window
	stop(t, h, false)

	rec := h.mustOpen(t, false)
	if rec.BytesRead > limit {
		t.Errorf("an unclean start read %d bytes, more than the active segment's %d", rec.BytesRead, limit)
	}
	stop(t, h, false)
	// One early index is damaged: that segment is read, no other.
	h.write(t, segmentName(h.log.view.Load().segments[2].base, indexSuffix), []byte("x"))
	rec = h.mustOpen(t, false)
	if damaged := cfg.SegmentBytes; rec.BytesRead > limit+damaged+2*headerWindow {
		t.Errorf("with one damaged index the start read %d bytes, want at most %d", rec.BytesRead, limit+damaged)
	}
	if !hasEvent(rec.Events, EventIndexRebuilt, indexSuffix) {
		t.Errorf("no event: %v", rec.Events)
	}
	must(t, h.log.Close())
	if rec = h.mustOpen(t, true); rec.BytesRead > 2*headerWindow || !rec.Clean {
		t.Errorf("a clean start read %d bytes: %+v", rec.BytesRead, rec)
	}
	if n := h.mem.OpenFiles(); n > 1+defaultIdleFiles {
		t.Errorf("%d files open after a start", n)
	}
	h.check(t)
}
