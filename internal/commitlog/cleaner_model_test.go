package commitlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// A keyed is one record as the model of compaction knows it.
type keyed struct {
	offset record.Offset
	key    string
	value  []byte // nil: a tombstone
}

// A table is what a compacted log should mean: all that was ever appended to
// it, and when a pass first met each tombstone.
type table struct {
	h       *harness
	all     []keyed
	start   record.Offset
	cleaned record.Offset // limit of all passes so far
	met     map[record.Offset]int64
	codec   *record.Codec
	seq     int
}

func newTable(t rapid.TB, cfg Config) *table {
	m := &table{h: newHarness(cfg), met: map[record.Offset]int64{}, codec: record.NewCodec()}
	m.h.mustOpen(t, false)
	must(t, m.h.log.StartEpoch(1))
	return m
}

// append appends one batch; a value of "" is a tombstone.
func (m *table) append(t rapid.TB, c record.Compression, pairs ...[2]string) {
	b := record.NewBuilder(m.codec, record.Limits{})
	base := m.h.log.End()
	for i, p := range pairs {
		var value []byte
		if p[1] != "" {
			value = []byte(p[1])
		}
		must(t, b.Add([]byte(p[0]), value, nil, m.h.nowMs))
		m.all = append(m.all, keyed{base + record.Offset(i), p[0], value})
	}
	batch, err := b.Finish(c, 0)
	must(t, err)
	_, err = m.h.log.Append(&batch, max(m.h.log.LastEpoch(), 1), record.CreateTime)
	must(t, err)
}

// visible reads all there is, and what of it the batches are.
func (m *table) visible(t rapid.TB) []keyed {
	var list []keyed
	frames, err := readAll(m.h.log, m.h.log.Start(), m.h.log.End())
	must(t, err)
	next := record.Offset(-1)
	for len(frames) > 0 {
		f, v := record.CheckFrame(frames, record.MaxFrameSize)
		if v != record.OK || f.Header.BaseOffset < next {
			t.Fatalf("a frame at %d, expected from %d on, is %s", f.Header.BaseOffset, next, v)
		}
		next = f.Header.NextOffset()
		var it record.Iterator
		for it.Reset(f.Header, f.Payload(frames)); it.Next(); {
			if r := it.Record(); r.Offset >= m.h.log.Start() {
				list = append(list, keyed{r.Offset, string(r.Key), bytes.Clone(r.Value)})
			}
		}
		must(t, it.Err())
		frames = frames[f.Size:]
	}
	if next > m.h.log.End() {
		t.Fatalf("batches end at %d, the log at %d", next, m.h.log.End())
	}
	return list
}

// check compares what the log says with what it should mean.
func (m *table) check(t rapid.TB) {
	seen := m.visible(t)
	there := map[record.Offset]keyed{}
	last := map[string]keyed{}
	for _, k := range m.all {
		if k.offset >= m.start {
			there[k.offset] = k
			last[k.key] = k
		}
	}
	byKey := map[string][]record.Offset{}
	for _, k := range seen {
		was, ok := there[k.offset]
		if !ok || was.key != k.key || !bytes.Equal(was.value, k.value) || (was.value == nil) != (k.value == nil) {
			t.Fatalf("offset %d is %q=%q, appended was %q=%q", k.offset, k.key, k.value, was.key, was.value)
		}
		byKey[k.key] = append(byKey[k.key], k.offset)
	}
	for key, k := range last {
		offsets := byKey[key]
		if slices.Contains(offsets, k.offset) {
			continue
		}
		met, ok := m.met[k.offset]
		retention := m.h.log.Config().DeleteRetention.Milliseconds()
		switch {
		case k.value != nil:
			t.Fatalf("the last record of %q, at %d, is gone; there are %v", key, k.offset, offsets)
		case len(offsets) > 0:
			t.Fatalf("the tombstone of %q at %d is gone, and %v are there", key, k.offset, offsets)
		case !ok || m.h.nowMs < met+retention:
			t.Fatalf("the tombstone of %q at %d is gone at %d, first met at %d", key, k.offset, m.h.nowMs, met)
		case k.offset >= m.h.log.PurgedTo():
			t.Fatalf("the tombstone of %q at %d is gone, and purged_to is %d", key, k.offset, m.h.log.PurgedTo())
		}
	}
}

// clean runs a pass and checks what it promises.
func (m *table) clean(t rapid.TB, limit record.Offset, mapBytes int64) Cleaned {
	m.cleaned = max(m.cleaned, limit)
	for _, k := range m.all {
		if _, ok := m.met[k.offset]; !ok && k.value == nil && k.offset < limit {
			m.met[k.offset] = m.h.nowMs
		}
	}
	end := m.h.log.End()
	done, err := m.h.log.Clean(context.Background(), CleanOptions{NowMs: m.h.nowMs, Limit: limit, MapBytes: mapBytes, Codec: m.codec})
	must(t, err)
	if m.h.log.End() != end {
		t.Fatalf("the log ended at %d, and does at %d after a pass", end, m.h.log.End())
	}
	once := map[string]record.Offset{}
	for _, k := range m.visible(t) {
		if before, ok := once[k.key]; ok && k.offset < done.To {
			t.Fatalf("%q is at %d and at %d, cleaned to %d", k.key, before, k.offset, done.To)
		}
		once[k.key] = k.offset
	}
	m.checkFiles(t)
	return done
}

// checkFiles looks for what a pass must leave of the files.
func (m *table) checkFiles(t rapid.TB) {
	entries, err := m.h.mem.ReadDir(testDir)
	must(t, err)
	for _, e := range entries {
		if _, _, swap := parseSwapName(e.Name); swap || bytes.HasSuffix([]byte(e.Name), []byte(vfs.TempSuffix)) {
			t.Fatalf("%s is left", e.Name)
		}
	}
	must(t, checkIndexes(m.h.log, m.h.cfg.IndexIntervalBytes))
	v := m.h.log.view.Load()
	for i, s := range v.segments[:len(v.segments)-1] {
		b, err := vfs.ReadFile(m.h.mem, s.file.path)
		must(t, err)
		next := s.base
		for len(b) > 0 {
			f, _ := record.CheckFrame(b, record.MaxFrameSize)
			next = f.Header.NextOffset()
			b = b[f.Size:]
		}
		if next != v.segments[i+1].base && v.segments[i+1].base > v.start {
			t.Fatalf("segment %d ends at %d, the next one begins at %d", s.base, next, v.segments[i+1].base)
		}
	}
}

func (m *table) truncate(t rapid.TB, to record.Offset) {
	must(t, m.h.log.TruncateTo(to))
	end := m.h.log.End()
	m.all = slices.DeleteFunc(m.all, func(k keyed) bool { return k.offset >= end })
	for o := range m.met {
		if o >= end {
			delete(m.met, o)
		}
	}
	if end < m.cleaned {
		// What was committed goes: the log means what is left of it.
		m.all = m.visible(t)
		m.cleaned = end
	}
}

func (m *table) reopen(t rapid.TB, clean bool) {
	if clean {
		must(t, m.h.log.Close())
	} else {
		m.h.mem.Kill()
	}
	m.h.mustOpen(t, clean)
	must(t, m.h.log.StartEpoch(max(m.h.log.LastEpoch(), 0)+1))
}

// Whatever is appended, rolled, compacted, cut, deleted and reopened: the last
// value of each key is there, at its offset, nothing deleted comes back, and
// tombstones stay for their time.
func TestClean_rapid(tt *testing.T) {
	rapid.Check(tt, func(t *rapid.T) {
		cfg := testConfig()
		cfg.Compact, cfg.DeleteRetention = true, time.Minute
		cfg.SegmentBytes = rapid.SampledFrom([]int64{400, 1200, 5000}).Draw(t, "segment bytes")
		m := newTable(t, cfg)
		keys := rapid.SampledFrom([]int{3, 20}).Draw(t, "keys")
		step := func(t *rapid.T) {
			l := m.h.log
			offset := func(name string) record.Offset {
				return record.Offset(rapid.Int64Range(int64(l.Start()), int64(l.End())).Draw(t, name))
			}
			switch rapid.IntRange(0, 13).Draw(t, "operation") {
			case 0, 1, 2, 3, 4:
				var pairs [][2]string
				for range rapid.IntRange(1, 6).Draw(t, "records") {
					m.seq++
					value := fmt.Sprintf("value %d", m.seq)
					if rapid.IntRange(0, 3).Draw(t, "tombstone") == 0 {
						value = ""
					}
					pairs = append(pairs, [2]string{fmt.Sprintf("k%d", rapid.IntRange(0, keys-1).Draw(t, "key")), value})
				}
				m.append(t, record.Compression(rapid.IntRange(1, 5).Draw(t, "compression")), pairs...)
			case 5:
				must(t, l.Roll())
			case 6:
				must(t, l.Sync())
			case 7, 8, 9:
				must(t, l.Sync())
				limit := max(offset("limit"), m.cleaned)
				m.clean(t, min(limit, l.End()), rapid.SampledFrom([]int64{1, 100, 1 << 20}).Draw(t, "map"))
			case 10:
				m.h.nowMs += rapid.Int64Range(0, 90_000).Draw(t, "pass")
			case 11:
				m.reopen(t, rapid.Bool().Draw(t, "clean"))
			case 12:
				m.truncate(t, offset("truncate"))
			default:
				m.start = offset("delete before")
				must(t, l.DeleteBefore(m.start))
			}
			m.check(t)
		}
		for range rapid.IntRange(5, 60).Draw(t, "steps") {
			step(t)
		}
		must(t, m.h.log.Close())
	})
}

// cleanAll runs passes until none has more to do.
func (m *table) cleanAll(t rapid.TB, mapBytes int64) (passes int, sum Cleaned) {
	must(t, m.h.log.Sync())
	for {
		done := m.clean(t, m.h.log.End(), mapBytes)
		passes++
		sum.Superseded += done.Superseded
		sum.Tombstones += done.Tombstones
		sum.Keyless += done.Keyless
		sum.BytesWritten += done.BytesWritten
		sum.To = done.To
		if !done.More {
			return passes, sum
		}
		if passes > 1000 {
			t.Fatalf("no end after %d passes", passes)
		}
	}
}

func cleanErr(t rapid.TB, l *Log, nowMs int64) error {
	must(t, l.Sync())
	_, err := l.Clean(context.Background(), CleanOptions{NowMs: nowMs, Limit: l.End()})
	if err != nil && errors.Is(err, ErrFailed) {
		t.Fatalf("a pass failed the root: %v", err)
	}
	return err
}
