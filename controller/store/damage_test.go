package store

import (
	"encoding/binary"
	"errors"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
)

// The log of a sole member that ends before what its database holds has lost its
// end; one of several members may.
func TestCheckEnd(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "wal")
	log, err := wal.Create(zap.NewNop(), dir, []byte("metadata"))
	if err != nil {
		t.Fatal(err)
	}
	var entries []*raftpb.Entry
	for i := range uint64(5) {
		entries = append(entries, &raftpb.Entry{Term: new(uint64(1)), Index: new(i + 1), Type: new(raftpb.EntryNormal)})
	}
	state := &raftpb.HardState{Term: new(uint64(1)), Vote: new(uint64(1)), Commit: new(uint64(5))}
	if err := errors.Join(log.SaveSnapshot(&walpb.Snapshot{Index: new(uint64(0)), Term: new(uint64(0))}), log.Save(state, entries), log.Close()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		applied uint64
		members []string
		bad     bool
	}{
		{0, []string{"a"}, false},
		{5, []string{"a"}, false},
		{6, []string{"a"}, true},
		{6, []string{"a", "b", "c"}, false},
		{6, nil, false},
	} {
		path := filepath.Join(t.TempDir(), "db")
		db, err := bbolt.Open(path, 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		err = db.Update(func(tx *bbolt.Tx) error {
			meta, err := tx.CreateBucket([]byte("meta"))
			if err != nil {
				return err
			}
			members, err := tx.CreateBucket([]byte("members"))
			if err != nil {
				return err
			}
			for _, m := range c.members {
				if err := members.Put([]byte(m), []byte("{}")); err != nil {
					return err
				}
			}
			return meta.Put([]byte("consistent_index"), binary.BigEndian.AppendUint64(nil, c.applied))
		})
		if err = errors.Join(err, db.Close()); err != nil {
			t.Fatal(err)
		}
		if err := checkEnd(dir, path); (err != nil) != c.bad {
			t.Errorf("%d applied of 5 entries, members %v: %v", c.applied, c.members, err)
		}
	}
}
