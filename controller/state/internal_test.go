package state

import (
	"errors"
	"slices"
	"testing"
)

const offsets = "__consumer_offsets"

func internalDefaults() Defaults {
	d := defaults()
	d.InternalFactor = 3
	return d
}

func (b *bench) ensure(partitions int32) TopicPlan {
	b.t.Helper()
	plan, err := b.EnsureInternal(NewTopic{Name: offsets, Partitions: &partitions, Configs: map[string]string{"retention.ms": "-1"}}, internalDefaults(), id(900_000+int(b.revision)), 7)
	if err != nil {
		b.t.Fatalf("ensure: %v", err)
	}
	b.commit(plan.Changes)
	b.work()
	return plan
}

// Row 80: the first group comes while one broker is up.
func TestInternalTopic_grows_with_the_brokers(t *testing.T) {
	b := withBrokers(t, 1)
	topic := b.ensure(50).Topic.ID
	if plan := b.ensure(7); !plan.Existed || plan.Topic.ID != topic || plan.Topic.Partitions != 50 {
		t.Fatalf("asked for again: %+v", plan)
	}
	want := func(what string, factor int32, minISR int32, sync bool) {
		t.Helper()
		record := b.Topic(topic)
		if record.ReplicationFactor != factor || record.TargetFactor != 3 || !record.Internal {
			t.Fatalf("%s: topic %+v", what, record)
		}
		for _, p := range b.Partitions(topic) {
			if len(p.Replicas) != int(factor) || p.MinISR != minISR || p.Sync != sync {
				t.Fatalf("%s: %+v", what, p)
			}
		}
		b.check(true)
	}
	want("one broker", 1, 1, true)
	b.join(2, 1)
	want("two brokers", 2, 1, true)
	b.fence(2)
	b.work()
	b.join(3, 1)
	want("the third comes while the second is away", 3, 1, true)
	for _, p := range b.Partitions(topic) {
		if !slices.Equal(p.ISR, []BrokerID{1}) || p.Leader != 1 || p.LeaderEpoch != 1 {
			t.Fatalf("a replica that holds nothing yet counts: %+v", p)
		}
	}
	b.join(4, 1)
	want("a fourth comes", 3, 1, true)
	b.join(2, 2)
	preferred := map[BrokerID]int{}
	for _, p := range b.Partitions(topic) {
		preferred[p.Replicas[0]]++
		for _, isr := range [][]Member{{{1, b.Broker(1).Epoch}, {3, b.Broker(3).Epoch}}, {{1, b.Broker(1).Epoch}, {3, b.Broker(3).Epoch}, {2, b.Broker(2).Epoch}}} {
			if p := b.Partition(p.PartitionKey()); p.MinISR != 1 {
				t.Fatalf("the minimum rose before three were in sync: %+v", p)
			}
			now := b.Partition(p.PartitionKey())
			change, err := b.Propose(1, b.Broker(1).Epoch, Proposal{Key: p.PartitionKey(), LeaderEpoch: 1, PartitionEpoch: now.PartitionEpoch, ISR: isr})
			if err != nil {
				t.Fatal(err)
			}
			b.commit([]Change{change})
			b.work()
		}
	}
	want("three are in sync", 3, 2, false)
	if len(preferred) != 3 || preferred[1] < 12 || preferred[2] < 12 || preferred[3] < 12 {
		t.Errorf("preferred leaders: %v", preferred)
	}
	b.fence(2)
	b.fence(3)
	b.work()
	want("two of three are away: the minimum stays", 3, 2, false)
	for _, p := range b.Partitions(topic) {
		if p.Leader != 1 || len(p.ELR) == 0 {
			t.Fatalf("%+v", p)
		}
	}
}

func TestInternalTopic_begins_with_all_there_are(t *testing.T) {
	b := withBrokers(t, 4)
	topic := b.ensure(50).Topic.ID
	for _, p := range b.Partitions(topic) {
		if len(p.Replicas) != 3 || p.MinISR != 2 || p.Sync {
			t.Fatalf("%+v", p)
		}
	}
	if n := b.work(); n != 0 {
		t.Errorf("%d transactions for a topic that is whole", n)
	}
}

// More partitions than fit in a transaction are created and grow in pieces.
func TestInternalTopic_of_many_partitions(t *testing.T) {
	b := withBrokers(t, 1)
	topic := b.ensure(300).Topic.ID
	b.join(2, 1)
	b.join(3, 1)
	if f := b.Topic(topic).ReplicationFactor; f != 3 {
		t.Errorf("replication factor %d", f)
	}
	for _, p := range b.Partitions(topic) {
		if len(p.Replicas) != 3 || p.MinISR != 1 {
			t.Fatalf("%+v", p)
		}
	}
}

func TestInternalTopic_refuses(t *testing.T) {
	none := newBench(t)
	n := int32(50)
	if _, err := none.EnsureInternal(NewTopic{Name: offsets, Partitions: &n}, internalDefaults(), id(1), 7); !errors.Is(err, ErrInvalidFactor) {
		t.Errorf("without brokers: %v", err)
	}
	b := withBrokers(t, 1)
	zero := int32(0)
	for name, tt := range map[string]struct {
		wish NewTopic
		want error
	}{
		"a user's name":    {NewTopic{Name: "offsets", Partitions: &n}, ErrInvalidName},
		"a bad name":       {NewTopic{Name: "__a/b", Partitions: &n}, ErrInvalidName},
		"no partitions":    {NewTopic{Name: offsets, Partitions: &zero}, ErrInvalidPartitions},
		"no partitions II": {NewTopic{Name: offsets}, ErrInvalidPartitions},
	} {
		if _, err := b.EnsureInternal(tt.wish, internalDefaults(), id(1), 7); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := b.EnsureInternal(NewTopic{Name: offsets, Partitions: &n, Configs: map[string]string{"min.insync.replicas": "4"}}, internalDefaults(), id(1), 7); err == nil {
		t.Error("more in-sync replicas than it will ever have were accepted")
	}
	b.ensure(1)
	if _, _, err := b.DeleteTopic(Ref{Name: offsets}); !errors.Is(err, ErrTopicInternal) {
		t.Errorf("a user deletes it: %v", err)
	}
}
