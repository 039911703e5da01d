package store

import (
	"encoding/binary"
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
	"go.uber.org/zap"
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
		if err := checkBegin(log); err != nil {
			return unusable("%s: %w", log, err)
		}
	}
	if err := checkDatabase(path); err != nil {
		return unusable("%s: %w", path, err)
	}
	if err := checkEnd(filepath.Join(dir, "member", "wal"), path); err != nil {
		return unusable("%w", err)
	}
	return nil
}

// checkBegin looks at the first record of a file of the log, which has a length: etcd takes a file of zeros for one that ends there.
func checkBegin(log string) error {
	f, err := os.Open(log) //nolint:gosec // one of etcd's own files
	if err != nil {
		return err
	}
	defer f.Close()
	var length [8]byte
	_, err = io.ReadFull(f, length[:])
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("it is empty")
	case err != nil:
		return err
	case length == [8]byte{}:
		return errors.New("it is overwritten with zeros")
	}
	return nil
}

// checkEnd compares where the log of a sole member ends with how far the database has come. A log that has lost its end, to zeros for
// one, passes for a shorter one; etcd would write the next entries under numbers that the database has seen, and never apply them. A
// member of several may lack what it has applied: the others have it. What else is wrong etcd says itself.
func checkEnd(dir, path string) (err error) {
	applied, sole, err := progressOf(path)
	if err != nil || !sole {
		return err
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s: damaged: %v", dir, p)
		}
	}()
	snaps, err := wal.ValidSnapshotEntries(zap.NewNop(), dir)
	if err != nil || len(snaps) == 0 {
		return nil // etcd says it
	}
	log, err := wal.OpenForRead(zap.NewNop(), dir, snaps[len(snaps)-1])
	if err != nil {
		return nil // etcd says it
	}
	_, _, entries, err := log.ReadAll()
	_ = log.Close() // nothing was written; of one that was opened to be read it fails always
	if err != nil {
		return nil // etcd says it
	}
	end := snaps[len(snaps)-1].GetIndex()
	if n := len(entries); n > 0 {
		end = entries[n-1].GetIndex()
	}
	if end < applied {
		return fmt.Errorf("%s: the log ends at entry %d, and %s has applied %d: the rest of the log is lost", dir, end, path, applied)
	}
	return nil
}

// progressOf returns the number of the last entry that a database holds, and whether its cluster has one member. A database that is in
// use, or holds neither, says nothing.
func progressOf(path string) (applied uint64, sole bool, err error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: lockWait})
	if err != nil {
		return 0, false, nil //nolint:nilerr // it was opened before: it is in use, or empty
	}
	err = db.View(func(tx *bbolt.Tx) error {
		if b := tx.Bucket([]byte("members")); b != nil {
			sole = b.Stats().KeyN == 1
		}
		if b := tx.Bucket([]byte("meta")); b != nil {
			if v := b.Get([]byte("consistent_index")); len(v) == 8 {
				applied = binary.BigEndian.Uint64(v)
			}
		}
		return nil
	})
	return applied, sole, errors.Join(err, db.Close())
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
