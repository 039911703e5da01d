package state

import (
	"slices"
	"testing"
)

// RP-10: the last in-sync replica goes, and with it the leadership. It stays the only member, nobody else leads, and it leads
// again by itself when it is back.
func TestLastMember_leads_again(t *testing.T) {
	b := withBrokers(t, 3)
	topic := b.newTopic("t", 1, 3, map[string]string{"min.insync.replicas": "1"})
	p := b.Partitions(topic)[0].clone()
	p.Replicas, p.Leader, p.ISR = []BrokerID{1, 2, 3}, 1, []BrokerID{1}
	b.commit([]Change{put(p, p.Revision)})
	for _, id := range []BrokerID{2, 3, 1} {
		b.fence(id)
		b.work()
	}
	now := func() *Partition { return b.Partitions(topic)[0] }
	if now().Leader != NoLeader || !slices.Equal(now().ISR, []BrokerID{1}) {
		t.Fatalf("all are away: %+v", now())
	}
	b.join(2, 2)
	b.join(3, 2)
	if now().Leader != NoLeader || !slices.Equal(now().ISR, []BrokerID{1}) || len(now().ELR) > 0 {
		t.Fatalf("the others are back: %+v", now())
	}
	b.join(1, 2)
	if now().Leader != 1 || len(now().LossyEpochs) > 0 {
		t.Errorf("it is back: %+v", now())
	}
}

// RP-12: brokers that share many partitions are fenced at the same instant. No partition is led by one of them, whichever is
// looked at first, and those that have a member left have a leader.
func TestBrokers_fenced_together(t *testing.T) {
	b := withBrokers(t, 5)
	topic := b.newTopic("t", 200, 3, map[string]string{"min.insync.replicas": "2"})
	var both []Change
	for _, id := range []BrokerID{1, 2} {
		changes, err := b.Fence(id, b.Broker(id).Epoch)
		if err != nil {
			t.Fatal(err)
		}
		both = append(both, changes...)
	}
	b.commit(both)
	b.work()
	b.check(true)
	for _, p := range b.Partitions(topic) {
		if p.Leader < 3 {
			t.Fatalf("led by a fenced broker, or by nobody with a third replica alive: %+v", p)
		}
	}
}

// RP-18: where a topic allows it, any replica may lead, but never while one in sync can; and allowing it later wakes a partition
// that is without a leader already. What may be lost is recorded.
func TestUncleanElection(t *testing.T) {
	b := withBrokers(t, 2)
	topic := b.newTopic("t", 1, 2, map[string]string{"min.insync.replicas": "1"})
	p := b.Partitions(topic)[0].clone()
	p.Replicas, p.Leader, p.ISR = []BrokerID{2, 1}, 1, []BrokerID{1}
	b.commit([]Change{put(p, p.Revision)})
	b.fence(1)
	b.work()
	old := b.Partitions(topic)[0]
	if old.Leader != NoLeader {
		t.Fatalf("led by %d, which is not in sync", old.Leader)
	}
	_, changes, err := b.AlterConfigs(Ref{Name: "t"}, map[string]string{"unclean.leader.election.enable": "true"}, nil)
	b.must(changes, err)
	b.work()
	now := b.Partitions(topic)[0]
	if now.Leader != 2 || Elected(old, now) != ElectionUnclean || !slices.Contains(now.LossyEpochs, now.LeaderEpoch) {
		t.Errorf("allowed later: %+v", now)
	}
	// The preferred replica lags, and an in-sync one is alive: it is not asked.
	b.join(1, 2)
	p = b.Partitions(topic)[0].clone()
	p.Replicas, p.Leader, p.ISR = []BrokerID{2, 1}, NoLeader, []BrokerID{1}
	b.commit([]Change{put(p, p.Revision)})
	b.work()
	if now := b.Partitions(topic)[0]; now.Leader != 1 {
		t.Errorf("a clean candidate was passed over: %+v", now)
	}
}
