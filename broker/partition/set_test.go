package partition

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/metadata/metadatatest"
	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

func TestDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vfs.NewMem())
		defer r.end(false)
		p := r.topic("orders", bySync, nil)
		keep := r.topic("kept", bySync, nil)
		r.append(keep, 1)
		r.append(p, 1)
		synctest.Wait()
		if n := r.series("orders"); n == 0 {
			t.Error("no series of the topic")
		}
		woken := false
		p.WhenReadable(1, func() { woken = true })
		objects := metadatatest.TopicObjects(p.Topic().ID, "orders", 1, me, 1)
		objects[0].GetTopic().Phase = controllerv1.TopicPhase_TOPIC_PHASE_DELETING
		objects[0].GetTopic().AwaitingRemoval = []int32{me}
		r.publish(objects[0])
		if !woken {
			t.Error("the reader sleeps on")
		}
		if !slices.Equal(r.session.removed, []uuid.UUID{p.Topic().ID}) {
			t.Errorf("confirmed %v", r.session.removed)
		}
		if _, err := r.mem.Stat("data/" + p.Topic().ID.String()); err == nil {
			t.Error("the directory is still there")
		}
		for name, err := range map[string]error{
			"append": second(p.Append(batch(t, 1, 0), nil)), "read": second(p.Read(make([]byte, 1000), 0, 1)), "get": second(r.Get(p.Topic().ID, 0)),
		} {
			if !errors.Is(err, ErrDeleted) {
				t.Errorf("%s: %v", name, err)
			}
		}
		var got error
		p.WhenCommitted(Appended{Last: 5, Epoch: 1}, func(err error) { got = err })
		if !errors.Is(got, ErrCommitUncertain) {
			t.Errorf("parked after the end: %v", got)
		}
		if n := r.series("orders"); n != 0 {
			t.Errorf("%d series of the deleted topic", n)
		}
		if n := r.series("kept"); n == 0 {
			t.Error("the other topic's series went too")
		}
	})
}

// What fails for want of descriptors or of room is done once there are some.
func TestSet_triesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vfs.NewMem())
		defer r.end(false)
		gone, led := r.topic("gone", async, nil), r.topic("led", async, nil)
		r.append(led, 1)
		// The files of the other one are durable: closing it needs no sync.
		if err := errors.Join(led.log.SetSuspicion(commitlog.SuspectOther), gone.log.Checkpoint()); err != nil {
			t.Fatal(err)
		}
		r.fault.Inject(vfs.Rule{Ops: vfs.OpSyncDir | vfs.OpCreate | vfs.OpOpen | vfs.OpWrite, Times: -1, Err: syscall.EMFILE})
		deleting := metadatatest.TopicObjects(gone.Topic().ID, "gone", 1, me, 1)[0]
		deleting.GetTopic().Phase = controllerv1.TopicPhase_TOPIC_PHASE_DELETING
		deleting.GetTopic().AwaitingRemoval = []int32{me}
		r.publish(deleting, metadatatest.TopicObjects(led.Topic().ID, "led", 1, me, 2)[1])
		if len(r.session.removed) > 0 || led.State().Leader {
			t.Fatalf("removed %v, leads %v: nothing has failed", r.session.removed, led.State().Leader)
		}
		r.fault.Clear()
		time.Sleep(2 * retryEvery)
		synctest.Wait()
		if !slices.Equal(r.session.removed, []uuid.UUID{gone.Topic().ID}) {
			t.Errorf("removed %v", r.session.removed)
		}
		if st := led.State(); !st.Leader || st.Epoch != 2 {
			t.Errorf("it leads: %v, in epoch %d", st.Leader, st.Epoch)
		}
		if r.incomplete() {
			t.Error("something is left undone")
		}
	})
}

// What becomes of one partition of a topic does not wait for the others, whose
// disks may be slow, nor they for it; what becomes of the topic concerns them all.
func TestSet_placesWhatChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vfs.NewMem())
		defer r.end(false)
		id := uuid.New()
		r.publish(metadatatest.TopicObjects(id, "wide", 2, me, 1)...)
		parts := r.All()
		slices.SortFunc(parts, func(a, b *Partition) int { return cmp.Compare(a.Number(), b.Number()) })
		answer := make(chan struct{})
		r.fault.Before(vfs.OpWrite, func(_ vfs.Op, path string) {
			if strings.Contains(path, id.String()+"/1/") {
				<-answer
			}
		})
		var writing sync.WaitGroup
		writing.Go(func() {
			if _, err := parts[1].Append(batch(t, 1, time.Now().UnixMilli()), nil); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		r.publish(metadatatest.PartitionObject(id, 0, me, 2))
		if st := parts[0].State(); !st.Leader || st.Epoch != 2 {
			t.Errorf("it leads: %v, in epoch %d", st.Leader, st.Epoch)
		}
		close(answer)
		writing.Wait()

		topic := metadatatest.TopicObjects(id, "wide", 2, me, 1)[0]
		topic.GetTopic().Configs = map[string]string{"retention.ms": "5000"}
		r.publish(topic)
		for _, p := range parts {
			if d := p.Topic().Config.RetentionTime; d != 5*time.Second {
				t.Errorf("%s keeps records for %v", p, d)
			}
		}
	})
}

// A topic that is absent, and not deleted, keeps its files.
func TestAbsenceDeletesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vfs.NewMem())
		defer r.end(false)
		p := r.topic("orders", bySync, nil)
		r.append(p, 1)
		r.publish(&controllerv1.MetadataObject{Object: &controllerv1.MetadataObject_DeletedTopicId{DeletedTopicId: p.Topic().ID.String()}})
		if _, err := r.mem.Stat("data/" + p.Topic().ID.String() + "/0"); err != nil {
			t.Errorf("the directory went: %v", err)
		}
		if q := r.root.Quarantined(); len(q) != 1 || q[0].Topic != p.Topic().ID {
			t.Errorf("quarantined %+v", q)
		}
		if len(r.session.removed) != 0 {
			t.Error("confirmed a removal nobody asked for")
		}
	})
}

// What a restart finds: whole, suspect or lost.
func TestRecoveryReports(t *testing.T) {
	mem := vfs.NewMem()
	whole, gone := uuid.New(), uuid.New()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, mem)
		r.append(r.topicOf(whole, "whole", bySync, nil, 1), 3)
		r.append(r.topicOf(gone, "gone", bySync, nil, 1), 3)
		synctest.Wait()
		r.end(false)
	})
	if err := mem.RemoveAll("data/" + gone.String()); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t, mem)
		defer r.end(false)
		objects := append(metadatatest.TopicObjects(whole, "whole", 1, me, 2), metadatatest.TopicObjects(gone, "gone", 1, me, 2)...)
		r.publish(append(objects, broker(controllerv1.BrokerPhase_BROKER_PHASE_FENCED, "i"))...)
		if !r.session.reported || len(r.session.reports) != 2 {
			t.Fatalf("reports %+v", r.session.reports)
		}
		for _, rep := range r.session.reports {
			switch {
			case rep.Topic == whole && (rep.Shape != metadata.Intact || rep.LogEnd != 3 || rep.LastEpoch != 1 || rep.HighWatermark != 3):
				t.Errorf("the whole one: %+v", rep)
			case rep.Topic == gone && rep.Shape != metadata.Lost:
				t.Errorf("the lost one: %+v", rep)
			}
		}
		if len(r.Lost()) != 1 {
			t.Errorf("lost %v", r.Lost())
		}
		r.publish(broker(controllerv1.BrokerPhase_BROKER_PHASE_ACTIVE, "i"))
		if _, err := r.Get(gone, 0); !errors.Is(err, ErrLogCorrupt) {
			t.Errorf("Get of the lost one = %v", err)
		}
		// Elected in the knowledge of the loss, it begins anew.
		o := metadatatest.PartitionObject(gone, 0, me, 3)
		o.GetPartition().LossyEpochs = []int64{3}
		r.publish(o)
		p, err := r.Get(gone, 0)
		if err != nil {
			t.Fatal(err)
		}
		if a := r.append(p, 1); a.Base != 0 || a.Epoch != 3 {
			t.Errorf("%+v", a)
		}
	})
}

// A replica for which there are no descriptors is opened when there are.
func TestOpeningIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vfs.NewMem())
		defer r.end(false)
		r.fault.Inject(vfs.Rule{Ops: vfs.OpCreate | vfs.OpMkdir, Times: -1, Err: syscall.EMFILE})
		id := uuid.New()
		r.publish(metadatatest.TopicObjects(id, "orders", 1, me, 1)...)
		if _, err := r.Get(id, 0); !errors.Is(err, ErrNoLeader) {
			t.Errorf("Get = %v", err)
		}
		r.fault.Clear()
		time.Sleep(2 * retryEvery)
		p, err := r.Get(id, 0)
		if err != nil {
			t.Fatal(err)
		}
		r.append(p, 1)
	})
}

// A process that is killed while it makes the directories of a new topic has lost
// none of those it did not come to: the next one makes them, and says so.
func TestKilledInCreation(t *testing.T) {
	mem := vfs.NewMem()
	synctest.Test(t, func(t *testing.T) { newRig(t, mem).end(true) })
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t, mem)
		defer r.end(false)
		id := uuid.New()
		r.publish(append(metadatatest.TopicObjects(id, "new", 1, me, 2), broker(controllerv1.BrokerPhase_BROKER_PHASE_ACTIVE, "i"))...)
		if rs := r.session.reports; len(rs) != 1 || rs[0].Shape != metadata.Intact || rs[0].LogEnd != 0 {
			t.Fatalf("reports %+v", rs)
		}
		p, err := r.Get(id, 0)
		if err != nil {
			t.Fatal(err)
		}
		r.append(p, 1)
		// So it is of one that the broker hears of when its first leader is gone.
		late := uuid.New()
		r.publish(metadatatest.TopicObjects(late, "late", 1, me, 2)...)
		if p, err = r.Get(late, 0); err != nil {
			t.Fatal(err)
		}
		r.append(p, 1)
	})
}

// leave has a topic with three records on a disk, of a process that has ended.
func leave(t *testing.T, mem *vfs.Mem, id uuid.UUID) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, mem)
		r.append(r.topicOf(id, "orders", bySync, nil, 1), 3)
		r.end(false)
	})
}

// Files that belong to somebody else are whole: a replica is not lost for them,
// and nothing begins anew in their place.
func TestForbiddenFilesAreNotLost(t *testing.T) {
	for _, file := range []string{"topic", "checkpoint", "leader-epochs"} {
		t.Run(file, func(t *testing.T) {
			mem := vfs.NewMem()
			id := uuid.New()
			leave(t, mem, id)
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, mem)
				defer r.end(false)
				r.fault.Inject(vfs.Rule{Ops: vfs.OpOpen, Path: file, Times: -1, Err: syscall.EACCES})
				objects := metadatatest.TopicObjects(id, "orders", 1, me, 2)
				objects[1].GetPartition().LossyEpochs = []int64{2} // even then
				r.publish(objects...)
				if _, err := r.Get(id, 0); !errors.Is(err, ErrNoLeader) || len(r.Lost()) > 0 {
					t.Errorf("Get = %v, lost %v", err, r.Lost())
				}
				r.fault.Clear()
				time.Sleep(2 * retryEvery)
				p, err := r.Get(id, 0)
				if err != nil {
					t.Fatal(err)
				}
				if a := r.append(p, 1); a.Base != 3 {
					t.Errorf("appended at %d, after 3 records", a.Base)
				}
			})
		})
	}
}

// A directory is made for a replica that cannot have held anything, and for no
// other.
func TestMayCreate(t *testing.T) {
	for name, tt := range map[string]struct {
		mp   metadata.Partition
		want bool
	}{
		"the first epoch": {metadata.Partition{LeaderEpoch: 1, ISR: []metadata.BrokerID{1, 2}}, true},
		"the first epoch, and it fell out of sync with all it had": {metadata.Partition{LeaderEpoch: 1, ISR: []metadata.BrokerID{2}, ELR: []metadata.BrokerID{1}}, false},
		"nobody counts on it":                    {metadata.Partition{LeaderEpoch: 2, ISR: []metadata.BrokerID{2}, ELR: []metadata.BrokerID{3}}, true},
		"in sync":                                {metadata.Partition{LeaderEpoch: 2, ISR: []metadata.BrokerID{1, 2}}, false},
		"eligible":                               {metadata.Partition{LeaderEpoch: 2, ISR: []metadata.BrokerID{2}, ELR: []metadata.BrokerID{1}}, false},
		"the last known":                         {metadata.Partition{LeaderEpoch: 2, LastKnown: []metadata.BrokerID{1}}, false},
		"the first epoch in a restored cluster":  {metadata.Partition{LeaderEpoch: 5*epochBlock + 1, PartitionEpoch: 1, ISR: []metadata.BrokerID{1, 2}}, true},
		"the second epoch in a restored cluster": {metadata.Partition{LeaderEpoch: 5*epochBlock + 2, PartitionEpoch: 2, ISR: []metadata.BrokerID{1, 2}}, false},
		"it was in the backup":                   {metadata.Partition{LeaderEpoch: 5 * epochBlock, PartitionEpoch: 5 * epochBlock, LastKnown: []metadata.BrokerID{1}}, false},
		"it was in the backup, and is led again": {metadata.Partition{LeaderEpoch: 5*epochBlock + 1, PartitionEpoch: 5*epochBlock + 1, ISR: []metadata.BrokerID{1}}, false},
	} {
		if got := mayCreate(1, &tt.mp); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// The metadata are restored from a backup that does not know a partition, and it is
// added once more: what its directory holds is of the earlier one, whatever became
// of the other copies, and is set aside. One that was in the backup is none such.
func TestAddedOnceMore(t *testing.T) {
	const restored = 7 * epochBlock
	for name, tt := range map[string]struct {
		leaderEpoch, partitionEpoch int64
		base                        int64
		aside                       int
	}{
		"anew": {restored + 1, 1, 0, 1}, "anew, and led by another one before this broker looked": {restored + 2, 2, 0, 1},
		"in the backup": {restored + 1, restored + 1, 3, 0},
	} {
		t.Run(name, func(t *testing.T) {
			mem := vfs.NewMem()
			id := uuid.New()
			leave(t, mem, id)
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, mem)
				defer r.end(false)
				objects := metadatatest.TopicObjects(id, "orders", 1, me, tt.leaderEpoch)
				objects[1].GetPartition().PartitionEpoch = tt.partitionEpoch
				r.publish(objects...)
				p, err := r.Get(id, 0)
				if err != nil {
					t.Fatal(err)
				}
				if a := r.append(p, 1); int64(a.Base) != tt.base || int64(a.Epoch) != tt.leaderEpoch {
					t.Errorf("appended at %d in epoch %d, want %d in %d", a.Base, a.Epoch, tt.base, tt.leaderEpoch)
				}
				if q := r.root.Quarantined(); len(q) != tt.aside {
					t.Errorf("set aside: %+v, want %d", q, tt.aside)
				}
			})
		})
	}
}

// A log is of an earlier partition only where it has records of an earlier block.
func TestEarlier(t *testing.T) {
	added := metadata.Partition{LeaderEpoch: 5*epochBlock + 3, PartitionEpoch: 7}
	backedUp := metadata.Partition{LeaderEpoch: 5*epochBlock + 3, PartitionEpoch: 5*epochBlock + 7}
	for _, tt := range []struct {
		mp   *metadata.Partition
		last record.Epoch
		want bool
	}{
		{&added, commitlog.NoEpoch, false}, // it was made, and no record came
		{&added, 1, true},
		{&added, 4*epochBlock + 9, true},
		{&added, 5*epochBlock + 1, false},
		{&added, 5*epochBlock + 3, false},
		{&backedUp, 1, false},
		{&backedUp, 4*epochBlock + 9, false},
		{&metadata.Partition{LeaderEpoch: 3, PartitionEpoch: 7}, 2, false}, // never restored
	} {
		if got := earlier(tt.last, tt.mp); got != tt.want {
			t.Errorf("a log up to epoch %d, of a partition at %d and %d: %v", tt.last, tt.mp.LeaderEpoch, tt.mp.PartitionEpoch, got)
		}
	}
}
