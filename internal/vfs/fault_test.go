package vfs_test

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/runnelmq/runnel/internal/vfs"
)

var errInjected = errors.New("injected")

func TestFault_countsMatchingCalls(t *testing.T) {
	tests := map[string]struct {
		rule vfs.Rule
		want string // of eight writes, alternating a.log and b.log: x fails
	}{
		"first by default":  {vfs.Rule{Ops: vfs.OpWrite}, "x......."},
		"third":             {vfs.Rule{Ops: vfs.OpWrite, Nth: 3}, "..x....."},
		"second and third":  {vfs.Rule{Ops: vfs.OpWrite, Nth: 2, Times: 2}, ".xx....."},
		"from the sixth on": {vfs.Rule{Ops: vfs.OpWrite, Nth: 6, Times: -1}, ".....xxx"},
		"second of b":       {vfs.Rule{Ops: vfs.OpWrite, Path: "b.log", Nth: 2}, "...x...."},
		"all in directory":  {vfs.Rule{Ops: vfs.OpWrite, Path: "d/*.log", Times: -1}, "xxxxxxxx"},
		"other directory":   {vfs.Rule{Ops: vfs.OpWrite, Path: "e/*.log", Times: -1}, "........"},
		"other operation":   {vfs.Rule{Ops: vfs.OpSync, Times: -1}, "........"},
		"several of them":   {vfs.Rule{Ops: vfs.OpSync | vfs.OpWrite, Nth: 8}, ".......x"},
		"too deep pattern":  {vfs.Rule{Ops: vfs.OpWrite, Path: "x/y/z/*/*.log", Times: -1}, "........"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m := vfs.NewMem()
			fault := vfs.NewFault(m)
			if err := fault.MkdirAll("/d"); err != nil {
				t.Fatal(err)
			}
			a := create(t, fault, "/d/a.log", "")
			b := create(t, fault, "/d/b.log", "")
			fault.Clear()
			test.rule.Err = errInjected
			fault.Inject(test.rule)
			got := ""
			for i := range 8 {
				f := []vfs.File{a, b}[i%2]
				switch _, err := f.WriteAt([]byte("z"), 0); {
				case err == nil:
					got += "."
				case errors.Is(err, errInjected):
					got += "x"
				default:
					t.Fatal(err)
				}
			}
			if got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestFault_everyOperationCanFail(t *testing.T) {
	m := vfs.NewMem()
	fault := vfs.NewFault(m)
	f := create(t, m, "/f", "data")
	closeFile(t, f)
	var file vfs.File
	file, err := fault.Open("/f")
	if err != nil {
		t.Fatal(err)
	}
	calls := []struct {
		op   vfs.Op
		call func() error
	}{
		{vfs.OpOpen, func() error { return second(fault.Open("/f")) }},
		{vfs.OpOpen, func() error { return second(fault.OpenOrCreate("/f")) }},
		{vfs.OpCreate, func() error { return second(fault.Create("/g")) }},
		{vfs.OpCreate, func() error { return second(fault.OpenOrCreate("/g")) }},
		{vfs.OpRead, func() error { _, err := file.ReadAt(make([]byte, 1), 0); return err }},
		{vfs.OpWrite, func() error { _, err := file.WriteAt([]byte("x"), 0); return err }},
		{vfs.OpTruncate, func() error { return file.Truncate(0) }},
		{vfs.OpSync, func() error { return file.Sync() }},
		{vfs.OpStat, func() error { return second(file.Size()) }},
		{vfs.OpRemove, func() error { return fault.Remove("/f") }},
		{vfs.OpRemove, func() error { return fault.RemoveAll("/f") }},
		{vfs.OpRename, func() error { return fault.Rename("/f", "/h") }},
		{vfs.OpMkdir, func() error { return fault.MkdirAll("/m") }},
		{vfs.OpReadDir, func() error { return second(fault.ReadDir("/")) }},
		{vfs.OpStat, func() error { return second(fault.Stat("/f")) }},
		{vfs.OpSyncDir, func() error { return fault.SyncDir("/") }},
		{vfs.OpLock, func() error { return second(fault.Lock("/l")) }},
		{vfs.OpFree, func() error { _, _, err := fault.Free("/"); return err }},
		{vfs.OpClose, func() error { return file.Close() }},
	}
	var all vfs.Op
	for _, c := range calls {
		all |= c.op
		fault.Inject(vfs.Rule{Ops: c.op, Err: errInjected})
		if err := c.call(); !errors.Is(err, errInjected) {
			t.Errorf("%s: %v, want the injected error", c.op, err)
		}
		fault.Clear()
	}
	if all != vfs.OpAny {
		t.Errorf("not tried: %s", vfs.OpAny&^all)
	}
	if got := content(t, m, "/f"); got != "data" {
		t.Errorf("failing calls changed the file to %q", got)
	}
	if n := m.OpenFiles(); n != 0 {
		t.Errorf("%d files open; a failing close closes", n)
	}
}

func TestFault_partialFailuresDoTheirWork(t *testing.T) {
	m := vfs.NewMem()
	fault := vfs.NewFault(m)
	f := create(t, fault, "/f", "")
	fault.Inject(vfs.Rule{Ops: vfs.OpWrite | vfs.OpRename, Times: -1, Err: syscall.EIO, Partial: true})
	if n, err := f.WriteAt([]byte("abcd"), 0); n != 2 || !errors.Is(err, syscall.EIO) {
		t.Errorf("WriteAt = %d, %v, want 2 and EIO", n, err)
	}
	if err := fault.Rename("/f", "/g"); !errors.Is(err, syscall.EIO) {
		t.Errorf("Rename: %v, want EIO", err)
	}
	if got := content(t, m, "/g"); got != "ab" {
		t.Errorf("the file holds %q, want half of what was written", got)
	}
}

func TestFault_hooksSeeCallsInOrder(t *testing.T) {
	fault := vfs.NewFault(vfs.NewMem())
	var all, syncs []string
	fault.Before(vfs.OpAny, func(op vfs.Op, name string) { all = append(all, fmt.Sprintf("%s %s", op, name)) })
	fault.Before(vfs.OpSyncPoints, func(op vfs.Op, name string) { syncs = append(syncs, fmt.Sprintf("%s %s", op, name)) })
	if err := vfs.WriteFileAtomic(fault, "/f", []byte("x")); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"create /f.tmp", "truncate /f.tmp", "write /f.tmp", "sync /f.tmp", "close /f.tmp", "rename /f.tmp", "syncdir /",
	}
	if diff := cmp.Diff(want, all); diff != "" {
		t.Errorf("all calls, -want +got:\n%s", diff)
	}
	if want := []string{"sync /f.tmp", "syncdir /"}; !slices.Equal(syncs, want) {
		t.Errorf("sync points %v, want %v", syncs, want)
	}
}

func TestIsTransient(t *testing.T) {
	for _, err := range []error{syscall.ENOSPC, syscall.EMFILE, syscall.ENFILE, fmt.Errorf("x: %w", syscall.ENOSPC)} {
		if !vfs.IsTransient(err) {
			t.Errorf("%v says that the disk failed", err)
		}
	}
	for _, err := range []error{nil, syscall.EIO, syscall.EROFS, errInjected} {
		if vfs.IsTransient(err) {
			t.Errorf("%v is taken for a lack of room", err)
		}
	}
}
