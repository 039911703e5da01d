package vfs

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// Mem is a file system in memory. It remembers what was synced and what was
// not, so that [Mem.CrashClone] can say what a disk may hold after a power
// cut. It is safe for concurrent use.
type Mem struct {
	// mu guards the fields below, and all nodes.
	mu      sync.Mutex
	root    *node
	pending []*dirOp // changes of entries that no sync made durable, oldest first
	locks   map[string]*memLock
	used    int64 // bytes in files
	open    int   // files open
	life    int   // counts Kill: a handle of an earlier life is dead

	capacity int64 // 0: no limit
	maxOpen  int   // 0: no limit
}

// unlimited is the size of a Mem without a capacity, as Free tells it.
const unlimited = 1 << 50

// NewMem returns an empty file system without limits.
func NewMem() *Mem { return &Mem{root: newDir(), locks: map[string]*memLock{}} }

// SetCapacity limits the bytes in all files together: what does not fit fails
// with ENOSPC. A write that fits in part is written in part. 0 is no limit.
func (m *Mem) SetCapacity(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()

	m.capacity = bytes
}

// SetMaxOpen limits how many files may be open: one more fails with EMFILE.
// 0 is no limit.
func (m *Mem) SetMaxOpen(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()

	m.maxOpen = n
}

// OpenFiles returns how many files are open.
func (m *Mem) OpenFiles() int {
	m.mu.Lock()
	defer m.mu.Unlock()

	return m.open
}

// Kill does what the end of a process does: open files and locks are gone, and
// their handles fail. Everything written stays, synced or not.
func (m *Mem) Kill() {
	m.mu.Lock()
	defer m.mu.Unlock()

	m.life++
	m.open = 0
	m.locks = map[string]*memLock{}
	m.used = forgetHandles(m.root)
}

// forgetHandles returns the bytes below n, which nobody has open any more.
func forgetHandles(n *node) int64 {
	n.open = 0
	bytes := int64(len(n.data))
	for _, child := range n.entries {
		bytes += forgetHandles(child)
	}
	return bytes
}

// A node is a file or a directory.
type node struct {
	isDir bool

	// Of a directory: its entries as a running process sees them, and those
	// that are durable. The pending operations lead from one to the other.
	entries map[string]*node
	durable map[string]*node

	// Of a file: its bytes as a running process sees them, and those that
	// are durable. unsynced leads from one to the other.
	data     []byte
	synced   []byte
	unsynced []fileOp
	open     int
	unlinked bool
}

func newDir() *node {
	return &node{isDir: true, entries: map[string]*node{}, durable: map[string]*node{}}
}

// names splits a path into its elements. The root has none; absolute and
// relative paths mean the same.
func names(name string) []string {
	clean := strings.Trim(filepath.ToSlash(filepath.Clean(name)), "/")
	if clean == "" || clean == "." {
		return nil
	}
	return strings.Split(clean, "/")
}

func pathError(op, name string, err error) error {
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// find returns the node at name, or nil.
func (m *Mem) find(name string) *node {
	n := m.root
	for _, elem := range names(name) {
		if n = n.entries[elem]; n == nil {
			return nil
		}
	}
	return n
}

// parent returns the directory that holds name, and the last element of name.
func (m *Mem) parent(op, name string) (dir *node, base string, err error) {
	elems := names(name)
	if len(elems) == 0 {
		return nil, "", pathError(op, name, syscall.EBUSY)
	}
	dir = m.root
	for _, elem := range elems[:len(elems)-1] {
		if dir = dir.entries[elem]; dir == nil {
			return nil, "", pathError(op, name, fs.ErrNotExist)
		}
	}
	if !dir.isDir {
		return nil, "", pathError(op, name, syscall.ENOTDIR)
	}
	return dir, elems[len(elems)-1], nil
}

// Open implements [FS].
func (m *Mem) Open(name string) (File, error) { return m.openFile(name, false, false) }

// Create implements [FS].
func (m *Mem) Create(name string) (File, error) { return m.openFile(name, true, true) }

// OpenOrCreate implements [FS].
func (m *Mem) OpenOrCreate(name string) (File, error) { return m.openFile(name, true, false) }

func (m *Mem) openFile(name string, create, exclusive bool) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()

	dir, base, err := m.parent("open", name)
	if err != nil {
		return nil, err
	}
	n := dir.entries[base]
	switch {
	case n == nil && !create:
		return nil, pathError("open", name, fs.ErrNotExist)
	case n != nil && exclusive:
		return nil, pathError("open", name, fs.ErrExist)
	case n != nil && n.isDir:
		return nil, pathError("open", name, syscall.EISDIR)
	case m.maxOpen > 0 && m.open >= m.maxOpen:
		return nil, pathError("open", name, syscall.EMFILE)
	case n == nil && m.full():
		return nil, pathError("open", name, syscall.ENOSPC)
	}
	if n == nil {
		n = &node{}
		m.change(&dirOp{kind: opLink, dir: dir, name: base, node: n})
	}
	n.open++
	m.open++
	return &memFile{mem: m, node: n, name: name, life: m.life}, nil
}

func (m *Mem) full() bool { return m.capacity > 0 && m.used >= m.capacity }

// Remove implements [FS].
func (m *Mem) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()

	dir, base, err := m.parent("remove", name)
	if err != nil {
		return err
	}
	n := dir.entries[base]
	if n == nil {
		return pathError("remove", name, fs.ErrNotExist)
	}
	if len(n.entries) > 0 {
		return pathError("remove", name, syscall.ENOTEMPTY)
	}
	m.unlink(dir, base)
	return nil
}

// RemoveAll implements [FS].
func (m *Mem) RemoveAll(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()

	dir, base, err := m.parent("remove", name)
	if err != nil || dir.entries[base] == nil {
		return nil // what is not there is removed
	}
	m.unlink(dir, base)
	return nil
}

// unlink removes an entry and all below it, deepest first, as RemoveAll does.
func (m *Mem) unlink(dir *node, base string) {
	n := dir.entries[base]
	for _, child := range slices.Sorted(maps.Keys(n.entries)) {
		m.unlink(n, child)
	}
	m.change(&dirOp{kind: opUnlink, dir: dir, name: base, node: n})
	m.drop(n)
}

// drop gives up a node that has no entry any more; an open file keeps its
// bytes until it is closed.
func (m *Mem) drop(n *node) {
	n.unlinked = true
	if n.open == 0 {
		m.used -= int64(len(n.data))
	}
}

// Rename implements [FS].
func (m *Mem) Rename(oldName, newName string) error {
	m.mu.Lock()
	defer m.mu.Unlock()

	from, oldBase, err := m.parent("rename", oldName)
	if err != nil {
		return err
	}
	to, newBase, err := m.parent("rename", newName)
	if err != nil {
		return err
	}
	n, replaced := from.entries[oldBase], to.entries[newBase]
	switch {
	case n == nil:
		return pathError("rename", oldName, fs.ErrNotExist)
	case n == replaced:
		return nil
	case replaced != nil && replaced.isDir != n.isDir:
		return pathError("rename", newName, fs.ErrExist)
	case replaced != nil && len(replaced.entries) > 0:
		return pathError("rename", newName, syscall.ENOTEMPTY)
	case n.isDir && (to == n || n.holds(to)):
		return pathError("rename", newName, syscall.EINVAL)
	}
	m.change(&dirOp{kind: opRename, dir: from, name: oldBase, to: to, toName: newBase, node: n})
	if replaced != nil {
		m.drop(replaced)
	}
	return nil
}

// holds reports whether d is somewhere below n.
func (n *node) holds(d *node) bool {
	for _, child := range n.entries {
		if child == d || child.holds(d) {
			return true
		}
	}
	return false
}

// MkdirAll implements [FS].
func (m *Mem) MkdirAll(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()

	dir := m.root
	for _, elem := range names(name) {
		n := dir.entries[elem]
		switch {
		case n != nil && !n.isDir:
			return pathError("mkdir", name, syscall.ENOTDIR)
		case n == nil && m.full():
			return pathError("mkdir", name, syscall.ENOSPC)
		case n == nil:
			n = newDir()
			m.change(&dirOp{kind: opLink, dir: dir, name: elem, node: n})
		}
		dir = n
	}
	return nil
}

// ReadDir implements [FS].
func (m *Mem) ReadDir(name string) ([]DirEntry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()

	dir := m.find(name)
	if dir == nil {
		return nil, pathError("readdir", name, fs.ErrNotExist)
	}
	if !dir.isDir {
		return nil, pathError("readdir", name, syscall.ENOTDIR)
	}
	entries := make([]DirEntry, 0, len(dir.entries))
	for _, base := range slices.Sorted(maps.Keys(dir.entries)) {
		n := dir.entries[base]
		entries = append(entries, DirEntry{Name: base, IsDir: n.isDir, Size: int64(len(n.data))})
	}
	return entries, nil
}

// Stat implements [FS].
func (m *Mem) Stat(name string) (Info, error) {
	m.mu.Lock()
	defer m.mu.Unlock()

	n := m.find(name)
	if n == nil {
		return Info{}, pathError("stat", name, fs.ErrNotExist)
	}
	return Info{IsDir: n.isDir, Size: int64(len(n.data))}, nil
}

// SyncDir implements [FS].
func (m *Mem) SyncDir(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()

	dir := m.find(name)
	if dir == nil {
		return pathError("sync", name, fs.ErrNotExist)
	}
	if !dir.isDir {
		return pathError("sync", name, syscall.ENOTDIR)
	}
	m.syncEntries(dir)
	return nil
}

// Lock implements [FS].
func (m *Mem) Lock(name string) (io.Closer, error) {
	f, err := m.OpenOrCreate(name)
	if err != nil {
		return nil, err
	}
	if err := f.Close(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()

	key := strings.Join(names(name), "/")
	if m.locks[key] != nil {
		return nil, fmt.Errorf("lock %s: %w", name, ErrLocked)
	}
	l := &memLock{mem: m, key: key}
	m.locks[key] = l
	return l, nil
}

type memLock struct {
	mem *Mem
	key string
}

func (l *memLock) Close() error {
	l.mem.mu.Lock()
	defer l.mem.mu.Unlock()

	if l.mem.locks[l.key] != l {
		return pathError("unlock", l.key, fs.ErrClosed)
	}
	delete(l.mem.locks, l.key)
	return nil
}

// Free implements [FS].
func (m *Mem) Free(name string) (free, total int64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()

	if m.find(name) == nil {
		return 0, 0, pathError("statfs", name, fs.ErrNotExist)
	}
	total = m.capacity
	if total == 0 {
		total = unlimited
	}
	return max(0, total-m.used), total, nil
}

// room returns how many more bytes fit.
func (m *Mem) room() int64 {
	if m.capacity == 0 {
		return math.MaxInt64
	}
	return max(0, m.capacity-m.used)
}
