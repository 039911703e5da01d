package partition

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/internal/record"
)

func ids(in ...int) []metadata.BrokerID {
	out := make([]metadata.BrokerID, len(in))
	for i, n := range in {
		out[i] = metadata.BrokerID(n)
	}
	return out
}

func led(isr []metadata.BrokerID, minISR int, sync bool) *core {
	c := &core{self: 1, lag: lagClock{max: 10 * time.Second}}
	c.lead(&metadata.Partition{Leader: 1, LeaderEpoch: 1, PartitionEpoch: 1, Replicas: ids(1, 2, 3, 4), ISR: isr, MinISR: minISR, Sync: sync}, 1, progress{}, t0)
	return c
}

// t0 is when tests of the core begin.
var t0 = time.UnixMilli(1_700_000_000_000)

// says acknowledges as a follower that subscribed at the log start.
func says(c *core, id metadata.BrokerID, epoch record.Epoch, p progress) bool {
	if c.role != leading {
		return false
	}
	if c.followers[id] == nil {
		c.followers[id] = &follower{subscription: 1, subscribed: true, credit: true, accepted: t0, chargedTo: t0}
	}
	return c.ack(FollowerAck{Follower: id, Epoch: epoch, Subscription: 1, Written: p.written, Durable: p.durable}, t0)
}

// asks makes a proposal as if its conditions held.
func asks(c *core, isr []metadata.BrokerID) {
	c.proposals = append(c.proposals, proposal{isr: isr, base: c.partitionEpoch, session: c.session, number: uint64(len(c.proposals) + 1)})
}

func wantHW(t *testing.T, c *core, want record.Offset, after string) {
	t.Helper()
	if c.hw != want {
		t.Errorf("after %s: high watermark %d, want %d", after, c.hw, want)
	}
}

func TestCommit_alone(t *testing.T) {
	c := led(ids(1), 1, false)
	c.appended(5, t0)
	wantHW(t, c, 5, "an append that counts when written")
	c = led(ids(1), 1, true)
	c.appended(5, t0)
	wantHW(t, c, 0, "an append that counts when durable")
	c.synced(3)
	wantHW(t, c, 3, "a sync of a part")
	c.synced(5)
	wantHW(t, c, 5, "a sync of all")
}

func TestCommit_everyMemberHoldsBack(t *testing.T) {
	c := led(ids(1, 2, 3), 2, false)
	c.appended(10, t0)
	says(c, 2, 1, progress{written: 7})
	wantHW(t, c, 0, "one of two acks")
	says(c, 3, 1, progress{written: 4})
	wantHW(t, c, 4, "both")
	says(c, 3, 1, progress{written: 2}) // a late, older one
	says(c, 2, 0, progress{written: 10})
	says(c, 3, 0, progress{written: 10}) // of another epoch
	wantHW(t, c, 4, "acks that say nothing new")
	if c.ack(FollowerAck{Follower: 9, Epoch: 1, Subscription: 1, Written: 10}, t0) || c.ack(FollowerAck{Follower: 2, Epoch: 1, Subscription: 2, Written: 10}, t0) {
		t.Error("took the ack of nobody's subscription")
	}
}

// What is proposed must be held, and is not yet to be counted on.
func TestCommit_proposals(t *testing.T) {
	c := led(ids(1, 2), 2, false)
	c.appended(10, t0)
	says(c, 2, 1, progress{written: 10})
	wantHW(t, c, 10, "the ack")
	asks(c, ids(1, 2, 3))
	c.appended(20, t0)
	says(c, 2, 1, progress{written: 20})
	wantHW(t, c, 10, "a proposed member has not acked")
	asks(c, ids(1, 2)) // another proposal; the first one's outcome is as unknown
	wantHW(t, c, 10, "a newer proposal does not undo an older one")
	says(c, 3, 1, progress{written: 15})
	wantHW(t, c, 15, "it has")
	c.resolve(&metadata.Partition{PartitionEpoch: c.partitionEpoch + 1, ISR: ids(1, 2), MinISR: 2}, 1)
	wantHW(t, c, 20, "the controller said no")
	// A proposed member does not make up for a committed one that is missing.
	c = led(ids(1), 2, false)
	asks(c, ids(1, 2))
	c.appended(5, t0)
	says(c, 2, 1, progress{written: 5})
	wantHW(t, c, 0, "min ISR met by the proposal only")
	if c.enough() {
		t.Error("takes writes")
	}
	c.resolve(&metadata.Partition{PartitionEpoch: c.partitionEpoch + 1, ISR: ids(1, 2), MinISR: 2}, 1)
	wantHW(t, c, 5, "the controller said yes")
}

func TestCommit_newEpochForgetsAcks(t *testing.T) {
	c := led(ids(1, 2), 1, false)
	c.appended(10, t0)
	says(c, 2, 1, progress{written: 10})
	c.stand(following, &metadata.Partition{Leader: 2, LeaderEpoch: 2}, 1)
	c.lead(&metadata.Partition{LeaderEpoch: 3, PartitionEpoch: 3, ISR: ids(1, 2), MinISR: 1}, 1, progress{written: 12}, t0)
	if c.settled() {
		t.Error("knows what is committed before anybody acked in its epoch")
	}
	c.appended(20, t0)
	wantHW(t, c, 10, "an ack of an earlier epoch")
	says(c, 2, 3, progress{written: 11})
	wantHW(t, c, 11, "an ack of this one")
	if c.settled() {
		t.Error("settled below where the epoch began")
	}
	says(c, 2, 3, progress{written: 12})
	if !c.settled() {
		t.Error("not settled where the epoch began")
	}
	c.resolve(&metadata.Partition{PartitionEpoch: 4, ISR: ids(1, 2, 3), MinISR: 1}, 1) // 3 holds it back
	says(c, 2, 3, progress{written: 20})
	c.lead(&metadata.Partition{LeaderEpoch: 4, PartitionEpoch: 5, ISR: ids(1, 2), MinISR: 1}, 1, progress{written: 20}, t0)
	c.appended(30, t0)
	wantHW(t, c, 12, "leading again at once: the acks are of the epoch before")
}

func TestCommit_whoDoesNotLead(t *testing.T) {
	c := led(ids(1), 1, false)
	c.stand(idle, &metadata.Partition{Leader: metadata.NoBroker, LeaderEpoch: 2}, 1)
	c.appended(5, t0)
	wantHW(t, c, 0, "an append of nobody's")
	// In an ISR without itself a leader must not commit.
	c = led(ids(2), 1, false)
	c.appended(5, t0)
	wantHW(t, c, 0, "an append outside the ISR")
}

func TestConfirmed_alone(t *testing.T) {
	none := func(metadata.BrokerID) time.Time { return time.Time{} }
	alone := func(c *core, elr []metadata.BrokerID) bool {
		c.elr = elr
		return c.confirmed(t0.Add(-time.Second), none)
	}
	c := led(ids(1), 1, false)
	if !alone(c, nil) || !alone(c, ids(1)) || alone(c, ids(2)) {
		t.Error("alone by ISR and ELR")
	}
	asks(c, ids(1, 3))
	if alone(c, nil) {
		t.Error("a proposed member can be elected")
	}
}

// Whatever happens, the high watermark never falls while leading, and what it
// covers is held by every member that could be elected and by enough of them.
func TestCommit_property(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := led(ids(1, 2), rapid.IntRange(1, 3).Draw(t, "min"), rapid.Bool().Draw(t, "sync"))
		var end record.Offset
		held := map[metadata.BrokerID]progress{} // the truth
		isr := rapid.Custom(func(t *rapid.T) []metadata.BrokerID {
			set := rapid.SliceOfNDistinct(rapid.SampledFrom(ids(2, 3, 4)), 0, 3, rapid.ID).Draw(t, "others")
			return append(ids(1), set...)
		})
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			before := c.hw
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0:
				end += record.Offset(rapid.Int64Range(1, 5).Draw(t, "n"))
				held[1] = progress{end, held[1].durable}
				c.appended(end, t0)
			case 1:
				d := record.Offset(rapid.Int64Range(0, int64(end)).Draw(t, "d"))
				held[1] = progress{end, max(held[1].durable, d)}
				c.synced(d)
			case 2:
				id := rapid.SampledFrom(ids(2, 3, 4)).Draw(t, "id")
				w := record.Offset(rapid.Int64Range(0, int64(end)).Draw(t, "w"))
				d := record.Offset(rapid.Int64Range(0, int64(w)).Draw(t, "d"))
				epoch := record.Epoch(rapid.Int64Range(0, 1).Draw(t, "epoch"))
				if epoch == 1 {
					held[id] = progress{max(held[id].written, w), max(held[id].durable, d)}
				}
				says(c, id, epoch, progress{w, d})
			case 3:
				asks(c, isr.Draw(t, "proposal"))
			default:
				c.resolve(&metadata.Partition{PartitionEpoch: c.partitionEpoch + 1, ISR: isr.Draw(t, "isr"), MinISR: c.minISR, Sync: c.sync}, 1)
			}
			if c.hw < before {
				t.Fatalf("fell from %d to %d", before, c.hw)
			}
			if c.hw == before {
				continue
			}
			if len(c.committed) < c.minISR {
				t.Fatalf("moved to %d with the ISR %v, below %d", c.hw, c.committed, c.minISR)
			}
			for _, id := range slices.Concat(c.maximal()...) {
				has := held[id].written
				if c.sync {
					has = held[id].durable
				}
				if has < c.hw {
					t.Fatalf("moved to %d, and broker %d has %d", c.hw, id, has)
				}
			}
		}
	})
}
