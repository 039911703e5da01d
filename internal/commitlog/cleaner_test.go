package commitlog

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

func compactConfig() Config {
	cfg := testConfig()
	cfg.Compact, cfg.DeleteRetention = true, time.Hour
	return cfg
}

// sealed appends nothing more to what there is: all of it may be compacted.
func (m *table) seal(t *testing.T) {
	t.Helper()
	must(t, m.h.log.Roll())
	must(t, m.h.log.Sync())
}

func (m *table) show(t *testing.T) string {
	t.Helper()
	var out []string
	for _, k := range m.visible(t) {
		if k.value == nil {
			out = append(out, fmt.Sprintf("%d:%s-", k.offset, k.key))
		} else {
			out = append(out, fmt.Sprintf("%d:%s=%s", k.offset, k.key, k.value))
		}
	}
	return strings.Join(out, " ")
}

func (m *table) want(t *testing.T, want string) {
	t.Helper()
	if got := m.show(t); got != want {
		t.Fatalf("the log has\n%s\nwant\n%s", got, want)
	}
}

// ST-15: a read at an offset in a hole, also one across segments, returns the
// next batch there is, and a time lookup the next record.
func TestClean_readsInHoles(t *testing.T) {
	cfg := compactConfig()
	m := newTable(t, cfg)
	m.append(t, record.CompressionNone, [2]string{"first", "1"})
	for i := range 60 { // several segments
		m.h.nowMs += 1000
		m.append(t, record.CompressionNone, [2]string{"k", fmt.Sprint(i)}, [2]string{"l", fmt.Sprint(i)})
	}
	m.seal(t)
	if m.h.log.Segments() < 4 {
		t.Fatalf("%d segments", m.h.log.Segments())
	}
	holeMs := m.h.nowMs - 30_000
	m.append(t, record.CompressionNone, [2]string{"after", "2"})
	m.cleanAll(t, 0)
	m.want(t, "0:first=1 119:k=59 120:l=59 121:after=2")
	buf := make([]byte, 1<<16)
	for from := record.Offset(0); from <= 121; from++ {
		next, got := from, record.Offset(-1)
		for reads := 0; got < 0; reads++ {
			n, err := m.h.log.Read(buf, next, m.h.log.End())
			if err != nil || n == 0 || reads > 3 {
				t.Fatalf("read %d from %d, for %d: %d bytes, %v", reads, next, from, n, err)
			}
			for b := buf[:n]; len(b) > 0 && got < 0; {
				f, _ := record.CheckFrame(b, record.MaxFrameSize)
				if f.Header.NextOffset() <= next {
					t.Fatalf("a read at %d returned the batch that ends at %d", next, f.Header.LastOffset())
				}
				next = f.Header.NextOffset()
				var it record.Iterator
				for it.Reset(f.Header, f.Payload(b)); it.Next(); {
					if o := it.Record().Offset; o >= from {
						got = o
						break
					}
				}
				b = b[f.Size:]
			}
		}
		want := record.Offset(121)
		switch {
		case from == 0:
			want = 0
		case from <= 119:
			want = 119
		case from == 120:
			want = 120
		}
		if got != want {
			t.Fatalf("from %d the first record is %d, want %d", from, got, want)
		}
	}
	if off, _, found, err := m.h.log.OffsetForTime(holeMs, m.h.log.End()); off != 119 || !found || err != nil {
		t.Fatalf("the first record after a time in the hole is %d, %v, %v", off, found, err)
	}
	m.reopen(t, false)
	m.want(t, "0:first=1 119:k=59 120:l=59 121:after=2")
}

// ST-18: passes over next to nothing end, and a second one has nothing to do.
func TestClean_nearlyEmpty(t *testing.T) {
	for name, test := range map[string]struct {
		batches [][][2]string
		want    string
	}{
		"empty":                {want: ""},
		"one tombstone":        {batches: [][][2]string{{{"k", ""}}}, want: "0:k-"},
		"ends in a tombstone":  {batches: [][][2]string{{{"k", "1"}}, {{"k", ""}}}, want: "1:k-"},
		"a batch without rest": {batches: [][][2]string{{{"k", "1"}, {"l", "1"}}, {{"k", "2"}, {"l", "2"}}}, want: "2:k=2 3:l=2"},
		"an empty key":         {batches: [][][2]string{{{"", "1"}}, {{"", "2"}}}, want: "1:=2"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newTable(t, compactConfig())
			for _, b := range test.batches {
				m.append(t, record.CompressionNone, b...)
			}
			m.seal(t)
			m.cleanAll(t, 0)
			m.want(t, test.want)
			if _, again := m.cleanAll(t, 0); again.BytesWritten != 0 {
				t.Fatalf("the second pass wrote %d bytes", again.BytesWritten)
			}
			if d, err := m.h.log.Dirt(m.h.nowMs, m.h.log.End()); d.Bytes != 0 || d.Due || err != nil {
				t.Fatalf("dirt %+v, %v after a pass", d, err)
			}
		})
	}
}

// Records without a key, of a time before the topic was compacted, go.
func TestClean_keyless(t *testing.T) {
	m := newTable(t, compactConfig())
	m.h.m.epoch = 1
	m.h.append(t, 10, record.CreateTime, 1, 2, 3)
	m.append(t, record.CompressionNone, [2]string{"k", "1"})
	m.seal(t)
	_, done := m.cleanAll(t, 0)
	if m.want(t, "3:k=1"); done.Keyless != 3 || done.Superseded != 0 {
		t.Fatalf("done: %+v", done)
	}
}

// ST-19: an empty value is a value, and no tombstone.
func TestClean_emptyValueStays(t *testing.T) {
	m := newTable(t, compactConfig())
	b := record.NewBuilder(m.codec, record.Limits{})
	must(t, b.Add([]byte("k1"), nil, nil, 1))
	must(t, b.Add([]byte("k2"), []byte{}, nil, 1))
	batch, err := b.Finish(record.CompressionNone, 0)
	must(t, err)
	_, err = m.h.log.Append(&batch, 1, record.CreateTime)
	must(t, err)
	m.seal(t)
	m.cleanAll(t, 0)
	m.h.nowMs += 3 * time.Hour.Milliseconds()
	must(t, cleanErr(t, m.h.log, m.h.nowMs))
	if got := m.visible(t); len(got) != 1 || got[0].key != "k2" || got[0].value == nil || len(got[0].value) != 0 {
		t.Fatalf("left is %+v", got)
	}
}

// ST-21: a tombstone stays for its time after the first pass, and then goes,
// and idle passes write nothing and make no segments.
func TestClean_tombstones(t *testing.T) {
	m := newTable(t, compactConfig())
	m.append(t, record.CompressionNone, [2]string{"1", "v"}, [2]string{"2", "v"})
	m.append(t, record.CompressionNone, [2]string{"1", ""})
	m.seal(t)
	m.cleanAll(t, 0)
	m.want(t, "1:2=v 2:1-")
	m.h.nowMs += 30 * time.Minute.Milliseconds()
	m.cleanAll(t, 0)
	m.want(t, "1:2=v 2:1-")
	if m.h.log.PurgedTo() != 0 {
		t.Fatalf("purged to %d, and nothing was", m.h.log.PurgedTo())
	}
	if d, _ := m.h.log.Dirt(m.h.nowMs, m.h.log.End()); d.Due {
		t.Fatal("a pass is due before the tombstone's time")
	}
	m.reopen(t, true)
	m.h.nowMs += 90 * time.Minute.Milliseconds()
	must(t, m.h.log.Sync())
	if d, _ := m.h.log.Dirt(m.h.nowMs, m.h.log.End()); !d.Due {
		t.Fatal("no pass is due, and a tombstone may go")
	}
	// The clock has jumped since the log was opened, for all it knows.
	m.h.log.cleanClocks = clocks{m.h.nowMs, m.h.now()}
	m.cleanAll(t, 0)
	m.want(t, "1:2=v")
	if m.h.log.PurgedTo() != 3 {
		t.Fatalf("purged to %d, want 3", m.h.log.PurgedTo())
	}
	segments := m.h.log.Segments()
	for range 20 {
		m.h.nowMs += 30 * time.Minute.Milliseconds()
		if _, done := m.cleanAll(t, 0); done.BytesWritten != 0 || m.h.log.Segments() != segments {
			t.Fatalf("an idle pass: %+v, %d segments", done, m.h.log.Segments())
		}
	}
	m.reopen(t, false)
	if m.h.log.PurgedTo() != 3 {
		t.Fatalf("purged to %d after a restart, want 3", m.h.log.PurgedTo())
	}
}

// A tombstone whose batch the map did not reach the end of is not met yet.
func TestClean_horizonOnlyOfWholeBatches(t *testing.T) {
	m := newTable(t, compactConfig())
	m.append(t, record.CompressionNone, [2]string{"b", "old"})
	m.seal(t)
	m.cleanAll(t, 0)
	m.append(t, record.CompressionNone, [2]string{"a", ""}, [2]string{"b", ""})
	m.seal(t)
	if done := m.clean(t, m.h.log.End(), 1); !done.More {
		t.Fatalf("one pass was enough: %+v", done)
	}
	m.h.nowMs += 90 * time.Minute.Milliseconds()
	m.h.log.cleanClocks = clocks{m.h.nowMs, m.h.now()}
	m.cleanAll(t, 0)
	m.want(t, "1:a- 2:b-")
}

// When the wall clock ran away from the monotonic one a pass removes no
// tombstone.
func TestClean_clockJump(t *testing.T) {
	m := newTable(t, compactConfig())
	m.append(t, record.CompressionNone, [2]string{"1", ""})
	m.seal(t)
	m.cleanAll(t, 0)
	for i, want := range []string{"0:1-", ""} {
		_, err := m.h.log.Clean(context.Background(), CleanOptions{NowMs: m.h.nowMs + 5*time.Hour.Milliseconds(), Limit: m.h.log.End()})
		must(t, err)
		if got := m.show(t); got != want {
			t.Fatalf("pass %d: %q, want %q", i, got, want)
		}
	}
}

// What a swap takes away is known durably before it does.
func TestClean_purgedIsDurableFirst(t *testing.T) {
	m := newTable(t, compactConfig())
	m.append(t, record.CompressionNone, [2]string{"1", ""}, [2]string{"2", "v"})
	m.seal(t)
	m.cleanAll(t, 0)
	m.h.nowMs += 2 * time.Hour.Milliseconds()
	m.h.log.cleanClocks = clocks{m.h.nowMs, m.h.now()}
	cuts := 0
	m.h.fault.Before(vfs.OpSyncPoints, func(vfs.Op, string) {
		disk := m.h.mem.CrashClone(rand.New(rand.NewPCG(1, uint64(cuts))), vfs.CrashOptions{KeepUnsyncedPercent: 50})
		cuts++
		l, _, err := OpenLog(disk, testDir, m.h.cfg, OpenOptions{Now: m.h.now})
		must(t, err)
		frames, err := readAll(l, 0, l.End())
		must(t, err)
		f, _ := record.CheckFrame(frames, record.MaxFrameSize)
		if f.Header.RecordCount == 1 && (l.PurgedTo() != 1 || l.CleanedTo() != 2) {
			t.Fatalf("the tombstone is gone, purged to %d, cleaned to %d", l.PurgedTo(), l.CleanedTo())
		}
	})
	m.cleanAll(t, 0)
	m.want(t, "1:2=v")
	if cuts < 6 {
		t.Fatalf("%d sync points", cuts)
	}
}

// ST-24: more keys than the map has room for take several passes, each of which
// comes further.
func TestClean_manyPasses(t *testing.T) {
	cfg := compactConfig()
	cfg.SegmentBytes = 1 << 20
	m := newTable(t, cfg)
	const keys = 10_000
	write := func(every int) {
		var pairs [][2]string
		for i := 0; i < keys; i += every {
			m.seq++
			pairs = append(pairs, [2]string{fmt.Sprintf("key-%d", i), fmt.Sprintf("%d", m.seq)})
			if len(pairs) == 500 {
				m.append(t, record.CompressionNone, pairs...)
				pairs = nil
			}
		}
	}
	write(1)
	write(2)
	m.seal(t)
	passes, done := m.cleanAll(t, 1000*keySlotBytes)
	if passes < 2 || passes > 20 || done.Superseded != keys/2 {
		t.Fatalf("%d passes removed %d records, want 2 to 20, %d", passes, done.Superseded, keys/2)
	}
	m.check(t)
	if n := len(m.visible(t)); n != keys {
		t.Fatalf("%d records are left of %d keys", n, keys)
	}
}

// What may not be compacted: the active segment, what is not committed or not
// durable, what is too young.
func TestClean_bounds(t *testing.T) {
	cfg := compactConfig()
	cfg.MinCompactionLag = time.Minute
	m := newTable(t, cfg)
	batch := func() { m.append(t, record.CompressionNone, [2]string{"k", fmt.Sprint(m.h.log.End())}) }
	batch()
	batch()
	must(t, m.h.log.Roll())
	batch()
	must(t, m.h.log.Roll())
	batch()
	clean := func(limit record.Offset, want string) {
		t.Helper()
		_, err := m.h.log.Clean(context.Background(), CleanOptions{NowMs: m.h.nowMs, Limit: limit})
		must(t, err)
		m.want(t, want)
	}
	all := "0:k=0 1:k=1 2:k=2 3:k=3"
	m.h.nowMs += 2 * time.Minute.Milliseconds()
	clean(4, all) // not durable
	must(t, m.h.log.Sync())
	clean(1, all) // not committed
	m.h.nowMs -= 2 * time.Minute.Milliseconds()
	clean(4, all) // too young
	m.h.nowMs += 2 * time.Minute.Milliseconds()
	clean(2, "1:k=1 2:k=2 3:k=3")
	clean(4, "2:k=2 3:k=3") // the active segment stays
	// An idle log is rolled by the greatest lag.
	m.h.cfg.MaxCompactionLag = time.Minute
	must(t, m.h.log.SetConfig(m.h.cfg))
	must(t, m.h.log.RollIfDue(m.h.nowMs+1))
	must(t, m.h.log.Sync())
	if d, err := m.h.log.Dirt(m.h.nowMs, 4); !d.Due || err != nil {
		t.Fatalf("dirt %+v, %v, and the last batch is older than the greatest lag", d, err)
	}
	clean(4, "3:k=3")
}

// Dirt counts by segments, and a pass is due from the ratio on.
func TestLog_dirt(t *testing.T) {
	cfg := compactConfig()
	cfg.MinDirtyRatio = 0.6
	m := newTable(t, cfg)
	m.append(t, record.CompressionNone, [2]string{"a", "1"})
	m.seal(t)
	if d, err := m.h.log.Dirt(m.h.nowMs, 1); d.Ratio() != 1 || !d.Due || err != nil {
		t.Fatalf("dirt %+v, %v", d, err)
	}
	m.cleanAll(t, 0)
	m.append(t, record.CompressionNone, [2]string{"b", "1"})
	m.seal(t)
	if d, err := m.h.log.Dirt(m.h.nowMs, 2); d.Ratio() != 0.5 || d.Due || err != nil {
		t.Fatalf("dirt %+v, %v, want half and not due", d, err)
	}
	m.append(t, record.CompressionNone, [2]string{"c", "1"})
	m.seal(t)
	if d, err := m.h.log.Dirt(m.h.nowMs, 3); d.Ratio() < 0.6 || !d.Due || err != nil {
		t.Fatalf("dirt %+v, %v, want two thirds and due", d, err)
	}
}

// The last batch of a live producer stays, as an empty one with all that its
// next batch is judged by.
func TestClean_producerTails(t *testing.T) {
	m := newTable(t, compactConfig())
	from := func(id record.ProducerID, sequence record.Sequence) {
		b := record.NewBuilder(m.codec, record.Limits{})
		must(t, b.Add([]byte("k"), []byte("v"), nil, 1))
		must(t, b.Add([]byte("l"), []byte("v"), nil, 1))
		batch, err := b.Finish(record.CompressionNone, 0)
		must(t, err)
		batch.ProducerID, batch.ProducerEpoch, batch.BaseSequence = id, 4, sequence
		_, err = m.h.log.Append(&batch, 1, record.CreateTime)
		must(t, err)
	}
	from(7, 0)
	from(7, 2)
	from(8, 0)
	from(9, 0)
	m.append(t, record.CompressionNone, [2]string{"k", "v"}, [2]string{"l", "v"})
	m.seal(t)
	must(t, m.h.log.Sync())
	for range 2 {
		_, err := m.h.log.Clean(context.Background(), CleanOptions{
			NowMs: m.h.nowMs, Limit: m.h.log.End(), Live: func(id record.ProducerID) bool { return id != 8 },
		})
		must(t, err)
		frames, err := readAll(m.h.log, 0, m.h.log.End())
		must(t, err)
		var got []string
		for len(frames) > 0 {
			f, _ := record.CheckFrame(frames, record.MaxFrameSize)
			h := f.Header
			got = append(got, fmt.Sprintf("%d-%d:%d of %d/%d/%d", h.BaseOffset, h.LastOffset(), h.RecordCount, h.ProducerID, h.ProducerEpoch, h.BaseSequence))
			frames = frames[f.Size:]
		}
		// The first is there for the leader epoch that begins with it.
		want := []string{"0-1:0 of 7/4/0", "2-3:0 of 7/4/2", "6-7:0 of 9/4/0", "8-9:2 of 0/0/-1"}
		if !slices.Equal(got, want) {
			t.Fatalf("batches %q, want %q", got, want)
		}
		m.append(t, record.CompressionNone, [2]string{"other", "v"})
		m.seal(t)
		m.h.log.clean.Store(&cleanState{}) // look at all of it again
		must(t, m.h.log.TruncateTo(10))
	}
}

// The leader epochs can still be made anew from the batches.
func TestClean_epochsSurvive(t *testing.T) {
	m := newTable(t, compactConfig())
	for e := range record.Epoch(5) {
		must(t, m.h.log.StartEpoch(e+1))
		for range 3 {
			m.append(t, record.CompressionNone, [2]string{"k", "v"})
		}
	}
	m.seal(t)
	m.cleanAll(t, 0)
	want := *m.h.log.epochs.Load()
	must(t, m.h.log.Close())
	must(t, m.h.mem.Remove(m.h.path(epochsName)))
	m.h.mustOpen(t, true)
	if got := *m.h.log.epochs.Load(); !slices.Equal(got, want) {
		t.Fatalf("epochs %v, want %v", got, want)
	}
	m.want(t, "14:k=v")
}
