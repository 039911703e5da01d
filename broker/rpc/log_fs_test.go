package rpc

import (
	"bytes"
	"sync/atomic"

	"github.com/runnelmq/runnel/internal/vfs"
)

// A flippingFS damages what is read: where a read holds the given text, one bit
// of it is wrong.
type flippingFS struct {
	vfs.FS
	damage atomic.Pointer[string]
}

func newFlippingFS() *flippingFS { return &flippingFS{FS: vfs.NewMem()} }

type flippingFile struct {
	vfs.File
	fs *flippingFS
}

func (f flippingFile) ReadAt(b []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(b, off)
	if text := f.fs.damage.Load(); text != nil {
		if at := bytes.Index(b[:n], []byte(*text)); at >= 0 {
			b[at] ^= 1
		}
	}
	return n, err
}

func (f *flippingFS) wrap(file vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return flippingFile{file, f}, nil
}

func (f *flippingFS) Open(name string) (vfs.File, error)   { return f.wrap(f.FS.Open(name)) }
func (f *flippingFS) Create(name string) (vfs.File, error) { return f.wrap(f.FS.Create(name)) }
func (f *flippingFS) OpenOrCreate(name string) (vfs.File, error) {
	return f.wrap(f.FS.OpenOrCreate(name))
}
