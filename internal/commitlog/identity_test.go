package commitlog_test

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/vfs"
)

func TestOpenRoot_makesAnEmptyDirectoryItsOwn(t *testing.T) {
	m := vfs.NewMem()
	r := openRoot(t, m, rootOptions())
	id := r.ID()
	want := commitlog.Identity{ClusterID: "c1", BrokerID: 1, DirectoryID: id.DirectoryID, BootID: "boot-1"}
	if id != want || id.DirectoryID == uuid.Nil {
		t.Errorf("identity %+v, want %+v with a directory id", id, want)
	}
	if !r.Start().Fresh || r.Start().Clean || r.Start().SameBoot {
		t.Errorf("start %+v, want a fresh one", r.Start())
	}
	closeRoot(t, r, 1)
	r = openRoot(t, m, rootOptions())
	if r.ID() != id || r.Start().Fresh {
		t.Errorf("opened again: %+v, fresh %v; want %+v", r.ID(), r.Start().Fresh, id)
	}
}

func TestOpenRoot_refusesWhatIsNotItsOwn(t *testing.T) {
	other := func(change func(*commitlog.RootOptions)) commitlog.RootOptions { return rootOptions(change) }
	made := func(t *testing.T, m *vfs.Mem) {
		t.Helper()
		closeRoot(t, openRoot(t, m, rootOptions()), 1)
	}
	put := func(name string) func(*testing.T, *vfs.Mem) {
		return func(t *testing.T, m *vfs.Mem) {
			t.Helper()
			rootMust(t, m.MkdirAll(rootDir), vfs.WriteFileAtomic(m, rootDir+"/"+name, nil))
		}
	}
	tests := map[string]struct {
		disk func(*testing.T, *vfs.Mem)
		opts commitlog.RootOptions
		says []string
	}{
		"another cluster's": {made, other(func(o *commitlog.RootOptions) { o.ClusterID = "c2" }), []string{`"c1"`, `"c2"`, rootDir}},
		"another broker's":  {made, other(func(o *commitlog.RootOptions) { o.BrokerID = 2 }), []string{"broker 1", "broker 2", rootDir}},
		"a full directory":  {put("photo.jpg"), rootOptions(), []string{"mounted", "photo.jpg", "runnel.id", rootDir}},
		"topics without id": {put(topicA.String()), rootOptions(), []string{"mounted", topicA.String()}},
		"a marker alone":    {put("runnel.clean"), rootOptions(), []string{"mounted", "runnel.clean"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m := vfs.NewMem()
			test.disk(t, m)
			before, err := m.ReadDir(rootDir)
			rootMust(t, err)
			_, err = commitlog.OpenRoot(m, rootDir, test.opts)
			if !errors.Is(err, commitlog.ErrForeign) {
				t.Fatalf("error %v, want ErrForeign", err)
			}
			for _, part := range test.says {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
			after, err := m.ReadDir(rootDir)
			rootMust(t, err)
			if len(before) != len(after) {
				t.Errorf("the refused directory was changed: %v, then %v", before, after)
			}
			if name == "another cluster's" && !exists(t, m, rootDir+"/runnel.clean") {
				t.Error("the clean marker is gone")
			}
			if l, err := m.Lock(rootDir + "/lock"); err != nil {
				t.Errorf("the lock is held after the refusal: %v", err)
			} else {
				rootMust(t, l.Close())
			}
		})
	}
}

func TestOpenRoot_takesADirectoryThatIsAsGoodAsEmpty(t *testing.T) {
	m := vfs.NewMem()
	rootMust(t, m.MkdirAll(rootDir+"/lost+found"))
	for _, name := range []string{"lock", "runnel.id.tmp"} {
		f, err := m.Create(rootDir + "/" + name)
		rootMust(t, err, f.Close())
	}
	if r := openRoot(t, m, rootOptions()); !r.Start().Fresh {
		t.Error("not fresh")
	}
}

// Between the first look and the lock another process may have been there.
func TestOpenRoot_looksAgainUnderTheLock(t *testing.T) {
	m := vfs.NewMem()
	fault := vfs.NewFault(m)
	fault.Before(vfs.OpLock, func(vfs.Op, string) { rootMust(t, vfs.WriteFileAtomic(m, rootDir+"/photo.jpg", nil)) })
	if _, err := commitlog.OpenRoot(fault, rootDir, rootOptions()); !errors.Is(err, commitlog.ErrForeign) {
		t.Errorf("full by then: %v, want ErrForeign", err)
	}
	m = vfs.NewMem()
	fault = vfs.NewFault(m)
	var id commitlog.Identity
	fault.Before(vfs.OpLock, func(vfs.Op, string) {
		r := openRoot(t, m, rootOptions())
		id = r.ID()
		closeRoot(t, r, 1)
	})
	if r := openRoot(t, fault, rootOptions()); r.ID() != id || r.Start().Fresh {
		t.Errorf("a root by then: %+v, want %+v", r.ID(), id)
	}
}

func TestOpenRoot_namesADamagedIdentity(t *testing.T) {
	m := vfs.NewMem()
	closeRoot(t, openRoot(t, m, rootOptions()), 1)
	good, err := vfs.ReadFile(m, rootDir+"/runnel.id")
	rootMust(t, err)
	check := func(what string, bad []byte) {
		t.Helper()
		rootMust(t, vfs.WriteFileAtomic(m, rootDir+"/runnel.id", bad))
		_, err := commitlog.OpenRoot(m, rootDir, rootOptions())
		if !errors.Is(err, commitlog.ErrDamaged) || !strings.Contains(err.Error(), rootDir+"/runnel.id") {
			t.Errorf("%s: %v, want ErrDamaged naming the file", what, err)
		}
	}
	for i := range good {
		for bit := range 8 {
			bad := append([]byte(nil), good...)
			bad[i] ^= 1 << bit
			check("a flipped bit", bad)
		}
		check("cut short", good[:i])
	}
	check("a byte more", append(append([]byte(nil), good...), '\n'))
	rootMust(t, vfs.WriteFileAtomic(m, rootDir+"/runnel.id", good))
	openRoot(t, m, rootOptions())
}

func TestOpenRoot_refusesALaterFormat(t *testing.T) {
	m := vfs.NewMem()
	rootMust(t, m.MkdirAll(rootDir))
	// The checksum is right: printf 'runnel.id 2\nsomething new\n' | crc32c.
	data := "runnel.id 2\nsomething new\n"
	rootMust(t, vfs.WriteFileAtomic(m, rootDir+"/runnel.id", []byte(data+"crc32c "+crc32c(data)+"\n")))
	_, err := commitlog.OpenRoot(m, rootDir, rootOptions())
	if err == nil || errors.Is(err, commitlog.ErrDamaged) || !strings.Contains(err.Error(), "format 2") {
		t.Errorf("error %v, want one that names format 2", err)
	}
}

func TestOpenRoot_saysWhenTheDirectoryCannotBeRead(t *testing.T) {
	for _, op := range []vfs.Op{vfs.OpStat, vfs.OpReadDir, vfs.OpLock, vfs.OpRead, vfs.OpMkdir} {
		m := vfs.NewMem()
		if op == vfs.OpRead {
			closeRoot(t, openRoot(t, m, rootOptions()), 1)
		}
		fault := vfs.NewFault(m)
		fault.Inject(vfs.Rule{Ops: op, Err: fs.ErrPermission, Times: -1})
		_, err := commitlog.OpenRoot(fault, rootDir, rootOptions())
		if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), rootDir) {
			t.Errorf("%s: %v, want permission denied for the directory", op, err)
		}
	}
}

func TestRoot_hasOneHolder(t *testing.T) {
	m := vfs.NewMem()
	r := openRoot(t, m, rootOptions())
	_, err := commitlog.OpenRoot(m, rootDir, rootOptions())
	if !errors.Is(err, commitlog.ErrInUse) || !strings.Contains(err.Error(), rootDir) {
		t.Errorf("second: %v, want ErrInUse naming the directory", err)
	}
	closeRoot(t, r, 1)
	openRoot(t, m, rootOptions())
}

func TestRoot_SetCluster(t *testing.T) {
	m := vfs.NewMem()
	unset := func(o *commitlog.RootOptions) { o.ClusterID = "" }
	r := openRoot(t, m, rootOptions(unset))
	if err := r.SetCluster(""); err == nil {
		t.Error("an empty cluster id is taken")
	}
	rootMust(t, r.SetCluster("c9"), r.SetCluster("c9"))
	if err := r.SetCluster("c8"); !errors.Is(err, commitlog.ErrForeign) {
		t.Errorf("another cluster: %v, want ErrForeign", err)
	}
	m = powerCut(m, 1, 0)
	if r := openRoot(t, m, rootOptions(unset)); r.ID().ClusterID != "c9" {
		t.Errorf("after a power cut the cluster is %q", r.ID().ClusterID)
	}
	m = powerCut(m, 1, 0)
	if _, err := commitlog.OpenRoot(m, rootDir, rootOptions()); !errors.Is(err, commitlog.ErrForeign) {
		t.Errorf("opened for c1: %v, want ErrForeign", err)
	}
}

func TestOpenRoot_learnsItsClusterLater(t *testing.T) {
	m := vfs.NewMem()
	closeRoot(t, openRoot(t, m, rootOptions(func(o *commitlog.RootOptions) { o.ClusterID = "" })), 1)
	if r := openRoot(t, m, rootOptions()); r.ID().ClusterID != "c1" {
		t.Errorf("cluster %q, want c1", r.ID().ClusterID)
	}
	m = powerCut(m, 1, 0)
	if r := openRoot(t, m, rootOptions(func(o *commitlog.RootOptions) { o.ClusterID = "" })); r.ID().ClusterID != "c1" {
		t.Errorf("cluster %q after a power cut, want c1", r.ID().ClusterID)
	}
}

func TestRoot_SetControllerEpoch(t *testing.T) {
	m := vfs.NewMem()
	r := openRoot(t, m, rootOptions())
	rootMust(t, r.SetControllerEpoch(5), r.SetControllerEpoch(5), r.SetControllerEpoch(9))
	if err := r.SetControllerEpoch(8); !errors.Is(err, commitlog.ErrOldController) {
		t.Errorf("an older one: %v, want ErrOldController", err)
	}
	r = openRoot(t, powerCut(m, 1, 0), rootOptions())
	if got := r.ID().HighestControllerEpoch; got != 9 {
		t.Errorf("after a power cut the epoch is %d, want 9", got)
	}
	closeRoot(t, r, 1)
	if err := r.SetControllerEpoch(10); !errors.Is(err, commitlog.ErrClosed) {
		t.Errorf("after Close: %v, want ErrClosed", err)
	}
}

// Whatever call of a change fails, what the root says and what the next start
// finds is the old value or, if the call succeeded, the new one.
func TestRoot_SetControllerEpoch_failingCalls(t *testing.T) {
	for nth := 1; nth < 100; nth++ {
		m := vfs.NewMem()
		fault := vfs.NewFault(m)
		r := openRoot(t, fault, rootOptions())
		rootMust(t, r.SetControllerEpoch(5))
		fault.Inject(vfs.Rule{Ops: vfs.OpChanges, Nth: nth, Err: errDisk})
		err := r.SetControllerEpoch(6)
		if err == nil {
			if nth < 5 {
				t.Fatalf("only %d calls change the disk", nth-1)
			}
			return
		}
		if !errors.Is(err, commitlog.ErrFailed) || !errors.Is(err, errDisk) {
			t.Fatalf("call %d: %v, want ErrFailed and its cause", nth, err)
		}
		if r.ID().HighestControllerEpoch != 5 {
			t.Errorf("call %d failed, and the epoch changed", nth)
		}
		if err := r.SetControllerEpoch(7); !errors.Is(err, commitlog.ErrFailed) {
			t.Errorf("call %d failed, and was tried again: %v", nth, err)
		}
		m.Kill()
		if got := openRoot(t, m, rootOptions()).ID().HighestControllerEpoch; got != 5 && got != 6 {
			t.Errorf("call %d failed: the next start finds %d", nth, got)
		}
	}
	t.Fatal("it never succeeds")
}
