package replication

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/internal/record"
)

func TestReplicates_byteForByte(t *testing.T) {
	for _, flush := range []controllerv1.FlushMode{async, bySync} {
		synctest.Test(t, func(t *testing.T) {
			w := newTown(t, 1, 2, 3)
			defer w.end()
			id := w.topic(flush, 1, 2, 1, 2, 3)
			synctest.Wait()
			leader := w.nodes[1]
			var last record.Offset
			var committed <-chan error
			for i := range 50 {
				last, committed = leader.append(id, 0, 1+i%7, 10*i)
			}
			w.within(50*time.Millisecond, "the last batch is committed", w.done(committed))
			// A batch larger than all credit passes, alone.
			_, committed = leader.append(id, 0, 1, 3<<20)
			last++
			w.within(50*time.Millisecond, "a large batch is committed", w.done(committed))
			w.within(20*time.Millisecond, "the followers hear of it", func() bool {
				return w.nodes[2].replica(id, 0).State().HighWatermark == last+1 && w.nodes[3].replica(id, 0).State().HighWatermark == last+1
			})
			w.same(id, 0)
			if d := w.nodes[2].dropped() + w.nodes[3].dropped(); d != 0 {
				t.Errorf("%v subscriptions were dropped", d)
			}
		})
	}
}

func TestHighWatermark_waitsForEveryMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 1, 2, 3)
		defer w.end()
		w.deaf = true
		id := w.topic(async, 1, 2, 1, 2, 3)
		synctest.Wait()
		leader := w.nodes[1]
		_, committed := leader.append(id, 0, 1, 10)
		w.within(20*time.Millisecond, "committed", w.done(committed))
		w.net.silence(3, 1) // its acks do not arrive
		_, committed = leader.append(id, 0, 1, 10)
		time.Sleep(time.Second)
		if hw := leader.replica(id, 0).State().HighWatermark; hw != 1 {
			t.Errorf("high watermark %d without the ack of broker 3", hw)
		}
		if end := w.nodes[3].replica(id, 0).State().LogEnd; end != 2 {
			t.Errorf("broker 3 has %d", end)
		}
		w.net.heal()
		w.within(20*time.Millisecond, "committed", w.done(committed))
	})
}

// A follower with flush=sync acknowledges what its disk has, and many batches
// with one sync.
func TestSync_acknowledgesWhatIsDurable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 1, 2)
		defer w.end()
		id := w.topic(bySync, 1, 2, 1, 2)
		synctest.Wait()
		disk := w.nodes[2].hold(syncing, id, 0)
		_, first := w.nodes[1].append(id, 0, 1, 10)
		disk.wait() // for the first sync, which hangs
		var last <-chan error
		for range 100 {
			_, last = w.nodes[1].append(id, 0, 1, 10)
		}
		time.Sleep(100 * time.Millisecond)
		if end, hw := w.nodes[2].replica(id, 0).State().LogEnd, w.nodes[1].replica(id, 0).State().HighWatermark; end != 101 || hw != 0 {
			t.Errorf("the follower has %d in its log, the high watermark is %d", end, hw)
		}
		disk.release()
		w.within(20*time.Millisecond, "the first is committed", w.done(first))
		w.within(20*time.Millisecond, "the last is committed", w.done(last))
		if n := disk.count(); n > 4 {
			t.Errorf("%d syncs for 101 batches", n)
		}
	})
}

func TestFollower_comesBackAndCatchesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 1, 2, 3)
		defer w.end()
		id := w.topic(async, 1, 2, 1, 2, 3)
		synctest.Wait()
		leader := w.nodes[1]
		leader.append(id, 0, 3, 100)
		synctest.Wait()
		mem := w.nodes[3].mem
		w.nodes[3].stop()
		var committed <-chan error
		for range 300 {
			_, committed = leader.append(id, 0, 10, 1000)
		}
		w.within(12*time.Second, "it leaves the ISR, and the rest goes on", w.done(committed))
		if isr := w.isr(id, 0); !slices.Equal(isr, []int32{1, 2}) {
			t.Fatalf("ISR %v", isr)
		}
		w.start(3, mem)
		w.within(time.Second, "it is in sync again", func() bool { return slices.Equal(w.isr(id, 0), []int32{1, 2, 3}) })
		_, committed = leader.append(id, 0, 1, 1)
		w.within(20*time.Millisecond, "committed", w.done(committed))
		w.same(id, 0)
	})
}

// What a deposed leader wrote alone goes, and nothing else.
func TestFollower_cutsWhatIsNotTheLeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 1, 2, 3)
		defer w.end()
		w.deaf = true
		id := w.topic(async, 1, 2, 1, 2, 3)
		synctest.Wait()
		for range 5 {
			w.nodes[1].append(id, 0, 2, 50)
		}
		synctest.Wait()
		w.net.isolate(1, 2, 3)
		_, lost := w.nodes[1].append(id, 0, 7, 50)
		w.elect(id, 0, 2, 2, 3)
		synctest.Wait()
		if err := <-lost; err == nil {
			t.Error("what nobody else has was committed")
		}
		var committed <-chan error
		for range 3 {
			_, committed = w.nodes[2].append(id, 0, 1, 60)
		}
		w.within(50*time.Millisecond, "the new leader commits", w.done(committed))
		w.net.heal()
		w.within(10*time.Second, "the old one follows", func() bool { return w.nodes[1].replica(id, 0).State().HighWatermark == 13 })
		w.same(id, 0)
	})
}

// The same leader in another epoch is another leader (RP-03).
func TestFollower_reconcilesInEveryEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 1, 2)
		defer w.end()
		id := w.topic(async, 1, 1, 1, 2)
		synctest.Wait()
		w.nodes[1].append(id, 0, 1, 10)
		synctest.Wait()
		before := w.nodes[2].followers.numbers.Load()
		w.elect(id, 0, 1, 1, 2)
		w.within(20*time.Millisecond, "it subscribes anew", func() bool { return w.nodes[2].followers.numbers.Load() > before })
		_, committed := w.nodes[1].append(id, 0, 1, 10)
		w.within(20*time.Millisecond, "committed in the second epoch", w.done(committed))
		w.same(id, 0)
	})
}

// A subscription that the partition gave up by itself is not mistaken for one
// that stands, also when nothing is sent.
func TestFollower_noticesThatItWasDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 1, 2)
		defer w.end()
		id := w.topic(async, 1, 2, 1, 2)
		synctest.Wait()
		n := w.nodes[2]
		before := n.followers.numbers.Load()
		if _, ok := n.replica(id, 0).FollowerStart(before+1000, func() {}); !ok {
			t.Fatal("nobody is followed")
		}
		w.within(20*time.Millisecond, "it subscribes anew", func() bool { return n.followers.numbers.Load() > before })
		_, committed := w.nodes[1].append(id, 0, 1, 10)
		w.within(20*time.Millisecond, "committed", w.done(committed))
	})
}

// A read of old records that hangs at the leader holds up nobody in sync.
func TestSlowRead_holdsUpNobodyInSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 1, 2)
		defer w.end()
		w.net.isolate(2, 1)
		id := w.topic(async, 2, 1, 1, 2)
		w.change(id, 0, func(p *controllerv1.PartitionRecord) { p.Isr = []int32{1} })
		synctest.Wait()
		for range 5 {
			w.nodes[1].append(id, 0, 1, 1000)
		}
		disk := w.nodes[1].hold(reading, id, 0)
		w.net.heal()
		disk.wait()
		for range 10 {
			_, committed := w.nodes[1].append(id, 1, 1, 1000)
			w.within(20*time.Millisecond, "the other partition goes on", w.done(committed))
		}
		disk.release()
		w.within(20*time.Millisecond, "the first catches up", func() bool { return w.nodes[2].replica(id, 0).State().LogEnd == 5 })
	})
}

// The leader has removed all that a follower had by the time it is back: it
// begins anew, and can lead at once (RP-06).
func TestFollower_belowTheLogStartBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 1, 2)
		defer w.end()
		id := w.topic(async, 1, 1, 1, 2)
		synctest.Wait()
		leader := w.nodes[1]
		for range 4 {
			leader.append(id, 0, 5, 100)
		}
		synctest.Wait()
		mem := w.nodes[2].mem
		w.nodes[2].stop()
		w.within(12*time.Second, "it leaves", func() bool {
			leader.append(id, 0, 5, 100)
			time.Sleep(100 * time.Millisecond)
			return slices.Equal(w.isr(id, 0), []int32{1})
		})
		end := leader.replica(id, 0).State().HighWatermark
		if _, err := leader.replica(id, 0).DeleteRecords(t.Context(), end-3); err != nil { // inside a batch
			t.Fatal(err)
		}
		w.start(2, mem)
		w.within(time.Second, "it is in sync again", func() bool { return slices.Equal(w.isr(id, 0), []int32{1, 2}) })
		if st := w.nodes[2].replica(id, 0).State(); st.LogStart != end-3 || st.LogEnd != end {
			t.Errorf("it begins at %d and ends at %d, the leader at %d and %d", st.LogStart, st.LogEnd, end-3, end)
		}
		_, committed := leader.append(id, 0, 1, 1)
		w.within(20*time.Millisecond, "committed", w.done(committed))
		w.elect(id, 0, 2, 1, 2)
		synctest.Wait()
		_, committed = w.nodes[2].append(id, 0, 1, 1)
		w.within(time.Second, "committed under the one that began anew", w.done(committed))
		if st := w.nodes[2].replica(id, 0).State(); st.LogStart != end-3 || st.HighWatermark != end+2 {
			t.Errorf("as a leader it begins at %d and ends at %d", st.LogStart, st.HighWatermark)
		}
	})
}

// An idle partition settles under a new leader without a record being written,
// and hears of the last high watermark of a burst.
func TestIdlePartitions_live(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 1, 2, 3)
		defer w.end()
		id := w.topic(async, 1, 2, 1, 2, 3)
		synctest.Wait()
		w.nodes[1].append(id, 0, 3, 10)
		w.within(20*time.Millisecond, "the last high watermark arrives", func() bool {
			return w.nodes[2].replica(id, 0).State().HighWatermark == 3 && w.nodes[3].replica(id, 0).State().HighWatermark == 3
		})
		for i, leader := range []int32{2, 3, 1, 2, 2} {
			w.elect(id, 0, leader, 1, 2, 3)
			w.within(50*time.Millisecond, fmt.Sprintf("move %d is settled", i), func() bool {
				st := w.nodes[leader].replica(id, 0).State()
				return st.Leader && st.Settled && st.HighWatermark == 3
			})
		}
		time.Sleep(time.Hour)
		_, committed := w.nodes[2].append(id, 0, 1, 1)
		w.within(20*time.Millisecond, "after an hour", w.done(committed))
		if isr := w.isr(id, 0); len(isr) != 3 || len(w.heard) != 0 {
			t.Errorf("ISR %v, proposals %v", isr, w.heard)
		}
	})
}

// Heartbeats of followers confirm an idle leader while no controller does.
func TestHeartbeats_confirmTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 1, 2, 3)
		defer w.end()
		w.deaf = true
		id := w.topic(async, 1, 2, 1, 2, 3)
		synctest.Wait()
		w.away.Store(true)
		p := w.nodes[1].replica(id, 0)
		for range 60 {
			time.Sleep(time.Second)
			if !p.Confirmed() {
				t.Fatal("it is in touch with all that could be elected")
			}
		}
		w.net.isolate(3, 1)
		time.Sleep(4 * time.Second)
		if p.Confirmed() {
			t.Error("a member of the ISR may have been elected")
		}
		w.net.heal()
		w.within(4*time.Second, "it is in touch again", p.Confirmed)
	})
}

// One partition's disk hangs at the follower: the others go on, and so do their
// acks.
func TestSlowDisk_stopsNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 1, 2)
		defer w.end()
		w.deaf = true
		id := w.topic(async, 4, 2, 1, 2)
		synctest.Wait()
		disk := w.nodes[2].hold(writing, id, 2)
		var stuck <-chan error
		for range 50 {
			_, stuck = w.nodes[1].append(id, 2, 1, 100_000) // more than its credit
		}
		for range 100 {
			for _, n := range []int32{0, 1, 3} {
				_, committed := w.nodes[1].append(id, n, 1, 10_000)
				w.within(time.Millisecond, fmt.Sprintf("partition %d goes on", n), w.done(committed))
			}
		}
		time.Sleep(5 * time.Second) // heartbeats are answered too
		if n := len(stuck); n != 0 {
			t.Error("committed without the follower's disk")
		}
		sent := w.nodes[1].sentBytes()
		if sent > 3*100*10_100+partitionCredit+100_100 {
			t.Errorf("%v bytes sent: the partition overdrew its credit", sent)
		}
		if w.nodes[1].stalls() == 0 {
			t.Error("no stall was counted")
		}
		disk.release()
		w.within(20*time.Millisecond, "the slow one too", w.done(stuck))
		if w.nodes[2].dropped() != 0 {
			t.Error("a subscription was dropped")
		}
	})
}

func TestStream_isOpenedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 1, 2, 3)
		defer w.end()
		id := w.topic(async, 3, 3, 1, 2, 3)
		synctest.Wait()
		for i := range 10 {
			w.net.cut(2, 1)
			_, committed := w.nodes[1].append(id, int32(i%3), 1, 100)
			w.within(time.Second, "committed after a cut", w.done(committed))
		}
		for _, way := range []route{{address(1), address(2)}, {address(2), address(1)}} {
			w.net.silence(idOf(way.from), idOf(way.to))
			_, committed := w.nodes[1].append(id, 0, 1, 100)
			time.Sleep(silence + 100*time.Millisecond)
			if len(committed) > 0 {
				t.Errorf("committed over a silent way %v", way)
			}
			// Only what goes through the old connection is lost.
			w.net.heal()
			w.within(3*time.Second, "committed after a silence", w.done(committed))
		}
		if isr := w.isr(id, 0); len(isr) != 3 {
			t.Errorf("ISR %v", isr)
		}
		for n := range int32(3) {
			w.same(id, n)
		}
	})
}

func idOf(addr string) int32 {
	for id := range int32(9) {
		if address(id) == addr {
			return id
		}
	}
	return -1
}

// A process that was replaced is not listened to, and not spoken to.
func TestStream_isBoundToBothProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 1, 2)
		defer w.end()
		id := w.topic(async, 1, 1, 1, 2)
		synctest.Wait()
		w.nodes[1].append(id, 0, 1, 10)
		synctest.Wait()
		// Another process of broker 2 registers; this one does not know.
		w.mu.Lock()
		zombie := w.nodes[2]
		delete(w.nodes, 2)
		w.putLocked(&controllerv1.MetadataObject{Object: &controllerv1.MetadataObject_Broker{Broker: &controllerv1.BrokerRecord{
			BrokerId: 2, Incarnation: "another", BrokerEpoch: 99, Phase: controllerv1.BrokerPhase_BROKER_PHASE_ACTIVE, InternalAddress: address(2),
		}}})
		w.mu.Unlock()
		synctest.Wait()
		_, committed := w.nodes[1].append(id, 0, 1, 10)
		time.Sleep(5 * time.Second)
		if len(committed) != 0 {
			t.Error("the ack of a process that was replaced counts")
		}
		if end := zombie.replica(id, 0).State().LogEnd; end != 1 {
			t.Errorf("it was sent what came after: its log ends at %d", end)
		}
		w.nodes[2] = zombie
	})
}

func TestManyPartitions(t *testing.T) {
	const partitions = 200
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 1, 2, 3)
		defer w.end()
		id := w.topic(async, partitions, 2, 1, 2, 3)
		synctest.Wait()
		for range 3 {
			for n := range int32(partitions) {
				w.nodes[1].append(id, n, 2, 200)
			}
		}
		all := func(end record.Offset) func() bool {
			return func() bool {
				for n := range int32(partitions) {
					for _, node := range w.nodes {
						if st := node.replica(id, n).State(); st.HighWatermark != end {
							return false
						}
					}
				}
				return true
			}
		}
		w.within(100*time.Millisecond, "all partitions are committed everywhere", all(6))
		// Half of the leaderships move, at once.
		for n := range int32(partitions / 2) {
			w.elect(id, n, 2, 1, 2, 3)
		}
		synctest.Wait()
		for n := range int32(partitions) {
			leader := w.nodes[1]
			if n < partitions/2 {
				leader = w.nodes[2]
			}
			leader.append(id, n, 1, 10)
		}
		w.within(200*time.Millisecond, "and again after the move", all(7))
		for n := range int32(partitions) {
			w.same(id, n)
		}
	})
}

// A follower with an empty disk catches up without those in sync noticing, and
// while writes go on (RP-21).
func TestCatchUp_isThrottledAndAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t)
		w.cfg = Config{CatchUpRate: 1 << 20}
		for _, id := range []int32{1, 2, 3} {
			w.start(id, newDisk())
		}
		defer w.end()
		w.net.isolate(3, 1, 2)
		id := w.topic(async, 2, 2, 1, 2, 3)
		w.change(id, 0, func(p *controllerv1.PartitionRecord) { p.Isr = []int32{1, 2} })
		w.change(id, 1, func(p *controllerv1.PartitionRecord) { p.Isr = []int32{1, 2} })
		synctest.Wait()
		for range 80 {
			w.nodes[1].append(id, 0, 1, 100_000)
			w.nodes[1].append(id, 1, 1, 100_000)
			synctest.Wait()
		}
		start := time.Now()
		w.net.heal()
		for len(w.isr(id, 0)) < 3 || len(w.isr(id, 1)) < 3 {
			_, committed := w.nodes[1].append(id, 0, 1, 100)
			w.within(2*time.Millisecond, "in sync at full speed", w.done(committed))
			time.Sleep(100 * time.Millisecond)
			if time.Since(start) > time.Minute {
				t.Fatal("it never catches up")
			}
		}
		// 16 MB at 1 MiB a second.
		if took := time.Since(start); took < 12*time.Second || took > 25*time.Second {
			t.Errorf("it took %s", took)
		}
		w.same(id, 1)
	})
}
