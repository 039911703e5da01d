package partition

import (
	"maps"
	"slices"
	"testing"

	"github.com/runnelmq/runnel/broker/metadata"
)

// expand proposes the committed ISR with every replica that ok takes.
func expand(ok func(c *core, id metadata.BrokerID, f *follower) bool) func(*modelBroker) (proposal, bool) {
	return func(b *modelBroker) (proposal, bool) {
		c := &b.core
		if c.role != leading || len(c.proposals) > 0 || !slices.Contains(c.committed, c.self) {
			return proposal{}, false
		}
		isr := slices.Clone(c.committed)
		for _, id := range c.replicas {
			f := c.followers[id]
			if id != c.self && !slices.Contains(isr, id) && f != nil && f.subscribed && ok(c, id, f) {
				isr = append(isr, id)
			}
		}
		if len(isr) == len(c.committed) {
			return shrink(b)
		}
		return proposal{isr: isr}, true
	}
}

// shrink proposes to leave some other member out.
func shrink(b *modelBroker) (proposal, bool) {
	c := &b.core
	if c.role != leading || len(c.committed) < 2 || b.w.rng.IntN(2) == 0 {
		return proposal{}, false
	}
	i := b.w.rng.IntN(len(c.committed))
	if c.committed[i] == c.self {
		return proposal{}, false
	}
	return proposal{isr: slices.Delete(slices.Clone(c.committed), i, i+1)}, true
}

// again proposes while other proposals are outstanding.
func again(b *modelBroker) (proposal, bool) {
	c := &b.core
	if c.role != leading || !slices.Contains(c.committed, c.self) {
		return proposal{}, false
	}
	for _, id := range c.replicas {
		if id != c.self && !slices.Contains(c.committed, id) && c.ready(id) && b.w.rng.IntN(2) == 0 {
			return proposal{isr: append(slices.Clone(c.committed), id)}, true
		}
	}
	return shrink(b)
}

// mutations take one rule each away. The numbers are those of the catalogue of
// mutations where it has one.
func mutations() []mutation {
	has := func(c *core, f *follower) bool { return f.acked && c.counted(f.progress) >= c.hw }
	return []mutation{
		{name: "a member joins that has not acknowledged (4)", propose: expand(func(*core, metadata.BrokerID, *follower) bool { return true })},
		{name: "a member joins below the high watermark (5)", propose: expand(func(c *core, _ metadata.BrokerID, f *follower) bool {
			return f.acked && c.hw >= c.leso
		})},
		{name: "a member joins below where the epoch began (6)", propose: expand(func(c *core, _ metadata.BrokerID, f *follower) bool {
			return has(c, f)
		})},
		{name: "a subscription outlives its leader epoch (2)", keepSub: true},
		{name: "acks outlive their leader epoch (3)", core: func(b *modelBroker) {
			if b.core.role == leading {
				b.stash = maps.Clone(b.core.followers)
			}
		}, lead: func(b *modelBroker) {
			for id, f := range b.stash {
				old := *f
				old.subscribed = false
				b.core.followers[id] = &old
			}
		}},
		{name: "neither place nor subscription of a frame is compared (7)", frame: func(b *modelBroker, d *Data) {
			if b.core.role == following {
				d.Epoch, d.Subscription = b.core.epoch, b.core.follow.subscription
			}
			d.Start, d.Next, d.HasPrevEpoch, d.PrevEpoch = b.log.End(), b.log.End()+d.Next-d.Start, true, b.log.EpochAt(b.log.End()-1)
		}},
		{name: "frames name no epoch and no subscription (8)", frame: func(b *modelBroker, d *Data) {
			if b.core.role == following {
				d.Epoch, d.Subscription = b.core.epoch, b.core.follow.subscription
				d.HasPrevEpoch, d.PrevEpoch = true, b.log.EpochAt(b.log.End()-1)
			}
		}, setup: setup{min: 2, moves: true}},
		{name: "acks name no epoch and no subscription (12)", ack: func(l *modelBroker, a *FollowerAck) {
			if f := l.core.followers[a.Follower]; f != nil && f.subscribed {
				a.Epoch, a.Subscription, a.BrokerEpoch = l.core.epoch, f.subscription, f.brokerEpoch
			}
		}, ackEverywhere: true, setup: setup{min: 2, moves: true}},
		{name: "a proposed member's registration is not compared (9)", anyMemberEpoch: true, setup: setup{min: 2, lossy: 6, slow: true, restless: true}},
		{name: "the partition epoch is not compared (10)", anyPartitionEpoch: true, setup: setup{min: 1, slow: true, fences: true}},
		{name: "the minimum is taken of the maximal ISR (11)", core: func(b *modelBroker) {
			all := map[metadata.BrokerID]bool{}
			for _, set := range b.core.maximal() {
				for _, id := range set {
					all[id] = true
				}
			}
			if b.core.minISR = b.seen.part.MinISR; len(all) >= b.core.minISR {
				b.core.minISR = 0
			}
		}},
		{name: "another minimum keeps the ELR (13)", keepELR: true, setup: setup{min: 2, changeMin: true}},
		{name: "in service before its fence is done (14)", unfenceEarly: true, setup: setup{min: 2, lossy: 1}},
		{name: "only the newest proposal counts (15)", propose: again, core: func(b *modelBroker) {
			if n := len(b.core.proposals); n > 1 {
				b.core.proposals = b.core.proposals[n-1:]
			}
		}},
		{name: "a proposal without an answer is given up", core: func(b *modelBroker) {
			if b.w.rng.IntN(10) == 0 {
				b.core.proposals = nil
			}
		}},
		{name: "who is to leave is not waited for", core: func(b *modelBroker) {
			for _, p := range b.core.proposals {
				b.core.committed = slices.DeleteFunc(slices.Clone(b.core.committed), func(id metadata.BrokerID) bool { return !slices.Contains(p.isr, id) })
			}
		}, setup: setup{min: 1}},
		{name: "a snapshot leaves older proposals under way", lateProposals: true, setup: setup{min: 1, slow: true, sessions: true}},
		{name: "no ack of an accepted subscription (16)", noInitialAck: true},
		{name: "no progress without data (17)", noProgress: true},
		{name: "the end is told before it is known (20)", lead: func(b *modelBroker) { b.core.leso = 0 }},
		{name: "what is written counts for what is durable", core: func(b *modelBroker) { b.core.sync = false }, setup: setup{min: 2, sync: true, lossy: 5}},
	}
}

// Every rule is needed: without it the model test fails.
func TestModel_bites(t *testing.T) {
	const enough = 20_000
	for _, m := range mutations() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			s := m.setup
			if s.min == 0 {
				s.min = 2
			}
			for seed := range uint64(enough) {
				if err := walk(seed, s, m); err != nil {
					t.Logf("found in walk %d", seed)
					return
				}
			}
			t.Errorf("not found in %d walks", enough)
		})
	}
}

// Any number of outstanding proposals is safe while all of them count.
func TestModel_manyProposals(t *testing.T) {
	for seed := range walks(t, 500) {
		if err := walk(seed, setup{min: 2}, mutation{propose: again}); err != nil {
			t.Fatal(err)
		}
	}
}
