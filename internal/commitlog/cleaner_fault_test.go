package commitlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// Damage stops a pass before it is copied with a new checksum, is told of, and
// stays where it is.
func TestClean_damage(t *testing.T) {
	for _, c := range []record.Compression{record.CompressionNone, record.CompressionZstd} {
		t.Run(c.String(), func(t *testing.T) {
			m := newTable(t, compactConfig())
			value := strings.Repeat("value", 20)
			m.append(t, c, [2]string{"k", value}, [2]string{"l", value})
			m.append(t, c, [2]string{"k", value})
			m.seal(t)
			name := segmentName(0, logSuffix)
			b := m.h.readFile(t, name)
			f, _ := record.CheckFrame(b, record.MaxFrameSize)
			b[f.Size-3] ^= 1
			m.h.write(t, name, b)
			var events []Event
			m.h.log.events = func(e Event) { events = append(events, e) }
			for range 2 {
				err := cleanErr(t, m.h.log, m.h.nowMs)
				if bad, ok := errors.AsType[*CorruptError](err); !ok || bad.Offset != 0 || bad.NextOffset != 2 {
					t.Fatalf("error %v, want damage of offsets 0 and 1", err)
				}
			}
			if len(events) != 1 || events[0].Kind != EventDamage {
				t.Fatalf("events %+v, want one of damage", events)
			}
			if now := m.h.readFile(t, name); !slices.Equal(now, b) {
				t.Fatal("the pass changed the segment")
			}
			if names := m.h.names(t, vfs.TempSuffix); len(names) > 0 {
				t.Fatalf("%v is left", names)
			}
		})
	}
}

// Where batches are missing nobody knows what they said of the keys before them.
func TestClean_missingSegment(t *testing.T) {
	m := newTable(t, compactConfig())
	for i := range 3 {
		m.append(t, record.CompressionNone, [2]string{"k", fmt.Sprint(i)})
		m.seal(t)
	}
	must(t, m.h.log.Checkpoint())
	m.h.mem.Kill()
	must(t, m.h.mem.Remove(m.h.path(segmentName(1, logSuffix))))
	must(t, m.h.mem.Remove(m.h.path(checkpointName))) // so that all is read
	m.h.mustOpen(t, false)
	if bad, ok := errors.AsType[*CorruptError](cleanErr(t, m.h.log, m.h.nowMs)); !ok || bad.Offset != 1 || bad.NextOffset != 2 {
		t.Fatalf("error %v, want damage of offset 1", bad)
	}
	if m.h.log.Segments() != 3 || m.h.log.CleanedTo() != 0 {
		t.Fatalf("%d segments, cleaned to %d", m.h.log.Segments(), m.h.log.CleanedTo())
	}
}

// A full disk ends a pass, wherever it strikes, and costs nothing but the pass.
func TestClean_diskFull(t *testing.T) {
	for skip := range 40 {
		m := newTable(t, compactConfig())
		for i := range 30 {
			m.append(t, record.CompressionNone, [2]string{fmt.Sprint(i % 3), fmt.Sprint(i)}, [2]string{fmt.Sprint(i), strings.Repeat("x", 50)})
		}
		m.seal(t)
		m.h.fault.Inject(vfs.Rule{Ops: vfs.OpWrite | vfs.OpCreate | vfs.OpRename, Path: "*" + cleanedSuffix, Nth: skip + 1, Err: syscall.ENOSPC})
		err := cleanErr(t, m.h.log, m.h.nowMs)
		m.h.fault.Clear()
		if err == nil {
			if skip < 6 {
				t.Fatalf("no error at call %d", skip)
			}
			return
		}
		if !errors.Is(err, ErrStorageFull) {
			t.Fatalf("call %d: %v, want ErrStorageFull", skip, err)
		}
		m.check(t)
		m.append(t, record.CompressionNone, [2]string{"later", "1"})
		m.cleanAll(t, 0)
		m.check(t)
		m.reopen(t, false)
		m.check(t)
	}
	t.Fatal("40 calls")
}

// A log that is cut, reset, or deleted from under a pass ends the pass, and is
// what it would be without.
func TestClean_changedUnderIt(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, m *table){
		"cut":     func(t *testing.T, m *table) { t.Helper(); m.truncate(t, 25) },
		"cut end": func(t *testing.T, m *table) { t.Helper(); m.truncate(t, m.h.log.End()-1) },
		"deleted": func(t *testing.T, m *table) { t.Helper(); m.start = 30; must(t, m.h.log.DeleteBefore(30)) },
		"reset":   func(t *testing.T, m *table) { t.Helper(); m.all, m.start = nil, 7; must(t, m.h.log.Reset(7, 3)) },
		"appended": func(t *testing.T, m *table) {
			t.Helper()
			m.append(t, record.CompressionNone, [2]string{"0", "new"})
			must(t, m.h.log.Roll())
		},
	} {
		t.Run(name, func(t *testing.T) {
			for at := range 12 {
				m := newTable(t, compactConfig())
				for i := range 30 {
					m.append(t, record.CompressionNone, [2]string{fmt.Sprint(i % 3), fmt.Sprint(i)}, [2]string{fmt.Sprint(i), strings.Repeat("x", 50)})
				}
				m.seal(t)
				calls := 0
				m.cleaned = m.h.log.End()
				_, err := m.h.log.Clean(context.Background(), CleanOptions{NowMs: m.h.nowMs, Limit: m.h.log.End(), Pace: func(context.Context, int) error {
					if calls == at {
						change(t, m)
					}
					calls++
					return nil
				}})
				must(t, err)
				m.check(t)
				m.checkFiles(t)
				m.reopen(t, at%2 == 0)
				m.check(t)
				m.cleanAll(t, 0)
				m.check(t)
			}
		})
	}
}

// Close ends a pass that waits, and leaves nothing of it.
func TestClean_closed(t *testing.T) {
	m := newTable(t, compactConfig())
	for i := range 30 {
		m.append(t, record.CompressionNone, [2]string{fmt.Sprint(i % 3), fmt.Sprint(i)})
	}
	m.seal(t)
	waiting := make(chan struct{})
	var once sync.Once
	var pass sync.WaitGroup
	var err error
	pass.Go(func() {
		_, err = m.h.log.Clean(context.Background(), CleanOptions{NowMs: m.h.nowMs, Limit: m.h.log.End(), Pace: func(ctx context.Context, _ int) error {
			once.Do(func() { close(waiting) })
			<-ctx.Done()
			return ctx.Err()
		}})
	})
	<-waiting
	must(t, m.h.log.Close())
	if pass.Wait(); err == nil {
		t.Fatal("the pass ended well")
	}
	if _, err := m.h.log.Clean(context.Background(), CleanOptions{}); !errors.Is(err, ErrClosed) {
		t.Fatalf("a pass after Close: %v", err)
	}
	if names := m.h.names(t, vfs.TempSuffix); len(names) > 0 {
		t.Fatalf("%v is left", names)
	}
	m.h.mustOpen(t, true)
	m.check(t)
}

// How far compaction has come is a cache, but not where tombstones went.
func TestClean_sideFileLost(t *testing.T) {
	m := newTable(t, compactConfig())
	m.append(t, record.CompressionNone, [2]string{"k", "1"}, [2]string{"k", ""}, [2]string{"l", "1"})
	m.seal(t)
	m.cleanAll(t, 0)
	for _, damage := range []func(){
		func() { m.h.write(t, cleanerName, []byte("RNLK and nonsense")) },
		func() { must(t, m.h.mem.Remove(m.h.path(cleanerName))) },
	} {
		must(t, m.h.log.Close())
		damage()
		m.h.mustOpen(t, true)
		m.want(t, "1:k- 2:l=1")
		must(t, m.h.log.Sync())
		m.cleanAll(t, 0)
		m.want(t, "1:k- 2:l=1")
	}
	// Without a checkpoint nobody knows which tombstones went: all may have.
	must(t, m.h.log.Close())
	must(t, m.h.mem.Remove(m.h.path(checkpointName)))
	m.h.mustOpen(t, true)
	if to := m.h.log.PurgedTo(); to != 3 {
		t.Fatalf("purged to %d, want the log's end", to)
	}
}

func TestParseSwapName(t *testing.T) {
	name := swapName(7, 1234)
	if base, end, ok := parseSwapName(name); base != 7 || end != 1234 || !ok {
		t.Fatalf("%s: %d, %d, %v", name, base, end, ok)
	}
	for _, bad := range []string{"", swapSuffix, name + "x", strings.Replace(name, "-", "", 1), swapName(9, 9), swapName(9, 8), segmentName(7, swapSuffix)} {
		if base, end, ok := parseSwapName(bad); ok {
			t.Errorf("%q is %d to %d", bad, base, end)
		}
	}
}
