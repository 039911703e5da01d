package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// Data is for the service's user and its group, and nobody else.
const (
	fileMode = 0o640
	dirMode  = 0o750
)

// OS returns the file system of the machine.
func OS() FS { return osFS{} }

type osFS struct{}

func (osFS) Open(name string) (File, error) { return open(name, os.O_RDWR) }

func (osFS) Create(name string) (File, error) {
	return open(name, os.O_RDWR|os.O_CREATE|os.O_EXCL)
}

func (osFS) OpenOrCreate(name string) (File, error) { return open(name, os.O_RDWR|os.O_CREATE) }

func open(name string, flag int) (File, error) {
	if err := leaveReserve(name); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(name, flag, fileMode)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osFS) Remove(name string) error             { return os.Remove(name) }
func (osFS) RemoveAll(name string) error          { return os.RemoveAll(name) }
func (osFS) Rename(oldName, newName string) error { return os.Rename(oldName, newName) }
func (osFS) MkdirAll(name string) error           { return os.MkdirAll(name, dirMode) }

func (osFS) ReadDir(name string) ([]DirEntry, error) {
	found, err := os.ReadDir(name)
	if err != nil {
		return nil, err
	}
	entries := make([]DirEntry, 0, len(found))
	for _, e := range found {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since it was listed
		}
		if err != nil {
			return nil, err
		}
		entries = append(entries, DirEntry{Name: e.Name(), IsDir: e.IsDir(), Size: sizeOf(info)})
	}
	return entries, nil
}

func (osFS) Stat(name string) (Info, error) {
	info, err := os.Stat(name)
	if err != nil {
		return Info{}, err
	}
	return Info{IsDir: info.IsDir(), Size: sizeOf(info), ID: fileID(name)}, nil
}

func sizeOf(info fs.FileInfo) int64 {
	if info.IsDir() {
		return 0
	}
	return info.Size()
}

func (osFS) SyncDir(name string) error { return syncDir(name) }

func (osFS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return nil, err
	}
	if err := lockFile(f); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", name, err), f.Close())
	}
	return f, nil // closing it unlocks
}

func (osFS) Free(name string) (free, total int64, err error) {
	free, total, err = freeSpace(name)
	if err != nil {
		return 0, 0, &fs.PathError{Op: "statfs", Path: name, Err: err}
	}
	return free, total, nil
}

type osFile struct{ *os.File }

func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (f osFile) Sync() error {
	if err := syncData(f.File); err != nil {
		return &fs.PathError{Op: "sync", Path: f.Name(), Err: err}
	}
	return nil
}

func (f osFile) WriteBack() { writeBack(f.File) }
