package commitlog_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/vfs"
)

// runRoot runs r until the function it returns is called, which returns what
// Run did.
func runRoot(t *testing.T, r *commitlog.Root) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var err error
	wg.Go(func() { err = r.Run(ctx) })
	stop = func() error {
		cancel()
		wg.Wait()
		return err
	}
	t.Cleanup(func() { _ = stop() })
	return stop
}

func TestRoot_Run_flushesEachLogInItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		r, stop := running(t, m, rootOptions())
		slow, _, err := r.OpenPartition(topicA, "a", 0, commitlog.Config{FlushInterval: 10 * time.Second}, true)
		rootMust(t, err)
		quick, _, err := r.OpenPartition(topicB, "b", 0, commitlog.Config{FlushInterval: 200 * time.Millisecond}, true)
		rootMust(t, err)
		pass(time.Second)
		mustAppend(t, slow, "a")
		mustAppend(t, quick, "b")
		if slow.Durable() != 0 || quick.Durable() != 0 {
			t.Error("durable at once")
		}
		pass(300 * time.Millisecond)
		if slow.Durable() != 0 || quick.Durable() != 1 {
			t.Errorf("after 0.3 s %d and %d are durable, want 0 and 1", slow.Durable(), quick.Durable())
		}
		pass(10 * time.Second)
		if slow.Durable() != 1 {
			t.Error("after 10 s the slow one is not durable")
		}
		// A change of the interval is heard of.
		rootMust(t, slow.SetConfig(commitlog.Config{FlushInterval: 100 * time.Millisecond}))
		pass(10 * time.Second)
		mustAppend(t, slow, "a")
		pass(200 * time.Millisecond)
		if slow.Durable() != 2 {
			t.Error("the new interval is not kept")
		}
		rootMust(t, stop())
	})
}

func TestRoot_Run_checkpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		r, stop := running(t, m, rootOptions(func(o *commitlog.RootOptions) { o.CheckpointInterval = 3 * time.Second }))
		log, _ := openPartition(t, r, topicA, 0, true)
		mustAppend(t, log, "a", "b")
		log.SetHighWatermark(2)
		pass(3500 * time.Millisecond)
		_, rec := openPartition(t, openRoot(t, powerCut(m, 1, 0), rootOptions()), topicA, 0, false)
		if rec.HighWatermark != 2 || rec.RecoveryPoint != 2 {
			t.Errorf("recovered %+v, want both marks at 2", rec)
		}
		rootMust(t, stop())
	})
}

// A partition that takes long to open, close or flush holds up no other.
func TestRoot_Run_isNotHeldUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		fault := vfs.NewFault(m)
		r, stop := running(t, fault, rootOptions(func(o *commitlog.RootOptions) { o.Parallel = 1 }))
		openPartition(t, r, topicA, 0, true)
		log, _ := openPartition(t, r, topicB, 0, true)
		rootMust(t, r.ClosePartition(commitlog.PartitionID{Topic: topicA}))
		hold := make(chan struct{})
		fault.Before(vfs.OpReadDir, func(_ vfs.Op, name string) {
			if strings.Contains(name, topicA.String()) {
				<-hold
			}
		})
		var wg sync.WaitGroup
		wg.Go(func() { openPartition(t, r, topicA, 0, false) })
		synctest.Wait()
		mustAppend(t, log, "b")
		log.SetHighWatermark(1)
		pass(11 * time.Second)
		_, rec := openPartition(t, openRoot(t, powerCut(m, 1, 0), rootOptions()), topicB, 0, false)
		if log.Durable() != 1 || rec.HighWatermark != 1 {
			t.Errorf("durable to %d, checkpoint %+v, while another log is being opened", log.Durable(), rec)
		}
		close(hold)
		wg.Wait()
		rootMust(t, stop())
		closeRoot(t, r, 1)
	})
}

func TestRoot_Run_endsWithTheDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		fault := vfs.NewFault(m)
		r := openRoot(t, fault, rootOptions())
		stop := runRoot(t, r)
		log, _ := openPartition(t, r, topicA, 0, true)
		other, _ := openPartition(t, r, topicB, 0, true)
		mustAppend(t, log, "a")
		mustAppend(t, other, "b")
		fault.Inject(vfs.Rule{Ops: vfs.OpSync, Path: "*.log", Err: syscall.EIO})
		<-r.Failed()
		synctest.Wait()
		for _, l := range []*commitlog.Log{log, other} {
			if err := appendValue(l, "late"); !errors.Is(err, commitlog.ErrFailed) {
				t.Errorf("append after the failure: %v, want ErrFailed", err)
			}
			if err := l.Sync(); !errors.Is(err, commitlog.ErrFailed) {
				t.Errorf("sync after the failure: %v, want ErrFailed", err)
			}
		}
		if _, _, err := r.OpenPartition(topicA, "a", 1, commitlog.Config{}, true); !errors.Is(err, commitlog.ErrFailed) {
			t.Errorf("open after the failure: %v, want ErrFailed", err)
		}
		if err := r.RemoveTopic(topicA); !errors.Is(err, commitlog.ErrFailed) {
			t.Errorf("removal after the failure: %v, want ErrFailed", err)
		}
		if err := stop(); !errors.Is(err, commitlog.ErrFailed) || !errors.Is(err, syscall.EIO) {
			t.Errorf("Run: %v, want ErrFailed and EIO", err)
		}
		if err := r.Close(9); !errors.Is(err, commitlog.ErrFailed) {
			t.Errorf("Close: %v, want ErrFailed", err)
		}
		again := openRoot(t, m, rootOptions())
		if s := again.Start(); s.Trusted() || !strings.Contains(s.Why, syscall.EIO.Error()) {
			t.Errorf("next start %+v, want one that trusts nothing", s)
		}
		_, rec := openPartition(t, again, topicA, 0, false)
		if rec.Suspicion == commitlog.NotSuspect {
			t.Error("a log of a failed root is not suspect")
		}
	})
}

// What a removal left behind when it was cut off goes at the next run.
func TestRoot_Run_sweepsLeftovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		fault := vfs.NewFault(m)
		r := openRoot(t, fault, rootOptions())
		log, _ := openPartition(t, r, topicA, 0, true)
		mustAppend(t, log, "a")
		openPartition(t, r, topicB, 0, true)
		// The power fails between the renaming and the removal of the files.
		var cut *vfs.Mem
		fault.Before(vfs.OpRemove, func(_ vfs.Op, name string) {
			if strings.HasSuffix(name, ".removed") {
				cut = powerCut(m, 1, 0)
			}
		})
		rootMust(t, r.RemoveTopic(topicA))
		leftover := rootDir + "/" + topicA.String() + ".removed"
		if !exists(t, cut, leftover) {
			t.Fatal("the power cut left nothing")
		}
		r, stop := running(t, cut, rootOptions())
		pass(time.Second)
		if exists(t, cut, leftover) || exists(t, powerCut(cut, 1, 0), leftover) {
			t.Error("the leftover is there still")
		}
		if p := r.Partitions(); len(p) != 1 || p[0].ID.Topic != topicB {
			t.Errorf("partitions %+v", p)
		}
		rootMust(t, stop())
	})
}

func TestRoot_Run_passesOnWhatItGotOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		fault := vfs.NewFault(m)
		var warnings []error
		r, stop := running(t, fault, rootOptions(func(o *commitlog.RootOptions) {
			o.OnWarning = func(err error) { warnings = append(warnings, err) }
		}))
		log, _ := openPartition(t, r, topicA, 0, true)
		rootMust(t, log.StartEpoch(4))
		fault.Inject(vfs.Rule{Ops: vfs.OpCreate, Err: syscall.EMFILE, Times: 1})
		mustAppend4(t, log)
		pass(6 * time.Second)
		if len(warnings) != 1 || !errors.Is(warnings[0], syscall.EMFILE) || !strings.Contains(warnings[0].Error(), topicA.String()+"/0") {
			t.Errorf("warnings %v, want one that names the partition", warnings)
		}
		pass(5 * time.Second)
		rootMust(t, stop())
		if r.Failure().Err() != nil || len(warnings) != 1 {
			t.Errorf("failed of %v, warnings %v", r.Failure().Err(), warnings)
		}
		r = openRoot(t, powerCut(m, 1, 0), rootOptions())
		log, _ = openPartition(t, r, topicA, 0, false)
		if log.LastEpoch() != 4 || !slices.Equal(mustRead(t, log), []string{"in epoch 4"}) {
			t.Errorf("epoch %d, records %q", log.LastEpoch(), mustRead(t, log))
		}
	})
}

func mustAppend4(t *testing.T, log *commitlog.Log) {
	t.Helper()
	batch, err := rootBatch("in epoch 4")
	rootMust(t, err)
	_, err = log.Append(batch, 4, 1)
	rootMust(t, err)
}

// Logs that are due together are written together before the first of them is
// waited for, and then so few are waited for at once that processors are left.
func TestRoot_Run_flushesFewAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const logs = 16
		fault := vfs.NewFault(vfs.NewMem())
		r, stop := running(t, fault, rootOptions(func(o *commitlog.RootOptions) { o.CheckpointInterval = time.Hour }))
		for n := range int32(logs) {
			log, _ := openPartition(t, r, topicA, n, true)
			mustAppend(t, log, "a")
		}
		var mu sync.Mutex
		written, syncing, most, synced, early := 0, 0, 0, 0, false
		fault.Before(vfs.OpWriteBack, func(vfs.Op, string) {
			mu.Lock()
			defer mu.Unlock()
			written++
		})
		fault.Before(vfs.OpSync, func(_ vfs.Op, name string) {
			if !strings.HasSuffix(name, ".log") {
				return
			}
			mu.Lock()
			early = early || written < logs
			syncing++
			most = max(most, syncing)
			mu.Unlock()
			<-time.NewTimer(5 * time.Millisecond).C
			mu.Lock()
			syncing--
			synced++
			mu.Unlock()
		})
		pass(2 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		if want := max(1, runtime.GOMAXPROCS(0)/2); synced != logs || most > want || early {
			t.Errorf("%d of %d logs synced, up to %d at once, want %d; before all were written: %t", synced, logs, most, want, early)
		}
		rootMust(t, stop())
	})
}

// A file that the disk does not answer for holds up no other log.
func TestRoot_Run_goesPastAHungSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fault := vfs.NewFault(vfs.NewMem())
		r, stop := running(t, fault, rootOptions())
		hold := make(chan struct{})
		fault.Before(vfs.OpSync, func(_ vfs.Op, name string) {
			if strings.Contains(name, topicA.String()) && strings.HasSuffix(name, ".log") {
				<-hold
			}
		})
		var others []*commitlog.Log
		// Fewer than the root works on in parallel.
		for n := range int32(2) {
			hung, _ := openPartition(t, r, topicA, n, true)
			mustAppend(t, hung, "a")
			other, _ := openPartition(t, r, topicB, n, true)
			mustAppend(t, other, "b")
			others = append(others, other)
		}
		pass(2 * time.Second)
		for n, other := range others {
			if other.Durable() != 1 {
				t.Errorf("log %d is durable to %d while the syncs of others hang", n, other.Durable())
			}
		}
		close(hold)
		rootMust(t, stop())
	})
}
