package commitlog

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// wantUnread reads at the offset, and wants damage there of the offsets in want,
// for the given cause.
func wantUnread(t *testing.T, h *harness, at record.Offset, want Range, cause error) {
	t.Helper()
	_, err := h.log.Read(make([]byte, 1<<16), at, h.m.end)
	c, ok := errors.AsType[*CorruptError](err)
	if !ok || !errors.Is(err, ErrCorrupt) || !errors.Is(err, cause) {
		t.Fatalf("read at %d: %v", at, err)
	}
	if got := (Range{c.Offset, c.NextOffset}); got != want {
		t.Errorf("read at %d: %v, want %v: %v", at, got, want, err)
	}
}

// A segment that may not be opened is not served, and counts as damaged until it
// can be opened again. The rest of the log goes on.
func TestRead_segmentThatMayNotBeOpened(t *testing.T) {
	for _, cause := range []error{syscall.EACCES, syscall.EIO} {
		h := openWith(t, testConfig(), 40)
		v := h.log.view.Load()
		bad := Range{v.segments[1].base, v.segments[2].base}
		var events []Event
		h.log.events = func(e Event) { events = append(events, e) }
		h.log.idle.closeAll()
		h.fault.Inject(vfs.Rule{Ops: vfs.OpOpen, Path: segmentName(bad.From, logSuffix), Times: -1, Err: cause})

		wantUnread(t, h, bad.From+3, bad, cause)
		wantUnread(t, h, bad.From, bad, cause)
		if _, err := h.log.Place(bad.From, h.m.end); !errors.Is(err, ErrCorrupt) {
			t.Errorf("place: %v", err)
		}
		if got := stored(t, h.log, bad.To, h.m.end); !bytes.Equal(got, h.m.from(bad.To, h.m.end)) {
			t.Error("what is behind it reads otherwise")
		}
		if diff := cmp.Diff([]Range{bad}, h.log.Damage()); diff != "" || !errors.Is(h.log.Unopened(), cause) {
			t.Errorf("%v\n%s", h.log.Unopened(), diff)
		}
		if len(events) != 1 || events[0].Kind != EventDamage {
			t.Errorf("told %v", events)
		}
		if path, err := h.log.SaveTail(bad.From); err != nil {
			t.Errorf("keep a tail: %q, %v", path, err)
		}
		if err := h.log.TruncateTo(bad.From + 2); !errors.Is(err, ErrCorrupt) {
			t.Errorf("cut inside it: %v", err)
		}
		h.append(t, 50, record.CreateTime, h.nowMs)
		must(t, h.log.Sync())
		must(t, h.log.Checkpoint())
		h.log.Reopen()
		if len(h.log.Damage()) != 1 {
			t.Error("forgotten while it can't be opened")
		}
		h.fault.Clear()
		h.log.Reopen()
		if h.log.Damage() != nil || h.log.Unopened() != nil {
			t.Error("remembered though it can be opened")
		}
		h.check(t)
	}
}

// A place that the disk does not give back is damage: what is before and after it
// is served, a reset heals it, and the root goes on.
func TestRead_placeThatTheDiskDoesNotGiveBack(t *testing.T) {
	h := openWith(t, testConfig(), 40)
	must(t, h.log.Close())
	victim := h.m.batches[20]
	disk := &badSector{FS: h.mem}
	l, _, err := OpenLog(disk, testDir, h.config(), OpenOptions{Clean: true, Now: h.now})
	must(t, err)
	h.log = l
	s := l.view.Load().segments[l.view.Load().find(victim.base)]
	at := bytes.Index(h.readFile(t, filepath.Base(s.file.path)), victim.frame)
	disk.path, disk.from, disk.to = s.file.path, int64(at)+10, int64(at)+20

	frames, lost := readWhole(t, l)
	if len(lost) != 1 || lost[0].From != victim.base || lost[0].To <= victim.base {
		t.Fatalf("lost %v, want from %d on", lost, victim.base)
	}
	if want := append(h.m.from(0, victim.base), h.m.from(lost[0].To, h.m.end)...); !bytes.Equal(frames, want) {
		t.Errorf("%d bytes were read, want %d", len(frames), len(want))
	}
	wantUnread(t, h, victim.base, lost[0], syscall.EIO)
	if diff := cmp.Diff(lost, l.Damage()); diff != "" || l.Unopened() != nil {
		t.Errorf("%v\n%s", l.Unopened(), diff)
	}
	if err := l.TruncateTo(victim.base + 1); err != nil && !errors.Is(err, ErrCorrupt) {
		t.Errorf("cut there: %v", err)
	}
	must(t, l.failed.Err())
	must(t, l.Reset(7, 9))
	if l.Damage() != nil {
		t.Errorf("after a reset: %v", l.Damage())
	}
	must(t, l.Close())
}

// An index is a cache: one that may not be used, or can't be read, is made anew,
// and neither reading nor writing suffers.
func TestRead_indexThatCannotBeRead(t *testing.T) {
	for _, rule := range []vfs.Rule{
		{Ops: vfs.OpOpen, Err: syscall.EACCES}, {Ops: vfs.OpOpen, Err: syscall.EIO, Times: 1}, {Ops: vfs.OpRead, Err: syscall.EIO},
	} {
		h := openWith(t, testConfig(), 40)
		if rule.Path = "*" + indexSuffix; rule.Times == 0 {
			rule.Times = -1
		}
		h.log.idle.closeAll()
		h.fault.Inject(rule)
		for _, b := range h.m.batches {
			if _, err := readAll(h.log, b.base, h.m.end); err != nil {
				t.Fatalf("%v: %v", rule, err)
			}
		}
		h.append(t, 50, record.CreateTime, h.nowMs)
		h.log.idle.closeAll()
		must(t, h.log.Checkpoint())
		h.truncate(t, h.m.batches[15].base)
		h.append(t, 50, record.CreateTime, h.nowMs)
		must(t, h.log.Checkpoint())
		h.sync(t)
		h.check(t)
		h.fault.Clear()
		must(t, h.log.Close())
		h.mustOpen(t, true)
		h.check(t)
	}
}

// Retention lets go of what it can't read, when what follows is old enough.
func TestRetain_whatCannotBeRead(t *testing.T) {
	h := openWith(t, testConfig(), 40)
	must(t, h.log.Close())
	h.mustOpen(t, true)
	segments := h.log.view.Load().segments
	h.fault.Inject(vfs.Rule{Ops: vfs.OpOpen, Path: segmentName(segments[0].base, logSuffix), Times: -1, Err: syscall.EACCES})
	h.fault.Inject(vfs.Rule{Ops: vfs.OpRead, Path: segmentName(segments[1].base, logSuffix), Times: -1, Err: syscall.EIO})
	if n, err := h.log.Retain(h.nowMs, h.m.end); n != 0 || err != nil {
		t.Errorf("removed %d young segments: %v", n, err)
	}
	for range 3 { // in steps: a jump of the clock is not believed
		h.nowMs += (30 * time.Minute).Milliseconds()
		if _, err := h.log.Retain(h.nowMs, h.m.end); err != nil {
			t.Fatal(err)
		}
	}
	if h.log.Start() != h.m.end || h.log.Damage() != nil {
		t.Errorf("the log starts at %d of %d, damaged %v", h.log.Start(), h.m.end, h.log.Damage())
	}
}

// A segment without an index that can't be opened keeps no log from opening.
func TestOpen_segmentThatMayNotBeOpened(t *testing.T) {
	for _, rule := range []vfs.Rule{{Ops: vfs.OpOpen, Err: syscall.EIO}, {Ops: vfs.OpRead, Err: syscall.EIO}} {
		h := openWith(t, testConfig(), 40)
		bad := h.log.view.Load().segments[1].base
		must(t, h.log.Close())
		must(t, h.mem.Remove(h.path(segmentName(bad, indexSuffix))))
		rule.Path, rule.Times = segmentName(bad, logSuffix), -1
		h.fault.Inject(rule)
		rec := h.mustOpen(t, true)
		if !rec.Clean || h.log.End() != h.m.end {
			t.Errorf("%v: %+v", rule, rec)
		}
		if _, lost := readWhole(t, h.log); len(lost) != 1 || lost[0].From != bad {
			t.Errorf("%v: lost %v", rule, lost)
		}
	}
}

// badSector is a file system that does not give some bytes of a file back.
type badSector struct {
	vfs.FS

	path     string
	from, to int64
}

type badFile struct {
	vfs.File

	disk *badSector
}

func (d *badSector) Open(name string) (vfs.File, error) {
	f, err := d.FS.Open(name)
	if err != nil {
		return nil, err
	}
	return badFile{f, d}, nil
}

// ReadAt reads up to the bad bytes, as the system does.
func (f badFile) ReadAt(p []byte, off int64) (int, error) {
	d := f.disk
	if f.Name() != d.path || off+int64(len(p)) <= d.from || off >= d.to {
		return f.File.ReadAt(p, off)
	}
	n := 0
	if off < d.from {
		n, _ = f.File.ReadAt(p[:d.from-off], off) // it fails all the same
	}
	return n, &fs.PathError{Op: "read", Path: d.path, Err: syscall.EIO}
}

// The same with files of the operating system.
func TestRead_realFileThatCannotBeOpened(t *testing.T) {
	h := newHarness(testConfig())
	dir := filepath.Join(t.TempDir(), "0")
	l, _, err := OpenLog(vfs.OS(), dir, h.config(), OpenOptions{Now: h.now})
	must(t, err)
	h.log = l
	h.startEpoch(t)
	for range 40 {
		h.append(t, 100, record.CreateTime, h.nowMs)
	}
	must(t, l.Sync())
	v := l.view.Load()
	bad := Range{v.segments[1].base, v.segments[2].base}
	path := filepath.Join(dir, segmentName(bad.From, logSuffix))
	for what, spoil := range map[string]func() error{
		"a link to itself": func() error { return errors.Join(os.Rename(path, path+".away"), os.Symlink(path, path)) },
		"a mode without reading": func() error {
			if os.Getuid() == 0 {
				return nil // who may read everything
			}
			return errors.Join(os.Link(path, path+".away"), os.Chmod(path, 0))
		},
	} {
		must(t, spoil())
		l.idle.closeAll()
		if _, err := os.Stat(path + ".away"); err == nil {
			wantUnread(t, h, bad.From, bad, ErrCorrupt)
			if l.Unopened() == nil {
				t.Errorf("%s: can be opened", what)
			}
			must(t, os.Rename(path+".away", path))
			must(t, os.Chmod(path, 0o600))
		}
		l.Reopen()
		h.check(t)
		if l.Damage() != nil {
			t.Errorf("%s: damaged after it was given back: %v", what, l.Damage())
		}
	}
	must(t, l.Close())
}
