package vfs_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/runnelmq/runnel/internal/vfs"
)

// eachFS runs a test on the machine's file system, on the one in memory, and
// through a Fault without rules: what holds for one holds for all.
func eachFS(t *testing.T, test func(t *testing.T, fsys vfs.FS, dir string)) {
	t.Helper()
	t.Run("os", func(t *testing.T) { test(t, vfs.OS(), t.TempDir()) })
	t.Run("mem", func(t *testing.T) {
		m := vfs.NewMem()
		if err := m.MkdirAll("/d"); err != nil {
			t.Fatal(err)
		}
		test(t, m, "/d")
	})
	t.Run("fault", func(t *testing.T) {
		m := vfs.NewMem()
		if err := m.MkdirAll("/d"); err != nil {
			t.Fatal(err)
		}
		test(t, vfs.NewFault(m), "/d")
	})
}

func write(t *testing.T, f vfs.File, at int64, data string) {
	t.Helper()
	if n, err := f.WriteAt([]byte(data), at); err != nil || n != len(data) {
		t.Fatalf("WriteAt(%q, %d) = %d, %v", data, at, n, err)
	}
}

func create(t *testing.T, fsys vfs.FS, name, data string) vfs.File {
	t.Helper()
	f, err := fsys.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	write(t, f, 0, data)
	return f
}

func closeFile(t *testing.T, f io.Closer) {
	t.Helper()
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func content(t *testing.T, fsys vfs.FS, name string) string {
	t.Helper()
	data, err := vfs.ReadFile(fsys, name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestFile_readsWhatWasWritten(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys vfs.FS, dir string) {
		t.Helper()
		name := filepath.Join(dir, "f")
		f := create(t, fsys, name, "hello")
		defer closeFile(t, f)

		if f.Name() != name {
			t.Errorf("Name() = %q, want %q", f.Name(), name)
		}
		write(t, f, 7, "world")
		f.WriteBack() // changes nothing
		p := make([]byte, 20)
		n, err := f.ReadAt(p, 0)
		if want := "hello\x00\x00world"; string(p[:n]) != want || !errors.Is(err, io.EOF) {
			t.Errorf("ReadAt = %q, %v, want %q and EOF", p[:n], err, want)
		}
		if n, err := f.ReadAt(p[:5], 7); n != 5 || err != nil || string(p[:5]) != "world" {
			t.Errorf("ReadAt in the file = %d, %v, %q", n, err, p[:5])
		}
		if _, err := f.ReadAt(p[:1], 100); !errors.Is(err, io.EOF) {
			t.Errorf("ReadAt beyond the end: %v, want EOF", err)
		}
		for _, step := range []struct {
			size int64
			want string
		}{{3, "hel"}, {6, "hel\x00\x00\x00"}, {0, ""}} {
			if err := f.Truncate(step.size); err != nil {
				t.Fatal(err)
			}
			size, err := f.Size()
			if got := content(t, fsys, name); got != step.want || size != step.size || err != nil {
				t.Errorf("after Truncate(%d): %q, size %d, %v; want %q", step.size, got, size, err, step.want)
			}
		}
		if err := f.Sync(); err != nil {
			t.Errorf("Sync: %v", err)
		}
		for what, call := range map[string]func() error{
			"ReadAt(-1)":   func() error { _, err := f.ReadAt(p, -1); return err },
			"WriteAt(-1)":  func() error { _, err := f.WriteAt(p, -1); return err },
			"Truncate(-1)": func() error { return f.Truncate(-1) },
		} {
			if call() == nil {
				t.Errorf("%s succeeds", what)
			}
		}
	})
}

func TestFile_closedIsOfNoUse(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys vfs.FS, dir string) {
		t.Helper()
		f := create(t, fsys, filepath.Join(dir, "f"), "x")
		closeFile(t, f)
		f.WriteBack() // has nobody to tell
		for what, err := range map[string]error{
			"ReadAt":   func() error { _, err := f.ReadAt(make([]byte, 1), 0); return err }(),
			"WriteAt":  func() error { _, err := f.WriteAt([]byte("y"), 0); return err }(),
			"Truncate": f.Truncate(0),
			"Sync":     f.Sync(),
			"Size":     func() error { _, err := f.Size(); return err }(),
			"Close":    f.Close(),
		} {
			if !errors.Is(err, fs.ErrClosed) {
				t.Errorf("%s of a closed file: %v, want fs.ErrClosed", what, err)
			}
		}
	})
}

func TestFS_names(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys vfs.FS, dir string) {
		t.Helper()
		at := func(name string) string { return filepath.Join(dir, filepath.FromSlash(name)) }
		if err := fsys.MkdirAll(at("sub/deep")); err != nil {
			t.Fatal(err)
		}
		if err := fsys.MkdirAll(at("sub/deep")); err != nil {
			t.Errorf("MkdirAll of what is there: %v", err)
		}
		closeFile(t, create(t, fsys, at("b"), "bb"))
		closeFile(t, create(t, fsys, at("a"), "a"))

		got, err := fsys.ReadDir(dir)
		want := []vfs.DirEntry{{Name: "a", Size: 1}, {Name: "b", Size: 2}, {Name: "sub", IsDir: true}}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("ReadDir: %v, -want +got:\n%s", err, diff)
		}
		if info, err := fsys.Stat(at("b")); err != nil || info != (vfs.Info{Size: 2, ID: info.ID}) {
			t.Errorf("Stat(b) = %+v, %v", info, err)
		}
		if info, err := fsys.Stat(at("sub")); err != nil || info != (vfs.Info{IsDir: true, ID: info.ID}) {
			t.Errorf("Stat(sub) = %+v, %v", info, err)
		}

		refused := map[string]struct {
			err  error
			want error
		}{
			"Open of nothing":          {second(fsys.Open(at("none"))), fs.ErrNotExist},
			"Create of what is there":  {second(fsys.Create(at("a"))), fs.ErrExist},
			"Create in nothing":        {second(fsys.Create(at("none/a"))), fs.ErrNotExist},
			"Remove of nothing":        {fsys.Remove(at("none")), fs.ErrNotExist},
			"Rename of nothing":        {fsys.Rename(at("none"), at("c")), fs.ErrNotExist},
			"Stat of nothing":          {second(fsys.Stat(at("none"))), fs.ErrNotExist},
			"ReadDir of nothing":       {second(fsys.ReadDir(at("none"))), fs.ErrNotExist},
			"SyncDir of nothing":       {fsys.SyncDir(at("none")), fs.ErrNotExist},
			"Open of a directory":      {second(fsys.Open(at("sub"))), nil},
			"Remove of a full one":     {fsys.Remove(at("sub")), nil},
			"Rename onto a directory":  {fsys.Rename(at("a"), at("sub")), nil},
			"MkdirAll through a file":  {fsys.MkdirAll(at("a/x")), nil},
			"ReadDir of a file":        {second(fsys.ReadDir(at("a"))), nil},
			"Rename into itself":       {fsys.Rename(at("sub"), at("sub/deep/x")), nil},
			"Synced mkdir over a file": {vfs.MkdirAllSynced(fsys, at("a")), nil},
		}
		for what, r := range refused {
			if r.err == nil || (r.want != nil && !errors.Is(r.err, r.want)) {
				t.Errorf("%s: error %v, want %v", what, r.err, r.want)
			}
		}

		if err := fsys.Rename(at("a"), at("b")); err != nil {
			t.Fatal(err)
		}
		if got := content(t, fsys, at("b")); got != "a" {
			t.Errorf("b holds %q after a was renamed to it", got)
		}
		if err := fsys.Rename(at("sub"), at("dir")); err != nil {
			t.Fatal(err)
		}
		closeFile(t, create(t, fsys, at("dir/deep/f"), ""))
		if err := fsys.SyncDir(at("dir/deep")); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := fsys.RemoveAll(at("dir")); err != nil {
				t.Errorf("RemoveAll: %v", err)
			}
		}
		if err := fsys.Remove(at("b")); err != nil {
			t.Error(err)
		}
		if left, err := fsys.ReadDir(dir); len(left) != 0 || err != nil {
			t.Errorf("left in the directory: %v, %v", left, err)
		}
	})
}

func second[T any](_ T, err error) error { return err }

func TestFile_outlivesItsName(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys vfs.FS, dir string) {
		t.Helper()
		name := filepath.Join(dir, "f")
		f := create(t, fsys, name, "kept")
		defer closeFile(t, f)
		if err := fsys.Remove(name); err != nil {
			t.Fatal(err)
		}
		p := make([]byte, 4)
		if _, err := f.ReadAt(p, 0); err != nil || string(p) != "kept" {
			t.Errorf("read %q, %v through the open file", p, err)
		}
	})
}

func TestOpenOrCreate_keepsWhatIsThere(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys vfs.FS, dir string) {
		t.Helper()
		name := filepath.Join(dir, "f")
		for _, want := range []string{"", "abc"} {
			f, err := fsys.OpenOrCreate(name)
			if err != nil {
				t.Fatal(err)
			}
			if got := content(t, fsys, name); got != want {
				t.Errorf("opened with %q, want %q", got, want)
			}
			write(t, f, 0, "abc")
			closeFile(t, f)
		}
	})
}

func TestLock_hasOneHolder(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys vfs.FS, dir string) {
		t.Helper()
		name := filepath.Join(dir, "lock")
		l, err := fsys.Lock(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fsys.Lock(name); !errors.Is(err, vfs.ErrLocked) {
			t.Errorf("second lock: %v, want ErrLocked", err)
		}
		closeFile(t, l)
		if err := l.Close(); err == nil {
			t.Error("unlocked twice")
		}
		l, err = fsys.Lock(name)
		if err != nil {
			t.Fatalf("lock after unlock: %v", err)
		}
		closeFile(t, l)
	})
}

func TestFree(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys vfs.FS, dir string) {
		t.Helper()
		free, total, err := fsys.Free(dir)
		if err != nil || free <= 0 || total < free {
			t.Errorf("Free = %d, %d, %v", free, total, err)
		}
		if _, _, err := fsys.Free(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Free of nothing: %v", err)
		}
	})
}

func TestWriteFileAtomic(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys vfs.FS, dir string) {
		t.Helper()
		name := filepath.Join(dir, "f")
		// A leftover that is longer than what is written must not show.
		closeFile(t, create(t, fsys, name+vfs.TempSuffix, "left by a crash, and long"))
		for _, want := range []string{"one", "", "three"} {
			if err := vfs.WriteFileAtomic(fsys, name, []byte(want)); err != nil {
				t.Fatal(err)
			}
			if got := content(t, fsys, name); got != want {
				t.Errorf("holds %q, want %q", got, want)
			}
		}
		if _, err := fsys.Stat(name + vfs.TempSuffix); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the temporary file is left: %v", err)
		}
	})
}

// Whatever call of a replacement fails, the old content or the new is there,
// whole; and the new one when no call failed.
func TestWriteFileAtomic_failingCalls(t *testing.T) {
	for nth := 1; ; nth++ {
		m := vfs.NewMem()
		fault := vfs.NewFault(m)
		if err := vfs.WriteFileAtomic(m, "/f", []byte("old")); err != nil {
			t.Fatal(err)
		}
		fault.Inject(vfs.Rule{Ops: vfs.OpAny, Nth: nth, Err: errInjected})
		err := vfs.WriteFileAtomic(fault, "/f", []byte("new"))
		if err == nil {
			if nth < 7 {
				t.Fatalf("only %d calls: the sweep missed some", nth-1)
			}
			return
		}
		if !errors.Is(err, errInjected) {
			t.Fatalf("call %d: %v", nth, err)
		}
		if got := content(t, m, "/f"); got != "old" && got != "new" {
			t.Errorf("call %d failed: the file holds %q", nth, got)
		}
	}
}

func TestWriteFileAtomic_powerCuts(t *testing.T) {
	m := vfs.NewMem()
	fault := vfs.NewFault(m)
	old, now := bytes.Repeat([]byte("o"), 2000), bytes.Repeat([]byte("n"), 1500)
	if err := vfs.WriteFileAtomic(m, "/f", old); err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	check := func(m *vfs.Mem, must string) {
		for _, luck := range lucks() {
			got := content(t, m.CrashClone(luck.rng, luck.opts), "/f")
			if got != string(old) && got != string(now) || (must != "" && got != must) {
				t.Fatalf("%+v: %d bytes, %.5q…", luck.opts, len(got), got)
			}
			seen[got]++
		}
	}
	fault.Before(vfs.OpChanges, func(vfs.Op, string) { check(m, "") })
	if err := vfs.WriteFileAtomic(fault, "/f", now); err != nil {
		t.Fatal(err)
	}
	check(m, string(now))
	if len(seen) != 2 {
		t.Errorf("the cuts show %d contents, want both", len(seen))
	}
}

func TestMkdirAllSynced_isDurable(t *testing.T) {
	m := vfs.NewMem()
	if err := vfs.MkdirAllSynced(m, "/a/b/c"); err != nil {
		t.Fatal(err)
	}
	for _, luck := range lucks() {
		if info, err := m.CrashClone(luck.rng, luck.opts).Stat("/a/b/c"); err != nil || !info.IsDir {
			t.Fatalf("%+v: %v", luck.opts, err)
		}
	}
}
