package vfs

import (
	"maps"
	"math/rand/v2"
	"slices"
)

// sectorSize is what a disk writes at once: a sector is old or new after a
// power cut, never in between.
const sectorSize = 512

// CrashOptions says how much luck a power cut leaves.
type CrashOptions struct {
	// KeepUnsyncedPercent is how likely each change that was not synced is on
	// the disk all the same: 0 for none, 100 for all.
	KeepUnsyncedPercent int
	// TornSectors decides for each 512-byte sector of an unsynced write
	// alone, not for the write as a whole.
	TornSectors bool
}

type dirOpKind uint8

const (
	opLink   dirOpKind = iota // a new file or directory
	opUnlink                  // its removal
	opRename
)

// A dirOp is a change of directory entries that is not durable yet.
type dirOp struct {
	kind dirOpKind
	dir  *node
	name string
	node *node

	// The new place, of a rename.
	to     *node
	toName string

	// Which of its directories were synced since.
	dirSynced, toSynced bool
}

func (op *dirOp) durable() bool { return op.dirSynced && (op.to == nil || op.toSynced) }

// change does op for the running process and remembers that it is not durable.
func (m *Mem) change(op *dirOp) {
	op.apply(func(n *node) map[string]*node { return n.entries })
	m.pending = append(m.pending, op)
}

// apply does op to the entries that of chooses. An operation may find that one
// before it never happened, and then does what is left of it to do.
func (op *dirOp) apply(of func(*node) map[string]*node) {
	switch op.kind {
	case opLink:
		of(op.dir)[op.name] = op.node
	case opUnlink:
		if of(op.dir)[op.name] == op.node {
			delete(of(op.dir), op.name)
		}
	case opRename:
		if of(op.dir)[op.name] == op.node {
			delete(of(op.dir), op.name)
		}
		of(op.to)[op.toName] = op.node
	}
}

// syncEntries makes the pending changes of one directory durable. A rename
// across two needs both synced, and what came after it in either waits for it,
// so that the order within a directory stays.
func (m *Mem) syncEntries(dir *node) {
	for _, op := range m.pending {
		op.dirSynced = op.dirSynced || op.dir == dir
		op.toSynced = op.toSynced || op.to == dir
	}
	m.forgetGone()
	waiting := map[*node]bool{}
	left := m.pending[:0]
	for _, op := range m.pending {
		if op.durable() && !waiting[op.dir] && !waiting[op.to] {
			op.apply(func(n *node) map[string]*node { return n.durable })
			continue
		}
		waiting[op.dir] = true
		if op.to != nil {
			waiting[op.to] = true
		}
		left = append(left, op)
	}
	clear(m.pending[len(left):])
	m.pending = left
}

// forgetGone drops what is pending in directories that are durably removed:
// nobody can sync them any more, and nobody can tell. A rename out of one no
// longer waits for it.
func (m *Mem) forgetGone() {
	gone := map[*node]bool{}
	for grew := true; grew; {
		grew = false
		for _, op := range m.pending {
			removed := op.kind == opUnlink && op.node.isDir && (op.durable() || gone[op.dir])
			if removed && !gone[op.node] {
				gone[op.node] = true
				grew = true
			}
		}
	}
	if len(gone) == 0 {
		return
	}
	m.pending = slices.DeleteFunc(m.pending, func(op *dirOp) bool {
		if op.kind != opRename {
			return gone[op.dir]
		}
		op.dirSynced = op.dirSynced || gone[op.dir]
		op.toSynced = op.toSynced || gone[op.to]
		return gone[op.dir] && gone[op.to]
	})
}

// CrashClone returns what a disk may hold when the power fails now: all that
// was synced, and of the rest what luck has kept. Each unsynced creation,
// renaming and removal of an entry happened or did not, whatever became of the
// others; a rename happened whole or not at all. Of a file's unsynced writes
// each is there or not, at its sectors; its size is any it had since the last
// sync, so that a truncation may be lost under later writes, and where the
// size is there without the bytes, the bytes are zeros.
//
// The clone has no limits and nothing open in it; m goes on unchanged. The
// same rng state, options and history give the same clone.
func (m *Mem) CrashClone(rng *rand.Rand, opts CrashOptions) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()

	c := crash{
		rng: rng, opts: opts,
		entries: map[*node]map[string]*node{},
		place:   map[*node]place{},
	}
	c.collect(m.root)
	for _, op := range m.pending {
		if op.durable() || c.lucky() {
			c.replay(op)
		}
	}
	clone := NewMem()
	clone.root = c.rebuild(m.root)
	clone.used = forgetHandles(clone.root)
	return clone
}

// A crash decides what is left of a file system.
type crash struct {
	rng     *rand.Rand
	opts    CrashOptions
	entries map[*node]map[string]*node // of directories, as on the disk
	place   map[*node]place            // where each node is
}

type place struct {
	dir  *node
	name string
}

func (c *crash) lucky() bool { return c.rng.IntN(100) < c.opts.KeepUnsyncedPercent }

// of returns the entries of a directory on the disk.
func (c *crash) of(dir *node) map[string]*node {
	if c.entries[dir] == nil {
		c.collect(dir)
	}
	return c.entries[dir]
}

func (c *crash) collect(dir *node) {
	c.entries[dir] = maps.Clone(dir.durable)
	for name, n := range dir.durable {
		c.place[n] = place{dir, name}
		if n.isDir && c.entries[n] == nil {
			c.collect(n)
		}
	}
}

// replay does op on the disk. A node has one place: an entry that an earlier,
// lost rename would have taken away goes with the later one that was kept.
func (c *crash) replay(op *dirOp) {
	c.of(op.dir) // so that place knows what is in it
	if at, ok := c.place[op.node]; ok && op.kind == opRename && c.of(at.dir)[at.name] == op.node {
		delete(c.of(at.dir), at.name)
	}
	op.apply(c.of)
	switch op.kind {
	case opLink:
		c.place[op.node] = place{op.dir, op.name}
	case opRename:
		c.place[op.node] = place{op.to, op.toName}
	case opUnlink:
	}
}

// rebuild returns a durable copy of n as the disk has it.
func (c *crash) rebuild(n *node) *node {
	if !n.isDir {
		data := c.content(n)
		return &node{data: data, synced: slices.Clone(data)}
	}
	dir := newDir()
	entries := c.of(n)
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		child := c.rebuild(entries[name])
		dir.entries[name], dir.durable[name] = child, child
	}
	return dir
}

// content returns what is left of a file.
func (c *crash) content(n *node) []byte {
	b := slices.Clone(n.synced)
	sizes := c.prefix(len(n.unsynced)) // how many changes of the size were kept
	zeroFill := c.opts.KeepUnsyncedPercent > 0 && c.rng.IntN(2) == 0
	for i, op := range n.unsynced {
		if op.truncate {
			if i < sizes {
				b = op.apply(b)
			}
			continue
		}
		if i < sizes && zeroFill {
			b = resize(b, max(int64(len(b)), op.at+int64(len(op.data))))
		}
		whole := c.lucky()
		for _, part := range op.sectors() {
			if c.opts.TornSectors {
				whole = c.lucky()
			}
			if !whole {
				continue
			}
			if i >= sizes {
				// The size never came to that: bytes beyond it are lost.
				part.data = part.data[:min(int64(len(part.data)), max(0, int64(len(b))-part.at))]
			}
			if len(part.data) > 0 {
				b = part.apply(b)
			}
		}
	}
	return b
}

// prefix returns how many of n ordered changes were kept.
func (c *crash) prefix(n int) int {
	switch c.opts.KeepUnsyncedPercent {
	case 0:
		return 0
	case 100:
		return n
	default:
		return c.rng.IntN(n + 1)
	}
}

// sectors splits a write at the sectors of the disk.
func (op fileOp) sectors() []fileOp {
	var parts []fileOp
	for at, data := op.at, op.data; len(data) > 0; {
		n := min(int64(len(data)), sectorSize-at%sectorSize)
		parts = append(parts, fileOp{at: at, data: data[:n]})
		at, data = at+n, data[n:]
	}
	return parts
}
