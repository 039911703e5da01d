package commitlog_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/vfs"
)

func TestRoot_OpenPartition_makesAndFindsThem(t *testing.T) {
	m := vfs.NewMem()
	r := openRoot(t, m, rootOptions())
	for _, n := range []int32{0, 10, 2} {
		log, _ := openPartition(t, r, topicA, n, true)
		mustAppend(t, log, fmt.Sprint("value of ", n))
	}
	openPartition(t, r, topicB, 0, true)
	dirs := func(r *commitlog.Root) (all []string) {
		for _, p := range r.Partitions() {
			all = append(all, fmt.Sprintf("%s %.8s/%d %v", p.Topic, p.ID.Topic, p.ID.Number, p.Err))
		}
		return all
	}
	want := []string{"topic-a aaaaaaaa/0 <nil>", "topic-a aaaaaaaa/2 <nil>", "topic-a aaaaaaaa/10 <nil>", "topic-b bbbbbbbb/0 <nil>"}
	if diff := cmp.Diff(want, dirs(r)); diff != "" {
		t.Errorf("partitions, -want +got:\n%s", diff)
	}
	closeRoot(t, r, 1)
	r = openRoot(t, m, rootOptions())
	if diff := cmp.Diff(want, dirs(r)); diff != "" {
		t.Errorf("partitions after a restart, -want +got:\n%s", diff)
	}
	if got := r.Partitions()[2].Path; got != rootDir+"/"+topicA.String()+"/10" {
		t.Errorf("path %s", got)
	}
	log, _ := openPartition(t, r, topicA, 10, false)
	if got := mustRead(t, log); !slices.Equal(got, []string{"value of 10"}) {
		t.Errorf("partition 10 holds %q", got)
	}
}

func TestRoot_OpenPartition_isForOne(t *testing.T) {
	r := openRoot(t, vfs.NewMem(), rootOptions())
	openPartition(t, r, topicA, 0, true)
	if _, _, err := r.OpenPartition(topicA, "topic-a", 0, commitlog.Config{}, true); !errors.Is(err, commitlog.ErrOpen) {
		t.Errorf("second: %v, want ErrOpen", err)
	}
	id := commitlog.PartitionID{Topic: topicA}
	rootMust(t, r.ClosePartition(id), r.ClosePartition(id))
	openPartition(t, r, topicA, 0, false)
	if _, _, err := r.OpenPartition(topicA, "topic-a", -1, commitlog.Config{}, true); err == nil {
		t.Error("partition -1 is opened")
	}
	closeRoot(t, r, 1)
	if _, _, err := r.OpenPartition(topicA, "topic-a", 1, commitlog.Config{}, true); !errors.Is(err, commitlog.ErrClosed) {
		t.Errorf("of a closed root: %v, want ErrClosed", err)
	}
}

func TestRoot_OpenPartition_lost(t *testing.T) {
	const dir = rootDir + "/aaaaaaaa-0000-4000-8000-000000000001"
	tests := map[string]struct {
		harm   func(*testing.T, *vfs.Mem, *vfs.Fault)
		create bool
		is     error
		says   string
	}{
		"missing partition": {
			harm: func(t *testing.T, m *vfs.Mem, _ *vfs.Fault) { t.Helper(); rootMust(t, m.RemoveAll(dir+"/0")) },
			is:   fs.ErrNotExist, says: dir + "/0",
		},
		"missing topic": {
			harm: func(t *testing.T, m *vfs.Mem, _ *vfs.Fault) { t.Helper(); rootMust(t, m.RemoveAll(dir)) },
			is:   fs.ErrNotExist, says: dir + "/0",
		},
		"a file in its place": {
			harm: func(t *testing.T, m *vfs.Mem, _ *vfs.Fault) {
				t.Helper()
				rootMust(t, m.RemoveAll(dir+"/0"), vfs.WriteFileAtomic(m, dir+"/0", nil))
			},
			create: true, says: "it is a file",
		},
		"another topic's": {
			harm: func(t *testing.T, m *vfs.Mem, _ *vfs.Fault) {
				t.Helper()
				name, err := vfs.ReadFile(m, rootDir+"/"+topicB.String()+"/topic")
				rootMust(t, err, vfs.WriteFileAtomic(m, dir+"/topic", name))
			},
			create: true, is: commitlog.ErrForeign, says: dir + "/topic",
		},
		"unreadable": {
			harm: func(_ *testing.T, _ *vfs.Mem, f *vfs.Fault) {
				f.Inject(vfs.Rule{Ops: vfs.OpReadDir, Path: topicA.String() + "/0", Err: syscall.EIO, Times: -1})
			},
			create: true, is: syscall.EIO, says: dir + "/0",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m := vfs.NewMem()
			fault := vfs.NewFault(m)
			r := openRoot(t, m, rootOptions())
			openPartition(t, r, topicA, 0, true)
			openPartition(t, r, topicB, 0, true)
			closeRoot(t, r, 1)
			test.harm(t, m, fault)
			r = openRoot(t, fault, rootOptions())
			_, _, err := r.OpenPartition(topicA, "topic-a", 0, commitlog.Config{}, test.create)
			if !errors.Is(err, commitlog.ErrLost) || (test.is != nil && !errors.Is(err, test.is)) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("error %v, want ErrLost and %v, saying %q", err, test.is, test.says)
			}
			if lost, ok := errors.AsType[*commitlog.LostError](err); !ok || lost.ID != (commitlog.PartitionID{Topic: topicA}) {
				t.Errorf("error %#v does not carry which partition", err)
			}
			if r.Failure().Err() != nil {
				t.Errorf("a lost partition fails the root: %v", r.Failure().Err())
			}
			openPartition(t, r, topicB, 0, false)
		})
	}
}

// The name is a label: without it, with a damaged one or another one the
// records are still the topic's. A full disk only puts off writing it anew.
func TestRoot_OpenPartition_writesTheNameAnew(t *testing.T) {
	label := rootDir + "/" + topicA.String() + "/topic"
	for name, c := range map[string]struct {
		harm  func(*testing.T, *vfs.Mem)
		found string // the name as it is found
		told  bool
	}{
		"missing": {func(t *testing.T, m *vfs.Mem) { t.Helper(); rootMust(t, m.Remove(label)) }, "", false},
		"empty":   {func(t *testing.T, m *vfs.Mem) { t.Helper(); rootMust(t, vfs.WriteFileAtomic(m, label, nil)) }, "", true},
		"damaged": {func(t *testing.T, m *vfs.Mem) {
			t.Helper()
			rewrite(t, m, label, func(b []byte) []byte { b[len(b)/2] ^= 4; return b })
		}, "", true},
		"another": {func(t *testing.T, m *vfs.Mem) {
			t.Helper()
			r := openRoot(t, m, rootOptions())
			_, _, err := r.OpenPartition(topicA, "other", 0, commitlog.Config{}, false)
			rootMust(t, err, r.Close(1))
		}, "other", true},
	} {
		t.Run(name, func(t *testing.T) {
			m := vfs.NewMem()
			fault := vfs.NewFault(m)
			r := openRoot(t, m, rootOptions())
			log, _ := openPartition(t, r, topicA, 0, true)
			mustAppend(t, log, "a")
			closeRoot(t, r, 1)
			c.harm(t, m)
			var told []commitlog.EventKind
			r = openRoot(t, fault, rootOptions(func(o *commitlog.RootOptions) {
				o.OnEvent = func(_ commitlog.PartitionID, e commitlog.Event) { told = append(told, e.Kind) }
			}))
			if p := r.Partitions(); len(p) != 1 || p[0].Topic != c.found || p[0].Err != nil {
				t.Errorf("partitions %+v", p)
			}
			fault.Inject(vfs.Rule{Ops: vfs.OpWrite | vfs.OpCreate, Path: label + vfs.TempSuffix, Err: syscall.ENOSPC, Times: 1})
			for range 2 { // the disk is full at first
				log, _ = openPartition(t, r, topicA, 0, false)
				if got := mustRead(t, log); !slices.Equal(got, []string{"a"}) {
					t.Errorf("records %q", got)
				}
				rootMust(t, r.ClosePartition(commitlog.PartitionID{Topic: topicA}))
			}
			if got := slices.Contains(told, commitlog.EventLabelRewritten); got != c.told {
				t.Errorf("told %v", told)
			}
			if got := openRoot(t, powerCut(m, 1, 0), rootOptions()).Partitions(); got[0].Topic != "topic-a" {
				t.Errorf("after a power cut the name is %q", got[0].Topic)
			}
		})
	}
}

// A lack of descriptors is neither a loss nor a failure (OP-06).
func TestRoot_OpenPartition_outOfDescriptors(t *testing.T) {
	for nth := 1; nth < 50; nth++ {
		m := vfs.NewMem()
		fault := vfs.NewFault(m)
		r := openRoot(t, m, rootOptions())
		log, _ := openPartition(t, r, topicA, 0, true)
		mustAppend(t, log, "a")
		m.Kill()
		r = openRoot(t, fault, rootOptions())
		fault.Inject(vfs.Rule{Ops: vfs.OpOpen | vfs.OpCreate, Nth: nth, Err: syscall.EMFILE})
		_, _, err := r.OpenPartition(topicA, "topic-a", 0, commitlog.Config{}, false)
		if err == nil {
			if nth < 3 {
				t.Fatalf("opening opens only %d files", nth-1)
			}
			return
		}
		if !errors.Is(err, syscall.EMFILE) || errors.Is(err, commitlog.ErrLost) || errors.Is(err, commitlog.ErrFailed) {
			t.Fatalf("file %d: %v, want EMFILE alone", nth, err)
		}
		if r.Failure().Err() != nil {
			t.Fatalf("file %d: the root failed: %v", nth, r.Failure().Err())
		}
		log, _ = openPartition(t, r, topicA, 0, false)
		if got := mustRead(t, log); !slices.Equal(got, []string{"a"}) {
			t.Errorf("file %d: when there are descriptors again, records %q", nth, got)
		}
	}
	t.Fatal("it never opens")
}

func TestRoot_OpenPartitions(t *testing.T) {
	m := vfs.NewMem()
	r := openRoot(t, m, rootOptions())
	var specs []commitlog.PartitionSpec
	for n := range int32(40) {
		specs = append(specs, commitlog.PartitionSpec{
			ID: commitlog.PartitionID{Topic: topicA, Number: n}, Topic: "topic-a", Create: n != 7,
		})
	}
	var steps []int
	results := r.OpenPartitions(t.Context(), specs, func(done, total int) {
		if total != len(specs) {
			t.Errorf("total %d", total)
		}
		steps = append(steps, done)
	})
	if len(steps) != 40 || !slices.IsSorted(steps) || steps[39] != 40 {
		t.Errorf("progress %v", steps)
	}
	for n, res := range results {
		if res.ID != specs[n].ID || (res.Err == nil) != (n != 7) || (res.Log == nil) != (n == 7) {
			t.Errorf("%d: %+v", n, res)
		}
	}
	if !errors.Is(results[7].Err, commitlog.ErrLost) {
		t.Errorf("7: %v, want ErrLost", results[7].Err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, res := range r.OpenPartitions(ctx, specs[7:8], nil) {
		if !errors.Is(res.Err, context.Canceled) {
			t.Errorf("cancelled: %v", res.Err)
		}
	}
}

func TestRoot_SetAside(t *testing.T) {
	m := vfs.NewMem()
	r := openRoot(t, m, rootOptions())
	log, _ := openPartition(t, r, topicA, 0, true)
	mustAppend(t, log, "old")
	id := commitlog.PartitionID{Topic: topicA}
	if _, err := r.SetAside(id); !errors.Is(err, commitlog.ErrOpen) {
		t.Errorf("an open one: %v, want ErrOpen", err)
	}
	rootMust(t, r.ClosePartition(id))
	path, err := r.SetAside(id)
	rootMust(t, err)
	if len(r.Partitions()) != 0 || !exists(t, powerCut(m, 1, 0), path) {
		t.Errorf("partitions %v; %s is kept: %v", r.Partitions(), path, exists(t, m, path))
	}
	if path, err := r.SetAside(id); path != "" || err != nil {
		t.Errorf("of nothing: %q, %v", path, err)
	}
	log, _ = openPartition(t, r, topicA, 0, true)
	if log.End() != 0 {
		t.Errorf("the new one ends at %d", log.End())
	}
	closeRoot(t, r, 1)
	r = openRoot(t, m, rootOptions())
	if q := r.Quarantine(func(commitlog.PartitionID) bool { return true }); len(q) != 1 || q[0].Path != path || q[0].Bytes == 0 {
		t.Errorf("quarantine %+v, want %s", q, path)
	}
}
