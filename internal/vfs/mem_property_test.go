package vfs_test

import (
	"errors"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/runnelmq/runnel/internal/vfs"
)

// TestCrashClone_property runs random histories against a plain record of what
// was synced when, and asks of every clone: is all of that there, and is all
// that is there something that once was written?
func TestCrashClone_property(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory()
		steps := rapid.IntRange(1, 60).Draw(t, "steps")
		for range steps {
			h.step(t)
		}
		for _, keep := range []int{0, 50, 100} {
			opts := vfs.CrashOptions{KeepUnsyncedPercent: keep, TornSectors: rapid.Bool().Draw(t, "torn")}
			seed := rapid.Uint64().Draw(t, "seed")
			c := h.mem.CrashClone(rand.New(rand.NewPCG(seed, 0)), opts)
			h.check(t, c, keep)
		}
	})
}

// A history is one directory of files, and all that may be on its disk.
type history struct {
	mem     *vfs.Mem
	entries map[string]*inode          // now
	durable map[string]*inode          // at the last SyncDir
	since   map[string]map[*inode]bool // what each name may be: had it since, or at, the last SyncDir
	absent  map[string]bool            // names that may be missing
	fill    byte
}

type inode struct {
	file vfs.File
	data []byte
	// Since the last sync: what each byte was, and the sizes there were.
	synced []byte
	was    map[int]map[byte]bool
	sizes  map[int]bool
}

func newHistory() *history {
	return &history{
		mem: vfs.NewMem(), entries: map[string]*inode{}, durable: map[string]*inode{},
		since: map[string]map[*inode]bool{}, absent: map[string]bool{}, fill: 1,
	}
}

func (h *history) note(name string) {
	if h.since[name] == nil {
		h.since[name] = map[*inode]bool{}
		if n := h.durable[name]; n != nil {
			h.since[name][n] = true
		} else {
			h.absent[name] = true
		}
	}
	if n := h.entries[name]; n != nil {
		h.since[name][n] = true
	}
}

func (h *history) step(t *rapid.T) {
	name := "/" + rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
	n := h.entries[name]
	if n == nil {
		f, err := h.mem.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		h.note(name)
		h.entries[name] = &inode{file: f, was: map[int]map[byte]bool{}, sizes: map[int]bool{0: true}}
		h.note(name)
		return
	}
	var err error
	switch rapid.SampledFrom([]string{"write", "write", "append", "truncate", "sync", "syncdir", "rename", "remove"}).Draw(t, "op") {
	case "write":
		at := rapid.IntRange(0, len(n.data)+600).Draw(t, "at")
		err = h.write(n, at, rapid.IntRange(1, 1500).Draw(t, "len"))
	case "append":
		err = h.write(n, len(n.data), rapid.IntRange(1, 1500).Draw(t, "len"))
	case "truncate":
		size := rapid.IntRange(0, len(n.data)).Draw(t, "size")
		err = n.file.Truncate(int64(size))
		n.data = n.data[:size:size]
		n.sizes[size] = true
	case "sync":
		err = n.file.Sync()
		n.synced = slices.Clone(n.data)
		n.was = map[int]map[byte]bool{}
		n.sizes = map[int]bool{len(n.data): true}
	case "syncdir":
		err = h.mem.SyncDir("/")
		h.durable = maps.Clone(h.entries)
		h.since = map[string]map[*inode]bool{}
		h.absent = map[string]bool{}
	case "rename":
		to := "/" + rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "to")
		if to == name {
			return
		}
		err = h.mem.Rename(name, to)
		h.note(name)
		h.note(to)
		delete(h.entries, name)
		h.absent[name] = true
		h.entries[to] = n
		h.note(to)
		// An older place of the file is left by this rename as well.
		for other, nodes := range h.since {
			if nodes[n] {
				h.absent[other] = true
			}
		}
	case "remove":
		err = h.mem.Remove(name)
		h.note(name)
		delete(h.entries, name)
		h.absent[name] = true
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (h *history) write(n *inode, at, size int) error {
	h.fill++
	if h.fill == 0 {
		h.fill = 1
	}
	data := slices.Repeat([]byte{h.fill}, size)
	_, err := n.file.WriteAt(data, int64(at))
	for len(n.data) < at+size {
		n.data = append(n.data, 0)
	}
	copy(n.data[at:], data)
	for i := range size {
		if n.was[at+i] == nil {
			n.was[at+i] = map[byte]bool{}
		}
		n.was[at+i][h.fill] = true
	}
	n.sizes[len(n.data)] = true
	return err
}

// may reports whether data can be what a power cut left of n.
func (n *inode) may(data []byte, keep int) bool {
	switch keep {
	case 0:
		return slices.Equal(data, n.synced)
	case 100:
		return slices.Equal(data, n.data)
	}
	shrunk := slices.Min(slices.Collect(maps.Keys(n.sizes)))
	if len(data) < min(shrunk, len(n.synced)) || len(data) > max(len(n.synced), slices.Max(slices.Collect(maps.Keys(n.sizes)))) {
		return false
	}
	for i, b := range data {
		switch {
		case n.was[i][b]:
		case i < len(n.synced) && b == n.synced[i]:
		case b == 0 && (i >= len(n.synced) || i >= shrunk): // never written, or cut off and grown again
		default:
			return false
		}
	}
	return true
}

func (h *history) check(t *rapid.T, c *vfs.Mem, keep int) {
	for _, name := range []string{"/a", "/b", "/c"} {
		data, err := vfs.ReadFile(c, name)
		missing := errors.Is(err, fs.ErrNotExist)
		if err != nil && !missing {
			t.Fatal(err)
		}
		want := map[*inode]bool{}
		var mayMiss bool
		switch {
		case keep == 0:
			want[h.durable[name]] = h.durable[name] != nil
			mayMiss = h.durable[name] == nil
		case keep == 100:
			want[h.entries[name]] = h.entries[name] != nil
			mayMiss = h.entries[name] == nil
		case h.since[name] == nil:
			want[h.durable[name]] = h.durable[name] != nil
			mayMiss = h.durable[name] == nil || h.absent[name]
		default:
			want, mayMiss = h.since[name], h.absent[name]
		}
		if missing {
			if !mayMiss {
				t.Fatalf("keep %d: %s is missing", keep, name)
			}
			continue
		}
		found := false
		for n, ok := range want {
			found = found || (ok && n.may(data, keep))
		}
		if !found {
			t.Fatalf("keep %d: %s holds %s, which it never could", keep, name, runs(data))
		}
	}
}
