package vfs_test

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/runnelmq/runnel/internal/vfs"
)

type luck struct {
	rng  *rand.Rand
	opts vfs.CrashOptions
}

// lucks are power cuts of all kinds.
func lucks() []luck {
	var all []luck
	for seed := range uint64(20) {
		for _, keep := range []int{0, 20, 50, 80, 100} {
			all = append(all, luck{
				rand.New(rand.NewPCG(seed, uint64(keep))),
				vfs.CrashOptions{KeepUnsyncedPercent: keep, TornSectors: seed%2 == 0},
			})
		}
	}
	return all
}

// outcomes returns what show sees over many power cuts.
func outcomes(m *vfs.Mem, opts vfs.CrashOptions, show func(*vfs.Mem) string) map[string]bool {
	seen := map[string]bool{}
	for seed := range uint64(400) {
		seen[show(m.CrashClone(rand.New(rand.NewPCG(seed, 7)), opts))] = true
	}
	return seen
}

// tree shows all files as "name=content", content shortened to its runs.
func tree(m *vfs.Mem) string {
	var all []string
	var walk func(dir string)
	walk = func(dir string) {
		entries, err := m.ReadDir(dir)
		if err != nil {
			panic(err)
		}
		for _, e := range entries {
			path := strings.TrimSuffix(dir, "/") + "/" + e.Name
			if e.IsDir {
				all = append(all, path+"/")
				walk(path)
				continue
			}
			data, err := vfs.ReadFile(m, path)
			if err != nil {
				panic(err)
			}
			all = append(all, path+"="+runs(data))
		}
	}
	walk("/")
	return strings.Join(all, " ")
}

// runs shows "aaab" as a3b1, and zeros as 0.
func runs(data []byte) string {
	var s strings.Builder
	for i := 0; i < len(data); {
		j := i
		for j < len(data) && data[j] == data[i] {
			j++
		}
		c := data[i]
		if c == 0 {
			c = '0'
		}
		fmt.Fprintf(&s, "%c%d", c, j-i)
		i = j
	}
	return s.String()
}

func setOf(want ...string) map[string]bool {
	set := map[string]bool{}
	for _, w := range want {
		set[w] = true
	}
	return set
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// The power cut's whole range: for each history, exactly these disks.
func TestCrashClone_outcomes(t *testing.T) {
	some := vfs.CrashOptions{KeepUnsyncedPercent: 50}
	torn := vfs.CrashOptions{KeepUnsyncedPercent: 50, TornSectors: true}
	rep := strings.Repeat
	tests := map[string]struct {
		opts vfs.CrashOptions
		do   func(t *testing.T, m *vfs.Mem)
		want map[string]bool
	}{
		"a synced file whose entry is not may vanish": {some, func(t *testing.T, m *vfs.Mem) {
			t.Helper()
			f := create(t, m, "/f", "a")
			must(t, f.Sync())
		}, setOf("", "/f=a1")},
		"a synced entry of a file that is not": {some, func(t *testing.T, m *vfs.Mem) {
			t.Helper()
			create(t, m, "/f", "a")
			must(t, m.SyncDir("/"))
		}, setOf("/f=", "/f=01", "/f=a1")},
		"synced both": {some, func(t *testing.T, m *vfs.Mem) {
			t.Helper()
			f := create(t, m, "/f", "a")
			must(t, f.Sync(), m.SyncDir("/"))
		}, setOf("/f=a1")},
		"two entries vanish independently": {some, func(t *testing.T, m *vfs.Mem) {
			t.Helper()
			must(t, create(t, m, "/f", "a").Sync(), create(t, m, "/g", "b").Sync())
		}, setOf("", "/f=a1", "/g=b1", "/f=a1 /g=b1")},
		"a rename happens whole or not": {some, func(t *testing.T, m *vfs.Mem) {
			t.Helper()
			must(t, create(t, m, "/f", "a").Sync(), create(t, m, "/g", "b").Sync(), m.SyncDir("/"))
			must(t, m.Rename("/f", "/g"))
		}, setOf("/f=a1 /g=b1", "/g=a1")},
		"a rename may be kept without the creation before it": {some, func(t *testing.T, m *vfs.Mem) {
			t.Helper()
			must(t, create(t, m, "/f", "a").Sync(), m.Rename("/f", "/g"))
		}, setOf("", "/f=a1", "/g=a1")},
		"a file is in one place, whichever of two renames was kept": {some, func(t *testing.T, m *vfs.Mem) {
			t.Helper()
			must(t, create(t, m, "/f", "a").Sync(), m.SyncDir("/"), m.Rename("/f", "/g"), m.Rename("/g", "/h"))
		}, setOf("/f=a1", "/g=a1", "/h=a1")},
		"removals are undone independently": {some, func(t *testing.T, m *vfs.Mem) {
			t.Helper()
			must(t, create(t, m, "/f", "a").Sync(), create(t, m, "/g", "b").Sync(), m.SyncDir("/"))
			must(t, m.Remove("/f"), m.Remove("/g"))
		}, setOf("", "/f=a1", "/g=b1", "/f=a1 /g=b1")},
		"a synced removal stays": {some, func(t *testing.T, m *vfs.Mem) {
			t.Helper()
			must(t, create(t, m, "/f", "a").Sync(), m.SyncDir("/"), m.Remove("/f"), m.SyncDir("/"))
		}, setOf("")},
		"a removed tree may lose any part first": {some, func(t *testing.T, m *vfs.Mem) {
			t.Helper()
			must(t, m.MkdirAll("/d"), m.SyncDir("/"))
			must(t, create(t, m, "/d/f", "a").Sync(), create(t, m, "/d/g", "b").Sync(), m.SyncDir("/d"))
			must(t, m.RemoveAll("/d"))
		}, setOf("", "/d/", "/d/ /d/f=a1", "/d/ /d/g=b1", "/d/ /d/f=a1 /d/g=b1")},
		"what is in a directory goes with it": {some, func(t *testing.T, m *vfs.Mem) {
			t.Helper()
			must(t, m.MkdirAll("/d"), create(t, m, "/d/f", "a").Sync(), m.SyncDir("/d"))
		}, setOf("", "/d/ /d/f=a1")},
		"a file is in one place, also in a directory that may vanish": {some, func(t *testing.T, m *vfs.Mem) {
			t.Helper()
			must(t, m.MkdirAll("/d"), create(t, m, "/d/f", "a").Sync(), m.SyncDir("/d"))
			must(t, m.Rename("/d/f", "/d/g"), m.Rename("/d/g", "/h"))
		}, setOf("", "/h=a1", "/d/ /d/f=a1", "/d/ /d/g=a1", "/d/ /h=a1")},
		"a rename across directories needs both synced": {some, func(t *testing.T, m *vfs.Mem) {
			t.Helper()
			must(t, m.MkdirAll("/d"), m.MkdirAll("/e"), m.SyncDir("/"), create(t, m, "/d/f", "a").Sync(), m.SyncDir("/d"))
			must(t, m.Rename("/d/f", "/e/f"), m.SyncDir("/e"))
		}, setOf("/d/ /d/f=a1 /e/", "/d/ /e/ /e/f=a1")},
		"a rename across directories, both synced": {some, func(t *testing.T, m *vfs.Mem) {
			t.Helper()
			must(t, m.MkdirAll("/d"), m.MkdirAll("/e"), m.SyncDir("/"), create(t, m, "/d/f", "a").Sync(), m.SyncDir("/d"))
			must(t, m.Rename("/d/f", "/e/f"), m.SyncDir("/e"), m.SyncDir("/d"))
		}, setOf("/d/ /e/ /e/f=a1")},
		"a removal after a rename that waits": {some, func(t *testing.T, m *vfs.Mem) {
			t.Helper()
			must(t, m.MkdirAll("/d"), m.MkdirAll("/e"), m.SyncDir("/"), create(t, m, "/d/f", "a").Sync(), m.SyncDir("/d"))
			must(t, m.Rename("/d/f", "/e/f"), m.SyncDir("/e"), m.Remove("/e/f"), m.SyncDir("/e"))
		}, setOf("/d/ /d/f=a1 /e/", "/d/ /e/")},
		"a write is torn only where that is asked for": {some, func(t *testing.T, m *vfs.Mem) {
			t.Helper()
			f := create(t, m, "/f", rep("a", 1024))
			must(t, f.Sync(), m.SyncDir("/"))
			write(t, f, 0, rep("b", 1024))
		}, setOf("/f=a1024", "/f=b1024")},
		"a torn write, by the sector": {torn, func(t *testing.T, m *vfs.Mem) {
			t.Helper()
			f := create(t, m, "/f", rep("a", 1024))
			must(t, f.Sync(), m.SyncDir("/"))
			write(t, f, 0, rep("b", 1024))
		}, setOf("/f=a1024", "/f=b1024", "/f=a512b512", "/f=b512a512")},
		"a write over the end, kept but for the size": {torn, func(t *testing.T, m *vfs.Mem) {
			t.Helper()
			f := create(t, m, "/f", rep("a", 10))
			must(t, f.Sync(), m.SyncDir("/"))
			write(t, f, 0, rep("b", 600))
		}, setOf("/f=a10", "/f=b10", "/f=b512", "/f=b600", "/f=a100590", "/f=b512088", "/f=a100502b88")},
		"an append: lost, short, whole, or zeros": {torn, func(t *testing.T, m *vfs.Mem) {
			t.Helper()
			f := create(t, m, "/f", "a")
			must(t, f.Sync(), m.SyncDir("/"))
			write(t, f, 1, rep("b", 1000))
		}, setOf("/f=a1", "/f=a1b511", "/f=a1b1000", "/f=a101000", "/f=a1b5110489", "/f=a10511b489")},
		"a truncation may be lost under a later write": {some, func(t *testing.T, m *vfs.Mem) {
			t.Helper()
			f := create(t, m, "/f", rep("a", 10))
			must(t, f.Sync(), m.SyncDir("/"), f.Truncate(4))
			write(t, f, 4, "bb")
		}, setOf("/f=a10", "/f=a4", "/f=a4b2", "/f=a402", "/f=a4b2a4")},
		"a synced truncation stays": {some, func(t *testing.T, m *vfs.Mem) {
			t.Helper()
			f := create(t, m, "/f", rep("a", 10))
			must(t, f.Sync(), m.SyncDir("/"), f.Truncate(4), f.Sync())
		}, setOf("/f=a4")},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m := vfs.NewMem()
			test.do(t, m)
			if diff := cmp.Diff(test.want, outcomes(m, test.opts, tree)); diff != "" {
				t.Errorf("disks after a power cut, -want +got:\n%s", diff)
			}
		})
	}
}

func TestCrashClone_isWholeByItself(t *testing.T) {
	m := vfs.NewMem()
	f := create(t, m, "/f", "a")
	must(t, f.Sync(), m.SyncDir("/"))
	write(t, f, 0, "b")
	c := m.CrashClone(rand.New(rand.NewPCG(1, 1)), vfs.CrashOptions{KeepUnsyncedPercent: 100})
	write(t, f, 0, "c")
	g, err := c.Open("/f")
	must(t, err)
	write(t, g, 1, "d")
	if got := tree(c); got != "/f=b1d1" {
		t.Errorf("the clone holds %s", got)
	}
	if got := tree(m); got != "/f=c1" {
		t.Errorf("the original holds %s", got)
	}
	// What luck kept is durable in the clone; what came after is not.
	c = c.CrashClone(rand.New(rand.NewPCG(1, 1)), vfs.CrashOptions{})
	if got := tree(c); got != "/f=b1" {
		t.Errorf("the clone of the clone holds %s", got)
	}
}

func TestCrashClone_sameSeedSameDisk(t *testing.T) {
	m := vfs.NewMem()
	for i := range 20 {
		create(t, m, fmt.Sprintf("/f%d", i), strings.Repeat("x", 3000))
	}
	opts := vfs.CrashOptions{KeepUnsyncedPercent: 50, TornSectors: true}
	one := tree(m.CrashClone(rand.New(rand.NewPCG(3, 3)), opts))
	for range 5 {
		if other := tree(m.CrashClone(rand.New(rand.NewPCG(3, 3)), opts)); other != one {
			t.Fatalf("one seed, two disks:\n%s\n%s", one, other)
		}
	}
}

func TestMem_capacity(t *testing.T) {
	m := vfs.NewMem()
	m.SetCapacity(10)
	f := create(t, m, "/f", "12345678")
	if n, err := f.WriteAt([]byte("abcd"), 8); n != 2 || !vfs.IsNoSpace(err) {
		t.Errorf("WriteAt over the end of the disk = %d, %v, want 2 and ENOSPC", n, err)
	}
	if _, err := f.WriteAt([]byte("overwrite!"), 0); err != nil {
		t.Errorf("a write that needs no room: %v", err)
	}
	if _, err := m.Create("/g"); !vfs.IsNoSpace(err) {
		t.Errorf("Create on a full disk: %v", err)
	}
	if err := m.MkdirAll("/d"); !vfs.IsNoSpace(err) {
		t.Errorf("MkdirAll on a full disk: %v", err)
	}
	free := func(want int64) {
		t.Helper()
		if got, total, err := m.Free("/"); got != want || total != 10 || err != nil {
			t.Errorf("Free = %d of %d, %v, want %d of 10", got, total, err, want)
		}
	}
	free(0)
	must(t, f.Truncate(4))
	free(6)
	must(t, m.Remove("/f"))
	free(6) // until it is closed
	must(t, f.Close())
	free(10)
	create(t, m, "/h", "abc")
	create(t, m, "/i", "abcd")
	must(t, m.Rename("/h", "/i"))
	must(t, m.Remove("/i"))
	free(3) // the one that was replaced and the other are open
	m.Kill()
	free(10)
}

func TestMem_maxOpen(t *testing.T) {
	m := vfs.NewMem()
	f := create(t, m, "/f", "")
	m.SetMaxOpen(1)
	if _, err := m.Open("/f"); !vfs.IsTooManyFiles(err) {
		t.Errorf("Open over the limit: %v", err)
	}
	must(t, f.Close())
	g, err := m.Open("/f")
	must(t, err, g.Close())
}

func TestMem_killEndsTheProcessOnly(t *testing.T) {
	m := vfs.NewMem()
	f := create(t, m, "/f", "unsynced")
	_, err := m.Lock("/lock")
	must(t, err)
	m.Kill()
	if _, err := f.WriteAt([]byte("late"), 0); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("a write of the dead process: %v", err)
	}
	l, err := m.Lock("/lock")
	must(t, err, l.Close())
	if got := content(t, m, "/f"); got != "unsynced" {
		t.Errorf("the file holds %q", got)
	}
	if got := tree(m.CrashClone(rand.New(rand.NewPCG(1, 1)), vfs.CrashOptions{})); got != "" {
		t.Errorf("a later power cut finds %s", got)
	}
}

// What was pending in directories that are gone is forgotten, and what left
// them in time is not.
func TestMem_forgetsWhatIsGone(t *testing.T) {
	m := vfs.NewMem()
	for i := range 50 {
		must(t, m.MkdirAll("/d/e"), create(t, m, "/d/e/f", "a").Sync(), create(t, m, "/d/g", "b").Sync())
		must(t, m.Rename("/d/g", fmt.Sprintf("/g%d", i)), m.RemoveAll("/d"), m.SyncDir("/"))
	}
	if n := m.PendingChanges(); n != 0 {
		t.Errorf("%d changes are pending", n)
	}
	if got := strings.Fields(tree(m.CrashClone(rand.New(rand.NewPCG(1, 1)), vfs.CrashOptions{}))); len(got) != 50 {
		t.Errorf("%d files, want 50: %v", len(got), got)
	}
}

func TestMem_concurrentUse(t *testing.T) {
	m := vfs.NewMem()
	f := create(t, m, "/f", strings.Repeat("x", 512))
	var wg sync.WaitGroup
	errs := make([]error, 200)
	wg.Go(func() {
		for i := range errs {
			_, err := f.WriteAt([]byte("y"), int64(i))
			errs[i] = errors.Join(err, f.Sync())
		}
	})
	wg.Go(func() {
		for i := range uint64(200) {
			m.CrashClone(rand.New(rand.NewPCG(i, 0)), vfs.CrashOptions{KeepUnsyncedPercent: 50})
		}
	})
	wg.Wait()
	must(t, errs...)
}
