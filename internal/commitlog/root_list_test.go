package commitlog_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/google/uuid"

	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/vfs"
)

const listPath = rootDir + "/runnel.partitions"

// missing opens a partition that has no directory, and returns the error.
func missing(r *commitlog.Root, topic uuid.UUID, n int32) error {
	_, _, err := r.OpenPartition(topic, "topic-"+topic.String()[:1], n, commitlog.Config{}, false)
	return err
}

// settledRoot makes a root that has looked at all it was to have, got one more
// partition, and was killed.
func settledRoot(t *testing.T) *vfs.Mem {
	t.Helper()
	m := vfs.NewMem()
	r := openRoot(t, m, rootOptions())
	log, _ := openPartition(t, r, topicA, 0, true)
	rootMust(t, appendValue(log, "one"), log.Sync(), r.Opened())
	log, _ = openPartition(t, r, topicA, 1, true)
	rootMust(t, appendValue(log, "one"), log.Sync())
	m.Kill()
	return m
}

// A process that is killed before it made a partition's directory has lost
// nothing; one whose directory is gone has.
func TestPartitionList_neverMade(t *testing.T) {
	m := settledRoot(t)
	rootMust(t, m.RemoveAll(rootDir+"/"+topicA.String()))
	r := openRoot(t, m, rootOptions())
	if err := missing(r, topicA, 0); !errors.Is(err, commitlog.ErrLost) {
		t.Errorf("a directory that is gone: %v, want ErrLost", err)
	}
	log, rec := openPartition(t, r, topicB, 0, false)
	if log.End() != 0 || rec.Suspicion != commitlog.NotSuspect || !exists(t, m, rootDir+"/"+topicB.String()+"/0") {
		t.Errorf("a directory that was never made: end %d, %+v", log.End(), rec)
	}
	// From now on it was made.
	rootMust(t, appendValue(log, "two"))
	m.Kill()
	rootMust(t, m.RemoveAll(rootDir+"/"+topicB.String()))
	r = openRoot(t, m, rootOptions())
	if err := missing(r, topicB, 0); !errors.Is(err, commitlog.ErrLost) {
		t.Errorf("it was made, and is gone: %v, want ErrLost", err)
	}
	// So it is of one that the broker hears of late.
	rootMust(t, r.Opened())
	if err := missing(r, topicA, 0); !errors.Is(err, commitlog.ErrLost) {
		t.Errorf("after all were looked at, one that is gone: %v, want ErrLost", err)
	}
	openPartition(t, r, topicA, 7, false)
	// What was missing once is not new at the next start.
	m.Kill()
	if err := missing(openRoot(t, m, rootOptions()), topicB, 0); !errors.Is(err, commitlog.ErrLost) {
		t.Errorf("missing before, and missing again: %v, want ErrLost", err)
	}
}

// Wherever the list may not be whole, or may not be of what the cluster counts
// on, it vouches for nothing; nor does it later, where it stays in doubt.
func TestPartitionList_vouchesForNothing(t *testing.T) {
	damage := func(change func([]byte) []byte) func(*testing.T, *vfs.Mem) {
		return func(t *testing.T, m *vfs.Mem) { t.Helper(); rewrite(t, m, listPath, change) }
	}
	nothing := func(*testing.T, *vfs.Mem) {}
	for name, tt := range map[string]struct {
		harm   func(*testing.T, *vfs.Mem)
		change func(*commitlog.RootOptions)
		// later: the next start may trust it again.
		later bool
	}{
		"after a power cut":   {nothing, inBoot("boot-2"), true},
		"page cache off":      {nothing, func(o *commitlog.RootOptions) { o.DistrustPageCache = true }, true},
		"no list":             {func(t *testing.T, m *vfs.Mem) { t.Helper(); rootMust(t, m.Remove(listPath)) }, nil, false},
		"an empty one":        {damage(func([]byte) []byte { return nil }), nil, false},
		"of another root":     {damage(func(b []byte) []byte { b[20] ^= 1; return b }), nil, false},
		"a bit of the end":    {damage(func(b []byte) []byte { b[len(b)-2] ^= 1; return b }), nil, false},
		"cut in a line":       {damage(func(b []byte) []byte { return b[:len(b)-3] }), nil, false},
		"more than was there": {damage(func(b []byte) []byte { return append(b, "x\n"...) }), nil, false},
		// Whole lines are missing: a partition that holds records is not named.
		"cut at a line": {damage(func(b []byte) []byte { return b[:bytes.LastIndexByte(b[:len(b)-1], '\n')+1] }), nil, false},
		"the disk failed": {func(t *testing.T, m *vfs.Mem) {
			t.Helper()
			fault := vfs.NewFault(m)
			r := openRoot(t, fault, rootOptions())
			fault.Inject(vfs.Rule{Ops: vfs.OpSync, Path: "checkpoint", Err: syscall.EIO})
			if err := missing(r, topicA, 0); !errors.Is(err, commitlog.ErrFailed) {
				t.Fatal(err)
			}
			_ = r.Close(1)
		}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := settledRoot(t)
			tt.harm(t, m)
			var changes []func(*commitlog.RootOptions)
			if tt.change != nil {
				changes = append(changes, tt.change)
			}
			if err := missing(openRoot(t, m, rootOptions(changes...)), topicB, 0); !errors.Is(err, commitlog.ErrLost) {
				t.Errorf("%v, want ErrLost", err)
			}
			m.Kill()
			again := func(o *commitlog.RootOptions) {
				if name == "after a power cut" {
					inBoot("boot-2")(o)
				}
			}
			r := openRoot(t, m, rootOptions(again))
			if err := missing(r, topicB, 1); errors.Is(err, commitlog.ErrLost) == tt.later {
				t.Errorf("at the start after: %v, may be trusted %v", err, tt.later)
			}
			// Once all were looked at that the cluster counts on, it may again.
			rootMust(t, r.Opened())
			m.Kill()
			rootMust(t, m.RemoveAll(rootDir+"/"+topicA.String()))
			r = openRoot(t, m, rootOptions(again))
			for n := range int32(2) {
				if err := missing(r, topicB, n); !tt.later && !errors.Is(err, commitlog.ErrLost) {
					t.Errorf("partition %d, which was missing before: %v, want ErrLost", n, err)
				}
			}
			if err := missing(r, topicA, 0); !errors.Is(err, commitlog.ErrLost) {
				t.Errorf("one that held something, and is gone: %v, want ErrLost", err)
			}
			openPartition(t, r, topicB, 2, false)
		})
	}
}

// A broker may have had partitions on a disk that was replaced: a new root says
// nothing of them, also after a crash, until all were looked at.
func TestPartitionList_newDisk(t *testing.T) {
	m := vfs.NewMem()
	for n := range int32(3) {
		r := openRoot(t, m, rootOptions())
		openPartition(t, r, topicA, 0, true)
		if err := missing(r, topicB, n); !errors.Is(err, commitlog.ErrLost) {
			t.Fatalf("%v, want ErrLost", err)
		}
		m.Kill()
	}
	r := openRoot(t, m, rootOptions())
	rootMust(t, r.Opened())
	m.Kill()
	r = openRoot(t, m, rootOptions())
	if err := missing(r, topicB, 0); !errors.Is(err, commitlog.ErrLost) {
		t.Errorf("one that was looked for: %v, want ErrLost", err)
	}
	openPartition(t, r, topicB, 3, false)
}

// Wherever the power is cut, and whatever goes wrong: a log that was handed out
// is never taken for one that never was.
func TestPartitionList_powerCuts(t *testing.T) {
	m := vfs.NewMem()
	rootMust(t, openRoot(t, m, rootOptions()).Opened())
	m.Kill()
	fault := vfs.NewFault(m)
	var handed []int32
	cuts, vouched := 0, 0
	check := func(vfs.Op, string) {
		cuts++
		for seed, keep := range []int{0, 50, 100} {
			disk := powerCut(m, uint64(cuts*10+seed), keep)
			openRoot(t, disk, rootOptions(inBoot("boot-2")))
			disk.Kill()
			rootMust(t, disk.RemoveAll(rootDir+"/"+topicA.String()))
			r := openRoot(t, disk, rootOptions(inBoot("boot-2")))
			for _, n := range handed {
				if err := missing(r, topicA, n); !errors.Is(err, commitlog.ErrLost) {
					t.Fatalf("cut %d: partition %d was handed out, and its absence means nothing: %v", cuts, n, err)
				}
			}
			if missing(r, topicA, 99) == nil {
				vouched++
			}
		}
	}
	fault.Before(vfs.OpChanges, check)
	r := openRoot(t, fault, rootOptions())
	for n := range int32(6) {
		openPartition(t, r, topicA, n, true)
		handed = append(handed, n)
	}
	check(0, "")
	if cuts < 50 || vouched < cuts {
		t.Errorf("%d cuts, and in %d of three times as many the list counted", cuts, vouched)
	}
}

// Partitions that are opened together are all named, and those of deleted topics
// do not fill the disk.
func TestPartitionList_grows(t *testing.T) {
	m := vfs.NewMem()
	r := openRoot(t, m, rootOptions())
	var specs []commitlog.PartitionSpec
	for n := range int32(40) {
		specs = append(specs, commitlog.PartitionSpec{ID: commitlog.PartitionID{Topic: topicA, Number: n}, Topic: "topic-a", Create: true})
	}
	for _, o := range r.OpenPartitions(context.Background(), specs, nil) {
		rootMust(t, o.Err)
	}
	rootMust(t, r.Opened())
	for i := range 60 {
		topic := uuid.UUID{15: byte(i), 14: 1}
		for n := range int32(40) {
			openPartition(t, r, topic, n, true)
		}
		rootMust(t, r.RemoveTopic(topic))
	}
	data, err := vfs.ReadFile(m, listPath)
	rootMust(t, err)
	if lines := strings.Count(string(data), "\n"); lines > 1200 {
		t.Errorf("%d lines for 40 partitions", lines)
	}
	m.Kill()
	rootMust(t, m.RemoveAll(rootDir+"/"+topicA.String()))
	r = openRoot(t, m, rootOptions())
	if p := r.Start().Problems; len(p) > 0 {
		t.Fatal(p)
	}
	for n := range int32(40) {
		if err := missing(r, topicA, n); !errors.Is(err, commitlog.ErrLost) {
			t.Errorf("partition %d: %v, want ErrLost", n, err)
		}
	}
	openPartition(t, r, topicB, 0, false)
}

// A list that can't be written for want of room keeps a log back, and no more.
func TestPartitionList_fullDisk(t *testing.T) {
	m := vfs.NewMem()
	fault := vfs.NewFault(m)
	r := openRoot(t, fault, rootOptions())
	rootMust(t, r.Opened())
	fault.Inject(vfs.Rule{Ops: vfs.OpWrite, Path: "runnel.partitions", Err: syscall.ENOSPC, Partial: true})
	_, _, err := r.OpenPartition(topicA, "topic-a", 0, commitlog.Config{}, true)
	if !errors.Is(err, syscall.ENOSPC) || errors.Is(err, commitlog.ErrLost) || r.Failure().Err() != nil {
		t.Fatalf("%v, and the root %v", err, r.Failure().Err())
	}
	fault.Clear()
	openPartition(t, r, topicA, 0, true)
	m.Kill()
	rootMust(t, m.RemoveAll(rootDir+"/"+topicA.String()))
	r = openRoot(t, m, rootOptions())
	if err := missing(r, topicA, 0); !errors.Is(err, commitlog.ErrLost) || len(r.Start().Problems) > 0 {
		t.Errorf("%v, want ErrLost; problems %v", err, r.Start().Problems)
	}
}
