package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
)

// ErrUnusable is returned when etcd can't make sense of what is in its directory.
var ErrUnusable = errors.New("the metadata store can't be used")

// unusable is ErrUnusable for a reason, with what to do.
func unusable(format string, args ...any) error {
	return fmt.Errorf("%w: %w\n"+
		"Look for a full disk, free space, and start again. Else the files are damaged: where most of the other controllers are up,\n"+
		"remove this member (controller remove), move its directory away, and let it join anew (controller join);\n"+
		"where there is no other, move the directory away and restore a backup (controller restore)", ErrUnusable, fmt.Errorf(format, args...))
}

// damaged reports whether etcd refuses to start because of its write-ahead log.
func damaged(err error) bool {
	return slices.ContainsFunc([]error{
		walpb.ErrCRCMismatch, wal.ErrCRCMismatch, wal.ErrMetadataConflict, wal.ErrFileNotFound, wal.ErrSnapshotMismatch, wal.ErrSnapshotNotFound,
		wal.ErrSliceOutOfRange, wal.ErrDecoderNotFound, io.ErrUnexpectedEOF,
	}, func(one error) bool { return errors.Is(err, one) })
}

// checkFiles looks for damage that etcd would end the whole process for, in goroutines of its own where nobody can catch it. The
// files of a member that has never run, and those that another process uses, are not looked at.
func checkFiles(dir string) error {
	wals, err := filepath.Glob(filepath.Join(dir, "member", "wal", "*.wal"))
	if err != nil {
		return unusable("%w", err)
	}
	path := filepath.Join(dir, "member", "snap", "db")
	_, err = os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil // etcd says what it lacks, or makes it anew
	case err != nil:
		return unusable("%w", err)
	case len(wals) == 0:
		return unusable("there is a database, and no write-ahead log beside it")
	}
	for _, log := range wals {
		if info, err := os.Stat(log); err == nil && info.Size() == 0 {
			return unusable("%s is empty", log)
		}
	}
	if err := checkDatabase(path); err != nil {
		return unusable("%s: %w", path, err)
	}
	return nil
}

// lockWait is how long the database may be held by somebody else.
const lockWait = 100 * time.Millisecond

// checkDatabase walks over all pages of a database, as etcd does when it opens it. bbolt panics on a page that it can't make sense
// of, and the kernel faults on one beyond the end of the file.
func checkDatabase(path string) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("damaged: %v", p)
		}
	}()
	info, err := os.Stat(path)
	if err != nil || info.Size() == 0 {
		return err // an empty one is filled from the log
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: lockWait})
	if errors.Is(err, berrors.ErrTimeout) {
		return nil // in use: etcd says so
	}
	if err != nil {
		return err
	}
	defer db.Close()
	return db.View(func(tx *bbolt.Tx) error {
		if tx.Size() > info.Size() {
			return fmt.Errorf("cut off: it has %d bytes of %d", info.Size(), tx.Size())
		}
		return tx.ForEach(func(_ []byte, b *bbolt.Bucket) error { return walk(b) })
	})
}

// walk reads each page of a bucket, and of those within.
func walk(b *bbolt.Bucket) error {
	return b.ForEach(func(name, value []byte) error {
		if value != nil {
			return nil
		}
		inner := b.Bucket(name)
		if inner == nil {
			return fmt.Errorf("no bucket %q", name)
		}
		return walk(inner)
	})
}

// discardUnused removes what a start leaves behind that never came to be a member: it was refused, or killed, between making the
// database and the log. In the way it would pass for a member that lost its log. A database that anything was ever written to is
// kept, and so is one that can't be read or is in use.
func discardUnused(dir string) error {
	member := filepath.Join(dir, "member")
	if _, err := os.Stat(filepath.Join(member, "wal")); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	path := filepath.Join(member, "snap", "db")
	if checkDatabase(path) != nil {
		return nil //nolint:nilerr // there is none, or opening it will say what is wrong
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: lockWait})
	if err != nil {
		return nil //nolint:nilerr // in use, or else opening it will say what is wrong
	}
	used := false
	err = db.View(func(tx *bbolt.Tx) error {
		used = hasKey(tx.Bucket([]byte("key"))) || hasIndex(tx.Bucket([]byte("meta")))
		return nil
	})
	if err = errors.Join(err, db.Close()); err != nil || used {
		return err
	}
	return os.RemoveAll(member)
}

// hasKey reports whether etcd's bucket of keys holds any.
func hasKey(b *bbolt.Bucket) bool {
	if b == nil {
		return false
	}
	k, _ := b.Cursor().First()
	return k != nil
}

// hasIndex reports whether etcd's bucket about itself says that a log entry was applied.
func hasIndex(b *bbolt.Bucket) bool {
	if b == nil {
		return false
	}
	return slices.ContainsFunc(b.Get([]byte("consistent_index")), func(c byte) bool { return c != 0 })
}
