package commitlog_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/vfs"
)

// syncCounter counts the syncs below it by the last element of the path.
type syncCounter struct {
	mu     sync.Mutex
	counts map[string]int
}

func countSyncs(fault *vfs.Fault, takes time.Duration) *syncCounter {
	c := &syncCounter{counts: map[string]int{}}
	fault.Before(vfs.OpSyncPoints, func(_ vfs.Op, name string) {
		c.mu.Lock()
		c.counts[filepath.Base(name)]++
		c.mu.Unlock()
		time.Sleep(takes)
	})
	return c
}

// take returns the counts, and begins anew.
func (c *syncCounter) take() (counts map[string]int, all int) {
	c.mu.Lock()
	defer c.mu.Unlock()

	counts, c.counts = c.counts, map[string]int{}
	for _, n := range counts {
		all += n
	}
	return counts, all
}

// A log that is made needs two syncs, and none for its first batch. The first time
// that it is made durable, and the first checkpoint, need one more each.
func TestRoot_OpenPartition_syncs(t *testing.T) {
	fault := vfs.NewFault(vfs.NewMem())
	r := openRoot(t, fault, rootOptions())
	openPartition(t, r, topicA, 0, true) // makes the topic's directory
	c := countSyncs(fault, 0)
	log, _ := openPartition(t, r, topicA, 1, true)
	counts, _ := c.take()
	if want := map[string]int{topicA.String(): 1, "runnel.partitions": 1}; !maps.Equal(counts, want) {
		t.Errorf("a log that is made: syncs %v, want %v", counts, want)
	}
	mustAppend(t, log, "a")
	if counts, all := c.take(); all > 0 {
		t.Errorf("its first batch: syncs %v", counts)
	}
	for _, want := range []map[string]int{{segment: 1, "1": 1}, {segment: 1}} {
		mustAppend(t, log, "b")
		rootMust(t, log.Sync())
		if counts, _ := c.take(); !maps.Equal(counts, want) {
			t.Errorf("syncs %v, want %v", counts, want)
		}
	}
	rootMust(t, log.Checkpoint())
	counts, _ = c.take()
	if want := map[string]int{"leader-epochs.tmp": 1, "1": 1, "checkpoint": 1}; !maps.Equal(counts, want) {
		t.Errorf("its first checkpoint: syncs %v, want %v", counts, want)
	}
	// One to which nothing is written is made durable by the checkpoint.
	log, _ = openPartition(t, r, topicA, 2, true)
	c.take()
	rootMust(t, log.Checkpoint(), log.Checkpoint(), log.Sync())
	counts, _ = c.take()
	if want := map[string]int{"checkpoint": 1, "2": 1}; !maps.Equal(counts, want) {
		t.Errorf("checkpoints of an empty one: syncs %v, want %v", counts, want)
	}
}

const segment = "00000000000000000000.log"

// Many that are made together need no more syncs than one.
func TestRoot_OpenPartitions_shareSyncs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, together = 200, 8
		fault := vfs.NewFault(vfs.NewMem())
		r := openRoot(t, fault, rootOptions(func(o *commitlog.RootOptions) { o.Parallel = together }))
		c := countSyncs(fault, time.Millisecond)
		var specs []commitlog.PartitionSpec
		for i := range int32(n) {
			specs = append(specs, commitlog.PartitionSpec{ID: commitlog.PartitionID{Topic: topicA, Number: i}, Topic: "topic-a", Create: true})
		}
		for _, o := range r.OpenPartitions(t.Context(), specs, nil) {
			rootMust(t, o.Err)
		}
		if counts, all := c.take(); all > 5 {
			t.Errorf("%d syncs for %d partitions, %d at a time: %v", all, n, together, counts)
		}
		rootMust(t, r.Close(1))
	})
}

// makers make partitions of a topic on a root, all at once, and write to them.
// They remember what they were promised.
type makers struct {
	mu      sync.Mutex
	handed  map[int32]bool
	written map[int32][]string
	synced  map[int32][]string
}

func newMakers() *makers {
	return &makers{handed: map[int32]bool{}, written: map[int32][]string{}, synced: map[int32][]string{}}
}

// work makes partitions, a few at a time, and returns what went wrong.
func (k *makers) work(r *commitlog.Root, life, partitions int) error {
	var wg sync.WaitGroup
	errs := make([]error, partitions)
	var next atomic.Int32
	for range 4 {
		wg.Go(func() {
			for n := next.Add(1) - 1; n < int32(partitions); n = next.Add(1) - 1 { //nolint:gosec // few
				errs[n] = k.workOn(r, life, n)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (k *makers) workOn(r *commitlog.Root, life int, n int32) error {
	log, _, err := r.OpenPartition(topicA, "topic-a", n, syncConfig(), true)
	if err != nil {
		return err
	}
	k.mu.Lock()
	k.handed[n] = true
	k.mu.Unlock()
	if n%4 == 2 {
		return nil // it stays empty
	}
	if n%4 == 1 {
		if err := log.Checkpoint(); err != nil {
			return err
		}
	}
	got, err := readValues(log) // those of another life
	if err != nil {
		return err
	}
	for i := range 2 {
		value := fmt.Sprintf("%d.%d.%d", life, n, i)
		k.mu.Lock()
		k.written[n] = append(slices.Clone(got), value)
		got = k.written[n]
		k.mu.Unlock()
		if err := appendValue(log, value); err != nil {
			return err
		}
		if i > 0 {
			continue
		}
		if err := log.Sync(); err != nil {
			return err
		}
		k.mu.Lock()
		k.synced[n] = got
		k.mu.Unlock()
	}
	return nil
}

func syncConfig() commitlog.Config { return commitlog.Config{Flush: commitlog.FlushSync} }

// cut returns what was promised until now, and what a power cut leaves.
func (k *makers) cut(m *vfs.Mem, seed uint64, keep int) (*makers, *vfs.Mem) {
	k.mu.Lock()
	defer k.mu.Unlock()

	return &makers{handed: maps.Clone(k.handed), written: maps.Clone(k.written), synced: maps.Clone(k.synced)}, powerCut(m, seed, keep)
}

// check opens what is left on a disk, in another boot. A log that was handed out
// is there, with what was synced; one that was not is there or never was; and
// none is suspect, since nothing is acknowledged that was not synced.
func (k *makers) check(m *vfs.Mem, partitions int) error {
	r, err := commitlog.OpenRoot(m, rootDir, rootOptions(inBoot("boot-2")))
	if err != nil {
		return err
	}
	if err := r.Opened(); err != nil {
		return err
	}
	for n := range int32(partitions) { //nolint:gosec // few
		log, rec, err := r.OpenPartition(topicA, "topic-a", n, syncConfig(), false)
		if err != nil {
			return fmt.Errorf("partition %d, handed out %v: %w", n, k.handed[n], err)
		}
		if rec.Suspicion != commitlog.NotSuspect || len(rec.Damage) > 0 {
			return fmt.Errorf("partition %d: a power cut looks like a loss: %+v", n, rec)
		}
		got, err := readValues(log)
		if err != nil {
			return err
		}
		if synced, written := k.synced[n], k.written[n]; len(got) < len(synced) || len(got) > len(written) || !slices.Equal(got, written[:len(got)]) {
			return fmt.Errorf("partition %d holds %q, synced %q, written %q", n, got, synced, written)
		}
	}
	if err := r.Close(1); err != nil {
		return err
	}
	return nil
}

// checkMissed takes the directories away: the absence of each that was handed out
// means something.
func (k *makers) checkMissed(m *vfs.Mem) error {
	if err := m.RemoveAll(rootDir + "/" + topicA.String()); err != nil {
		return err
	}
	r, err := commitlog.OpenRoot(m, rootDir, rootOptions(inBoot("boot-2")))
	if err != nil {
		return err
	}
	if err := r.Opened(); err != nil {
		return err
	}
	for n := range k.handed {
		if err := missing(r, topicA, n); !errors.Is(err, commitlog.ErrLost) {
			return fmt.Errorf("partition %d was handed out, and its absence means nothing: %w", n, err)
		}
	}
	return nil
}

// Wherever the power is cut while many partitions are made and written to at
// once, none that was handed out is lost, and none that was not is missed.
func TestRoot_powerCutsAmongMany(t *testing.T) {
	const partitions = 6
	// One takes as long as a hundred of other histories.
	for seed := range uint64(commitlog.SoakSeeds(t, 100) / 50) { //nolint:gosec // not negative
		m := vfs.NewMem()
		fault := vfs.NewFault(m)
		k := newMakers()
		var mu sync.Mutex // guards the next two
		var wrong error
		cuts := uint64(0)
		fault.Before(vfs.OpChanges, func(op vfs.Op, name string) {
			mu.Lock()
			defer mu.Unlock()
			if wrong != nil || !strings.Contains(name, rootDir) {
				return
			}
			cuts++
			for i, keep := range []int{0, 50, 100} {
				at := seed<<32 + cuts*10 + uint64(i) //nolint:gosec // few
				was, disk := k.cut(m, at, keep)
				again := disk.CrashClone(rand.New(rand.NewPCG(at, 2)), vfs.CrashOptions{})
				if err := errors.Join(was.check(disk, partitions), was.checkMissed(again)); err != nil {
					wrong = fmt.Errorf("seed %d, cut %d, before %s of %s, %d %% kept: %w", seed, cuts, op, name, keep, err)
				}
			}
		})
		r := openRoot(t, m, rootOptions())
		rootMust(t, r.Opened(), r.Close(1))
		r = openRoot(t, fault, rootOptions(func(o *commitlog.RootOptions) { o.CheckpointInterval = time.Millisecond }))
		stop := runRoot(t, r)
		rootMust(t, k.work(r, 0, partitions), stop())
		if wrong != nil {
			t.Fatal(wrong)
		}
		if cuts < 50 {
			t.Errorf("only %d cuts", cuts)
		}
		was, disk := k.cut(m, seed, 0)
		rootMust(t, was.check(disk, partitions))
	}
}

var errKilled = errors.New("killed")

// What a killed process left behind is made durable by the next one, before
// anything is built upon it.
func TestRoot_powerCutAfterKill(t *testing.T) {
	const partitions = 2
	for nth := 1; nth < 1000; nth++ {
		m := vfs.NewMem()
		r := openRoot(t, m, rootOptions())
		rootMust(t, r.Opened(), r.Close(1))
		k := newMakers()
		dying := vfs.NewFault(m)
		dying.Inject(vfs.Rule{Ops: vfs.OpChanges, Nth: nth, Err: errKilled, Times: -1})
		r, err := commitlog.OpenRoot(dying, rootDir, rootOptions())
		if err == nil {
			err = k.work(r, 0, partitions)
		}
		m.Kill()
		died := err != nil
		if died && !errors.Is(err, errKilled) {
			t.Fatal(err)
		}

		fault := vfs.NewFault(m)
		var wrong error
		var mu sync.Mutex // guards wrong
		fault.Before(vfs.OpSyncPoints, func(op vfs.Op, name string) {
			mu.Lock()
			defer mu.Unlock()
			if wrong != nil {
				return
			}
			was, disk := k.cut(m, uint64(nth), 0) //nolint:gosec // few
			if err := was.check(disk, partitions); err != nil {
				wrong = fmt.Errorf("killed before change %d, and the power cut before %s of %s: %w", nth, op, name, err)
			}
		})
		r = openRoot(t, fault, rootOptions())
		rootMust(t, k.work(r, 1, partitions), wrong)
		was, disk := k.cut(m, uint64(nth), 0) //nolint:gosec // few
		if err := was.check(disk, partitions); err != nil {
			t.Fatalf("killed before change %d: %v", nth, err)
		}
		if !died {
			if nth < 20 {
				t.Errorf("only %d changes", nth)
			}
			return
		}
	}
	t.Fatal("it never ends")
}

// A partition that could not be made whole for want of room is made durable when
// there is room.
func TestRoot_powerCutAfterFullDisk(t *testing.T) {
	for nth := 1; nth < 100; nth++ {
		m := vfs.NewMem()
		r := openRoot(t, m, rootOptions())
		rootMust(t, r.Opened(), r.Close(1))
		fault := vfs.NewFault(m)
		r = openRoot(t, fault, rootOptions())
		fault.Inject(vfs.Rule{Ops: vfs.OpCreate | vfs.OpWrite | vfs.OpMkdir, Nth: nth, Err: syscall.ENOSPC, Times: 3})
		k := newMakers()
		full := false
		for range 10 {
			err := k.workOn(r, 0, 0)
			if err == nil {
				break
			}
			if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, commitlog.ErrStorageFull) {
				t.Fatal(err)
			}
			full = true
			if k.handed[0] {
				if err := r.ClosePartition(commitlog.PartitionID{Topic: topicA}); err != nil && !errors.Is(err, syscall.ENOSPC) {
					t.Fatal(err)
				}
			}
		}
		for keep := range 2 {
			was, disk := k.cut(m, uint64(nth), 50*keep) //nolint:gosec // few
			if err := was.check(disk, 1); err != nil {
				t.Fatalf("full at change %d: %v", nth, err)
			}
		}
		if !full {
			if nth < 5 {
				t.Errorf("only %d changes", nth)
			}
			return
		}
	}
	t.Fatal("it never ends")
}

// A lost checkpoint is no loss before one is known to be durable, and is one
// afterwards; a partition that is made anew begins like any other.
func TestRoot_lostCheckpoint(t *testing.T) {
	dir := rootDir + "/" + topicA.String() + "/0"
	lose := func(t *testing.T, m *vfs.Mem, want commitlog.Suspicion) {
		t.Helper()
		disk := powerCut(m, 1, 100)
		rootMust(t, disk.Remove(dir+"/checkpoint"))
		_, rec, err := openRoot(t, disk, rootOptions(inBoot("boot-2"))).OpenPartition(topicA, "topic-a", 0, syncConfig(), false)
		rootMust(t, err)
		if rec.End == 0 || rec.Suspicion != want {
			t.Errorf("ends at %d, %s, want %s", rec.End, rec.Suspicion, want)
		}
	}
	write := func(t *testing.T, r *commitlog.Root) *commitlog.Log {
		t.Helper()
		log, _, err := r.OpenPartition(topicA, "topic-a", 0, syncConfig(), true)
		rootMust(t, err, appendValue(log, "a"), log.Sync())
		return log
	}
	grow := func(t *testing.T, m *vfs.Mem) {
		t.Helper()
		lose(t, m, commitlog.NotSuspect)
		pass(time.Second)
		lose(t, m, commitlog.SuspectNoCheckpoint)
	}
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		opts := rootOptions(func(o *commitlog.RootOptions) { o.CheckpointInterval = time.Second })
		r := openRoot(t, m, opts)
		stop := runRoot(t, r)
		log := write(t, r)
		if log.Grown() {
			t.Error("grown at once")
		}
		grow(t, m)
		if !log.Grown() {
			t.Error("not grown by a checkpoint")
		}
		id := commitlog.PartitionID{Topic: topicA}
		rootMust(t, r.ClosePartition(id))
		_, err := r.SetAside(id)
		rootMust(t, err)
		write(t, r)
		grow(t, m)
		rootMust(t, stop(), r.Close(1))
		lose(t, m, commitlog.SuspectNoCheckpoint)

		// One that is found, of a process that was killed before it named it, is not
		// new: what is in it may be of any age.
		m = vfs.NewMem()
		rootMust(t, openRoot(t, m, opts).Opened(), m.MkdirAll(dir))
		m.Kill()
		r = openRoot(t, m, opts)
		write(t, r)
		lose(t, m, commitlog.SuspectNoCheckpoint)
		if _, rec := openPartition(t, openRoot(t, powerCut(m, 1, 0), opts), topicA, 0, false); rec.End != 1 || rec.Suspicion != commitlog.NotSuspect {
			t.Errorf("after a power cut: %+v", rec)
		}
	})
}

// A checkpoint that is made anew for a log that lost it is as durable as what is
// written to it.
func TestOpenLog_newCheckpointIsDurable(t *testing.T) {
	m := vfs.NewMem()
	open := func(m *vfs.Mem) (*commitlog.Log, commitlog.Recovery) {
		log, rec, err := commitlog.OpenLog(m, "/log", syncConfig(), commitlog.OpenOptions{})
		rootMust(t, err)
		return log, rec
	}
	log, _ := open(m)
	mustAppend(t, log, "a")
	rootMust(t, log.Close(), m.Remove("/log/checkpoint"), m.SyncDir("/log"))
	log, rec := open(m)
	if rec.Suspicion != commitlog.SuspectNoCheckpoint {
		t.Fatalf("%+v", rec)
	}
	rootMust(t, log.SetSuspicion(commitlog.NotSuspect))
	if _, rec := open(powerCut(m, 1, 0)); rec.Suspicion != commitlog.NotSuspect {
		t.Errorf("after a power cut: %+v", rec)
	}
}

// A checkpoint that a killed process wrote, and did not sync, is read by the next
// one and made durable with its own, though that says the same.
func TestOpenLog_checkpointOfAKilledProcess(t *testing.T) {
	m := vfs.NewMem()
	fault := vfs.NewFault(m)
	log, _, err := commitlog.OpenLog(fault, "/log", syncConfig(), commitlog.OpenOptions{})
	rootMust(t, err, appendValue(log, "a"), log.Sync(), log.Checkpoint())
	log.SetHighWatermark(1)
	fault.Inject(vfs.Rule{Ops: vfs.OpSync, Path: "checkpoint", Err: errKilled})
	if err := log.Checkpoint(); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	m.Kill()
	log, rec, err := commitlog.OpenLog(m, "/log", syncConfig(), commitlog.OpenOptions{})
	rootMust(t, err, log.Checkpoint())
	_, after, err := commitlog.OpenLog(powerCut(m, 1, 0), "/log", syncConfig(), commitlog.OpenOptions{})
	rootMust(t, err)
	if rec.HighWatermark != 1 || after.HighWatermark != 1 {
		t.Errorf("high watermark %d, and %d after a power cut, want 1", rec.HighWatermark, after.HighWatermark)
	}
}
