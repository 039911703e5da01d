package commitlog_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/vfs"
)

// A directory in the place of a file is moved out of the way and listed, and the
// file counts as missing: what is a cache is made anew, and nothing else of the
// root suffers.
func TestRoot_directoriesInPlaceOfFiles(t *testing.T) {
	const first = "00000000000000000000"
	for _, name := range []string{
		"topic", "0/" + first + ".index", "0/00000000000000000006.index", "0/00000000000000000777.index",
		"0/leader-epochs", "0/leader-epochs.tmp", "0/damage", "0/cleaner", "0/checkpoint", "0/00000000000000000099.producers",
		"0/00000000000000000012.log", "0/00000000000000000000-00000000000000000003.log.swap",
	} {
		for _, clean := range []bool{true, false} {
			mem := vfs.NewMem()
			r := openRoot(t, mem, rootOptions())
			cfg := commitlog.Config{SegmentBytes: 500, IndexIntervalBytes: 100}
			log, _, err := r.OpenPartition(topicA, "a", 0, cfg, true)
			rootMust(t, err)
			mustAppend(t, log, "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11")
			rootMust(t, log.Sync())
			rootMust(t, log.Checkpoint())
			want, err := readValues(log)
			rootMust(t, err)
			if clean {
				closeRoot(t, r, 1)
			} else {
				mem.Kill()
			}
			path := filepath.Join(rootDir, topicA.String(), filepath.FromSlash(name))
			if err := mem.Remove(path); err == nil {
				t.Logf("%s stood there", name)
			}
			rootMust(t, mem.MkdirAll(filepath.Join(path, "somebody's")))

			for range 2 { // it stays listed
				r = openRoot(t, mem, rootOptions())
				log, rec, err := r.OpenPartition(topicA, "a", 0, cfg, false)
				if err != nil {
					t.Fatalf("%s, clean %v: %v", name, clean, err)
				}
				got, err := readValues(log)
				if diff := cmp.Diff(want, got); diff != "" || err != nil {
					t.Errorf("%s, clean %v: %v\n%s\n%+v", name, clean, err, diff, rec)
				}
				rootMust(t, log.Checkpoint())
				listed := r.Quarantine(func(id commitlog.PartitionID) bool { return id.Topic == topicA })
				if !slices.ContainsFunc(listed, func(q commitlog.Quarantined) bool { return q.Path == path+".strange" }) {
					if name != "topic" || len(listed) != 0 {
						t.Errorf("%s is not among %+v", name, listed)
					}
				}
				closeRoot(t, r, 1)
			}
			if info, err := mem.Stat(filepath.Join(path+".strange", "somebody's")); err != nil || !info.IsDir {
				t.Errorf("%s was not kept: %v", name, err)
			}
		}
	}
}

// The same for the ballast, and for what is left of a write of the root's files.
func TestRoot_directoryInPlaceOfTheBallast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := vfs.NewMem()
		mem.SetCapacity(100 * mib)
		closeRoot(t, openRoot(t, mem, rootOptions(withMarks)), 1)
		path := filepath.Join(rootDir, "runnel.ballast")
		rootMust(t, mem.MkdirAll(filepath.Join(path, "somebody's")))
		rootMust(t, mem.MkdirAll(filepath.Join(rootDir, "runnel.id.tmp")))

		r, stop := running(t, mem, rootOptions(withMarks))
		time.Sleep(time.Minute)
		if !r.Disk().Ballast {
			t.Errorf("no ballast: %+v", r.Disk())
		}
		if p := r.Start().Problems; len(p) != 2 || !strings.Contains(p[0].Error()+p[1].Error(), path+".strange") {
			t.Errorf("said %v", p)
		}
		if l := r.Quarantine(nobody); len(l) != 2 {
			t.Errorf("listed %+v", l)
		}
		rootMust(t, stop())
		closeRoot(t, r, 1)

		// One that comes while the root is open only takes the ballast away.
		r = openRoot(t, mem, rootOptions(withMarks))
		rootMust(t, mem.Remove(path), mem.MkdirAll(path))
		stop = runRoot(t, r)
		time.Sleep(time.Minute)
		if err := stop(); err != nil || r.Failure().Err() != nil {
			t.Error(err, r.Failure().Err())
		}
	})
}
