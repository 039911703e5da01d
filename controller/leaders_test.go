package controller_test

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/controller/store"
	"github.com/runnelmq/runnel/controller/store/storetest"
)

// propose has a broker propose in-sync replicas for a partition as it sees it.
func (b *broker) propose(number uint64, topic string, n int32, isr ...int32) {
	p := b.partition(topic, n)
	b.proposeAt(number, p, p.GetPartitionEpoch(), isr...)
}

func (b *broker) proposeAt(number uint64, p *controllerv1.PartitionRecord, partitionEpoch int64, isr ...int32) {
	m := &controllerv1.IsrProposal{
		TopicId: p.GetTopicId(), Partition: p.GetPartition(), LeaderEpoch: p.GetLeaderEpoch(), PartitionEpoch: partitionEpoch, Number: number,
	}
	b.mu.Lock()
	for _, id := range isr {
		m.Isr = append(m.Isr, &controllerv1.IsrMember{BrokerId: id, BrokerEpoch: b.brokers[id].GetBrokerEpoch()})
	}
	b.mu.Unlock()
	b.out <- &controllerv1.SessionRequest{Event: &controllerv1.SessionRequest_Proposals{Proposals: &controllerv1.IsrProposals{Proposals: []*controllerv1.IsrProposal{m}}}}
}

func (b *broker) awaitISR(topic string, n int32, isr ...int32) {
	b.w.t.Helper()
	b.until("the ISR", func() bool { return slices.Equal(b.partitions[partitionName(topic, n)].GetIsr(), isr) })
}

// three runs a test with three brokers and a partition that has them as replicas, in the order of preference.
func three(t *testing.T, test func(w *world, c controllerv1.ControllerServiceClient, b []*broker, topic string)) {
	t.Helper()
	inCluster(t, 3, func(w *world, c controllerv1.ControllerServiceClient, b []*broker) {
		topic := mustCreate(w.t, c, &runnelv1.NewTopic{Name: "t", ReplicationFactor: new(int32(3))}).GetTopicId()
		var order []*broker
		for _, id := range b[0].partition(topic, 0).GetReplicas() {
			order = append(order, b[id-1])
		}
		test(w, c, order, topic)
	})
}

func (b *broker) id() int32 { return b.register.GetBroker().GetBrokerId() }

func TestProposal_is_answered_by_the_change(t *testing.T) {
	three(t, func(w *world, _ controllerv1.ControllerServiceClient, b []*broker, topic string) {
		t := w.t
		lead, x, y := b[0], b[1].id(), b[2].id()
		before := lead.partition(topic, 0)
		lead.propose(1, topic, 0, lead.id(), x)
		lead.awaitISR(topic, 0, lead.id(), x)
		lead.propose(2, topic, 0, lead.id())
		lead.awaitISR(topic, 0, lead.id())
		if p := lead.partition(topic, 0); !slices.Equal(p.GetElr(), []int32{x}) || p.GetLeaderEpoch() != before.GetLeaderEpoch() || p.GetPartitionEpoch() != before.GetPartitionEpoch()+2 {
			t.Errorf("after leaving one by one: %v", p)
		}
		lead.propose(3, topic, 0, lead.id(), x, y)
		lead.awaitISR(topic, 0, lead.id(), x, y)
		if len(lead.rejected) > 0 {
			t.Errorf("rejected: %v", <-lead.rejected)
		}
		// A definite no has a reason and the epoch that stands.
		now := lead.partition(topic, 0)
		lead.proposeAt(4, now, before.GetPartitionEpoch(), lead.id())
		if r := <-lead.rejected; r.GetNumber() != 4 || r.GetPartitionEpoch() != now.GetPartitionEpoch() || r.GetReason() == "" || r.GetTopicId() != topic {
			t.Errorf("rejection %v", r)
		}
		b[1].propose(5, topic, 0, x)
		if r := <-b[1].rejected; r.GetNumber() != 5 {
			t.Errorf("rejection %v", r)
		}
		// What a controller cannot know is not answered.
		lead.proposeAt(6, now, now.GetPartitionEpoch()+1, lead.id())
		time.Sleep(time.Second)
		if len(lead.rejected) > 0 || !slices.Equal(lead.partition(topic, 0).GetIsr(), now.GetIsr()) {
			t.Errorf("a proposal from the future: %d rejections, %v", len(lead.rejected), lead.partition(topic, 0))
		}
	})
}

// Many proposals in one message are carried out in few transactions; of two for one partition the second comes too late.
func TestProposals_come_in_bulk(t *testing.T) {
	inCluster(t, 2, func(w *world, c controllerv1.ControllerServiceClient, b []*broker) {
		t := w.t
		topic := mustCreate(t, c, &runnelv1.NewTopic{Name: "t", Partitions: new(int32(600)), ReplicationFactor: new(int32(2))}).GetTopicId()
		msg := &controllerv1.IsrProposals{}
		led := map[string]bool{}
		for range 2 {
			for n := range int32(600) {
				if p := b[0].partition(topic, n); p.GetLeader() == 1 {
					led[partitionName(topic, n)] = true
					msg.Proposals = append(msg.Proposals, &controllerv1.IsrProposal{
						TopicId: topic, Partition: n, LeaderEpoch: 1, PartitionEpoch: 1, Number: uint64(len(msg.GetProposals())), Isr: []*controllerv1.IsrMember{{BrokerId: 1, BrokerEpoch: b[0].epoch}},
					})
				}
			}
		}
		txns := 0
		w.kv.Inject(func([]store.Write) storetest.Fault { txns++; return storetest.FaultNone })
		b[0].out <- &controllerv1.SessionRequest{Event: &controllerv1.SessionRequest_Proposals{Proposals: msg}}
		synctest.Wait()
		for name := range led {
			if p := b[1].partitions[name]; !slices.Equal(p.GetIsr(), []int32{1}) || !slices.Equal(p.GetElr(), nil) && p.GetMinIsr() < 2 {
				t.Fatalf("%s: %v", name, p)
			}
		}
		if len(b[0].rejected) != len(led) || txns > 3 {
			t.Errorf("%d partitions: %d rejections, %d transactions", len(led), len(b[0].rejected), txns)
		}
	})
}

// What brokers ask for while the store stands still waits, and holds up no heartbeat: who was heard is not fenced.
func TestSlowStore_fences_nobody(t *testing.T) {
	inCluster(t, 3, func(w *world, c controllerv1.ControllerServiceClient, b []*broker) {
		t := w.t
		topic := mustCreate(t, c, &runnelv1.NewTopic{Name: "t", Partitions: new(int32(3)), ReplicationFactor: new(int32(3))}).GetTopicId()
		n := int32(slices.IndexFunc([]int32{0, 1, 2}, func(n int32) bool { return b[0].partition(topic, n).GetLeader() == 1 })) //nolint:gosec // 0 to 2
		stuck := make(chan struct{})
		w.kv.Hook(func() { <-stuck })
		b[0].propose(1, topic, n, 1, 2)
		p := b[0].partition(topic, n)
		for range 200 {
			b[0].out <- &controllerv1.SessionRequest{Event: &controllerv1.SessionRequest_Leadership{Leadership: &controllerv1.LeadershipRequest{
				TopicId: p.GetTopicId(), Partition: p.GetPartition(), LeaderEpoch: p.GetLeaderEpoch() - 1,
			}}}
		}
		time.Sleep(time.Second)
		was := uint64(0)
		b[0].locked(func() { was = b[0].answered })
		time.Sleep(4 * time.Second) // longer than its session timeout
		b[0].locked(func() {
			if b[0].answered < was+7 {
				t.Errorf("%d heartbeats answered, and %d four seconds before", b[0].answered, was)
			}
		})
		w.kv.Hook(nil)
		close(stuck)
		b[0].awaitISR(topic, n, 1, 2)
		time.Sleep(time.Second)
		if got := b[1].phase(1); got != inService {
			t.Errorf("broker 1 is %v", got)
		}
	})
}

// A proposal whose transaction may still be made is resolved before the snapshot of the leader's next session is cut: what the
// snapshot says stays true.
func TestUncertainProposal_is_resolved_before_the_next_snapshot(t *testing.T) {
	for name, fault := range map[string]storetest.Fault{"made": storetest.FaultAfter, "never made": storetest.FaultBefore, "made later": storetest.FaultDelayed} {
		t.Run(name, func(t *testing.T) {
			three(t, func(w *world, _ controllerv1.ControllerServiceClient, b []*broker, topic string) {
				t := w.t
				lead := b[0]
				before := lead.partition(topic, 0)
				var cut atomic.Bool
				cut.Store(true)
				w.kv.Inject(func([]store.Write) storetest.Fault {
					if cut.Load() {
						return fault
					}
					return storetest.FaultNone
				})
				if fault == storetest.FaultAfter {
					// The answer is lost, and nothing can be read until the controller gives up.
					w.kv.SetReadsDown(true)
				}
				lead.propose(1, topic, 0, lead.id(), b[1].id())
				wantReason(t, "the session", lead.failure(), runnelv1.ErrorReason_ERROR_REASON_STALE_BROKER_EPOCH)
				lead.conn.Close()
				cut.Store(false)
				w.kv.SetReadsDown(false)
				lead.join(addr1)
				lead.until("the snapshot", func() bool { return lead.revision > 0 })
				seen := lead.partition(topic, 0)
				w.kv.Release() // the transaction that was on its way arrives
				time.Sleep(2 * time.Second)
				if p := lead.partition(topic, 0); p.GetPartitionEpoch() != seen.GetPartitionEpoch() || !slices.Equal(p.GetIsr(), seen.GetIsr()) {
					t.Errorf("the snapshot showed %v, and then came %v", seen, p)
				}
				if made := !slices.Equal(seen.GetIsr(), before.GetIsr()); made != (fault == storetest.FaultAfter) {
					t.Errorf("made: %v; %v", made, seen)
				}
			})
		})
	}
}

// A proposal that waits in line when its broker registers anew is dropped: the snapshot would not show it.
func TestProposal_of_an_earlier_session_is_dropped(t *testing.T) {
	three(t, func(w *world, c controllerv1.ControllerServiceClient, b []*broker, topic string) {
		t := w.t
		lead := b[0]
		hold := make(chan struct{})
		held := false
		w.kv.Hook(func() {
			if !held {
				held = true
				<-hold
			}
		})
		var busy sync.WaitGroup
		busy.Go(func() { mustCreate(t, c, &runnelv1.NewTopic{Name: "busy"}) }) // this keeps the loop
		synctest.Wait()
		// The second session of the same process.
		second := w.newBroker(lead.id())
		second.register = lead.register
		second.join(addr1)
		synctest.Wait()
		lead.propose(1, topic, 0, lead.id(), b[2].id())
		synctest.Wait()
		close(hold)
		busy.Wait()
		second.until("the snapshot", func() bool { return second.revision > 0 })
		time.Sleep(time.Second)
		synctest.Wait()
		for _, d := range second.deltas {
			for _, o := range d.GetObjects() {
				if o.GetPartition().GetTopicId() == topic {
					t.Errorf("after the snapshot came %v", o)
				}
			}
		}
		lead.failure()
		lead.leave()
		second.leave()
		b[0] = second
	})
}

func TestShutdown_waits_for_the_leader_to_release(t *testing.T) {
	for name, tt := range map[string]struct {
		stubborn int
		deaf     bool
		lo, hi   time.Duration
		asked    int
	}{
		"at once":           {0, false, 0, 150 * time.Millisecond, 1},
		"after two delays":  {2, false, 500 * time.Millisecond, 900 * time.Millisecond, 3},
		"never, so unasked": {-1, false, 1400 * time.Millisecond, 2 * time.Second, 5},
		"no answer":         {0, true, 1400 * time.Millisecond, 2 * time.Second, 1},
	} {
		t.Run(name, func(t *testing.T) {
			three(t, func(w *world, _ controllerv1.ControllerServiceClient, b []*broker, topic string) {
				t := w.t
				lead, other := b[0], b[1]
				lead.locked(func() { lead.stubborn, lead.deaf = tt.stubborn, tt.deaf })
				start := time.Now()
				lead.out <- &controllerv1.SessionRequest{Event: &controllerv1.SessionRequest_ShuttingDown{ShuttingDown: &controllerv1.ShuttingDown{}}}
				<-lead.drain
				if took := time.Since(start); took < tt.lo || took > tt.hi {
					t.Errorf("it took %v", took)
				}
				synctest.Wait()
				p := other.partition(topic, 0)
				if p.GetLeader() != other.id() || slices.Contains(p.GetIsr(), lead.id()) || p.GetLeaderEpoch() != 2 || len(lead.handOvers) < tt.asked {
					t.Errorf("asked %d times: %v", len(lead.handOvers), p)
				}
				if h := <-lead.handOvers; h.GetTo() != other.id() || h.GetLeaderEpoch() != 1 || h.GetTopicId() != topic {
					t.Errorf("asked %v", h)
				}
			})
		})
	}
}

func TestPreferredLeader_gets_it_back_when_all_was_well_for_a_while(t *testing.T) {
	three(t, func(w *world, _ controllerv1.ControllerServiceClient, b []*broker, topic string) {
		t := w.t
		preferred, other := b[0], b[1]
		all := []int32{preferred.id(), other.id(), b[2].id()}
		preferred.out <- &controllerv1.SessionRequest{Event: &controllerv1.SessionRequest_ShuttingDown{ShuttingDown: &controllerv1.ShuttingDown{}}}
		<-preferred.drain
		preferred.leave()
		back := preferred.restarted().serve(addr1)
		b[0] = back
		defer back.leave()
		other.until("its registration", func() bool { return other.brokers[back.id()].GetBrokerEpoch() == back.epoch })
		time.Sleep(2 * time.Minute)
		if p := other.partition(topic, 0); p.GetLeader() != other.id() {
			t.Fatalf("it was not in sync: %v", p)
		}
		other.propose(1, topic, 0, all[:2]...)
		other.awaitISR(topic, 0, all[:2]...)
		time.Sleep(2 * time.Minute)
		if p := other.partition(topic, 0); p.GetLeader() != other.id() {
			t.Fatalf("another one was not in sync: %v", p)
		}
		other.propose(2, topic, 0, all...)
		other.awaitISR(topic, 0, all...)
		time.Sleep(40 * time.Second)
		other.propose(3, topic, 0, all[:2]...) // out and in again, between two looks
		other.awaitISR(topic, 0, all[:2]...)
		other.propose(4, topic, 0, all...)
		other.awaitISR(topic, 0, all...)
		start := time.Now()
		other.until("the preferred leader", func() bool { return other.partitions[partitionName(topic, 0)].GetLeader() == back.id() })
		if took := time.Since(start); took < time.Minute || took > 63*time.Second {
			t.Errorf("after %v", took)
		}
		if p := other.partition(topic, 0); len(p.GetIsr()) != 3 || len(other.handOvers) != 1 {
			t.Errorf("%d hand-overs, %v", len(other.handOvers), p)
		}
	})
}

// A leader that is busy goes on, and is asked again when it had its full time of rest.
func TestPreferredLeader_is_put_off(t *testing.T) {
	three(t, func(w *world, _ controllerv1.ControllerServiceClient, b []*broker, topic string) {
		t := w.t
		preferred, other := b[0], b[1]
		preferred.out <- &controllerv1.SessionRequest{Event: &controllerv1.SessionRequest_Leadership{Leadership: &controllerv1.LeadershipRequest{
			TopicId: topic, Partition: 0, LeaderEpoch: 1, Reason: "test",
		}}}
		other.until("the move", func() bool { return other.partitions[partitionName(topic, 0)].GetLeader() == other.id() })
		other.locked(func() { other.stubborn = 1 })
		start := time.Now()
		other.until("the preferred leader", func() bool { return other.partitions[partitionName(topic, 0)].GetLeader() == preferred.id() })
		if took := time.Since(start); took < 2*time.Minute || len(other.handOvers) != 2 {
			t.Errorf("after %v and %d hand-overs", took, len(other.handOvers))
		}
	})
}

func TestLeadershipRequest(t *testing.T) {
	for _, suspect := range []bool{false, true} {
		three(t, func(w *world, _ controllerv1.ControllerServiceClient, b []*broker, topic string) {
			t := w.t
			lead, other := b[0], b[1]
			lead.locked(func() { lead.deaf = true }) // it is stuck, and is replaced all the same
			ask := func(from *broker, epoch int64) {
				from.out <- &controllerv1.SessionRequest{Event: &controllerv1.SessionRequest_Leadership{Leadership: &controllerv1.LeadershipRequest{
					TopicId: topic, Partition: 0, LeaderEpoch: epoch, Reason: "stalled", Suspect: suspect,
				}}}
			}
			ask(other, 1) // not its own
			ask(lead, 7)  // not its epoch
			time.Sleep(5 * time.Second)
			if p := other.partition(topic, 0); p.GetLeader() != lead.id() || len(lead.handOvers) > 0 {
				t.Fatalf("moved without reason: %v", p)
			}
			ask(lead, 1)
			ask(lead, 1)
			start := time.Now()
			other.until("the move", func() bool { return other.partitions[partitionName(topic, 0)].GetLeader() == other.id() })
			p := other.partition(topic, 0)
			if took := time.Since(start); took > 3*time.Second || len(lead.handOvers) != 1 || slices.Contains(p.GetIsr(), lead.id()) == suspect || len(p.GetElr()) > 0 {
				t.Errorf("suspect %v: after %v and %d hand-overs: %v", suspect, took, len(lead.handOvers), p)
			}
			// The last one in sync has nobody to hand over to.
			other.propose(1, topic, 0, other.id())
			other.awaitISR(topic, 0, other.id())
			ask(other, p.GetLeaderEpoch())
			time.Sleep(5 * time.Second)
			if now := other.partition(topic, 0); now.GetLeader() != other.id() || len(other.handOvers) > 0 {
				t.Errorf("moved to nobody: %v", now)
			}
		})
	}
}

// A leader whose disk is nearly full refuses clients' records, so others lead; of them those with room first. The preferred leader
// is not given it back before it has room.
func TestDiskLow_others_lead(t *testing.T) {
	three(t, func(w *world, _ controllerv1.ControllerServiceClient, b []*broker, topic string) {
		t := w.t
		led := func(who int) func() bool {
			return func() bool { return b[0].partitions[partitionName(topic, 0)].GetLeader() == b[who].id() }
		}
		low := func(who int, on bool) { b[who].locked(func() { b[who].diskLow = on }) }
		low(1, true)
		low(0, true)
		b[0].until("the one with room leads", led(2))
		if p := b[0].partition(topic, 0); p.GetLeaderEpoch() != 2 || len(p.GetIsr()) != 3 {
			t.Errorf("by way of another, or not in order: %v", p)
		}
		low(2, true)
		time.Sleep(2 * time.Minute)
		if p := b[0].partition(topic, 0); p.GetLeader() != b[2].id() || p.GetLeaderEpoch() != 2 {
			t.Errorf("moved though nobody has room: %v", p)
		}
		low(1, false)
		b[0].until("another one with room leads", led(1))
		low(0, false)
		low(2, false)
		b[0].until("the preferred one leads again", led(0))
	})
}
