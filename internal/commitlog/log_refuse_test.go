package commitlog

import (
	"bytes"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// Only the active segment need be open; a lack of descriptors is no failure (OP-06).
func TestLog_fewDescriptors(t *testing.T) {
	h := openWith(t, testConfig(), 60)
	h.reopen(t, true)
	h.check(t)
	h.mem.SetMaxOpen(1)
	h.log.idle.closeAll()
	if n := h.mem.OpenFiles(); n != 1 {
		t.Fatalf("%d files open, only the active segment need be", n)
	}
	buf := make([]byte, 4096)
	if _, err := h.log.Read(buf, h.m.start, h.m.end); !errors.Is(err, ErrTooManyFiles) {
		t.Errorf("read: %v, want ErrTooManyFiles", err)
	}
	if err := h.log.Roll(); !errors.Is(err, ErrTooManyFiles) || errors.Is(err, ErrFailed) {
		t.Errorf("roll: %v, want ErrTooManyFiles", err)
	}
	if err := h.log.TruncateTo(1); !errors.Is(err, ErrTooManyFiles) || errors.Is(err, ErrFailed) {
		t.Errorf("truncate: %v, want ErrTooManyFiles", err)
	}
	if err := h.log.Reset(7, 9); !errors.Is(err, ErrTooManyFiles) || errors.Is(err, ErrFailed) {
		t.Errorf("reset: %v, want ErrTooManyFiles", err)
	}
	must(t, h.log.SetConfig(Config{IndexIntervalBytes: h.cfg.IndexIntervalBytes})) // no roll is due
	h.append(t, 10, record.CreateTime, h.nowMs)
	h.mem.SetMaxOpen(0)
	h.check(t)
	h.reopen(t, false)
	h.check(t)
}

// The first failed write, sync, truncation or rename is the last word.
func TestLog_failsStop(t *testing.T) {
	eio := syscall.EIO
	for _, c := range []struct {
		name string
		ops  vfs.Op
		path string
		do   func(h *harness) error
	}{
		{"write", vfs.OpWrite, "*.log", func(h *harness) error { return h.appendErr() }},
		{"sync", vfs.OpSync, "*.log", func(h *harness) error { return errors.Join(h.appendErr(), h.log.Sync()) }},
		{"truncate", vfs.OpTruncate, "*.log", func(h *harness) error { return h.log.TruncateTo(2) }},
		{"checkpoint write", vfs.OpWrite, "checkpoint", func(h *harness) error { return h.log.DeleteBefore(3) }},
		{"checkpoint sync", vfs.OpSync, "checkpoint", func(h *harness) error { return h.log.DeleteBefore(3) }},
		{"epochs rename", vfs.OpRename, epochsName, func(h *harness) error {
			return errors.Join(h.log.StartEpoch(9), h.log.Checkpoint())
		}},
		{"directory sync", vfs.OpSyncDir, "", func(h *harness) error { return errors.Join(h.log.Roll(), h.appendErr(), h.log.Sync()) }},
		{"remove", vfs.OpRemove, "*.log", func(h *harness) error { return h.log.DeleteBefore(h.m.end) }},
		{"sync says the disk is full", vfs.OpSync, "*.log", func(h *harness) error {
			return errors.Join(h.appendErr(), h.log.Sync())
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := openWith(t, testConfig(), 20)
			err := eio
			if strings.Contains(c.name, "full") {
				err = syscall.ENOSPC
			}
			h.fault.Inject(vfs.Rule{Ops: c.ops, Path: c.path, Err: err})
			if err := c.do(h); !errors.Is(err, ErrFailed) {
				t.Fatalf("got %v, want ErrFailed", err)
			}
			writes := 0
			h.fault.Before(vfs.OpChanges, func(vfs.Op, string) { writes++ })
			for name, err := range map[string]error{
				"append": h.appendErr(), "sync": h.log.Sync(), "checkpoint": h.log.Checkpoint(), "roll": h.log.Roll(),
				"truncate": h.log.TruncateTo(h.log.Start()), "delete": h.log.DeleteBefore(h.log.End()),
				"read": readErr(h.log), "epoch": h.log.StartEpoch(99), "reset": h.log.Reset(0, 9), "close": h.log.Close(),
			} {
				if !errors.Is(err, ErrFailed) {
					t.Errorf("%s after the failure: %v", name, err)
				}
			}
			if writes > 0 {
				t.Errorf("%d changes of the disk after it failed", writes)
			}
		})
	}
}

func readErr(l *Log) error {
	_, err := l.Read(make([]byte, 4096), l.Start(), l.End())
	return err
}

func (h *harness) appendErr() error {
	h.builder.Reset()
	if err := h.builder.Add(nil, []byte("v"), nil, h.nowMs); err != nil {
		return err
	}
	b, err := h.builder.Finish(record.CompressionNone, 0)
	if err != nil {
		return err
	}
	_, err = h.log.Append(&b, max(h.log.LastEpoch(), 1), record.CreateTime)
	return err
}

// A read error is that log's trouble, and the root's only when it writes.
func TestLog_readErrorIsNoFailure(t *testing.T) {
	h := openWith(t, testConfig(), 30)
	h.fault.Inject(vfs.Rule{Ops: vfs.OpRead, Path: segmentName(0, logSuffix), Err: syscall.EIO, Times: -1})
	if _, err := h.log.Read(make([]byte, 4096), 0, 10); !errors.Is(err, syscall.EIO) || errors.Is(err, ErrFailed) {
		t.Errorf("read: %v", err)
	}
	if _, err := readAll(h.log, h.m.end-2, h.m.end); err != nil {
		t.Errorf("read of another segment: %v", err)
	}
	h.append(t, 10, record.CreateTime, h.nowMs)
}

func TestLog_appendTimeNeverGoesBack(t *testing.T) {
	h := openWith(t, testConfig(), 3)
	late := h.nowMs
	for _, clean := range []bool{true, false} {
		h.nowMs = late - 5000
		h.append(t, 10, record.LogAppendTime, 1)
		h.deleteBefore(t, h.m.end) // also when no batch is left to tell
		h.reopen(t, clean)
		h.append(t, 10, record.LogAppendTime, 1)
		if got := h.m.batches[len(h.m.batches)-1].appendTime; got != late {
			t.Errorf("append time %d, want %d", got, late)
		}
	}
	h.check(t)
}

func TestLog_badFramesAreRefused(t *testing.T) {
	h := openWith(t, testConfig(), 3)
	b := h.batch(t, 50, h.nowMs, h.nowMs)
	good := bytes.Clone(b.Seal(h.m.end, 1, h.nowMs, record.CreateTime))
	flip := func(at int) []byte {
		bad := bytes.Clone(good)
		bad[at] ^= 1
		return bad
	}
	for name, frames := range map[string][]byte{
		"payload": flip(len(good) - 1), "header": flip(30), "cut": good[:len(good)-1],
		"below the end": bytes.Clone(b.Seal(h.m.end-1, 1, h.nowMs, record.CreateTime)),
		"older epoch":   bytes.Clone(b.Seal(h.m.end, 0, h.nowMs, record.CreateTime)),
		"second bad":    append(bytes.Clone(good), flip(len(good)-1)...),
	} {
		if end, err := h.log.AppendFrames(frames); !errors.Is(err, ErrBadFrames) || end != h.m.end {
			t.Errorf("%s: end %d, %v", name, end, err)
		}
	}
	h.check(t)
}

func TestLog_staleEpochIsRefused(t *testing.T) {
	h := openWith(t, testConfig(), 1)
	must(t, h.log.StartEpoch(5))
	must(t, h.log.StartEpoch(5))
	b := h.batch(t, 10, 1)
	_, err := h.log.Append(&b, 4, record.CreateTime)
	if !errors.Is(err, ErrStaleEpoch) || !errors.Is(h.log.StartEpoch(4), ErrStaleEpoch) {
		t.Errorf("append in an old epoch: %v", err)
	}
	h.check(t)
}

// An empty leadership must not survive a truncation at the end, or beyond it.
func TestTruncateTo_dropsEmptyLeaderships(t *testing.T) {
	h := openWith(t, testConfig(), 2)
	for _, o := range []record.Offset{h.m.end, h.m.end + 5} {
		must(t, h.log.StartEpoch(7))
		if e, end := h.log.EpochEnd(7); e != 7 || end != h.m.end {
			t.Fatalf("epoch 7 ends at (%d, %d)", e, end)
		}
		must(t, h.log.TruncateTo(o))
		if e := h.log.LastEpoch(); e != 1 {
			t.Errorf("truncate to %d left epoch %d", o, e)
		}
	}
	h.reopen(t, false)
	if diff := cmp.Diff(epochList{{1, 0}}, *h.log.epochs.Load(), cmp.AllowUnexported(epochStart{})); diff != "" {
		t.Error(diff)
	}
}

// Logs that share their idle files let one of them use the last descriptor.
func TestIdleFiles_areShared(t *testing.T) {
	h := newHarness(testConfig())
	idle := NewIdleFiles(100)
	var logs []*Log
	for _, dir := range []string{"a/0", "a/1"} {
		l, _, err := OpenLog(h.fault, dir, h.cfg, OpenOptions{Now: h.now, Idle: idle})
		must(t, err)
		logs = append(logs, l)
		for range 30 {
			b := h.batch(t, 100, 1)
			_, err := l.Append(&b, 1, record.CreateTime)
			must(t, err)
		}
		_, err = readAll(l, 0, l.End())
		must(t, err)
	}
	before := h.mem.OpenFiles()
	if before <= len(logs) {
		t.Fatal("nothing is idle")
	}
	h.mem.SetMaxOpen(before)
	for _, l := range logs {
		if err := l.Roll(); err != nil {
			t.Errorf("roll: %v", err)
		}
	}
	for _, l := range logs {
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if n := h.mem.OpenFiles(); n != 0 {
		t.Errorf("%d files open after Close", n)
	}
}

// What a failed append left is gone, durably, before anything else is written.
func TestAppend_rollbackIsSyncedFirst(t *testing.T) {
	h := openWith(t, testConfig(), 2)
	h.fault.Inject(vfs.Rule{Ops: vfs.OpWrite, Path: "*.log", Err: syscall.ENOSPC, Partial: true})
	var ops []string
	h.fault.Before(vfs.OpWrite|vfs.OpTruncate|vfs.OpSync, func(op vfs.Op, name string) {
		if strings.HasSuffix(name, logSuffix) {
			ops = append(ops, op.String())
		}
	})
	if err := h.appendErr(); !errors.Is(err, ErrStorageFull) {
		t.Fatal(err)
	}
	must(t, h.appendErr())
	if diff := cmp.Diff([]string{"write", "truncate", "sync", "write"}, ops); diff != "" {
		t.Error(diff)
	}
}

// A checkpoint that finds no descriptor, or no room, leaves the one before and fails nothing; one that can't be synced fails
// the root.
func TestCheckpoint_refused(t *testing.T) {
	for name, c := range map[string]struct {
		rule vfs.Rule
		want error
	}{
		"no descriptor": {vfs.Rule{Ops: vfs.OpOpen, Path: checkpointName, Err: syscall.EMFILE}, ErrTooManyFiles},
		"no room":       {vfs.Rule{Ops: vfs.OpWrite, Path: checkpointName, Err: syscall.ENOSPC}, ErrStorageFull},
		"no sync":       {vfs.Rule{Ops: vfs.OpSync, Path: checkpointName, Err: syscall.EIO}, ErrFailed},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(Config{})
			h.mustOpen(t, true)
			h.append(t, 100, record.CreateTime, 1)
			must(t, h.log.Sync())
			h.fault.Inject(c.rule)
			if err := h.log.Checkpoint(); !errors.Is(err, c.want) {
				t.Fatalf("checkpoint: %v, want %v", err, c.want)
			}
			if errors.Is(c.want, ErrFailed) {
				return
			}
			must(t, h.log.Checkpoint())
			h.append(t, 100, record.CreateTime, 2)
			h.reopen(t, false)
			h.check(t)
		})
	}
}
