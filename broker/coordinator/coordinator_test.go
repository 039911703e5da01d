package coordinator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/broker/group"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/internal/record"
)

// bubble runs a test with a rig of its own.
func bubble(t *testing.T, cfg Config, shards int32, fn func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, cfg, shards)
		defer r.end()
		fn(r)
	})
}

// A group outlives its coordinator: a new one knows members, ownership and
// offsets, and nothing moves.
func TestCoordinator_restartMovesNothing(t *testing.T) {
	bubble(t, Config{}, 3, func(r *rig) {
		t := r.t
		topic := r.topic("orders", 4)
		a, b := r.consumer(memberID(1), reads("orders")), r.consumer(memberID(2), reads("orders"))
		a.listen()
		b.listen()
		a.listen()
		if len(a.last.Parts) != 2 || len(b.last.Parts) != 2 {
			t.Fatalf("a owns %v, b owns %v", a.last.Parts, b.last.Parts)
		}
		first := a.last.Parts[0].Part
		if err := a.commit(7, first); err != nil {
			t.Fatal(err)
		}
		pause(7 * time.Second)
		for name, restart := range map[string]func(){
			"another process": func() {
				r.stop()
				r.runs.Wait()
				r.start()
			},
			"another epoch": func() {
				r.lead(1)
				r.ready()
			},
		} {
			before := r.describe("g")
			restart()
			a.listen()
			if !a.ended || !errors.Is(a.err, group.ErrLoading) {
				t.Errorf("%s: the stream ended with %v", name, a.err)
			}
			pause(5 * time.Second) // longer than what was left of their sessions
			after := r.describe("g")
			wantEqual(t, name+": partitions", before.Parts, after.Parts)
			if after.Epoch != before.Epoch || after.Phase != group.Stable || len(after.Members) != 2 {
				t.Errorf("%s: %+v", name, after)
			}
			a.connect(a.epoch)
			b.connect(b.epoch)
			if !a.joined.Resumed || len(a.last.Parts) != 2 || a.last.Parts[0].Committed.Offset != 7 || a.last.Revision != 1 {
				t.Errorf("%s: joined %+v, assigned %+v", name, a.joined, a.last)
			}
			if err := a.commit(7, first); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if got := r.committed("g", group.Part{Topic: topic.ID, Number: first.Number}); got != 7 {
			t.Errorf("committed %d", got)
		}
	})
}

// A member that falls silent is expelled, one that pings is not, however slowly
// it works.
func TestCoordinator_silence(t *testing.T) {
	bubble(t, Config{}, 1, func(r *rig) {
		t := r.t
		r.topic("orders", 4)
		a, b := r.consumer(memberID(1), reads("orders")), r.consumer(memberID(2), reads("orders"))
		b.m.Close() // a broken stream is not a leave
		for i := range 4 {
			pause(2 * time.Second)
			_ = a.m.Ping(t.Context(), uint64(i+2)) //nolint:gosec // small
			a.listen()
		}
		if d := r.describe("g"); len(d.Members) != 2 {
			t.Fatalf("after 8 s: %d members", len(d.Members))
		}
		pause(2200 * time.Millisecond)
		_ = a.m.Ping(t.Context(), 100)
		a.listen()
		if d := r.describe("g"); len(d.Members) != 1 || len(a.last.Parts) != 4 {
			t.Errorf("after 10 s: %d members, the other one owns %d", len(d.Members), len(a.last.Parts))
		}
		if a.pongs[len(a.pongs)-1] != 100 {
			t.Errorf("pongs %v", a.pongs)
		}
		_ = a.m.Leave(t.Context(), 101)
		a.listen()
		if !a.ended || a.err != nil || r.describe("g").Phase != group.Empty {
			t.Errorf("left: ended %v, %v", a.ended, a.err)
		}
	})
}

// size returns how large the sizes of a case are to be: as the case has them when
// RUNNEL_E2E is full.
func size(usual, whole int) int {
	if os.Getenv("RUNNEL_E2E") == "full" {
		return whole
	}
	return usual
}

// CG-07: what was not replicated is not answered, and fails when the leadership
// goes; nothing that was acknowledged is ever missing afterwards.
func TestCoordinator_nothingBeforeItIsCommittedCG07(t *testing.T) {
	bubble(t, Config{}, 1, func(r *rig) {
		t := r.t
		topic := r.topic("orders", 1)
		p := group.Part{Topic: topic.ID, Number: 0}
		if err := r.commit("g", "", 0, 5, p); err != nil {
			t.Fatal(err)
		}
		r.grow() // and the other replica never acknowledges
		if err := r.commit("g", "", 0, 6, p); !errors.Is(err, partition.ErrCommitUncertain) {
			t.Errorf("a commit that is not replicated: %v", err)
		}
		if got := r.committed("g", p); got != 5 {
			t.Errorf("a reader sees %d, which is not committed", got)
		}
		parked := make(chan error, 1)
		r.wg.Go(func() {
			_, err := r.Commit(context.Background(), 0, "g", "", 0, []group.Commit{{Part: p, Offset: 8, LeaderEpoch: -1}})
			parked <- err
		})
		synctest.Wait()
		r.lead()
		if err := <-parked; !errors.Is(err, partition.ErrCommitUncertain) {
			t.Errorf("parked when the leadership went: %v", err)
		}
		if err := r.commit("g", "", 0, 9, p); err == nil {
			t.Error("a commit without a leader succeeded")
		}
		acked := int64(10)
		for i := range size(40, 1000) {
			r.lead(1)
			r.ready()
			if got := r.committed("g", p); i > 0 && got < acked {
				t.Fatalf("move %d: %d was acknowledged, %d is committed", i, acked, got)
			}
			acked++
			if err := r.commit("g", "", 0, acked, p); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// grow adds a replica that never acknowledges to the ISR, within the epoch.
func (r *rig) grow() { r.isr(1, 2) }

// isr changes the ISR of partition 0, within the epoch.
func (r *rig) isr(isr ...int32) {
	r.t.Helper()
	o := r.image
	t, _ := o.TopicByID(r.offsets)
	p := &controllerv1.PartitionRecord{
		TopicId: r.offsets.String(), Leader: me, LeaderEpoch: r.epoch, PartitionEpoch: t.Partitions[0].PartitionEpoch + 1,
		Replicas: []int32{1, 2}, Isr: isr, MinIsr: 1, Flush: controllerv1.FlushMode_FLUSH_MODE_SYNC,
	}
	r.publish(&controllerv1.MetadataObject{Object: &controllerv1.MetadataObject_Partition{Partition: p}})
}

// A leader that can't be sure that it still is one answers nothing, ends its
// streams, and blames no member for what it did not hear.
func TestCoordinator_unconfirmed(t *testing.T) {
	bubble(t, Config{}, 1, func(r *rig) {
		t := r.t
		topic := r.topic("orders", 1)
		a := r.consumer(memberID(1), reads("orders"))
		r.grow()
		r.session.confirm(false)
		pause(10 * time.Second)
		a.listen()
		if !a.ended || !errors.Is(a.err, partition.ErrUnconfirmed) {
			t.Errorf("the stream: %v", a.err)
		}
		if err := r.commit("g", "", 0, 1, group.Part{Topic: topic.ID}); !errors.Is(err, partition.ErrUnconfirmed) {
			t.Errorf("a commit: %v", err)
		}
		if _, err := r.Committed(context.Background(), 0, "g"); !errors.Is(err, partition.ErrUnconfirmed) {
			t.Errorf("a read: %v", err)
		}
		pause(20 * time.Second)
		r.session.confirm(true)
		r.isr(1)
		pause(time.Second)
		a.connect(a.epoch)
		if a.ended || !a.joined.Resumed || len(a.last.Parts) != 1 {
			t.Errorf("it could not go on: %v", a.err)
		}
	})
}

// When too few replicas are in sync nothing is changed, and reading goes on.
func TestCoordinator_notEnoughReplicas(t *testing.T) {
	bubble(t, Config{}, 1, func(r *rig) {
		t := r.t
		topic := r.topic("orders", 1)
		p := group.Part{Topic: topic.ID}
		if err := r.commit("g", "", 0, 1, p); err != nil {
			t.Fatal(err)
		}
		t0, _ := r.image.TopicByID(r.offsets)
		o := &controllerv1.PartitionRecord{
			TopicId: r.offsets.String(), Leader: me, LeaderEpoch: r.epoch, PartitionEpoch: t0.Partitions[0].PartitionEpoch + 1,
			Replicas: []int32{1, 2}, Isr: []int32{1}, MinIsr: 2, Flush: controllerv1.FlushMode_FLUSH_MODE_SYNC,
		}
		r.publish(&controllerv1.MetadataObject{Object: &controllerv1.MetadataObject_Partition{Partition: o}})
		if err := r.commit("g", "", 0, 2, p); !errors.Is(err, partition.ErrNotEnoughReplicas) {
			t.Errorf("a commit: %v", err)
		}
		if got := r.committed("g", p); got != 1 {
			t.Errorf("committed %d", got)
		}
		if r.describe("g").Phase != group.Empty {
			t.Error("it can't be described")
		}
		if got := r.all()[0].serving(); got != nil {
			t.Errorf("it began anew: %v", got)
		}
	})
}

// A reset takes partitions back from members that run, and those begin there.
func TestCoordinator_reset(t *testing.T) {
	bubble(t, Config{}, 1, func(r *rig) {
		t := r.t
		topic := r.topic("orders", 2)
		p, q := group.Part{Topic: topic.ID, Number: 0}, group.Part{Topic: topic.ID, Number: 1}
		a := r.consumer(memberID(1), reads("orders"))
		if err := a.commit(50, p, q); err != nil {
			t.Fatal(err)
		}
		ctx := context.Background()
		dry, err := r.Reset(ctx, 0, "g", []Target{{Part: p, Offset: -60, Relative: true, High: 100}}, true)
		if err != nil || len(dry) != 1 || dry[0].New != 0 || dry[0].Old.Offset != 50 || r.committed("g", p) != 50 {
			t.Errorf("a dry run: %+v, %v", dry, err)
		}
		done := make(chan error, 1)
		r.wg.Go(func() {
			moved, err := r.Reset(ctx, 0, "g", []Target{{Part: p, Offset: 10}}, false)
			if err == nil && (len(moved) != 1 || moved[0].New != 10) {
				err = fmt.Errorf("moved %+v", moved) //nolint:err113 // a test's
			}
			done <- err
		})
		a.listen() // it gives p up, and gets it again
		pause(time.Second)
		a.listen()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if len(a.last.Parts) != 2 || a.last.Parts[0].Part != p || a.last.Parts[0].Committed.Offset != 10 || a.last.Parts[1].Committed.Offset != 50 {
			t.Errorf("assigned %+v", a.last)
		}
		// Who does not let go, loses nothing when the time is over.
		short, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		if _, err := r.Reset(short, 0, "g", []Target{{Part: q, Offset: 10}}, false); !errors.Is(err, ErrTimeout) {
			t.Errorf("a reset that is not let: %v", err)
		}
		a.listen()
		pause(time.Second)
		a.listen()
		if r.committed("g", q) != 50 || len(a.last.Parts) != 2 {
			t.Errorf("committed %d, assigned %+v", r.committed("g", q), a.last)
		}
		if moved, err := r.Reset(ctx, 0, "g", []Target{{Part: group.Part{Topic: topic.ID, Number: 7}, Offset: 1, Relative: true}}, false); err != nil || !errors.Is(moved[0].Err, ErrShift) {
			t.Errorf("a shift from nowhere: %+v %v", moved, err)
		}
	})
}

// CG-10: offsets belong to a topic's id and go with it; CG-12: patterns follow.
func TestCoordinator_topicsComeAndGoCG10(t *testing.T) {
	bubble(t, Config{}, 1, func(r *rig) {
		t := r.t
		topic := r.topic("evt.a", 2)
		p := group.Part{Topic: topic.ID}
		terms := reads()
		terms.Pattern = `evt\..*`
		a := r.consumer(memberID(1), terms)
		if err := a.commit(5000, p); err != nil {
			t.Fatal(err)
		}
		r.topic("evt.b", 3)
		pause(time.Second)
		a.listen()
		if len(a.last.Parts) != 5 {
			t.Errorf("after evt.b was created: %+v", a.last.Parts)
		}
		r.publish(&controllerv1.MetadataObject{Object: &controllerv1.MetadataObject_DeletedTopicId{DeletedTopicId: topic.ID.String()}})
		again := r.topic("evt.a", 2)
		pause(time.Second)
		a.listen()
		pause(time.Second)
		a.listen()
		if len(a.last.Parts) != 5 || r.committed("g", p) != -1 {
			t.Errorf("assigned %+v, committed %d of the deleted topic", a.last.Parts, r.committed("g", p))
		}
		for _, x := range a.last.Parts {
			if x.Part.Topic == topic.ID || x.Part.Topic == again.ID && x.Committed != nil {
				t.Errorf("%v begins at %+v", x.Part, x.Committed)
			}
		}
		if err := a.commit(120, p); !errors.Is(err, group.ErrStaleAssignment) {
			t.Errorf("a late commit for the deleted topic: %v", err)
		}
	})
}

// CG-06: thousands of groups that nobody uses go, and do not come back.
func TestCoordinator_retentionCG06(t *testing.T) {
	bubble(t, Config{OffsetsRetention: time.Hour}, 2, func(r *rig) {
		t := r.t
		topic := r.topic("orders", 1)
		p := group.Part{Topic: topic.ID}
		groups := size(2000, 20_000)
		for i := range groups {
			if err := r.commit(fmt.Sprint("g", i), "", 0, 1, p); err != nil {
				t.Fatal(err)
			}
		}
		count := func() (n int) {
			for shard := range int32(2) {
				got, err := r.List(context.Background(), shard, "g", "", nil, groups)
				if err != nil {
					t.Fatal(err)
				}
				n += len(got)
			}
			return n
		}
		wantEqual(t, "groups", groups, count())
		pause(62 * time.Minute)
		wantEqual(t, "groups after their retention", 0, count())
		for _, s := range r.all() {
			if len(s.groups) != 0 {
				t.Errorf("%d groups are kept in memory", len(s.groups))
			}
		}
		r.lead(1)
		r.ready()
		wantEqual(t, "groups after a restart", 0, count())
	})
}

// CG-19: state that is large is loaded like any other.
func TestCoordinator_largeStateCG19(t *testing.T) {
	if testing.Short() {
		t.Skip("stores some 40 MB")
	}
	bubble(t, Config{}, 1, func(r *rig) {
		t := r.t
		terms := reads()
		for i := range 1000 {
			terms.Topics = append(terms.Topics, fmt.Sprintf("a-topic-with-a-name-%04d", i))
		}
		topic := r.topic("a-topic-with-a-name-0007", 1)
		members := size(500, 2000)
		var ms []*Membership
		for i := range members {
			m, err := r.Open(0, "large")
			if err != nil {
				t.Fatal(err)
			}
			_ = m.Join(t.Context(), memberID(i), 0, terms, 1)
			ms = append(ms, m)
		}
		for i := range 50 {
			if err := r.commit(fmt.Sprint("small", i), "", 0, 1, group.Part{Topic: topic.ID}); err != nil {
				t.Fatal(err)
			}
		}
		pause(time.Second)
		for _, m := range ms {
			m.Close()
		}
		before := r.describe("large")
		r.lead(1)
		r.ready()
		after := r.describe("large")
		if len(after.Members) != members || len(before.Members) != members || len(after.Members[7].Terms.Topics) != 1000 {
			t.Errorf("%d members, before %d", len(after.Members), len(before.Members))
		}
		for i := range 50 {
			r.describe(fmt.Sprint("small", i))
		}
	})
}

// A version that this broker does not know is not guessed at.
func TestCoordinator_refusesUnknownVersions(t *testing.T) {
	bubble(t, Config{}, 1, func(r *rig) {
		t := r.t
		part, err := r.set.Get(r.offsets, 0)
		if err != nil {
			t.Fatal(err)
		}
		b := record.NewBuilder(nil, record.Limits{})
		if err := b.Add([]byte{8, 2, 18, 1, 'g'}, []byte{8, 1}, nil, 0); err != nil { // key version 2
			t.Fatal(err)
		}
		batch, err := b.Finish(record.CompressionNone, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := part.Append(&batch, nil); err != nil {
			t.Fatal(err)
		}
		r.lead(1)
		pause(time.Second)
		if err := r.commit("g", "", 0, 1, group.Part{}); !errors.Is(err, group.ErrUnreadable) {
			t.Errorf("a commit: %v", err)
		}
	})
}

// An append that fails leaves no group that differs from what is stored.
func TestCoordinator_failedAppend(t *testing.T) {
	bubble(t, Config{}, 1, func(r *rig) {
		t := r.t
		topic := r.topic("orders", 2)
		p := group.Part{Topic: topic.ID}
		if err := r.commit("g", "", 0, 1, p); err != nil {
			t.Fatal(err)
		}
		huge := reads("orders")
		for i := range 20 {
			huge.ClientName += fmt.Sprintf("%0250000d", i) // a record that no batch can hold
		}
		m, err := r.Open(0, "g")
		if err != nil {
			t.Fatal(err)
		}
		_ = m.Join(t.Context(), memberID(1), 0, huge, 1)
		pause(time.Second)
		if d := r.describe("g"); len(d.Members) != 0 || d.Phase != group.Empty {
			t.Errorf("it is a member: %+v", d.Members)
		}
		if err := r.commit("g", "", 0, 2, p); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
}

// A member is told nothing before its membership is committed; it hears that it
// was heard all the same.
func TestCoordinator_joinWaitsForTheHighWatermark(t *testing.T) {
	bubble(t, Config{}, 1, func(r *rig) {
		r.topic("orders", 2)
		r.grow() // another replica has to acknowledge, and never does
		a := r.consumer(memberID(1), reads("orders"))
		pause(time.Second)
		a.listen()
		if a.joined != nil || a.last != nil || len(a.pongs) != 1 {
			r.t.Errorf("joined %+v, assigned %+v, pongs %v", a.joined, a.last, a.pongs)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if d, err := r.Describe(ctx, 0, "g"); err == nil {
			r.t.Errorf("a description of what may never have been: %+v", d)
		}
		r.lead(1) // the record survived, and the next coordinator finds it
		r.ready()
		a.listen()
		if !a.ended || !errors.Is(a.err, group.ErrLoading) {
			r.t.Errorf("the stream: %v", a.err)
		}
		a.connect(0)
		if a.joined == nil || a.joined.Resumed || len(a.last.Parts) != 2 || len(r.describe("g").Members) != 1 {
			r.t.Errorf("joined %+v, assigned %+v", a.joined, a.last)
		}
	})
}

// Who has sent more than is done yet waits for it no longer than its stream lives, and
// that it went is noted at once.
func TestMembership_waitEndsWithTheStream(t *testing.T) {
	bubble(t, Config{}, 1, func(r *rig) {
		m, err := r.Open(0, "g")
		if err != nil {
			r.t.Fatal(err)
		}
		for range maxSlots { // as if none were ever done
			m.slots <- struct{}{}
		}
		gone := errors.New("the stream is gone")
		ctx, cancel := context.WithCancelCause(r.t.Context())
		ended := make(chan error, 1)
		var sender sync.WaitGroup
		defer sender.Wait()
		sender.Go(func() {
			ended <- m.Ping(ctx, 1)
			m.Close()
			close(ended)
		})
		synctest.Wait()
		cancel(gone)
		synctest.Wait()
		select {
		case err := <-ended:
			if !errors.Is(err, gone) {
				r.t.Errorf("the ping ended with %v", err)
			}
		default:
			r.t.Error("the ping waits on")
		}
		select {
		case <-ended:
		default:
			r.t.Error("Close waits")
		}
		for range maxSlots {
			<-m.slots
		}
	})
}
