package sim

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/runnelmq/runnel/controller/state"
	"github.com/runnelmq/runnel/controller/store"
	"github.com/runnelmq/runnel/controller/store/storetest"
	"github.com/runnelmq/runnel/e2e/history"
)

// lastStanding brings the story to where the leader is alone in the ISR, and one
// of the others is eligible, since it has all that is committed; the third one
// lags, and could be elected only by mistake. lagging and eligible are places.
func (s *stage) lastStanding(lagging, eligible int) {
	s.sent(0, 3)
	s.part(0, lagging)
	s.send(0, 10*time.Second)
	s.soon("one follower lags", 10*time.Second, func() bool { return s.inSync(0, eligible) })
	s.sent(0, 1)
	s.part(0, eligible)
	s.send(0, 10*time.Second)
	s.soon("and so does the other one", 10*time.Second, func() bool { return s.inSync(0) && s.eligible(eligible) })
}

// The leader that was alone in the ISR is gone: who is eligible takes over, not
// who is merely there.
func TestStoryEligibleReplicaTakesOver(t *testing.T) {
	play(t, setting{}, func(s *stage) {
		s.lastStanding(1, 2)
		s.r[0].cutPower(0)
		s.leads(2)
		s.stepFor(time.Second)
		s.heal()
		s.soon("all is well", 20*time.Second, func() bool { return s.inSync(0, 1, 2) })
	})
}

// What was deleted, and that was acknowledged, does not come back with a leader
// that had not heard of it.
func TestStoryDeletedRecordsStayAway(t *testing.T) {
	play(t, setting{}, func(s *stage) {
		s.lastStanding(1, 2)
		r := s.load.newReader(s.topic, 0)
		if _, err := r.whole(s.conns[s.id(0)]); err != nil || r.next == 0 {
			s.t.Fatal(r.next, err)
		}
		s.topic.trimmed = []*reader{r}
		done := make(chan bool, 1)
		s.load.wg.Go(func() { done <- s.deleteRecords(context.Background(), s.topic, s.key, 2, int(s.id(0))) })
		s.stepFor(time.Second)
		s.r[0].cutPower(0)
		s.leads(2)
		s.stepFor(time.Second)
		if start := int64(s.inside(2).LogStart); <-done && start < 2 {
			s.judge.complain("I19", "the new leader begins at %d, and what is below 2 was deleted", start)
		}
		s.heal()
		s.soon("all is well", 20*time.Second, func() bool { return s.inSync(0, 1, 2) })
		if !s.deleteRecords(context.Background(), s.topic, s.key, r.next, 0) {
			s.judge.complain("I19", "records can't be deleted when all is well")
		}
	})
}

// A power cut took the end of an eligible copy: it is not eligible any more.
func TestStoryEligibleReplicaLosesItsEnd(t *testing.T) {
	play(t, setting{}, func(s *stage) {
		s.sent(0, 3)
		s.outlaw(2)
		s.soon("one follower is fenced", 5*time.Second, func() bool { return s.inSync(0, 1) })
		s.sent(0, 3)
		s.part(0, 1)
		s.r[1].cutPower(0)
		s.stepFor(100 * time.Millisecond)
		s.r[1].start()
		s.soon("it is in service again", 10*time.Second, func() bool {
			b := s.picture().brokers[s.id(1)]
			return b != nil && b.Incarnation != s.r[1].before && b.Phase == state.BrokerActive
		})
		s.stepFor(200 * time.Millisecond)
	})
}

// A copy that lost its end in a power cut has caught up. When its process is
// killed a moment later it has lost nothing more, and that is known.
func TestStoryKilledAfterAPowerCut(t *testing.T) {
	play(t, setting{}, func(s *stage) {
		s.sent(0, 3)
		s.r[1].cutPower(0)
		s.stepFor(100 * time.Millisecond)
		s.r[1].start()
		s.soon("it has caught up", 10*time.Second, func() bool { return s.inSync(0, 1, 2) })
		s.stepFor(200 * time.Millisecond)
		s.r[1].kill()
		s.step()
		s.r[1].start()
		s.soon("it has opened its copy", 10*time.Second, func() bool { return s.replica(s.id(1), s.key) != nil })
		if why := s.replica(s.id(1), s.key).Suspicion(); why != "" {
			s.judge.complain("61", "a copy that has lost nothing is suspect: %s", why)
		}
	})
}

// A disk fails while it makes records durable: its broker promises nothing more
// and ends, and its copies do not count before they have caught up, because what
// the failed sync was for is lost though the machine goes on.
func TestStoryDiskFails(t *testing.T) {
	for i, who := range []string{"leader", "follower"} {
		t.Run(who, func(t *testing.T) {
			play(t, setting{}, func(s *stage) {
				s.outlaw(2)
				s.soon("one follower is fenced", 5*time.Second, func() bool { return s.inSync(0, 1) })
				s.sent(0, 3)
				s.r[i].proc.disk.fail(errIO)
				for range 5 {
					s.send(0, time.Second)
					s.stepFor(100 * time.Millisecond)
				}
				s.soon("its broker ends", 10*time.Second, s.r[i].ended)
				s.part(0, 1)
				s.r[i].restartAfterFailure()
				s.stepFor(2 * time.Second)
			})
		})
	}
}

// A leader's disk hangs: somebody else leads before long, and its hanging
// writes are not taken for stored.
func TestStoryLeaderDiskHangs(t *testing.T) {
	play(t, setting{}, func(s *stage) {
		s.sent(0, 3)
		goOn := s.lasting(s.r[0].proc.disk.hang())
		s.send(0, 30*time.Second)
		s.soon("another one leads", 15*time.Second, func() bool { return s.record().Leader != s.id(0) })
		s.leads(1)
		s.sent(1, 3)
		goOn()
		s.soon("the old leader is in sync", 15*time.Second, func() bool { return s.inSync(0, 1, 2) })
	})
}

// The power of all machines is cut: what had been synced is there again, and
// that more may be missing is said.
func TestStoryAllPowerCut(t *testing.T) {
	play(t, setting{}, func(s *stage) {
		s.sent(0, 3)
		s.stepFor(1500 * time.Millisecond) // the flush comes each second
		s.judge.despair = true
		for _, h := range s.brokers {
			h.cutPower(0)
		}
		s.stepFor(time.Second)
		s.heal()
		s.soon("the loss is told", 20*time.Second, func() bool { return len(s.record().LossyEpochs) == 1 })
		s.soon("somebody leads", 10*time.Second, func() bool { return s.inside(s.leader()).MinISRMet && s.inside(s.leader()).Leader })
		s.sent(s.leader(), 1)
	})
}

// The power of all machines is cut, one after the other, and before all are back
// somebody lowers the minimum, which makes the disk count from then on. That says
// nothing of what was counted before: who has lost it is suspect all the same, and
// who has the most is elected.
func TestStoryMinimumIsLoweredAfterAPowerCut(t *testing.T) {
	play(t, setting{configs: map[string]string{"min.insync.replicas": "2", "flush.interval.ms": "3600000"}}, func(s *stage) {
		s.sent(0, 5)
		s.judge.despair = true
		s.r[0].cutPower(0)
		s.soon("the first one is missed", 10*time.Second, func() bool { return s.inSync(1, 2) })
		s.r[1].cutPower(0)
		s.soon("and so is the second one", 10*time.Second, func() bool { return s.inSync(2) && s.eligible(1) })
		s.r[2].cutPower(100) // as luck would have it
		s.step()
		s.r[2].start()
		s.soon("the third one is back, and is suspect", 20*time.Second, func() bool { return s.holds(s.record().LastKnown, 2) })
		s.alter(2, map[string]string{"min.insync.replicas": "1"})
		s.soon("the disk counts", 5*time.Second, func() bool { return s.record().Sync })
		s.r[1].start()
		s.must("62", "what may be lost is told", 20*time.Second, func() bool { return len(s.record().LossyEpochs) == 1 })
		s.leads(2)
	})
}

// many makes a topic of many partitions, so that a fence takes many changes.
func (s *stage) many() {
	t := &topic{name: "many", partitions: 30, history: history.New(history.Options{})}
	if err := s.create(t, 30*time.Second, 3, map[string]string{"min.insync.replicas": "2"}); err != nil {
		s.t.Fatal(err)
	}
	s.topics = append(s.topics, t)
	s.soon("it is served", 20*time.Second, func() bool { pic := s.picture(); return s.judge.serving(&pic) })
}

// A broker is back before its fence is complete, and the store is slow: it leads
// nothing in the epochs of its former process.
func TestStoryFenceRacesRegistration(t *testing.T) {
	play(t, setting{}, func(s *stage) {
		s.many()
		for i := range 3 {
			s.sent(s.leader(), 3)
			s.kv.Hook(func() { time.Sleep(50 * time.Millisecond) })
			s.r[i].kill()
			s.r[i].start()
			s.stepFor(3 * time.Second)
			s.kv.Hook(nil)
			s.soon("all is well", 20*time.Second, func() bool { return s.inSync(0, 1, 2) })
		}
	})
}

// The active controller dies at each step of a fence in turn: the next one
// finishes it.
func TestStoryControllerDiesInAFence(t *testing.T) {
	play(t, setting{controllers: 3}, func(s *stage) {
		s.many()
		for step := int32(1); step <= 2; step++ { // the fence itself, and what follows from it
			var n atomic.Int32
			act := s.active()
			if act == nil {
				s.t.Fatal("no controller is active")
			}
			s.kv.Hook(func() {
				if n.Add(1) == step {
					act.kill()
				}
			})
			h := s.r[step%3]
			h.kill()
			s.soon("another controller is active", 30*time.Second, func() bool { now := s.active(); return act.down && now != nil && now != act })
			s.kv.Hook(nil)
			s.soon("it has finished the fence", 10*time.Second, func() bool {
				for _, rec := range s.picture().partitions {
					if rec.Leader == state.BrokerID(h.id) || rec.Leader == state.NoLeader || len(rec.ISR) > 2 {
						return false
					}
				}
				return true
			})
			s.heal()
			s.soon("all is well", 20*time.Second, func() bool { pic := s.picture(); return s.judge.unsettled(&pic) == "" })
		}
	})
}

// A change that a controller decided, and that reaches the store when another
// one is active, is not made.
func TestStoryDeposedControllerWrites(t *testing.T) {
	play(t, setting{controllers: 3}, func(s *stage) {
		act := s.active()
		s.kv.Inject(func([]store.Write) storetest.Fault { return storetest.FaultDelayed })
		t := &topic{name: "late", partitions: 2, history: history.New(history.Options{})}
		s.load.wg.Go(func() { _ = s.create(t, 2*time.Second, 3, nil) })
		s.stepFor(300 * time.Millisecond)
		s.lasting(s.net.cut(link{act.name, storeHost}))
		s.kv.Inject(nil)
		s.kv.ExpireLeases()
		s.soon("another controller is active", 20*time.Second, func() bool { now := s.active(); return now != nil && now != act })
		s.kv.Release()
		s.stepFor(100 * time.Millisecond)
		s.heal()
		s.stepFor(3 * time.Second)
		if err := s.remove(t, 30*time.Second); err != nil { // a broker may have asked the next controller again
			s.t.Errorf("remove: %v", err)
		}
	})
}

// The request that makes a topic is stuck on its way to the store, is made again,
// and arrives when the topic has been deleted: it stays deleted.
func TestStoryCreationComesLate(t *testing.T) {
	play(t, setting{}, func(s *stage) {
		var once atomic.Bool
		s.kv.Inject(func([]store.Write) storetest.Fault {
			if once.CompareAndSwap(false, true) {
				return storetest.FaultDelayed
			}
			return storetest.FaultNone
		})
		t := &topic{name: "late", partitions: 2, history: history.New(history.Options{})}
		if err := s.create(t, 20*time.Second, 3, nil); err != nil {
			s.t.Fatal(err)
		}
		s.kv.Inject(nil)
		if err := s.remove(t, 20*time.Second); err != nil {
			s.t.Fatal(err)
		}
		s.stepFor(3 * time.Second)
		s.kv.Release()
		s.stepFor(time.Second)
		if n := len(s.picture().topics); n != 1 {
			s.judge.complain("6", "a topic that was deleted is there again: %v", s.picture().topics)
		}
	})
}

// Leaders with records that nobody else has follow one another quickly: each is
// cut to what its successors have made of the log.
func TestStoryThreeLeadersDiverge(t *testing.T) {
	play(t, setting{}, func(s *stage) {
		s.sent(0, 3)
		var backs []func()
		for _, i := range []int{0, 1} {
			backs = append(backs, s.isolate(i))
			for range 2 + i {
				s.send(i, 10*time.Second)
			}
			s.soon("somebody else leads, or nobody", 10*time.Second, func() bool { return s.record().Leader != s.id(i) })
		}
		backs[0]()
		s.stepFor(3 * time.Second)
		backs[1]()
		s.soon("all is well", 20*time.Second, func() bool { return s.inSync(0, 1, 2) })
		s.sent(s.leader(), 1)
	})
}

// A topic is deleted and made again under its name while a broker is down: what
// it has of the old one is not taken for the new one's.
func TestStoryTopicComesBack(t *testing.T) {
	play(t, setting{}, func(s *stage) {
		old := &topic{name: "again", partitions: 3, history: history.New(history.Options{})}
		configs := map[string]string{"min.insync.replicas": "2"}
		if err := s.create(old, 10*time.Second, 3, configs); err != nil {
			s.t.Fatal(err)
		}
		s.fill(old, 5)
		s.r[0].kill()
		s.stepFor(500 * time.Millisecond)
		if err := s.remove(old, 10*time.Second); err != nil {
			s.t.Fatal(err)
		}
		s.stepFor(500 * time.Millisecond)
		again := &topic{name: "again", partitions: 3, history: history.New(history.Options{})}
		if err := s.create(again, 30*time.Second, 2, configs); err != nil {
			s.t.Fatal(err)
		}
		s.topics = append(s.topics, again)
		s.fill(again, 2)
		s.heal()
	})
}

// fill writes records to each partition of a topic.
func (s *stage) fill(t *topic, each int) {
	s.t.Helper()
	h := t.history
	for n := range t.partitions {
		producer := h.Producer()
		for range each {
			number := h.Next(producer)
			err := fmt.Errorf("not tried") //nolint:err113 // for the loop
			for try := 0; err != nil && try < 20; try++ {
				ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
				var offset int64
				offset, err = s.appendTo(ctx, s.conns[s.id(1+try%2)], t, n, true, history.Value(producer, number, 0), 2*time.Second)
				cancel()
				switch {
				case err == nil:
					h.Outcome(producer, number, history.Acknowledged, n, offset)
					s.judge.acknowledged(t, n, offset)
				case !definite(err):
					s.t.Fatalf("fill %s/%d: %v", t.name, n, err)
				default:
					s.stepFor(100 * time.Millisecond)
				}
			}
			if err != nil {
				s.t.Fatalf("fill %s/%d: %v", t.name, n, err)
			}
		}
	}
}
