package commitlog_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/vfs"
)

// fileSizes lists all files below dir with their sizes.
func fileSizes(t *testing.T, fsys vfs.FS, dir string) map[string]int64 {
	t.Helper()
	all := map[string]int64{}
	entries, err := fsys.ReadDir(dir)
	rootMust(t, err)
	for _, e := range entries {
		path := dir + "/" + e.Name
		if !e.IsDir {
			all[path] = e.Size
			continue
		}
		maps.Copy(all, fileSizes(t, fsys, path))
	}
	return all
}

func nobody(commitlog.PartitionID) bool { return false }

// ST-06: metadata that know of nothing cost nothing.
func TestRoot_Quarantine_keepsEverything(t *testing.T) {
	m := vfs.NewMem()
	r := openRoot(t, m, rootOptions())
	for n := range int32(3) {
		log, _ := openPartition(t, r, topicA, n, true)
		mustAppend(t, log, fmt.Sprint("a", n))
	}
	log, _ := openPartition(t, r, topicB, 0, true)
	mustAppend(t, log, "b")
	closeRoot(t, r, 1)
	before := fileSizes(t, m, rootDir+"/"+topicA.String())

	for range 3 { // starts with metadata that know B only
		r = openRoot(t, m, rootOptions())
		openPartition(t, r, topicB, 0, false)
		q := r.Quarantine(func(id commitlog.PartitionID) bool { return id.Topic == topicB })
		want := []commitlog.Quarantined{{
			Path: rootDir + "/" + topicA.String(), Topic: topicA, Name: "topic-a", Partitions: []int32{0, 1, 2},
		}}
		for _, size := range before {
			want[0].Bytes += size
		}
		if diff := cmp.Diff(want, q); diff != "" {
			t.Errorf("quarantine, -want +got:\n%s", diff)
		}
		if diff := cmp.Diff(q, r.Quarantined()); diff != "" {
			t.Errorf("Quarantined, -want +got:\n%s", diff)
		}
		if diff := cmp.Diff(before, fileSizes(t, m, rootDir+"/"+topicA.String())); diff != "" {
			t.Fatalf("files changed, -before +after:\n%s", diff)
		}
		closeRoot(t, r, 1)
	}
	r = openRoot(t, m, rootOptions())
	r.Quarantine(nobody)
	for n := range int32(3) {
		log, rec := openPartition(t, r, topicA, n, false)
		if got := mustRead(t, log); !slices.Equal(got, []string{fmt.Sprint("a", n)}) || !rec.Clean {
			t.Errorf("partition %d is back with %q, %+v", n, got, rec)
		}
	}
	if q := r.Quarantined(); len(q) != 1 || q[0].Topic != topicB {
		t.Errorf("quarantined: %+v, want B alone", q)
	}
	rootMust(t, r.RemoveTopic(topicB))
	if q := r.Quarantined(); len(q) != 0 {
		t.Errorf("quarantined after its deletion: %+v", q)
	}
}

// The same on a full disk that crashes over and over.
func TestRoot_Quarantine_onAFullDisk(t *testing.T) {
	m := vfs.NewMem()
	r := openRoot(t, m, rootOptions())
	log, _ := openPartition(t, r, topicA, 0, true)
	mustAppend(t, log, "a", "b")
	rootMust(t, log.Sync())
	free, total, err := m.Free("/")
	rootMust(t, err)
	m.SetCapacity(total - free)
	before := fileSizes(t, m, rootDir+"/"+topicA.String())
	for range 3 {
		m.Kill()
		r = openRoot(t, m, rootOptions())
		if q := r.Quarantine(nobody); len(q) != 1 {
			t.Errorf("quarantine %+v", q)
		}
		if diff := cmp.Diff(before, fileSizes(t, m, rootDir+"/"+topicA.String())); diff != "" {
			t.Fatalf("files changed, -before +after:\n%s", diff)
		}
	}
	m.Kill()
	m.SetCapacity(0)
	r = openRoot(t, m, rootOptions())
	log, _ = openPartition(t, r, topicA, 0, false)
	if got := mustRead(t, log); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("records %q", got)
	}
}

func TestRoot_Quarantine_listsStrangers(t *testing.T) {
	m := vfs.NewMem()
	r := openRoot(t, m, rootOptions())
	openPartition(t, r, topicA, 0, true)
	closeRoot(t, r, 1)
	rootMust(t, m.MkdirAll(rootDir+"/photos"), m.MkdirAll(rootDir+"/"+strings.ToUpper(topicB.String())),
		m.MkdirAll(rootDir+"/"+topicA.String()+"/07"), m.MkdirAll(rootDir+"/"+topicA.String()+"/copy of 0"),
		vfs.WriteFileAtomic(m, rootDir+"/core.123", []byte("12345")))
	r = openRoot(t, m, rootOptions())
	var got []string
	for _, q := range r.Quarantine(func(id commitlog.PartitionID) bool { return id.Topic == topicA }) {
		got = append(got, fmt.Sprint(strings.TrimPrefix(q.Path, rootDir+"/"), " ", q.Bytes))
	}
	want := []string{
		strings.ToUpper(topicB.String()) + " 0", topicA.String() + "/07 0", topicA.String() + "/copy of 0 0", "core.123 5", "photos 0",
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("strangers, -want +got:\n%s", diff)
	}
	if p := r.Partitions(); len(p) != 1 {
		t.Errorf("partitions %+v", p)
	}
	// Whoever removes one, as health says, hears no more of it.
	rootMust(t, m.RemoveAll(rootDir+"/photos"), m.Remove(rootDir+"/core.123"))
	if q := r.Quarantined(); len(q) != 3 {
		t.Errorf("still listed: %+v", q)
	}
}

// One topic that cannot be listed is that topic's loss only.
func TestRoot_unreadableTopic(t *testing.T) {
	m := vfs.NewMem()
	r := openRoot(t, m, rootOptions())
	openPartition(t, r, topicA, 0, true)
	openPartition(t, r, topicB, 0, true)
	closeRoot(t, r, 1)
	fault := vfs.NewFault(m)
	fault.Inject(vfs.Rule{Ops: vfs.OpReadDir | vfs.OpStat | vfs.OpOpen, Path: topicA.String(), Err: syscall.EIO, Times: -1})
	fault.Inject(vfs.Rule{Ops: vfs.OpReadDir | vfs.OpStat | vfs.OpOpen, Path: topicA.String() + "/*", Err: syscall.EIO, Times: -1})
	r = openRoot(t, fault, rootOptions())
	if p := r.Start().Problems; len(p) != 1 || !errors.Is(p[0], syscall.EIO) {
		t.Errorf("problems %v", p)
	}
	if _, _, err := r.OpenPartition(topicA, "topic-a", 0, commitlog.Config{}, true); !errors.Is(err, commitlog.ErrLost) {
		t.Errorf("open: %v, want ErrLost", err)
	}
	openPartition(t, r, topicB, 0, false)
	if q := r.Quarantine(nobody); len(q) != 1 || q[0].Topic != topicA {
		t.Errorf("quarantine %+v", q)
	}
}

func TestRoot_RemoveTopic(t *testing.T) {
	m := vfs.NewMem()
	r := openRoot(t, m, rootOptions())
	a, _ := openPartition(t, r, topicA, 0, true)
	openPartition(t, r, topicA, 1, true)
	b, _ := openPartition(t, r, topicB, 0, true)
	mustAppend(t, b, "b")
	rootMust(t, r.RemoveTopic(topicA), r.RemoveTopic(topicA))
	if err := appendValue(a, "late"); !errors.Is(err, commitlog.ErrClosed) {
		t.Errorf("append to a removed topic: %v, want ErrClosed", err)
	}
	if p := r.Partitions(); len(p) != 1 || p[0].ID.Topic != topicB {
		t.Errorf("partitions %+v", p)
	}
	if got := mustRead(t, b); !slices.Equal(got, []string{"b"}) {
		t.Errorf("the other topic holds %q", got)
	}
	for seed := range uint64(20) {
		r := openRoot(t, powerCut(m, seed, 50), rootOptions())
		if p := r.Partitions(); len(p) != 1 || p[0].ID.Topic != topicB {
			t.Fatalf("after a power cut: %+v", p)
		}
	}
	// Not even its directory is in the way of a topic of the same id.
	log, _ := openPartition(t, r, topicA, 0, true)
	if log.End() != 0 {
		t.Errorf("a new one ends at %d", log.End())
	}
}

// A removal that was cut off is no obstacle to the next one.
func TestRoot_RemoveTopic_overALeftover(t *testing.T) {
	m := vfs.NewMem()
	leftover := rootDir + "/" + topicA.String() + ".removed"
	closeRoot(t, openRoot(t, m, rootOptions()), 1)
	rootMust(t, m.MkdirAll(leftover), vfs.WriteFileAtomic(m, leftover+"/file", nil))
	r := openRoot(t, m, rootOptions())
	openPartition(t, r, topicA, 0, true)
	rootMust(t, r.RemoveTopic(topicA))
	if exists(t, m, leftover) || exists(t, m, rootDir+"/"+topicA.String()) {
		t.Error("something is left")
	}
}

// A deletion is whole or not at all, wherever it is cut off, and can be made
// again.
func TestRoot_RemoveTopic_powerCuts(t *testing.T) {
	m := vfs.NewMem()
	fault := vfs.NewFault(m)
	r := openRoot(t, fault, rootOptions())
	log, _ := openPartition(t, r, topicA, 0, true)
	mustAppend(t, log, "a", "b")
	rootMust(t, log.Sync(), log.Checkpoint())
	seen := map[int]bool{}
	cuts := 0
	fault.Before(vfs.OpChanges, func(op vfs.Op, name string) {
		for seed, keep := range []int{0, 50, 50, 50, 100} {
			cuts++
			again := openRoot(t, powerCut(m, uint64(seed), keep), rootOptions())
			left := again.Partitions()
			seen[len(left)] = true
			if len(left) == 1 {
				log, _, err := again.OpenPartition(topicA, "topic-a", 0, commitlog.Config{}, false)
				if err != nil {
					t.Fatalf("before %s %s, keep %d: %v", op, name, keep, err)
				}
				if got := mustRead(t, log); !slices.Equal(got, []string{"a", "b"}) {
					t.Fatalf("before %s %s, keep %d: half a topic: %q", op, name, keep, got)
				}
			}
			rootMust(t, again.RemoveTopic(topicA))
			if left := again.Partitions(); len(left) != 0 {
				t.Fatalf("removed again: %+v", left)
			}
		}
	})
	rootMust(t, r.RemoveTopic(topicA))
	if !seen[0] || !seen[1] || cuts < 20 {
		t.Errorf("%d cuts saw %v, want the topic whole and gone", cuts, seen)
	}
}

func TestRoot_RemoveTopic_failingCalls(t *testing.T) {
	for nth := 1; nth < 100; nth++ {
		m := vfs.NewMem()
		fault := vfs.NewFault(m)
		r := openRoot(t, fault, rootOptions())
		openPartition(t, r, topicA, 0, true)
		fault.Inject(vfs.Rule{Ops: vfs.OpChanges, Nth: nth, Err: errDisk})
		err := r.RemoveTopic(topicA)
		if err == nil {
			if nth < 4 {
				t.Fatalf("only %d calls", nth-1)
			}
			return
		}
		if !errors.Is(err, commitlog.ErrFailed) || r.Failure().Err() == nil {
			t.Errorf("call %d: %v, want ErrFailed", nth, err)
		}
	}
	t.Fatal("it never succeeds")
}

// Deletion must work on a full disk: it is what frees it.
func TestRoot_RemoveTopic_onAFullDisk(t *testing.T) {
	m := vfs.NewMem()
	r := openRoot(t, m, rootOptions())
	log, _ := openPartition(t, r, topicA, 0, true)
	mustAppend(t, log, strings.Repeat("x", 1000))
	free, total, err := m.Free("/")
	rootMust(t, err)
	m.SetCapacity(total - free)
	mustFailFull(t, log)
	rootMust(t, r.RemoveTopic(topicA))
	if free, _, err := m.Free("/"); err != nil || free < 1000 {
		t.Errorf("%d bytes free, %v", free, err)
	}
	if _, err := m.Stat(rootDir + "/" + topicA.String()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory: %v", err)
	}
}

func mustFailFull(t *testing.T, log *commitlog.Log) {
	t.Helper()
	if err := appendValue(log, "no room"); !errors.Is(err, commitlog.ErrStorageFull) {
		t.Fatalf("append on a full disk: %v, want ErrStorageFull", err)
	}
}

// Of a topic that is known, a partition that is not is listed, until it is opened
// or set aside; what was set aside is listed at once.
func TestRoot_Quarantine_ofAPartition(t *testing.T) {
	m := vfs.NewMem()
	r := openRoot(t, m, rootOptions())
	for n := range int32(4) {
		log, _ := openPartition(t, r, topicA, n, true)
		mustAppend(t, log, fmt.Sprint("a", n))
	}
	closeRoot(t, r, 1)
	r = openRoot(t, m, rootOptions())
	openPartition(t, r, topicA, 0, false)
	paths := func(list []commitlog.Quarantined) (paths []string) {
		for _, q := range list {
			paths = append(paths, strings.TrimPrefix(q.Path, rootDir+"/"+topicA.String()+"/"))
			if q.Bytes == 0 {
				t.Errorf("%s has no bytes", q.Path)
			}
		}
		return paths
	}
	two := func(id commitlog.PartitionID) bool { return id.Topic == topicA && id.Number < 2 }
	if diff := cmp.Diff([]string{"2", "3"}, paths(r.Quarantine(two))); diff != "" {
		t.Errorf("quarantine, -want +got:\n%s", diff)
	}
	openPartition(t, r, topicA, 2, false)
	if diff := cmp.Diff([]string{"3"}, paths(r.Quarantined())); diff != "" {
		t.Errorf("one is opened, -want +got:\n%s", diff)
	}
	aside, err := r.SetAside(commitlog.PartitionID{Topic: topicA, Number: 3})
	rootMust(t, err)
	want := []string{strings.TrimPrefix(aside, rootDir+"/"+topicA.String()+"/")}
	if diff := cmp.Diff(want, paths(r.Quarantined())); diff != "" {
		t.Errorf("one is set aside, -want +got:\n%s", diff)
	}
	if diff := cmp.Diff(want, paths(r.Quarantine(two))); diff != "" {
		t.Errorf("and listed anew, -want +got:\n%s", diff)
	}
}
