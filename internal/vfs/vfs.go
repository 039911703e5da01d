// Package vfs is the file system as the log engine sees it: the real one, and
// one in memory that can lose power and be made to fail.
//
// Every file operation of the engine goes through [FS], so that a test can cut
// the power before any sync ([Mem.CrashClone]) or fail any call ([Fault]).
// Paths are those of path/filepath. Nothing here is durable before it is
// synced: a file's bytes and size by [File.Sync], and the creation, renaming
// or removal of an entry by [FS.SyncDir] of the directory that holds it (of
// both directories, for a rename across two).
package vfs

import (
	"errors"
	"io"
	"io/fs"
	"path/filepath"
)

// ErrLocked is returned by [FS.Lock] when another holder has the lock.
var ErrLocked = errors.New("locked by another process")

// FS is a file system.
type FS interface {
	// Open opens an existing file for reading and writing.
	Open(name string) (File, error)
	// Create makes a new file and opens it for reading and writing; it is
	// an error (fs.ErrExist) when the name is taken.
	Create(name string) (File, error)
	// OpenOrCreate opens a file for reading and writing, and makes it first
	// when there is none. It does not truncate.
	OpenOrCreate(name string) (File, error)
	// Remove removes a file or an empty directory.
	Remove(name string) error
	// RemoveAll removes name and all below it; no error when there is none.
	RemoveAll(name string) error
	// Rename moves a file or directory, replacing a file at newName, at once.
	Rename(oldName, newName string) error
	// MkdirAll makes a directory and its missing parents. It syncs nothing;
	// see [MkdirAllSynced].
	MkdirAll(name string) error
	// ReadDir lists a directory, sorted by name.
	ReadDir(name string) ([]DirEntry, error)
	// Stat describes a file or directory; fs.ErrNotExist when there is none.
	Stat(name string) (Info, error)
	// SyncDir makes the entries of a directory durable: what was created,
	// renamed and removed in it. It needs no free file descriptor.
	SyncDir(name string) error
	// Lock takes an exclusive lock on name, a file made when missing and
	// never removed, until the closer is closed or the process ends. It does
	// not wait: [ErrLocked] when another holds it, in this process or another.
	Lock(name string) (io.Closer, error)
	// Free returns what an unprivileged process may still write on the file
	// system that holds name, and that file system's size, in bytes.
	Free(name string) (free, total int64, err error)
}

// File is an open file. ReadAt and WriteAt may be called concurrently.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Truncate changes the size. Bytes beyond the old end read as zeros.
	Truncate(size int64) error
	// Sync makes the file's bytes and size durable (not its directory
	// entry). After an error nothing is known about what was written since
	// the last success, and calling it again proves nothing.
	Sync() error
	// WriteBack lets the system begin to write what Sync would wait for. It is
	// a hint: nothing becomes durable by it, and what goes wrong is for the
	// next Sync to tell.
	WriteBack()
	// Size returns the size in bytes.
	Size() (int64, error)
	// Name returns the path the file was opened by.
	Name() string
}

// DirEntry is what a directory says about one of its entries.
type DirEntry struct {
	// Name is the last element of the path.
	Name string
	// IsDir tells a directory from a file.
	IsDir bool
	// Size is that of a file in bytes, 0 for a directory.
	Size int64
}

// Info describes a file or directory.
type Info struct {
	// IsDir tells a directory from a file.
	IsDir bool
	// Size is that of a file in bytes, 0 for a directory.
	Size int64
	// ID is the same for as long as this file is there, and another one for a
	// copy of it or a file that took its name; "" when the system does not say.
	ID string
}

// ReadFile returns the whole content of a file.
func ReadFile(fsys FS, name string) (data []byte, err error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()

	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	data = make([]byte, size)
	n, err := f.ReadAt(data, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return data[:n], nil
}

// TempSuffix ends the name of the file that [WriteFileAtomic] writes before it
// takes its final name. One found at a start is a leftover and may be removed.
const TempSuffix = ".tmp"

// WriteFileAtomic replaces name by a file that holds data, durably: after a
// crash there is the old file or the new one, whole, and after it returned nil
// there is the new one. On an error the old file stands, or the new one does
// and may not be durable.
func WriteFileAtomic(fsys FS, name string, data []byte) error {
	temp := name + TempSuffix
	if err := writeSynced(fsys, temp, data); err != nil {
		// What is left of it holds space that a full disk needs. The first
		// error is the one to report.
		_ = fsys.Remove(temp)
		return err
	}
	if err := fsys.Rename(temp, name); err != nil {
		return err
	}
	return fsys.SyncDir(filepath.Dir(name))
}

func writeSynced(fsys FS, name string, data []byte) (err error) {
	f, err := fsys.OpenOrCreate(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()

	if err := f.Truncate(0); err != nil {
		return err
	}
	if _, err := f.WriteAt(data, 0); err != nil {
		return err
	}
	return f.Sync()
}

// MkdirAllSynced makes a directory and its missing parents, and makes each
// one's entry durable in the directory above.
func MkdirAllSynced(fsys FS, name string) error {
	var missing []string
	for dir := filepath.Clean(name); ; dir = filepath.Dir(dir) {
		info, err := fsys.Stat(dir)
		if err == nil && !info.IsDir {
			return &fs.PathError{Op: "mkdir", Path: dir, Err: errors.New("a file is in the way")}
		}
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		missing = append(missing, dir)
		if dir == filepath.Dir(dir) {
			break
		}
	}
	if err := fsys.MkdirAll(name); err != nil {
		return err
	}
	for _, dir := range missing {
		if parent := filepath.Dir(dir); parent != dir {
			if err := fsys.SyncDir(parent); err != nil {
				return err
			}
		}
	}
	return nil
}
