package store_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/bbolt"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/runnelmq/runnel/controller/store"
	"github.com/runnelmq/runnel/controller/store/storetest"
)

func TestFake_conforms(t *testing.T) {
	f := storetest.New()
	defer f.Close()
	storetest.Conform(t, f, func() error { f.Compact(); return nil })
}

// embedded returns a member's configuration for tests: free ports, fast elections.
func embedded(dir string) store.Embedded {
	return store.Embedded{
		Dir: filepath.Join(dir, "etcd"), Client: "127.0.0.1:0", Peer: "127.0.0.1:0", Bootstrap: true,
		QuotaSize: 64 << 20, Compact: time.Hour, Tick: 20 * time.Millisecond, Start: 20 * time.Second,
	}
}

// leftDir returns a directory for a member that can't be opened. What etcd has begun by then goes on until the process ends, and
// makes and locks files in the directory: no other member may be opened there, and its removal may fail.
func leftDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "runnel-etcd-") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func TestEtcd_conforms(t *testing.T) {
	m, err := store.OpenMember(t.Context(), embedded(t.TempDir()), zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}()
	remote, err := store.Connect(store.External{Endpoints: []string{m.ClientAddr().String()}}, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	defer remote.Close()
	admin, err := clientv3.New(clientv3.Config{Endpoints: []string{m.ClientAddr().String()}})
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	compact := func() error {
		resp, err := admin.Get(t.Context(), "x")
		if err != nil {
			return err
		}
		_, err = admin.Compact(t.Context(), resp.Header.GetRevision(), clientv3.WithCompactPhysical())
		return err
	}
	t.Run("in this process", func(t *testing.T) { storetest.Conform(t, m, compact) })
	if _, err := admin.Delete(t.Context(), "/conform/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	t.Run("over the network", func(t *testing.T) { storetest.Conform(t, remote, compact) })
}

// What makes etcd panic is an error that says where to look.
func TestOpenMember_damagedFiles(t *testing.T) {
	e := embedded(t.TempDir())
	m, err := store.OpenMember(t.Context(), e, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	for name, hurt := range map[string]func(log, db string) error{
		"another log":      func(log, _ string) error { return os.WriteFile(log, bytes.Repeat([]byte{0xa5, 0x17}, 20000), 0o600) },
		"a flipped bit":    func(log, _ string) error { return overwrite(log, 300, 2) },
		"a zeroed log":     func(log, _ string) error { return zero(log, 0) },
		"a log of zeros":   func(log, _ string) error { return os.WriteFile(log, make([]byte, 4096), 0o600) },
		"zeroed to an end": func(log, _ string) error { return zero(log, 300) },
		"a zeroed page":    func(log, _ string) error { return zero(log, 0, 4096) },
		"a zeroed base":    func(_, db string) error { return zero(db, 0) },
		"an empty log":     func(log, _ string) error { return os.Truncate(log, 0) },
		"no log":           func(log, _ string) error { return os.Remove(log) },
		"no header":        func(_, db string) error { return overwrite(db, 0, 2*os.Getpagesize()) },
		"damaged pages":    func(_, db string) error { return overwrite(db, 2*os.Getpagesize(), 20*os.Getpagesize()) },
		"cut to a page":    func(_, db string) error { return os.Truncate(db, int64(os.Getpagesize())) },
		"cut to a few":     func(_, db string) error { return os.Truncate(db, int64(4*os.Getpagesize())) },
		"cut within a one": func(_, db string) error { return os.Truncate(db, 5000) },
	} {
		t.Run(name, func(t *testing.T) {
			damaged := embedded(leftDir(t))
			if err := os.CopyFS(damaged.Dir, os.DirFS(e.Dir)); err != nil {
				t.Fatal(err)
			}
			logs, err := filepath.Glob(filepath.Join(damaged.Dir, "member", "wal", "*.wal"))
			if err != nil || len(logs) == 0 {
				t.Fatalf("%v, %v", logs, err)
			}
			if err := hurt(logs[0], filepath.Join(damaged.Dir, "member", "snap", "db")); err != nil {
				t.Fatal(err)
			}
			_, err = store.OpenMember(t.Context(), damaged, zerolog.Nop())
			if !errors.Is(err, store.ErrUnusable) || !strings.Contains(err.Error(), "controller restore") {
				t.Errorf("open: %v, want %v", err, store.ErrUnusable)
			}
			if err == nil || strings.Contains(err.Error(), "nil pointer") || !strings.Contains(err.Error(), damaged.Dir) {
				t.Errorf("it says %v", err)
			}
			begins := name == "a zeroed log" || name == "a log of zeros" || name == "a zeroed page"
			if begins && !strings.Contains(err.Error(), filepath.Base(logs[0])+": it is overwritten with zeros") {
				t.Errorf("it says %v, and not that the file is zeros", err)
			}
		})
	}
	// What is there in whole is used.
	m, err = store.OpenMember(t.Context(), e, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
}

// A first start that was killed between making the database and the log is begun anew.
func TestOpenMember_startThatWasCutShort(t *testing.T) {
	e := embedded(t.TempDir())
	snap := filepath.Join(e.Dir, "member", "snap")
	if err := os.MkdirAll(snap, 0o700); err != nil {
		t.Fatal(err)
	}
	db, err := bbolt.Open(filepath.Join(snap, "db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucket([]byte("meta"))
		return err
	})
	if err = errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	m, err := store.OpenMember(t.Context(), e, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	// The whole log of a member that was one is gone: that is damage, and nothing is removed.
	if err := os.RemoveAll(filepath.Join(e.Dir, "member", "wal")); err != nil {
		t.Fatal(err)
	}
	if _, err := store.OpenMember(t.Context(), e, zerolog.Nop()); !errors.Is(err, store.ErrUnusable) {
		t.Errorf("open without a log: %v, want %v", err, store.ErrUnusable)
	}
	if _, err := os.Stat(filepath.Join(snap, "db")); err != nil {
		t.Error(err)
	}
}

// overwrite puts nonsense over a part of a file.
func overwrite(path string, at, n int) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(bytes.Repeat([]byte{0xa5, 0x17}, n/2), int64(at))
	return errors.Join(err, f.Close())
}

// zero makes all bytes of a file zero from from on, up to to if there is one.
func zero(path string, from int64, to ...int64) error {
	b, err := os.ReadFile(path) //nolint:gosec // a file of the test
	if err != nil {
		return err
	}
	end := int64(len(b))
	if len(to) > 0 {
		end = to[0]
	}
	clear(b[from:end])
	return os.WriteFile(path, b, 0o600)
}
