package commitlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

const testDir = "data/topic/0"

// A modelBatch is a batch as the model knows it.
type modelBatch struct {
	base, last record.Offset
	after      record.Offset // the log's end before it
	epoch      record.Epoch
	appendTime int64
	frame      []byte
	producer   record.ProducerID
	times      []int64 // of its records
	// offsets are those of its records; nil stands for all from base to last.
	offsets []record.Offset
}

func (b *modelBatch) offset(i int) record.Offset {
	if b.offsets != nil {
		return b.offsets[i]
	}
	return b.base + record.Offset(i)
}

// A model is what a log should hold, kept in a slice.
type model struct {
	start, end, durable record.Offset
	// batches are those that reach beyond the start, in order.
	batches    []modelBatch
	lastAppend int64
	epoch      record.Epoch
	// heads are the producers' batches, also those that retention removed.
	heads []head
	// cleaned is the offset below which compaction has been. What it took is told
	// of by snapshots at or above it: it must be committed, so no cut goes there.
	cleaned record.Offset
	// anyHeads says that what the log remembers of producers is not told: a crash
	// in a reset leaves a part of what is to go.
	anyHeads bool
}

func (m *model) clone() model {
	c := *m
	c.batches = slices.Clone(m.batches)
	c.heads = slices.Clone(m.heads)
	return c
}

func (m *model) append(b modelBatch) {
	b.after = m.end
	m.batches = append(m.batches, b)
	if b.producer != 0 {
		m.heads = append(m.heads, head{b.producer, b.base, b.last})
	}
	m.end = b.last + 1
	m.lastAppend = max(m.lastAppend, b.appendTime)
	m.epoch = max(m.epoch, b.epoch)
}

func (m *model) truncate(o record.Offset) {
	keep := len(m.batches)
	for keep > 0 && m.batches[keep-1].last >= o {
		keep--
	}
	if keep < len(m.batches) {
		m.end = m.batches[keep].after
	}
	m.batches = m.batches[:keep]
	m.end = max(m.end, m.start)
	for len(m.heads) > 0 && m.heads[len(m.heads)-1].last >= m.end {
		m.heads = m.heads[:len(m.heads)-1]
	}
	m.durable = min(m.durable, m.end)
}

func (m *model) deleteBefore(o record.Offset) {
	m.start = max(m.start, o)
	m.durable = max(m.durable, m.start)
	for len(m.batches) > 0 && m.batches[0].last < m.start {
		m.batches = m.batches[1:]
	}
}

// from returns the frames that hold the offsets of [from, end).
func (m *model) from(from, end record.Offset) []byte {
	var b []byte
	for _, batch := range m.batches {
		if batch.last >= from && batch.base < end {
			b = append(b, batch.frame...)
		}
	}
	return b
}

// forTime is OffsetForTime, by looking at every record.
func (m *model) forTime(ms int64, end record.Offset) (record.Offset, int64, bool) {
	for _, b := range m.batches {
		for i, t := range b.times {
			off := b.offset(i)
			if off >= m.start && off < end && t >= ms {
				return off, t, true
			}
		}
	}
	return 0, 0, false
}

// A harness drives a log and its model together.
type harness struct {
	mem   *vfs.Mem
	fault *vfs.Fault
	cfg   Config
	log   *Log
	m     model
	// before is the model when the operation under way began, nil between
	// operations. A crash may leave a prefix of either.
	before  *model
	nowMs   int64
	builder *record.Builder
	seq     int
	// producers is whether the logs have an owner of producers' state.
	producers bool
	// keys is how many keys the records have; 0 for records without.
	keys int
}

// testConfig has segments of a few batches and an index that skips few.
func testConfig() Config {
	return Config{SegmentBytes: 2048, IndexIntervalBytes: 300, RetentionTime: time.Hour, SegmentAge: time.Hour}
}

func newHarness(cfg Config) *harness {
	mem := vfs.NewMem()
	return &harness{
		mem: mem, fault: vfs.NewFault(mem), cfg: cfg, nowMs: 1_000_000_000_000,
		builder: record.NewBuilder(record.NewCodec(), record.Limits{}),
	}
}

// now is the log's clock; both of its readings are the harness's to move.
func (h *harness) now() time.Time { return time.UnixMilli(h.nowMs) }

func (h *harness) open(clean bool) (Recovery, error) {
	l, rec, err := OpenLog(h.fault, testDir, h.config(), OpenOptions{Clean: clean, Now: h.now})
	h.log = l
	return rec, err
}

func (h *harness) mustOpen(t rapid.TB, clean bool) Recovery {
	t.Helper()
	rec, err := h.open(clean)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return rec
}

// batch makes a batch of records with the given times, and values of size
// bytes that no other batch has.
func (h *harness) batch(t rapid.TB, size int, times ...int64) record.Batch {
	t.Helper()
	h.builder.Reset()
	for _, ms := range times {
		h.seq++
		value := fmt.Appendf(nil, "%08d", h.seq)
		value = append(value, bytes.Repeat([]byte{'v'}, max(0, size-len(value)))...)
		var key []byte
		if h.keys > 0 {
			if key = fmt.Appendf(nil, "k%d", h.seq%h.keys); h.seq%5 == 0 {
				value = nil
			}
		}
		if err := h.builder.Add(key, value, nil, ms); err != nil {
			t.Fatal(err)
		}
	}
	b, err := h.builder.Finish(record.CompressionNone, 0)
	if err != nil {
		t.Fatal(err)
	}
	if id := record.ProducerID(h.seq % 4); id != 0 && h.producers {
		b.ProducerID, b.BaseSequence = id, 0
	}
	return b
}

// prepare says what b will be in the log.
func (h *harness) prepare(b *record.Batch, epoch record.Epoch, tt record.TimestampType, times []int64) modelBatch {
	appendTime := max(h.nowMs, h.m.lastAppend)
	frame := bytes.Clone(b.Seal(h.m.end, epoch, appendTime, tt))
	times = slices.Clone(times)
	if tt == record.LogAppendTime {
		for i := range times {
			times[i] = appendTime
		}
	}
	return modelBatch{
		base: h.m.end, last: h.m.end + record.Offset(len(times)) - 1, epoch: epoch,
		appendTime: appendTime, frame: frame, times: times, producer: b.ProducerID,
	}
}

// begin marks an operation as under way that leads to next.
func (h *harness) begin(next model) {
	before := h.m.clone()
	h.before, h.m = &before, next
}

func (h *harness) done() { h.before = nil }

func (h *harness) append(t rapid.TB, size int, tt record.TimestampType, times ...int64) {
	t.Helper()
	b := h.batch(t, size, times...)
	want := h.prepare(&b, h.m.epoch, tt, times)
	next := h.m.clone()
	next.append(want)
	h.begin(next)
	defer h.done()

	got, err := h.log.Append(&b, want.epoch, tt)
	if err != nil {
		t.Fatalf("append: %v", err)
	}
	if diff := cmp.Diff(Appended{want.base, want.last, want.appendTime}, got); diff != "" {
		t.Fatalf("append (-want +got):\n%s", diff)
	}
}

// appendFrames appends batches as a follower does, gap offsets after the end.
func (h *harness) appendFrames(t rapid.TB, size, batches int, gap record.Offset) {
	t.Helper()
	next := h.m.clone()
	var frames []byte
	saved := h.m
	for range batches {
		times := []int64{h.nowMs, h.nowMs - 1}
		b := h.batch(t, size, times...)
		h.m = next.clone()
		h.m.end += gap
		mb := h.prepare(&b, h.m.epoch, record.CreateTime, times)
		next.append(mb)
		frames = append(frames, mb.frame...)
	}
	h.m = saved
	h.begin(next)
	defer h.done()

	end, err := h.log.AppendFrames(frames)
	if err != nil || end != h.m.end {
		t.Fatalf("append frames: end %d, %v; want %d", end, err, h.m.end)
	}
}

func (h *harness) sync(t rapid.TB) {
	t.Helper()
	if err := h.log.Sync(); err != nil {
		t.Fatalf("sync: %v", err)
	}
	h.m.durable = h.m.end
	h.log.SetHighWatermark(h.m.durable)
}

func (h *harness) truncate(t rapid.TB, o record.Offset) {
	t.Helper()
	next := h.m.clone()
	next.truncate(o)
	next.anyHeads = next.anyHeads || o < next.cleaned
	h.begin(next)
	h.before.anyHeads = next.anyHeads
	defer h.done()

	if err := h.log.TruncateTo(o); err != nil {
		t.Fatalf("truncate to %d: %v", o, err)
	}
	h.m.durable = min(h.m.durable, h.m.end)
}

func (h *harness) deleteBefore(t rapid.TB, o record.Offset) {
	t.Helper()
	next := h.m.clone()
	next.deleteBefore(o)
	h.begin(next)
	defer h.done()

	if err := h.log.DeleteBefore(o); err != nil {
		t.Fatalf("delete before %d: %v", o, err)
	}
}

// retain runs a pass, of which the model knows only that it may raise the
// start to somewhere below the high watermark; the rules have tests of their
// own. The second pass must find nothing.
func (h *harness) retain(t rapid.TB, hw record.Offset) {
	t.Helper()
	if _, err := h.log.Retain(h.nowMs, hw); err != nil {
		t.Fatalf("retain: %v", err)
	}
	start := h.log.Start()
	if start < h.m.start || start > max(hw, h.m.start) {
		t.Fatalf("retain moved the start from %d to %d, high watermark %d", h.m.start, start, hw)
	}
	if start > h.m.start {
		h.m.deleteBefore(start)
	}
	if n, err := h.log.Retain(h.nowMs, hw); n != 0 || err != nil {
		t.Fatalf("a second retention pass removed %d, %v", n, err)
	}
}

// clean compacts. The model takes over what replaces a group just before it
// does; what it may be has tests of its own.
func (h *harness) clean(t rapid.TB, mapBytes int64) {
	t.Helper()
	h.sync(t)
	_, err := h.log.Clean(context.Background(), CleanOptions{NowMs: h.nowMs, Limit: h.m.end, MapBytes: mapBytes, swapping: func(g *group, by *segment) {
		frames, err := vfs.ReadFile(h.mem, g.path)
		if err != nil {
			t.Fatal(err)
		}
		next := h.m.clone()
		next.replace(frames, by.base, g.end)
		h.begin(next)
	}})
	h.done()
	if err != nil {
		t.Fatalf("clean: %v", err)
	}
}

// replace puts frames in the place of the batches of [from, to).
func (m *model) replace(frames []byte, from, to record.Offset) {
	var batches []modelBatch
	for _, b := range m.batches {
		if b.after < from {
			batches = append(batches, b)
		}
	}
	after := from
	for len(frames) > 0 {
		f, _ := record.CheckFrame(frames, record.MaxFrameSize)
		h := f.Header
		b := modelBatch{
			base: h.BaseOffset, last: h.LastOffset(), after: after, epoch: h.LeaderEpoch, appendTime: h.AppendTimeMs,
			frame: bytes.Clone(frames[:f.Size]), offsets: []record.Offset{},
		}
		var it record.Iterator
		for it.Reset(h, f.Payload(frames)); it.Next(); {
			b.times = append(b.times, it.Record().TimestampMs)
			b.offsets = append(b.offsets, it.Record().Offset)
		}
		if b.last >= m.start {
			batches = append(batches, b)
		}
		after = h.NextOffset()
		frames = frames[f.Size:]
	}
	for _, b := range m.batches {
		if b.after >= to {
			batches = append(batches, b)
		}
	}
	m.batches = batches
	m.cleaned = max(m.cleaned, to)
}

func (h *harness) reset(t rapid.TB, start record.Offset) {
	t.Helper()
	next := model{start: start, end: start, durable: start, lastAppend: h.m.lastAppend, epoch: h.m.epoch + 1}
	h.begin(next)
	h.before.anyHeads = true
	h.before.durable = 0 // all is to go: a crash may leave any prefix
	defer h.done()

	if err := h.log.Reset(start, next.epoch); err != nil {
		t.Fatalf("reset: %v", err)
	}
}

func (h *harness) startEpoch(t rapid.TB) {
	t.Helper()
	h.m.epoch++
	if err := h.log.StartEpoch(h.m.epoch); err != nil {
		t.Fatalf("start epoch: %v", err)
	}
}

// reopen closes the log, or kills its process, and opens it again.
func (h *harness) reopen(t rapid.TB, clean bool) Recovery {
	t.Helper()
	if clean {
		if err := h.log.Close(); err != nil {
			t.Fatalf("close: %v", err)
		}
		if n := h.mem.OpenFiles(); n != 0 {
			t.Fatalf("%d files are open after Close", n)
		}
		h.m.durable = h.m.end
	} else {
		h.mem.Kill()
	}
	rec := h.mustOpen(t, clean)
	if rec.Clean != clean || rec.Suspicion != NotSuspect || rec.TornBytes != 0 || len(rec.Events) > 0 {
		t.Fatalf("recovery after a %s stop: %+v", map[bool]string{true: "clean", false: "killed"}[clean], rec)
	}
	// The process is gone, the page cache is not, and recovery has synced it.
	h.m.durable = h.m.end
	if last := h.log.LastEpoch(); last > 0 {
		h.m.epoch = last
	}
	return rec
}

// check compares the log with its model, by every way to look at it.
func (h *harness) check(t rapid.TB) {
	t.Helper()
	if err := compare(h.log, &h.m); err != nil {
		t.Fatal(err)
	}
	if d := h.log.Durable(); d < h.m.durable || d > h.m.end {
		t.Fatalf("durable up to %d, want %d to %d", d, h.m.durable, h.m.end)
	}
}

// compare says how a log differs from a model.
func compare(l *Log, m *model) error {
	if l.Start() != m.start || l.End() != m.end {
		return fmt.Errorf("log is %d to %d, want %d to %d", l.Start(), l.End(), m.start, m.end)
	}
	got, err := readAll(l, m.start, m.end)
	if err != nil {
		return err
	}
	if want := m.from(m.start, m.end); !bytes.Equal(got, want) {
		return fmt.Errorf("read %d bytes that are not the %d of the model", len(got), len(want))
	}
	if err := checkChains(l, m.heads); err != nil && !m.anyHeads {
		return err
	}
	for _, b := range m.batches {
		if e := l.EpochAt(b.base); b.base >= m.start && e != b.epoch {
			return fmt.Errorf("epoch of offset %d is %d, want %d", b.base, e, b.epoch)
		}
	}
	return nil
}

// readAll reads by offsets, as a consumer does.
func readAll(l *Log, from, end record.Offset) ([]byte, error) {
	var all []byte
	buf := make([]byte, 700)
	for from < end {
		n, err := l.Read(buf, from, end)
		if short, ok := errors.AsType[*ShortBufferError](err); ok {
			buf = make([]byte, short.Need)
			continue
		}
		if err != nil {
			return all, fmt.Errorf("read at %d: %w", from, err)
		}
		if n == 0 {
			break
		}
		all = append(all, buf[:n]...)
		for b := buf[:n]; len(b) > 0; {
			f, v := record.CheckFrame(b, record.MaxFrameSize)
			if v != record.OK {
				return all, fmt.Errorf("read at %d: frame is %s", from, v)
			}
			from = f.Header.NextOffset()
			b = b[f.Size:]
		}
	}
	return all, nil
}

// checkIndexes compares each index with one made from scratch, and each index
// file with what the log says is in it.
func checkIndexes(l *Log, interval int) error {
	if err := l.Checkpoint(); err != nil {
		return err
	}
	for _, s := range l.view.Load().segments {
		b, err := vfs.ReadFile(l.fs, s.index.file.path)
		if err != nil {
			return err
		}
		_, got, whole, err := parseIndex(b, s.base)
		if err != nil || !whole {
			return fmt.Errorf("%s: whole %v: %w", s.index.file.path, whole, errors.Join(err, errBadIndex))
		}
		f, err := vfs.ReadFile(l.fs, s.file.path)
		if err != nil {
			return err
		}
		if int64(len(f)) != s.size.Load() {
			return fmt.Errorf("%s has %d bytes, the log knows %d", s.file.path, len(f), s.size.Load())
		}
		want := scratchIndex(f, interval)
		if !slices.Equal(got, want) {
			return fmt.Errorf("%s: index %v, from scratch %v", filepath.Base(s.file.path), got, want)
		}
	}
	return nil
}

func scratchIndex(segment []byte, interval int) []entry {
	var entries []entry
	last, maxTime := 0, int64(noTimestamp)
	for pos := 0; pos < len(segment); {
		f, v := record.CheckFrame(segment[pos:], record.MaxFrameSize)
		if v != record.OK {
			break
		}
		if pos-last >= interval {
			entries = append(entries, entry{f.Header.BaseOffset, int64(pos), maxTime})
			last = pos
		}
		maxTime = max(maxTime, timestamp(&f.Header))
		pos += f.Size
	}
	return entries
}
