package commitlog

import (
	"path/filepath"
	"strings"

	"github.com/runnelmq/runnel/internal/vfs"
)

// ballastFS is the file system as logs see it. What must go on when the disk
// is full falls back on the ballast: the small files, truncation, and changes
// of directories. Records and indexes do not; they would only eat it.
type ballastFS struct {
	vfs.FS

	disk *disk
}

// bulky reports whether a file holds records, a copy of them, or an index:
// what can wait for room, or be made anew.
func bulky(name string) bool {
	base := filepath.Base(name)
	for _, part := range []string{".log", ".index", ".torn", ".diverged"} {
		if strings.Contains(base, part) {
			return true
		}
	}
	return false
}

func (b ballastFS) open(name string, open func(string) (vfs.File, error)) (vfs.File, error) {
	if bulky(name) {
		f, err := open(name)
		return b.wrap(f), err
	}
	var f vfs.File
	err := b.disk.retry(func() (err error) { f, err = open(name); return err })
	return b.wrap(f), err
}

func (b ballastFS) wrap(f vfs.File) vfs.File {
	switch {
	case f == nil:
		return nil
	case bulky(f.Name()):
		return bulkyFile{f, b.disk}
	default:
		return smallFile{bulkyFile{f, b.disk}}
	}
}

func (b ballastFS) Open(name string) (vfs.File, error) {
	f, err := b.FS.Open(name)
	return b.wrap(f), err
}

func (b ballastFS) Create(name string) (vfs.File, error) { return b.open(name, b.FS.Create) }

func (b ballastFS) OpenOrCreate(name string) (vfs.File, error) {
	return b.open(name, b.FS.OpenOrCreate)
}

func (b ballastFS) Remove(name string) error {
	return b.disk.retry(func() error { return b.FS.Remove(name) })
}

func (b ballastFS) RemoveAll(name string) error {
	return b.disk.retry(func() error { return b.FS.RemoveAll(name) })
}

func (b ballastFS) MkdirAll(name string) error {
	return b.disk.retry(func() error { return b.FS.MkdirAll(name) })
}

func (b ballastFS) Rename(oldName, newName string) error {
	return b.disk.retry(func() error { return b.FS.Rename(oldName, newName) })
}

// bulkyFile may use the ballast to become smaller: on a file system that
// copies on write, that too takes room.
type bulkyFile struct {
	vfs.File

	disk *disk
}

func (f bulkyFile) Truncate(size int64) error {
	return f.disk.retry(func() error { return f.File.Truncate(size) })
}

// smallFile may use the ballast to be written.
type smallFile struct{ bulkyFile }

func (f smallFile) WriteAt(p []byte, off int64) (n int, err error) {
	err = f.disk.retry(func() error { n, err = f.File.WriteAt(p, off); return err })
	return n, err
}
