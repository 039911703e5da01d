package partition

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/internal/record"
)

// logOf returns a log of records of these epochs from offset start on.
func logOf(start record.Offset, epochs ...record.Epoch) *modelLog {
	l := &modelLog{base: start, start: start, synced: start}
	for i, e := range epochs {
		l.append(modelRecord{e, i})
	}
	return l
}

func TestJudge(t *testing.T) {
	grown := logOf(0, 1, 1, 1, 3, 3, 5) // 1: [0,3), 3: [3,5), 5: [5,…
	removed := logOf(0, 1, 1, 1, 3, 3, 5)
	removed.deleteBefore(4)
	emptyLed := &modelLog{}
	emptyLed.startEpoch(2, 0)
	ledOn := logOf(0, 1, 1)
	ledOn.startEpoch(4, 2) // a leadership without a record
	wiped := &modelLog{base: 4, start: 4}
	wiped.startEpoch(7, 4)
	ask := func(next record.Offset, last record.Epoch) FollowerSubscribe {
		return FollowerSubscribe{NextOffset: next, LastEpoch: last, HasLastEpoch: last >= 0}
	}
	const none = record.Epoch(-1)
	for name, c := range map[string]struct {
		log  *modelLog
		ask  FollowerSubscribe
		want SubscribeAnswer
	}{
		"the same":                               {grown, ask(6, 5), SubscribeAnswer{Kind: Accepted}},
		"shorter":                                {grown, ask(2, 1), SubscribeAnswer{Kind: Accepted}},
		"ends with an epoch":                     {grown, ask(3, 1), SubscribeAnswer{Kind: Accepted}},
		"never held a record":                    {grown, ask(0, none), SubscribeAnswer{Kind: Accepted}},
		"more of an old epoch":                   {grown, ask(5, 1), SubscribeAnswer{Kind: Diverging, Epoch: 1, End: 3}},
		"more of the latest epoch":               {grown, ask(9, 5), SubscribeAnswer{Kind: Diverging, Epoch: 5, End: 6}},
		"an epoch nobody else saw":               {grown, ask(5, 4), SubscribeAnswer{Kind: Diverging, Epoch: 3, End: 5}},
		"an epoch of the future":                 {grown, ask(6, 9), SubscribeAnswer{Kind: Diverging, Epoch: 5, End: 6}},
		"below the log start":                    {removed, ask(3, 1), SubscribeAnswer{Kind: Reset, LogStart: 4, Epoch: 3, HasEpoch: true}},
		"at the log start, agreeing":             {removed, ask(4, 3), SubscribeAnswer{Kind: Accepted, LogStart: 4}},
		"at the log start, of another history":   {removed, ask(4, 1), SubscribeAnswer{Kind: Reset, LogStart: 4, Epoch: 3, HasEpoch: true}},
		"at the log start, just emptied":         {removed, ask(4, none), SubscribeAnswer{Kind: Accepted, LogStart: 4}},
		"just emptied, elsewhere":                {removed, ask(5, none), SubscribeAnswer{Kind: Reset, LogStart: 4, Epoch: 3, HasEpoch: true}},
		"both empty":                             {emptyLed, ask(0, none), SubscribeAnswer{Kind: Accepted}},
		"the leader is empty":                    {emptyLed, ask(3, 1), SubscribeAnswer{Kind: Diverging, Epoch: 1, End: 0}},
		"a leadership without a record":          {ledOn, ask(3, 3), SubscribeAnswer{Kind: Diverging, Epoch: 1, End: 2}},
		"at the start of one that knows no past": {wiped, ask(4, 3), SubscribeAnswer{Kind: Accepted, LogStart: 4}},
	} {
		t.Run(name, func(t *testing.T) {
			if d := cmp.Diff(c.want, judge(c.ask, c.log)); d != "" {
				t.Error(d)
			}
		})
	}
}

// Whatever two logs look like, a few rounds of cutting make one the beginning of
// the other, and no record they share is cut.
func TestJudge_converges(t *testing.T) {
	for n := range 20_000 {
		w := newWorld(uint64(n), setup{min: 1}, mutation{})
		log := func(shared []modelRecord, from int) *modelLog {
			l := &modelLog{}
			for _, r := range shared {
				l.append(r)
			}
			for e := len(shared) + from; e < 12 && w.rng.IntN(3) > 0; e += 2 {
				for range w.rng.IntN(3) {
					l.append(modelRecord{record.Epoch(e), n*100 + from*50 + len(l.records)})
				}
			}
			return l
		}
		var shared []modelRecord
		for i := range w.rng.IntN(5) {
			shared = append(shared, modelRecord{record.Epoch(i), i})
		}
		leader, f := log(shared, 0), log(shared, 1) // even and odd epochs from there on: nothing in common
		leader.startEpoch(20, leader.End())
		c := &core{self: 2}
		c.stand(following, &metadata.Partition{Leader: 1, LeaderEpoch: 20}, 1)
		for round := int64(1); ; round++ {
			c.changed(f.Start(), f.progress())
			ask, ok := c.ask(round, f, false)
			if !ok || round > 30 {
				t.Fatalf("walk %d: no agreement after %d rounds", n, round)
			}
			a := judge(ask, leader)
			do, err := c.answered(round, a, f)
			if err != nil {
				t.Fatal(err)
			}
			if do.kind == noChange {
				break
			}
			if do.kind == empty {
				f.reset(do.to)
			} else {
				f.truncate(do.to)
			}
		}
		if int(f.End()) < len(shared) {
			t.Fatalf("walk %d: cut to %d, %d are shared", n, f.End(), len(shared))
		}
		for o := range f.End() {
			if r, _ := leader.at(o); r != f.records[o] {
				t.Fatalf("walk %d: agreed on %v and %v at %d", n, r, f.records[o], o)
			}
		}
	}
}

// ready3 is a leader of three replicas in epoch 2 of which 3 is not in the ISR.
func ready3(isr []metadata.BrokerID) *core {
	c := &core{self: 1, lag: lagClock{max: 10 * time.Second}}
	c.registered = func(id metadata.BrokerID) (int64, bool) { return int64(id) * 10, true }
	c.lead(&metadata.Partition{Leader: 1, LeaderEpoch: 2, PartitionEpoch: 5, Replicas: ids(1, 2, 3), ISR: isr, MinISR: 1}, 1, progress{}, t0)
	return c
}

func subscribed(t *testing.T, c *core, log history, id metadata.BrokerID, next record.Offset, last record.Epoch, now time.Time) {
	t.Helper()
	a, err := c.subscribe(FollowerSubscribe{
		Follower: id, BrokerEpoch: int64(id) * 10, Epoch: c.epoch, Subscription: 1, NextOffset: next, LastEpoch: last, HasLastEpoch: next > 0,
	}, log, now)
	if err != nil || a.Kind != Accepted {
		t.Fatalf("subscribe of %d: %+v, %v", id, a, err)
	}
}

func TestSubscribe_who(t *testing.T) {
	log := logOf(0)
	good := FollowerSubscribe{Follower: 2, BrokerEpoch: 20, Epoch: 2, Subscription: 7}
	for name, c := range map[string]struct {
		change func(*FollowerSubscribe, *core)
		kind   AnswerKind
		park   bool
	}{
		"all right":               {func(*FollowerSubscribe, *core) {}, Accepted, false},
		"an older leader epoch":   {func(s *FollowerSubscribe, _ *core) { s.Epoch = 1 }, Refused, false},
		"a newer leader epoch":    {func(s *FollowerSubscribe, _ *core) { s.Epoch = 3 }, 0, true},
		"an older registration":   {func(s *FollowerSubscribe, _ *core) { s.BrokerEpoch = 19 }, Refused, false},
		"a newer registration":    {func(s *FollowerSubscribe, _ *core) { s.BrokerEpoch = 21 }, 0, true},
		"no replica":              {func(s *FollowerSubscribe, _ *core) { s.Follower, s.BrokerEpoch = 4, 40 }, Refused, false},
		"an older subscription":   {func(_ *FollowerSubscribe, c *core) { c.followers[2] = &follower{subscription: 8, brokerEpoch: 20} }, Refused, false},
		"of an older incarnation": {func(_ *FollowerSubscribe, c *core) { c.followers[2] = &follower{subscription: 8, brokerEpoch: 10} }, Accepted, false},
		"nobody leads yet": {func(_ *FollowerSubscribe, c *core) {
			c.stand(idle, &metadata.Partition{Leader: 1, LeaderEpoch: 2}, 1)
		}, 0, true},
		"another leads": {func(_ *FollowerSubscribe, c *core) {
			c.stand(following, &metadata.Partition{Leader: 3, LeaderEpoch: 2}, 1)
		}, Refused, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, co := good, ready3(ids(1, 2))
			c.change(&s, co)
			a, err := co.subscribe(s, log, t0)
			if a.Kind != c.kind || errors.Is(err, ErrPark) != c.park {
				t.Errorf("%+v, %v", a, err)
			}
		})
	}
}

func TestAck_ofWhat(t *testing.T) {
	good := FollowerAck{Follower: 2, BrokerEpoch: 20, Epoch: 2, Subscription: 1, Written: 5, Durable: 4}
	for name, c := range map[string]struct {
		change func(*FollowerAck, *core)
		want   bool
	}{
		"all right":            {func(*FollowerAck, *core) {}, true},
		"another subscription": {func(a *FollowerAck, _ *core) { a.Subscription = 2 }, false},
		"another epoch":        {func(a *FollowerAck, _ *core) { a.Epoch = 1 }, false},
		"another registration": {func(a *FollowerAck, _ *core) { a.BrokerEpoch = 19 }, false},
		"registered anew since": {func(_ *FollowerAck, c *core) {
			c.registered = func(metadata.BrokerID) (int64, bool) { return 21, true }
		}, false},
		"the subscription ended": {func(_ *FollowerAck, c *core) { c.gone(2, 1, t0) }, false},
		"leads no more":          {func(_ *FollowerAck, c *core) { c.stand(idle, &metadata.Partition{LeaderEpoch: 2}, 1) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			co, a := ready3(ids(1, 2)), good
			subscribed(t, co, logOf(0), 2, 0, 0, t0)
			co.appended(9, t0)
			c.change(&a, co)
			if got := co.ack(a, t0); got != c.want || (co.hw == 5) != c.want {
				t.Errorf("taken %v, high watermark %d", got, co.hw)
			}
		})
	}
	co := ready3(ids(1, 2))
	subscribed(t, co, logOf(0), 2, 0, 0, t0)
	co.appended(3, t0)
	co.ack(FollowerAck{Follower: 2, BrokerEpoch: 20, Epoch: 2, Subscription: 1, Written: 7, Durable: 9}, t0)
	if got := co.followers[2].progress; got != (progress{3, 3}) {
		t.Errorf("more than the leader has: %+v", got)
	}
}

// An ack counts only as long as who gave it is registered as that.
func TestAck_outlivedByIncarnation(t *testing.T) {
	c := ready3(ids(1, 2, 3))
	subscribed(t, c, logOf(0), 2, 0, 0, t0)
	subscribed(t, c, logOf(0), 3, 0, 0, t0)
	c.appended(9, t0)
	c.ack(FollowerAck{Follower: 2, BrokerEpoch: 20, Epoch: 2, Subscription: 1, Written: 9}, t0)
	c.registered = func(id metadata.BrokerID) (int64, bool) { return int64(id)*10 + int64(id%2^1), true } // 2 is another now
	c.ack(FollowerAck{Follower: 3, BrokerEpoch: 30, Epoch: 2, Subscription: 1, Written: 9}, t0)
	wantHW(t, c, 0, "an ack of a broker that has restarted since")
}

func TestConfirmed(t *testing.T) {
	const timeout = 3 * time.Second
	link := map[metadata.BrokerID]time.Time{}
	confirmed := func(c *core, at time.Duration) bool {
		return c.confirmed(t0.Add(at-timeout), func(id metadata.BrokerID) time.Time { return link[id] })
	}
	c := ready3(ids(1, 2))
	subscribed(t, c, logOf(0), 2, 0, 0, t0)
	if confirmed(c, 0) {
		t.Error("confirmed without an ack in this epoch")
	}
	link[2] = t0
	if confirmed(c, 0) {
		t.Error("confirmed by a heartbeat without an ack in this epoch")
	}
	c.ack(FollowerAck{Follower: 2, BrokerEpoch: 20, Epoch: 2, Subscription: 1}, t0.Add(2*time.Second))
	if !confirmed(c, timeout-1) || confirmed(c, timeout) {
		t.Error("counted from when the follower was answered, not from when its ack came")
	}
	link[2] = t0.Add(4 * time.Second)
	if !confirmed(c, 6*time.Second) || confirmed(c, 7*time.Second) {
		t.Error("a heartbeat confirms for a session timeout from its sending")
	}
	c.elr = ids(3)
	if confirmed(c, 4*time.Second) {
		t.Error("confirmed without a member of the ELR")
	}
	c.elr = nil
	c.gone(2, 1, t0)
	if confirmed(c, 4*time.Second) {
		t.Error("confirmed by who gave its subscription up")
	}
	c.stand(idle, &metadata.Partition{LeaderEpoch: 3}, 1)
	if confirmed(c, 4*time.Second) {
		t.Error("confirmed without leading")
	}
}

func TestDeletedBelow(t *testing.T) {
	c := ready3(ids(1, 2))
	subscribed(t, c, logOf(0), 2, 0, 0, t0)
	subscribed(t, c, logOf(0), 3, 0, 0, t0)
	c.appended(9, t0)
	ack := FollowerAck{Follower: 2, BrokerEpoch: 20, Epoch: 2, Subscription: 1, Written: 9}
	c.ack(ack, t0)
	c.cut(5)
	if c.deletedBelow(5) {
		t.Error("before the other member said so")
	}
	ack.LogStart = 4
	c.ack(ack, t0)
	if c.deletedBelow(5) || !c.deletedBelow(4) {
		t.Error("by a member that is at 4")
	}
	ack.LogStart = 5
	c.ack(ack, t0)
	if !c.deletedBelow(5) || c.deletedBelow(6) {
		t.Error("all of the ISR are at 5; who is not of it does not matter")
	}
	// Who may be elected does.
	c.elr = ids(3)
	if c.deletedBelow(5) {
		t.Error("a member of the ELR is at 0")
	}
	c.elr = nil
	third := FollowerAck{Follower: 3, BrokerEpoch: 30, Epoch: 2, Subscription: 1, Written: 9}
	c.ack(third, t0)
	if c.ready(3) {
		t.Error("who has what was deleted may not join")
	}
	third.LogStart = 5
	c.ack(third, t0)
	if !c.ready(3) {
		t.Error("who has all, and nothing that was deleted, may join")
	}
	if _, ok := c.propose(func() uint64 { return 1 }, false, t0); !ok {
		t.Fatal("no proposal")
	}
	c.cut(6)
	ack.LogStart = 6
	c.ack(ack, t0)
	if c.deletedBelow(6) {
		t.Error("a member that was proposed is at 5")
	}
}
