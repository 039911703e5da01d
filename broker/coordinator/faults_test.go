package coordinator

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/broker/group"
	"github.com/runnelmq/runnel/broker/metadata/metadatatest"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/internal/record"
)

// minISR sets how many replicas must be in sync; one is.
func (r *rig) minISR(n int32) {
	r.t.Helper()
	topic, _ := r.image.TopicByID(r.offsets)
	r.publish(&controllerv1.MetadataObject{Object: &controllerv1.MetadataObject_Partition{Partition: &controllerv1.PartitionRecord{
		TopicId: r.offsets.String(), Leader: me, LeaderEpoch: r.epoch, PartitionEpoch: topic.Partitions[0].PartitionEpoch + 1,
		Replicas: []int32{1, 2}, Isr: []int32{1}, MinIsr: n, Flush: controllerv1.FlushMode_FLUSH_MODE_SYNC,
	}}})
}

// Nobody is blamed for silence, or for what was not given up, while nothing could
// be stored: who lost its stream then could not come back.
func TestCoordinator_nobodyIsBlamedForMissingReplicas(t *testing.T) {
	bubble(t, Config{}, 1, func(r *rig) {
		t := r.t
		r.topic("orders", 2)
		a := r.consumer(memberID(1), reads("orders"))
		r.minISR(2)
		a.m.Close()
		a.connect(a.epoch)
		if !errors.Is(a.err, partition.ErrNotEnoughReplicas) {
			t.Errorf("a join: %v", a.err)
		}
		pause(30 * time.Second)
		r.minISR(1)
		pause(time.Second)
		a.connect(a.epoch)
		if a.ended || !a.joined.Resumed || len(a.last.Parts) != 2 {
			t.Errorf("it could not go on: %v, %+v", a.err, a.last)
		}
	})
}

// A coordinator that found something to store while it loaded waits until it can
// be stored, and answers what only reads.
func TestCoordinator_loadsWithoutEnoughReplicas(t *testing.T) {
	bubble(t, Config{}, 1, func(r *rig) {
		t := r.t
		var out bytes.Buffer
		r.topic("evt.a", 2)
		terms := reads()
		terms.Pattern = `evt\..*`
		a := r.consumer(memberID(1), terms)
		r.stop()
		r.runs.Wait()
		r.topic("evt.b", 3) // a new target
		r.minISR(2)
		r.log = zerolog.New(&out)
		r.start()
		pause(5 * time.Second)
		if d := r.describe("g"); len(d.Members) != 1 {
			t.Errorf("%d members", len(d.Members))
		}
		if bytes.Contains(out.Bytes(), []byte("begins anew")) {
			t.Errorf("it began anew: %s", out.Bytes())
		}
		r.minISR(1)
		pause(time.Second)
		a.connect(a.epoch)
		a.listen()
		if a.ended || len(a.last.Parts) != 5 {
			t.Errorf("afterwards: %v, %+v", a.err, a.last)
		}
	})
}

// An offset of a topic that this broker has not heard of yet is kept when others
// come first, and goes when the topic never comes.
func TestCoordinator_offsetsBeforeTheirTopic(t *testing.T) {
	bubble(t, Config{}, 1, func(r *rig) {
		t := r.t
		late, never := group.Part{Topic: uuid.New()}, group.Part{Topic: uuid.New()}
		if err := r.commit("g", "", 0, 7, late, never); err != nil {
			t.Fatal(err)
		}
		r.topic("another", 1)
		pause(time.Second)
		r.publish(metadatatest.TopicObjects(late.Topic, "late", 1, me, 1)...)
		pause(time.Second)
		if r.committed("g", late) != 7 || r.committed("g", never) != 7 {
			t.Errorf("committed %d and %d", r.committed("g", late), r.committed("g", never))
		}
		pause(3 * time.Minute)
		if r.committed("g", late) != 7 || r.committed("g", never) != -1 {
			t.Errorf("minutes later: committed %d and %d", r.committed("g", late), r.committed("g", never))
		}
	})
}

// A compacting partition loses its first record, and the tombstone of that, once
// it has been read.
type compacting struct {
	*partition.Partition

	reads int
}

func (c *compacting) State() partition.State {
	st := c.Partition.State()
	st.LogStart += c.PurgedTo()
	return st
}

func (c *compacting) Read(dst []byte, from, end record.Offset) (int, error) {
	c.reads++
	return c.Partition.Read(dst, from, end)
}

func (c *compacting) PurgedTo() record.Offset {
	return min(record.Offset(c.reads), 1) * 2
}

// What was deleted does not come back because compaction removed the tombstone
// between the reading of what it deletes and of itself.
func TestCoordinator_loadsWhileTombstonesGo(t *testing.T) {
	bubble(t, Config{}, 1, func(r *rig) {
		t := r.t
		p := group.Part{Topic: r.topic("orders", 1).ID}
		for _, id := range []string{"deleted", "kept"} {
			if err := r.commit(id, "", 0, 1, p); err != nil { // two records
				t.Fatal(err)
			}
		}
		part, err := r.local(0)
		if err != nil {
			t.Fatal(err)
		}
		s := newShard(r.Coordinator, 0, record.Epoch(r.epoch))
		log := &compacting{Partition: part}
		if err := s.readAll(context.Background(), log, part.State().HighWatermark); err != nil {
			t.Fatal(err)
		}
		if s.groups["deleted"] != nil || s.groups["kept"] == nil || log.reads != 2 {
			t.Errorf("after %d reads: %v", log.reads, s.groups)
		}
	})
}

// A coordinator of an earlier leader epoch stores nothing any more.
func TestCoordinator_storesInItsEpochOnly(t *testing.T) {
	bubble(t, Config{}, 1, func(r *rig) {
		t := r.t
		part, err := r.local(0)
		if err != nil {
			t.Fatal(err)
		}
		r.lead(1)
		r.ready()
		for _, epoch := range []int64{r.epoch - 1, r.epoch} {
			s := newShard(r.Coordinator, 0, record.Epoch(epoch))
			s.part, s.now = part, time.Now()
			err := s.store([]group.Change{{Group: "g", MemberGone: "m"}})
			if (err != nil) != (epoch < r.epoch) {
				t.Errorf("in epoch %d of %d: %v", epoch, r.epoch, err)
			}
		}
	})
}

// Which commits of a member came before others, the next coordinator knows, too.
func TestCoordinator_knowsTheOrderOfCommits(t *testing.T) {
	bubble(t, Config{}, 1, func(r *rig) {
		p := group.Part{Topic: r.topic("orders", 1).ID, Number: 0}
		a := r.consumer(memberID(1), reads("orders"))
		commit := func(offset int64, sequence uint64, want int64) {
			r.t.Helper()
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			got, err := r.Commit(ctx, 0, "g", a.id, a.epoch, []group.Commit{{Part: p, Offset: offset, LeaderEpoch: -1, Sequence: sequence}})
			if err != nil || got[0].Err != nil || got[0].Offset != want || r.committed("g", p) != want {
				r.t.Errorf("offset %d with sequence %d: told %+v, committed %d, want %d: %v", offset, sequence, got, r.committed("g", p), want, err)
			}
		}
		commit(204, 1, 204)
		commit(208, 2, 208)
		r.stop()
		r.runs.Wait()
		r.start()
		a.connect(a.epoch)
		commit(204, 1, 208)
		commit(209, 3, 209)
	})
}

// What is committed is told only on the word of somebody who is asked then: a controller, or
// all others that could have been elected. That one gave it a while ago is not enough.
func TestCoordinator_offsetsAreOfNow(t *testing.T) {
	bubble(t, Config{}, 1, func(r *rig) {
		p := group.Part{Topic: r.topic("orders", 1).ID, Number: 0}
		if err := r.commit("g", "", 0, 5, p); err != nil {
			r.t.Fatal(err)
		}
		told := func(want error) {
			r.t.Helper()
			began := time.Now()
			got, err := r.Committed(r.t.Context(), 0, "g")
			if !errors.Is(err, want) || err == nil && (len(got) != 1 || got[0].Offset != 5) || time.Since(began) > 2*time.Second {
				r.t.Errorf("after %v: %v %v, want %v", time.Since(began), got, err, want)
			}
		}
		r.grow()
		told(nil) // the controller answers
		r.session.silence(true)
		told(partition.ErrUnconfirmed)
		r.isr(1)
		told(nil) // nobody else can have been elected
		r.grow()
		r.session.silence(false)
		told(nil)
	})
}
