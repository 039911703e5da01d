package replication

import (
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/internal/vfs"
)

// A follower whose disk is full is not waited for: it leaves the ISR at once,
// not when it has lagged for long enough, and joins again when it has room.
func TestFullDisk_followerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 1, 2, 3)
		defer w.end()
		id := w.topic(async, 1, 2, 1, 2, 3)
		synctest.Wait()
		_, committed := w.nodes[1].append(id, 0, 1, 1000)
		w.within(time.Second, "all have room", w.done(committed))
		free, total, err := w.nodes[2].mem.Free("data")
		if err != nil {
			t.Fatal(err)
		}
		w.nodes[2].mem.SetCapacity(total - free + 1)
		_, committed = w.nodes[1].append(id, 0, 1, 1000)
		w.within(time.Second, "the others go on", w.done(committed))
		if isr := w.isr(id, 0); !slices.Equal(isr, []int32{1, 3}) {
			t.Errorf("isr %v", isr)
		}
		time.Sleep(time.Minute)
		if isr := w.isr(id, 0); !slices.Equal(isr, []int32{1, 3}) {
			t.Errorf("isr %v, and the disk is full", isr)
		}
		w.nodes[2].mem.SetCapacity(0)
		w.within(time.Minute, "it is in sync again", func() bool { return len(w.isr(id, 0)) == 3 })
		w.same(id, 0)
	})
}

// A broker whose disk is below its hard mark, and that led, is not waited for by
// the next leader until it has lagged for long enough. Where nothing comes, it
// stays in sync.
func TestFullDisk_formerLeaderLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t)
		defer w.end()
		w.reserve = 4096 // so that what the log makes itself still has room below the hard mark
		for id := range int32(3) {
			w.start(id+1, vfs.NewMem())
		}
		id := w.topic(async, 2, 2, 2, 1, 3)
		synctest.Wait()
		for n := range int32(2) {
			_, committed := w.nodes[2].append(id, n, 1, 1000)
			w.within(time.Second, "all have room", w.done(committed))
		}
		free, total, err := w.nodes[2].mem.Free("data")
		if err != nil {
			t.Fatal(err)
		}
		w.nodes[2].mem.SetCapacity(total - free + 1000)
		w.within(time.Minute, "it is noticed", func() bool { return w.nodes[2].root.Disk().Hard })
		for n := range int32(2) {
			w.elect(id, n, 1, 1, 2, 3)
		}
		synctest.Wait()
		_, committed := w.nodes[1].append(id, 0, 1, 1000)
		w.within(time.Second, "the others go on", w.done(committed))
		time.Sleep(time.Minute)
		if isr := w.isr(id, 0); !slices.Equal(isr, []int32{1, 3}) {
			t.Errorf("isr %v, and the disk is full", isr)
		}
		if isr := w.isr(id, 1); len(isr) != 3 {
			t.Errorf("isr %v of a partition without anything to take", isr)
		}
		w.nodes[2].mem.SetCapacity(0)
		w.within(time.Minute, "it is in sync again", func() bool { return len(w.isr(id, 0)) == 3 })
		w.same(id, 0)
	})
}

// Elections in a row under which nobody writes leave nothing behind that keeps a
// follower from the next record (RP-04).
func TestElections_withoutAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 1, 2, 3)
		defer w.end()
		id := w.topic(async, 2, 2, 1, 2, 3)
		synctest.Wait()
		w.nodes[1].append(id, 1, 3, 10) // partition 0 stays empty
		synctest.Wait()
		for _, leader := range []int32{2, 3, 1, 3, 2} {
			for n := range int32(2) {
				w.elect(id, n, leader, 1, 2, 3)
			}
			synctest.Wait()
		}
		for n := range int32(2) {
			_, committed := w.nodes[2].append(id, n, 1, 10)
			w.within(time.Second, "committed", w.done(committed))
			if isr := w.isr(id, n); len(isr) != 3 {
				t.Errorf("partition %d: isr %v", n, isr)
			}
			w.same(id, n)
		}
	})
}

// A leader was elected without what one follower has committed, as a topic may
// allow: the follower cuts that partition, says so, and serves all others
// (RP-07).
func TestLossyElection_costsOnePartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 1, 2)
		defer w.end()
		const others = 50
		id := w.topic(async, others+1, 1, 1, 2)
		synctest.Wait()
		for n := range int32(others + 1) {
			w.nodes[1].append(id, n, 3, 10)
		}
		time.Sleep(time.Second) // the follower hears that it is committed
		mem := w.nodes[2].mem
		w.nodes[2].stop()
		// The leader of the first one begins anew with less than the follower has.
		w.change(id, 0, func(p *controllerv1.PartitionRecord) {
			p.Isr = []int32{1}
			p.LeaderEpoch++
			p.LossyEpochs = []int64{p.GetLeaderEpoch()}
		})
		synctest.Wait()
		lost := w.nodes[1].mem
		w.nodes[1].stop()
		if err := lost.RemoveAll(filepath.Join("data", id.String(), "0")); err != nil {
			t.Fatal(err)
		}
		w.start(1, lost)
		synctest.Wait()
		_, committed := w.nodes[1].append(id, 0, 1, 20)
		w.within(time.Second, "committed alone", w.done(committed))
		w.start(2, mem)
		for n := range int32(others + 1) {
			w.within(30*time.Second, "in sync", func() bool { return len(w.isr(id, n)) == 2 })
			w.same(id, n)
		}
		if cut := w.nodes[2].metric("truncated_below_hw_total"); cut != 1 {
			t.Errorf("%v partitions were cut below what was committed, want one", cut)
		}
	})
}
