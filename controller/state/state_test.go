package state

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"pgregory.net/rapid"
)

func TestSettle(t *testing.T) {
	const f, a, d = BrokerFenced, BrokerActive, BrokerShuttingDown
	type part struct {
		leader BrokerID
		isr    []BrokerID
		elr    []BrokerID
	}
	for name, tt := range map[string]struct {
		phases  []BrokerPhase // of brokers 1, 2, 3
		minISR  string
		before  part
		after   part
		epoch   int64 // leader epoch after, 1 before
		unclean bool
	}{
		"all is well":                              {[]BrokerPhase{a, a, a}, "2", part{1, []BrokerID{1, 2, 3}, nil}, part{1, []BrokerID{1, 2, 3}, nil}, 1, false},
		"a follower is fenced":                     {[]BrokerPhase{a, f, a}, "2", part{1, []BrokerID{1, 2, 3}, nil}, part{1, []BrokerID{1, 3}, nil}, 1, false},
		"a follower is fenced below the minimum":   {[]BrokerPhase{a, f, a}, "2", part{1, []BrokerID{1, 2}, nil}, part{1, []BrokerID{1}, []BrokerID{2}}, 1, false},
		"the leader is fenced":                     {[]BrokerPhase{f, a, a}, "2", part{1, []BrokerID{1, 2, 3}, nil}, part{2, []BrokerID{2, 3}, nil}, 2, false},
		"the leader is fenced below the minimum":   {[]BrokerPhase{f, a, a}, "2", part{1, []BrokerID{1, 3}, nil}, part{3, []BrokerID{3}, []BrokerID{1}}, 2, false},
		"all but one are fenced":                   {[]BrokerPhase{f, f, a}, "2", part{1, []BrokerID{1, 2, 3}, nil}, part{3, []BrokerID{3}, []BrokerID{1, 2}}, 2, false},
		"all are fenced":                           {[]BrokerPhase{f, f, f}, "2", part{1, []BrokerID{1, 2}, []BrokerID{}}, part{NoLeader, []BrokerID{1, 2}, nil}, 2, false},
		"the only in-sync one is fenced":           {[]BrokerPhase{f, a, a}, "2", part{1, []BrokerID{1}, nil}, part{NoLeader, []BrokerID{1}, nil}, 2, false},
		"an eligible one takes over":               {[]BrokerPhase{f, a, a}, "2", part{1, []BrokerID{1}, []BrokerID{3}}, part{3, []BrokerID{3}, []BrokerID{1}}, 2, false},
		"an eligible one takes over, minimum 1":    {[]BrokerPhase{f, a, a}, "1", part{NoLeader, []BrokerID{1}, nil}, part{NoLeader, []BrokerID{1}, nil}, 1, false},
		"one that led is back":                     {[]BrokerPhase{a, f, f}, "2", part{NoLeader, []BrokerID{1}, nil}, part{1, []BrokerID{1}, nil}, 2, false},
		"any replica, where that is allowed":       {[]BrokerPhase{f, a, a}, "2", part{1, []BrokerID{1}, nil}, part{2, []BrokerID{2}, nil}, 2, true},
		"allowed, and not needed":                  {[]BrokerPhase{f, a, a}, "2", part{1, []BrokerID{1, 3}, nil}, part{3, []BrokerID{3}, []BrokerID{1}}, 2, true},
		"the leader leaves and hands over first":   {[]BrokerPhase{d, a, a}, "2", part{1, []BrokerID{1, 2, 3}, nil}, part{1, []BrokerID{1, 2, 3}, nil}, 1, false},
		"a leader leaves, and others are fenced":   {[]BrokerPhase{d, a, f}, "2", part{1, []BrokerID{1, 2, 3}, nil}, part{1, []BrokerID{1, 2}, nil}, 1, false},
		"a follower leaves":                        {[]BrokerPhase{a, d, a}, "2", part{1, []BrokerID{1, 2}, nil}, part{1, []BrokerID{1}, []BrokerID{2}}, 1, false},
		"the last one leaves and serves on":        {[]BrokerPhase{d, a, a}, "2", part{1, []BrokerID{1}, nil}, part{1, []BrokerID{1}, nil}, 1, false},
		"all leave":                                {[]BrokerPhase{d, d, d}, "2", part{1, []BrokerID{1, 2, 3}, nil}, part{1, []BrokerID{1, 2, 3}, nil}, 1, false},
		"one leaves and the others are fenced":     {[]BrokerPhase{d, f, f}, "2", part{1, []BrokerID{1, 2, 3}, nil}, part{1, []BrokerID{1}, []BrokerID{2, 3}}, 1, false},
		"a leaving one is not elected":             {[]BrokerPhase{f, d, f}, "2", part{1, []BrokerID{1, 2}, nil}, part{NoLeader, []BrokerID{2}, []BrokerID{1}}, 2, false},
		"the ELR is kept while too few are insync": {[]BrokerPhase{a, f, f}, "3", part{1, []BrokerID{1, 2}, []BrokerID{3}}, part{1, []BrokerID{1}, []BrokerID{3, 2}}, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := withBrokers(t, 3)
			topic := b.newTopic("t", 1, 3, map[string]string{"min.insync.replicas": tt.minISR, "unclean.leader.election.enable": fmt.Sprint(tt.unclean)})
			p := b.Partitions(topic)[0].clone()
			p.Replicas = []BrokerID{1, 2, 3}
			p.Leader, p.ISR, p.ELR = tt.before.leader, tt.before.isr, tt.before.elr
			changes := []Change{put(p, p.Revision)}
			for n, phase := range tt.phases {
				changes = append(changes, inPhase(b.Broker(BrokerID(n+1)), phase)...)
			}
			b.commit(changes)
			n := b.work()
			got := b.Partitions(topic)[0]
			if diff := cmp.Diff(tt.after, part{got.Leader, got.ISR, got.ELR}, cmp.AllowUnexported(part{}), cmp.Transformer("nil", func(ids []BrokerID) []int32 {
				out := []int32{}
				for _, id := range ids {
					out = append(out, int32(id))
				}
				return out
			})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if got.LeaderEpoch != tt.epoch || n > 1 || got.PartitionEpoch != int64(1+n) {
				t.Errorf("leader epoch %d, partition epoch %d after %d transactions", got.LeaderEpoch, got.PartitionEpoch, n)
			}
			lossy := tt.unclean && !slices.Contains(tt.before.isr, got.Leader)
			if slices.Contains(got.LossyEpochs, got.LeaderEpoch) != lossy {
				t.Errorf("lossy epochs %v", got.LossyEpochs)
			}
			b.check(true)
		})
	}
}

// Partitions without a leader come first, and no transaction is too large.
func TestWork_is_urgent_things_first(t *testing.T) {
	b := withBrokers(t, 2)
	topic := b.newTopic("t", 300, 2, nil)
	b.fence(1)
	first := b.Work()
	if len(first) != MaxChanges {
		t.Fatalf("%d changes", len(first))
	}
	for _, c := range first {
		if p := b.Partition(PartitionKey{c.Key.Topic, c.Key.Partition}); p.Leader != 1 {
			t.Fatalf("partition %d has a leader, and came before others that have none", p.Number)
		}
	}
	if n := b.work(); n != 3 || b.Leaderless() != 0 || !b.Settled(1) {
		t.Errorf("%d transactions, %d leaderless", n, b.Leaderless())
	}
	for _, p := range b.Partitions(topic) {
		if p.Leader != 2 || !slices.Equal(p.ISR, []BrokerID{2}) {
			t.Errorf("partition %d: %+v", p.Number, p)
		}
	}
}

func TestUnfence_waits_for_fence_work(t *testing.T) {
	b := withBrokers(t, 1)
	b.newTopic("t", 1, 1, nil)
	b.must(b.Register(b.registration(1, 2)))
	epoch := b.Broker(1).Epoch
	if changes, err := b.Judge(1, epoch, nil); err != nil || len(changes) > 0 {
		t.Errorf("judged before the fence was complete: %v, %v", changes, err)
	}
	if changes, err := b.Unfence(1, epoch); err != nil || len(changes) > 0 {
		t.Errorf("unfenced before the fence was complete: %v, %v", changes, err)
	}
	b.work()
	if changes, err := b.Unfence(1, epoch); err != nil || len(changes) > 0 {
		t.Errorf("unfenced unjudged: %v, %v", changes, err)
	}
	b.judge(1, ShapeIntact)
	b.must(b.Unfence(1, epoch))
	b.work()
	for name, fn := range map[string]func() ([]Change, error){
		"fence":     func() ([]Change, error) { return b.Fence(1, epoch-1) },
		"shut down": func() ([]Change, error) { return b.ShutDown(1, epoch-1) },
		"unfence":   func() ([]Change, error) { return b.Unfence(9, epoch) },
		"judge":     func() ([]Change, error) { return b.Judge(1, epoch+1, nil) },
	} {
		if changes, err := fn(); !errors.Is(err, ErrStaleBrokerEpoch) || len(changes) > 0 {
			t.Errorf("%s with another epoch: %v, %v", name, changes, err)
		}
	}
}

// A fence that is not complete keeps a broker out, also when it was judged long ago.
func TestUnfence_waits_for_fence_work_of_a_false_fence(t *testing.T) {
	b := withBrokers(t, 2)
	b.newTopic("t", 1, 2, nil)
	epoch := b.Broker(1).Epoch
	b.fence(1)
	if changes, err := b.Unfence(1, epoch); err != nil || len(changes) > 0 {
		t.Errorf("unfenced before the fence was complete: %v, %v", changes, err)
	}
	b.work()
	if changes, err := b.Unfence(1, epoch); err != nil || len(changes) != 1 {
		t.Errorf("not unfenced: %v, %v", changes, err)
	}
}

// A suspect replica is eligible no more.
func TestJudge_takes_suspects_out_of_the_ELR(t *testing.T) {
	b := withBrokers(t, 2)
	topic := b.newTopic("t", 1, 2, map[string]string{"min.insync.replicas": "2"})
	b.must(b.Register(b.registration(2, 2)))
	b.work()
	if p := b.Partitions(topic)[0]; !slices.Equal(p.ELR, []BrokerID{2}) {
		t.Fatalf("before: %+v", p)
	}
	b.judge(2, ShapeSuspect)
	if p := b.Partitions(topic)[0]; len(p.ELR) != 0 || len(p.LastKnown) != 0 {
		t.Errorf("after: %+v", p)
	}
}

// A report is weighed in as many transactions as it takes, and the verdict comes with the last.
func TestJudge_is_complete_with_the_verdict(t *testing.T) {
	b := withBrokers(t, 2)
	topic := b.newTopic("t", 300, 2, nil)
	b.must(b.Register(b.registration(1, 2)))
	b.must(b.Register(b.registration(2, 2)))
	b.work()
	before := len(b.deltas)
	b.judge(1, ShapeLost)
	if n := len(b.deltas) - before; n != 3 {
		t.Errorf("%d transactions for 300 partitions", n)
	}
	for _, p := range b.Partitions(topic) {
		if !slices.Equal(p.ISR, []BrokerID{2}) || len(p.ELR) > 0 || !slices.Equal(p.LastKnown, []BrokerID{1}) {
			t.Fatalf("partition %d: %+v", p.Number, p)
		}
	}
	// The other one is whole: nothing is lost.
	b.judge(2, ShapeIntact)
	b.must(b.Unfence(2, b.Broker(2).Epoch))
	b.work()
	for _, p := range b.Partitions(topic) {
		if p.Leader != 2 || len(p.LastKnown) > 0 || len(p.LossyEpochs) > 0 {
			t.Fatalf("partition %d: %+v", p.Number, p)
		}
	}
}

// When no member is whole, the best of all that came back is elected, once all are there, or after the wait.
func TestRecover_elects_the_best(t *testing.T) {
	never := func(PartitionKey) bool { return false }
	always := func(PartitionKey) bool { return true }
	for name, tt := range map[string]struct {
		back    []BrokerID
		reports map[BrokerID]ReplicaReport
		due     func(PartitionKey) bool
		want    BrokerID
	}{
		"longer log":            {[]BrokerID{1, 2, 3}, map[BrokerID]ReplicaReport{1: {LastEpoch: 4, LogEndOffset: 9}, 2: {LastEpoch: 4, LogEndOffset: 12}, 3: {LastEpoch: 4, LogEndOffset: 3}}, never, 2},
		"later epoch":           {[]BrokerID{1, 2, 3}, map[BrokerID]ReplicaReport{1: {LastEpoch: 4, LogEndOffset: 9}, 2: {LastEpoch: 4, LogEndOffset: 12}, 3: {LastEpoch: 5, LogEndOffset: 3}}, never, 3},
		"one is missing":        {[]BrokerID{1, 2}, map[BrokerID]ReplicaReport{1: {LogEndOffset: 9}, 2: {LogEndOffset: 12}}, never, NoLeader},
		"one is missing, due":   {[]BrokerID{1, 2}, map[BrokerID]ReplicaReport{1: {LogEndOffset: 9}, 2: {LogEndOffset: 12}}, always, 2},
		"one has not reported":  {[]BrokerID{1, 2, 3}, map[BrokerID]ReplicaReport{1: {LogEndOffset: 9}, 2: {LogEndOffset: 12}}, never, NoLeader},
		"nobody is back, due":   {nil, nil, always, NoLeader},
		"none with data, alike": {[]BrokerID{1, 2, 3}, map[BrokerID]ReplicaReport{1: {}, 2: {}, 3: {}}, never, 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := withBrokers(t, 3)
			topic := b.newTopic("t", 1, 3, nil)
			k := PartitionKey{topic, 0}
			for n := range BrokerID(3) {
				b.must(b.Register(b.registration(n+1, 2)))
			}
			b.work()
			for n := range BrokerID(3) {
				b.judge(n+1, ShapeSuspect)
			}
			for _, id := range tt.back {
				b.must(b.Unfence(id, b.Broker(id).Epoch))
			}
			b.work()
			before := b.Partition(k)
			reports := Reports{}
			for id, r := range tt.reports {
				reports[id] = map[PartitionKey]ReplicaReport{k: r}
			}
			waits := slices.Equal(b.Bereft(reports), []PartitionKey{k})
			if before.Leader != NoLeader || len(before.LastKnown) != 3 || waits != (len(tt.back) > 0) || len(b.Bereft(nil)) > 0 {
				t.Fatalf("before: %+v, bereft %v", before, b.Bereft(reports))
			}
			b.commit(b.Recover(reports, tt.due))
			got := b.Partition(k)
			if got.Leader != tt.want {
				t.Fatalf("elected %d of %v, want %d", got.Leader, before.LastKnown, tt.want)
			}
			if tt.want == NoLeader {
				return
			}
			if !slices.Equal(got.LossyEpochs, []int64{got.LeaderEpoch}) || got.LeaderEpoch != before.LeaderEpoch+1 || len(got.LastKnown) > 0 || Elected(before, got) != ElectionRecovery {
				t.Errorf("%+v", got)
			}
			b.check(true)
		})
	}
}

func TestRegister_counts_epochs_over_the_cluster(t *testing.T) {
	b := withBrokers(t, 2)
	b.join(1, 2)
	b.join(1, 3)
	if b.Broker(1).Epoch != 4 || b.Broker(2).Epoch != 2 {
		t.Errorf("epochs %d and %d", b.Broker(1).Epoch, b.Broker(2).Epoch)
	}
	if changes, err := b.Register(b.registration(1, 3)); err != nil || len(changes) > 0 {
		t.Errorf("the same incarnation again: %v, %v", changes, err)
	}
	other := b.registration(1, 4)
	other.Broker.DirectoryID = uuid.New()
	other.Alive = true
	if _, err := b.Register(other); !errors.Is(err, ErrDuplicateBroker) {
		t.Errorf("another data root while the old one lives: %v", err)
	}
	other.Alive = false
	if _, err := b.Register(other); err != nil {
		t.Errorf("another data root when the old one is dead: %v", err)
	}
	same := b.registration(1, 4)
	same.Alive = true
	if changes, err := b.Register(same); err != nil || len(changes) == 0 {
		t.Errorf("the same data root: %v, %v", changes, err)
	}
	replaced := b.registration(1, 2)
	replaced.Epoch = 3
	replaced.Alive = true
	if _, err := b.Register(replaced); !errors.Is(err, ErrDuplicateBroker) {
		t.Errorf("a process that was replaced, while the later one lives: %v", err)
	}
	replaced.Alive = false
	if changes, err := b.Register(replaced); err != nil || len(changes) == 0 {
		t.Errorf("a process that was replaced, when the later one is dead: %v, %v", changes, err)
	}
}

// What brokers are told adds up to what they would be told from the start, at every revision; topics and added partitions appear
// whole.
func TestDeltas_add_up_to_the_whole(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := withBrokers(rt, 3)
		told := map[Key]Object{}
		apply := func(d Delta) {
			for _, o := range d.Objects {
				told[o.Key()] = o
			}
			for _, id := range d.Deleted {
				delete(told, TopicKey(id))
			}
		}
		done := 0
		check := func() {
			for ; done < len(b.deltas); done++ {
				apply(b.deltas[done])
			}
			// A broker forgets the partitions of a topic that is deleting or gone by itself.
			for k := range told {
				if t, _ := told[TopicKey(k.Topic)].(*Topic); k.Kind == KindPartition && (t == nil || t.Phase != TopicActive) {
					delete(told, k)
				}
			}
			want := map[Key]Object{}
			for _, o := range b.Visible().Objects {
				want[o.Key()] = o
			}
			if !maps.Equal(want, told) { // the same objects, not only equal ones
				rt.Fatalf("(-whole +told):\n%s", cmp.Diff(want, told))
			}
			for _, o := range want {
				t, ok := o.(*Topic)
				if !ok || t.Phase != TopicActive {
					continue
				}
				for n := range t.Partitions {
					if want[Key{Kind: KindPartition, Topic: t.ID, Partition: n}] == nil {
						rt.Fatalf("topic %s lacks partition %d", t.Name, n)
					}
				}
			}
		}
		names := rapid.SampledFrom([]string{"a", "b", "c"})
		rt.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) { check() },
			"create": func(rt *rapid.T) {
				n := rapid.SampledFrom([]int32{1, 3, 125, 126, 140}).Draw(rt, "partitions")
				plan, err := b.CreateTopic(NewTopic{Name: names.Draw(rt, "name"), Partitions: &n}, defaults(), id(900_000+int(b.revision)), 1)
				if err == nil {
					b.commit(plan.Changes)
				}
			},
			"delete": func(rt *rapid.T) {
				if _, changes, err := b.DeleteTopic(Ref{Name: names.Draw(rt, "name")}); err == nil {
					b.commit(changes)
				}
			},
			"confirm": func(rt *rapid.T) {
				var ids []uuid.UUID
				for _, t := range b.Topics() {
					ids = append(ids, t.ID)
				}
				b.commit(b.ConfirmRemoval(BrokerID(rapid.IntRange(1, 3).Draw(rt, "broker")), ids))
			},
			"add": func(rt *rapid.T) {
				name := names.Draw(rt, "name")
				t := b.TopicNamed(name)
				if t == nil {
					return
				}
				_, txns, err := b.AddPartitions(Ref{Name: name}, t.Partitions+rapid.SampledFrom([]int32{1, 126, 140}).Draw(rt, "more"), 10_000)
				if err != nil {
					return
				}
				for _, changes := range txns[:rapid.IntRange(0, len(txns)).Draw(rt, "transactions before the controller dies")] {
					b.commit(changes)
				}
				b.work() // by the next one
			},
			"alter": func(rt *rapid.T) {
				if _, changes, err := b.AlterConfigs(Ref{Name: names.Draw(rt, "name")}, map[string]string{"flush": rapid.SampledFrom([]string{"sync", "async"}).Draw(rt, "flush")}, nil); err == nil {
					b.commit(changes)
				}
			},
			"work": func(*rapid.T) { b.commit(b.Work()) },
		})
		b.work()
		check()
		for _, t := range b.Topics() {
			if t.Phase == TopicCreating || (t.Phase == TopicActive && len(b.Partitions(t.ID)) != int(t.Partitions)) {
				rt.Fatalf("left over: %+v with %d partitions", t, len(b.Partitions(t.ID)))
			}
		}
	})
}

func TestInternalTopics_are_not_for_users(t *testing.T) {
	b := withBrokers(t, 1)
	tp := &Topic{ID: uuid.New(), Name: "__consumer_offsets", Phase: TopicActive, Internal: true}
	b.commit([]Change{put(tp, 0), put(&Name{Name: tp.Name, Topic: tp.ID}, 0)})
	_, _, del := b.DeleteTopic(Ref{Name: tp.Name})
	_, _, alter := b.AlterConfigs(Ref{Name: tp.Name}, map[string]string{"flush": "sync"}, nil)
	_, _, add := b.AddPartitions(Ref{Name: tp.Name}, 5, 10)
	for _, err := range []error{del, alter, add} {
		if !errors.Is(err, ErrTopicInternal) {
			t.Errorf("%v, want ErrTopicInternal", err)
		}
	}
}

// Data of an earlier time than the cluster remembers, which a copy that was put back has, are not intact whatever the broker says
// of them; nor is an empty log where there was a full one.
func TestJudge_data_of_an_earlier_time(t *testing.T) {
	for name, tt := range map[string]struct {
		data     func(before int64) int64 // epoch that the data say, with that of the last process that was judged
		unjudged bool                     // another process came between, and was not judged
		report   bool                     // the replica is reported as intact; else not at all
		stays    bool
	}{
		"the latest": {func(e int64) int64 { return e }, false, true, true},
		"older":      {func(e int64) int64 { return e - 1 }, false, true, false},
		"of no time": {func(int64) int64 { return 0 }, false, true, false},
		"the latest judged, and one that noted nothing came after": {func(e int64) int64 { return e }, true, true, true},
		"older than the latest judged, with another after":         {func(e int64) int64 { return e - 1 }, true, true, false},
		"not there, in the first epoch":                            {func(e int64) int64 { return e }, false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := withBrokers(t, 2)
			topic := b.newTopic("t", 1, 2, map[string]string{"min.insync.replicas": "2"})
			p := b.Partitions(topic)[0].clone()
			p.Leader, p.Replicas = 1, []BrokerID{1, 2}
			b.commit([]Change{put(p, p.Revision)})
			before := b.Broker(2).Epoch
			r := b.registration(2, 2)
			if tt.unjudged {
				r.DataEpoch = before
				b.must(b.Register(r))
				b.work()
				r = b.registration(2, 3)
			}
			r.DataEpoch = tt.data(before)
			b.must(b.Register(r))
			b.work()
			if p := b.Partitions(topic)[0]; p.LeaderEpoch != 1 || !slices.Equal(p.ELR, []BrokerID{2}) {
				t.Fatalf("before: %+v", p)
			}
			if tt.report {
				b.judge(2, ShapeIntact)
			} else {
				b.must(b.Judge(2, b.Broker(2).Epoch, nil))
			}
			if stays := slices.Contains(b.Partitions(topic)[0].ELR, 2); stays != tt.stays {
				t.Errorf("eligible: %v, want %v", stays, tt.stays)
			}
		})
	}
}

// Topics of one partition that are made one after the other are led by both other brokers when one is gone.
func TestFence_spreads_leaderships(t *testing.T) {
	b := withBrokers(t, 3)
	for n := range 12 {
		b.newTopic(fmt.Sprint("t", n), 1, 3, nil)
	}
	b.fence(2)
	b.work()
	led := map[BrokerID]int{}
	for _, topic := range b.Topics() {
		led[b.Partitions(topic.ID)[0].Leader]++
	}
	if led[1] != 6 || led[3] != 6 {
		t.Errorf("of 12 partitions brokers lead %v", led)
	}
}
