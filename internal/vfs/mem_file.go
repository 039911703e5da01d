package vfs

import (
	"errors"
	"io"
	"io/fs"
	"slices"
	"syscall"
)

// A fileOp is a write or a truncation that no sync made durable.
type fileOp struct {
	truncate bool
	size     int64  // of the file after a truncation
	at       int64  // of a write
	data     []byte // of a write
}

type memFile struct {
	mem  *Mem
	node *node
	name string
	life int

	closed bool // guarded by mem.mu
}

// use locks the file system for a call on f; the caller unlocks it.
func (f *memFile) use(op string) error {
	f.mem.mu.Lock()
	if f.closed || f.life != f.mem.life {
		return pathError(op, f.name, fs.ErrClosed)
	}
	return nil
}

func (f *memFile) Name() string { return f.name }

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	err := f.use("read")
	defer f.mem.mu.Unlock()

	if err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, pathError("read", f.name, errors.New("negative offset"))
	}
	if off >= int64(len(f.node.data)) {
		if len(p) == 0 {
			return 0, nil
		}
		return 0, io.EOF
	}
	n := copy(p, f.node.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	err := f.use("write")
	defer f.mem.mu.Unlock()

	if err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, pathError("write", f.name, errors.New("negative offset"))
	}
	m, n := f.mem, f.node
	size := int64(len(n.data))
	fits := p
	if grow := off + int64(len(p)) - size; grow > m.room() {
		fits = p[:max(0, size+m.room()-off)]
		err = pathError("write", f.name, syscall.ENOSPC)
	}
	if len(fits) > 0 {
		op := fileOp{at: off, data: slices.Clone(fits)}
		n.data = op.apply(n.data)
		n.unsynced = append(n.unsynced, op)
		m.used += int64(len(n.data)) - size
	}
	return len(fits), err
}

func (f *memFile) Truncate(size int64) error {
	err := f.use("truncate")
	defer f.mem.mu.Unlock()

	if err != nil {
		return err
	}
	n := f.node
	old := int64(len(n.data))
	switch {
	case size < 0:
		return pathError("truncate", f.name, syscall.EINVAL)
	case size-old > f.mem.room():
		return pathError("truncate", f.name, syscall.ENOSPC)
	case size == old:
		return nil
	}
	op := fileOp{truncate: true, size: size}
	n.data = op.apply(n.data)
	n.unsynced = append(n.unsynced, op)
	f.mem.used += size - old
	return nil
}

// WriteBack changes nothing: a power cut takes any part of what is not synced.
func (f *memFile) WriteBack() {}

func (f *memFile) Sync() error {
	err := f.use("sync")
	defer f.mem.mu.Unlock()

	if err != nil {
		return err
	}
	n := f.node
	for _, op := range n.unsynced {
		n.synced = op.apply(n.synced)
	}
	n.unsynced = nil
	return nil
}

func (f *memFile) Size() (int64, error) {
	err := f.use("stat")
	defer f.mem.mu.Unlock()

	return int64(len(f.node.data)), err
}

func (f *memFile) Close() error {
	err := f.use("close")
	defer f.mem.mu.Unlock()

	if err != nil {
		return err
	}
	f.closed = true
	f.mem.open--
	f.node.open--
	if f.node.unlinked && f.node.open == 0 {
		f.mem.used -= int64(len(f.node.data))
	}
	return nil
}

// apply returns b with op done to it, in place where there is room.
func (op fileOp) apply(b []byte) []byte {
	if op.truncate {
		return resize(b, op.size)
	}
	b = resize(b, max(int64(len(b)), op.at+int64(len(op.data))))
	copy(b[op.at:], op.data)
	return b
}

// resize cuts b, or extends it by zeros.
func resize(b []byte, size int64) []byte {
	old := int64(len(b))
	if size <= old {
		return b[:size]
	}
	b = slices.Grow(b, int(size-old))[:size]
	clear(b[old:])
	return b
}
