package state

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// Among others: who is fenced or leaves is not added, whatever it has (RP-09).
func TestPropose(t *testing.T) {
	type wish struct {
		isr         []BrokerID
		from        BrokerID // else 1
		leader, par int64    // added to the epochs that stand
		brokerEpoch int64    // added to the proposer's
		memberEpoch int64    // added to the last member's
	}
	for name, tt := range map[string]struct {
		min      string
		isr, elr []BrokerID
		phase    map[BrokerID]BrokerPhase
		wish     wish
		want     []BrokerID
		wantELR  []BrokerID
		rejected string // part of the reason
		ahead    bool
	}{
		"one joins":                          {min: "2", isr: []BrokerID{1, 2}, wish: wish{isr: []BrokerID{1, 2, 3}}, want: []BrokerID{1, 2, 3}},
		"one leaves":                         {min: "2", isr: []BrokerID{1, 2, 3}, wish: wish{isr: []BrokerID{1, 3}}, want: []BrokerID{1, 3}},
		"one leaves below the minimum":       {min: "2", isr: []BrokerID{1, 3}, wish: wish{isr: []BrokerID{1}}, want: []BrokerID{1}, wantELR: []BrokerID{3}},
		"two leave":                          {min: "3", isr: []BrokerID{1, 2, 3}, wish: wish{isr: []BrokerID{1}}, want: []BrokerID{1}, wantELR: []BrokerID{2, 3}},
		"an eligible one joins":              {min: "3", isr: []BrokerID{1}, elr: []BrokerID{2, 3}, wish: wish{isr: []BrokerID{1, 2}}, want: []BrokerID{1, 2}, wantELR: []BrokerID{3}},
		"enough join":                        {min: "2", isr: []BrokerID{1}, elr: []BrokerID{2, 3}, wish: wish{isr: []BrokerID{1, 2}}, want: []BrokerID{1, 2}},
		"one joins and one leaves":           {min: "3", isr: []BrokerID{1, 2}, wish: wish{isr: []BrokerID{1, 3}}, want: []BrokerID{1, 3}, wantELR: []BrokerID{2}},
		"order does not matter":              {min: "2", isr: []BrokerID{1, 2}, wish: wish{isr: []BrokerID{3, 2, 1}}, want: []BrokerID{1, 2, 3}},
		"a leaving one stays":                {min: "2", isr: []BrokerID{1}, phase: map[BrokerID]BrokerPhase{1: BrokerShuttingDown}, wish: wish{isr: []BrokerID{1, 2}}, want: []BrokerID{1, 2}},
		"the same":                           {min: "2", isr: []BrokerID{1, 2}, wish: wish{isr: []BrokerID{2, 1}}, rejected: "already"},
		"without the leader":                 {min: "2", isr: []BrokerID{1, 2}, wish: wish{isr: []BrokerID{2}}, rejected: "leader"},
		"nobody":                             {min: "2", isr: []BrokerID{1, 2}, wish: wish{}, rejected: "leader"},
		"one twice":                          {min: "2", isr: []BrokerID{1}, wish: wish{isr: []BrokerID{1, 2, 2}}, rejected: "twice"},
		"no replica":                         {min: "2", isr: []BrokerID{1}, wish: wish{isr: []BrokerID{1, 9}}, rejected: "no replica"},
		"a fenced one joins":                 {min: "2", isr: []BrokerID{1}, phase: map[BrokerID]BrokerPhase{2: BrokerFenced}, wish: wish{isr: []BrokerID{1, 2}}, rejected: "fenced"},
		"a leaving one joins":                {min: "2", isr: []BrokerID{1}, phase: map[BrokerID]BrokerPhase{2: BrokerShuttingDown}, wish: wish{isr: []BrokerID{1, 2}}, rejected: "shutting down"},
		"one caught up in an earlier life":   {min: "2", isr: []BrokerID{1}, wish: wish{isr: []BrokerID{1, 2}, memberEpoch: -1}, rejected: "registered with epoch"},
		"a member lived earlier":             {min: "2", isr: []BrokerID{1, 2, 3}, wish: wish{isr: []BrokerID{1, 2}, memberEpoch: -1}, rejected: "registered with epoch"},
		"one with a later registration":      {min: "2", isr: []BrokerID{1}, wish: wish{isr: []BrokerID{1, 2}, memberEpoch: 1}, rejected: "registered with epoch"},
		"not the leader":                     {min: "2", isr: []BrokerID{1, 2}, wish: wish{from: 2, isr: []BrokerID{1, 2, 3}}, rejected: "the leader is 1"},
		"the leader's earlier life":          {min: "2", isr: []BrokerID{1, 2}, wish: wish{isr: []BrokerID{1, 2, 3}, brokerEpoch: -1}, rejected: "replaced"},
		"an earlier leader epoch":            {min: "2", isr: []BrokerID{1, 2}, wish: wish{isr: []BrokerID{1, 2, 3}, leader: -1}, rejected: "in epoch"},
		"an earlier partition epoch":         {min: "2", isr: []BrokerID{1, 2}, wish: wish{isr: []BrokerID{1, 2, 3}, par: -1}, rejected: "starts from"},
		"a later leader epoch":               {min: "2", isr: []BrokerID{1, 2}, wish: wish{isr: []BrokerID{1, 2, 3}, leader: 1}, ahead: true},
		"a later partition epoch":            {min: "2", isr: []BrokerID{1, 2}, wish: wish{isr: []BrokerID{1, 2, 3}, par: 1}, ahead: true},
		"not the leader, with a later epoch": {min: "2", isr: []BrokerID{1, 2}, wish: wish{from: 2, isr: []BrokerID{1, 2, 3}, leader: 1}, ahead: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := withBrokers(t, 3)
			topic := b.newTopic("t", 1, 3, map[string]string{"min.insync.replicas": tt.min})
			k := PartitionKey{topic, 0}
			p := b.Partition(k).clone()
			p.Replicas, p.Leader, p.ISR, p.ELR = []BrokerID{1, 2, 3}, 1, tt.isr, tt.elr
			p.LeaderEpoch, p.PartitionEpoch = 5, 9
			changes := []Change{put(p, p.Revision)}
			for id, phase := range tt.phase {
				changes = append(changes, inPhase(b.Broker(id), phase)...)
			}
			b.commit(changes)
			from := max(tt.wish.from, 1)
			prop := Proposal{Key: k, LeaderEpoch: 5 + tt.wish.leader, PartitionEpoch: 9 + tt.wish.par, Number: 7}
			for n, m := range tt.wish.isr {
				member := Member{ID: m, Epoch: 1}
				if r := b.Broker(m); r != nil {
					member.Epoch = r.Epoch
				}
				if n == len(tt.wish.isr)-1 {
					member.Epoch += tt.wish.memberEpoch
				}
				prop.ISR = append(prop.ISR, member)
			}
			c, err := b.Propose(from, b.Broker(from).Epoch+tt.wish.brokerEpoch, prop)
			switch {
			case tt.ahead:
				if !errors.Is(err, ErrAhead) {
					t.Errorf("%v, %v; want ErrAhead", c, err)
				}
				return
			case tt.rejected != "":
				r, ok := errors.AsType[*RejectedError](err)
				if !ok || !strings.Contains(r.Reason, tt.rejected) || r.Number != 7 || r.PartitionEpoch != 9 || r.Key != k {
					t.Errorf("%+v, %v; want a rejection with %q", c, err, tt.rejected)
				}
				return
			case err != nil:
				t.Fatal(err)
			}
			b.commit([]Change{c})
			got := b.Partition(k)
			if !slices.Equal(got.ISR, tt.want) || !slices.Equal(got.ELR, tt.wantELR) || got.PartitionEpoch != 10 || got.LeaderEpoch != 5 || got.Leader != 1 {
				t.Errorf("%+v", got)
			}
			b.check(false)
		})
	}
}

func TestPropose_for_a_partition_that_is_gone(t *testing.T) {
	b := withBrokers(t, 1)
	topic := b.newTopic("t", 1, 1, nil)
	k := PartitionKey{topic, 0}
	_, changes, err := b.DeleteTopic(Ref{Name: "t"})
	b.must(changes, err)
	for name, key := range map[string]PartitionKey{"unknown topic": {id(1), 0}, "unknown partition": {topic, 5}, "a topic being deleted": k} {
		_, err := b.Propose(1, b.Broker(1).Epoch, Proposal{Key: key, LeaderEpoch: 1, PartitionEpoch: 1, ISR: []Member{{1, 1}}})
		if _, ok := errors.AsType[*RejectedError](err); !ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestMove(t *testing.T) {
	for name, tt := range map[string]struct {
		phases         []BrokerPhase
		isr            []BrokerID
		to             BrokerID
		drop, released bool
		epoch          int64 // the leader's, it stands at 1
		want           BrokerID
		wantISR        []BrokerID
		wantELR        []BrokerID
	}{
		"to the one asked for":                 {[]BrokerPhase{2, 2, 2}, []BrokerID{1, 2, 3}, 3, false, true, 1, 3, []BrokerID{1, 2, 3}, nil},
		"to another, as that one is fenced":    {[]BrokerPhase{2, 2, 1}, []BrokerID{1, 2, 3}, 3, false, true, 1, 2, []BrokerID{1, 2}, nil},
		"to another, as that one is behind":    {[]BrokerPhase{2, 2, 2}, []BrokerID{1, 2}, 3, false, true, 1, 2, []BrokerID{1, 2}, nil},
		"one that shuts down leaves the ISR":   {[]BrokerPhase{3, 2, 2}, []BrokerID{1, 2, 3}, 2, false, true, 1, 2, []BrokerID{2, 3}, nil},
		"and is eligible below the minimum":    {[]BrokerPhase{3, 2, 2}, []BrokerID{1, 2}, 2, false, true, 1, 2, []BrokerID{2}, []BrokerID{1}},
		"one with doubts about itself is not":  {[]BrokerPhase{2, 2, 2}, []BrokerID{1, 2}, 2, true, true, 1, 2, []BrokerID{2}, nil},
		"nobody left: a new epoch for the old": {[]BrokerPhase{2, 1, 1}, []BrokerID{1, 2, 3}, 2, false, true, 1, 1, []BrokerID{1}, []BrokerID{2, 3}},
		"the same with doubts":                 {[]BrokerPhase{2, 1, 1}, []BrokerID{1}, 2, true, true, 1, 1, []BrokerID{1}, nil},
		"nobody left, and not released":        {[]BrokerPhase{2, 1, 1}, []BrokerID{1, 2, 3}, 2, false, false, 1, NoLeader, nil, nil},
		"in another epoch":                     {[]BrokerPhase{2, 2, 2}, []BrokerID{1, 2, 3}, 3, false, true, 2, NoLeader, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := withBrokers(t, 3)
			k := PartitionKey{b.newTopic("t", 1, 3, map[string]string{"min.insync.replicas": "2"}), 0}
			p := b.Partition(k).clone()
			p.Replicas, p.Leader, p.ISR = []BrokerID{1, 2, 3}, 1, tt.isr
			changes := []Change{put(p, p.Revision)}
			for n, phase := range tt.phases {
				changes = append(changes, inPhase(b.Broker(BrokerID(n+1)), phase)...)
			}
			b.commit(changes)
			c, ok := b.Move(k, 1, tt.epoch, tt.to, tt.drop, tt.released)
			if ok != (tt.want != NoLeader) {
				t.Fatalf("%+v, %v", c, ok)
			}
			if !ok {
				return
			}
			b.commit([]Change{c})
			got := b.Partition(k)
			if got.Leader != tt.want || !slices.Equal(got.ISR, tt.wantISR) || !slices.Equal(got.ELR, tt.wantELR) || got.LeaderEpoch != 2 || got.PartitionEpoch != 2 || len(got.LossyEpochs) > 0 {
				t.Errorf("%+v", got)
			}
			b.check(false)
			if b.work() > 0 {
				t.Error("there was more to be done")
			}
		})
	}
}

func TestMisled_are_whole_partitions_with_another_leader(t *testing.T) {
	b := withBrokers(t, 3)
	k := PartitionKey{b.newTopic("t", 1, 3, nil), 0}
	preferred := b.Partition(k).Replicas[0]
	other := b.Partition(k).Replicas[1]
	if len(b.Misled()) > 0 {
		t.Fatal("led by the preferred leader")
	}
	c, _ := b.Move(k, preferred, 1, other, false, true)
	b.commit([]Change{c})
	if len(b.Misled()) != 1 {
		t.Fatal("whole and led by another")
	}
	b.must(b.ShutDown(preferred, b.Broker(preferred).Epoch))
	if len(b.Misled()) > 0 {
		t.Error("the preferred leader is about to leave")
	}
	b.work()
	if len(b.Misled()) > 0 {
		t.Error("not whole")
	}
}
