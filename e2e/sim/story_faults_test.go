package sim

import (
	"context"
	"math/rand/v2"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/runnelmq/runnel/controller/state"
	"github.com/runnelmq/runnel/internal/vfs"
)

// Nothing goes wrong: nothing is refused or uncertain, and no epoch moves.
func TestStoryNoFaults(t *testing.T) {
	play(t, setting{controllers: 3}, func(s *stage) {
		before := s.record().PartitionEpoch
		p := s.load.pump(s.topic, 0, 20*time.Millisecond, s.through(1))
		s.load.read(s.topic, 0, rand.New(rand.NewPCG(1, 4))) //nolint:gosec // a story is the same each time
		for range 300 {
			s.pass()
		}
		if acked, refused, uncertain := p.counts(); acked < 500 || refused+uncertain > 0 {
			s.judge.complain("1", "nothing went wrong, and of the writes %d were acknowledged, %d refused, and %d are uncertain", acked, refused, uncertain)
		}
		if now := s.record(); now.PartitionEpoch != before {
			s.judge.complain("1", "nothing went wrong, and the partition became %+v", *now)
		}
	})
}

// A leader that nobody but its clients reaches falls silent: it says nothing
// about the end of the log that the next leader could contradict, and
// acknowledges nothing.
func TestStoryIsolatedLeaderFallsSilent(t *testing.T) {
	play(t, setting{}, func(s *stage) {
		s.sent(0, 3)
		cut := time.Now()
		back := s.isolate(0)
		p := s.load.pump(s.topic, 0, 20*time.Millisecond, s.through(1)) // goes on with the next leader
		answered := time.Duration(0)
		for time.Since(cut) < 8*time.Second {
			committed := s.end()
			if at, _, err := s.latest(context.Background(), s.topic, 0, int(s.id(0))); err == nil {
				answered = time.Since(cut)
				if at < committed {
					s.judge.complain("I9", "a leader that was cut off says that the log ends at %d, and %d records were committed", at, committed)
				}
			}
			if one := s.send(0, 100*time.Millisecond); time.Since(cut) > 4*time.Second {
				s.soon("the write is answered", 2*time.Second, one.over)
				if one.err == nil {
					s.judge.complain("I10", "a leader that was cut off acknowledged a write")
				}
			}
			s.stepFor(50 * time.Millisecond)
		}
		if answered > 4*time.Second {
			s.judge.complain("12", "a leader that was cut off still answered %v later", answered)
		}
		if acked, _, _ := p.counts(); acked < 50 {
			s.judge.complain("13", "%d writes were acknowledged while the old leader was cut off", acked)
		}
		back()
	})
}

// The answer to a write is on its way for so long that another leader has come
// meanwhile: what it says is still true.
func TestStoryLateAnswer(t *testing.T) {
	play(t, setting{}, func(s *stage) {
		s.sent(0, 3)
		s.lasting(s.net.delay(6*time.Second, link{s.r[0].name, clientHost}))
		one := s.send(0, 30*time.Second)
		s.stepFor(100 * time.Millisecond)
		s.isolate(0)
		s.leads(1)
		s.sent(1, 3)
		s.soon("the answer comes", 10*time.Second, one.over)
		if one.err != nil {
			s.t.Errorf("the write was answered with %v", one.err)
		}
	})
}

// A follower is as late as it may be, and sometimes later, again and again.
func TestStoryFollowerNearTheLag(t *testing.T) {
	play(t, setting{lag: time.Second}, func(s *stage) {
		s.load.pump(s.topic, 0, 20*time.Millisecond, s.through(0))
		for n := range 12 {
			goOn := s.r[1+n%2].proc.disk.hang()
			s.stepFor(time.Duration(900+20*n) * time.Millisecond)
			goOn()
			s.stepFor(300 * time.Millisecond)
		}
	})
}

// A link is cut and whole again ten times a second.
func TestStoryFlappingLink(t *testing.T) {
	play(t, setting{}, func(s *stage) {
		s.load.pump(s.topic, 0, 20*time.Millisecond, s.through(2))
		for n := range 60 {
			heal := s.net.cut(between(s.r[n/20%2].name, s.r[1+n/20%2].name)...)
			s.stepFor(50 * time.Millisecond)
			heal()
			if n%5 == 0 {
				s.net.reset(s.r[0].name, s.r[1].name)
			}
			s.stepFor(50 * time.Millisecond)
		}
	})
}

// Brokers are killed every moment, and come back at once.
func TestStoryRestartStorm(t *testing.T) {
	play(t, setting{}, func(s *stage) {
		rng := rand.New(rand.NewPCG(1, 10)) //nolint:gosec // a story is the same each time
		p := s.load.pump(s.topic, 0, 10*time.Millisecond, s.through(2))
		for range 30 {
			h := s.r[rng.IntN(3)]
			h.kill()
			s.stepFor(time.Duration(rng.IntN(100)) * time.Millisecond)
			h.start()
			s.stepFor(time.Duration(rng.IntN(600)) * time.Millisecond)
		}
		s.stepFor(5 * time.Second)
		if acked, _, _ := p.counts(); acked < 50 {
			s.judge.complain("I19", "%d writes were acknowledged", acked)
		}
	})
}

// The leader takes a member out of the ISR, and hears nothing of what becomes of
// that: it goes on waiting for the member.
func TestStoryShrinkIsUnanswered(t *testing.T) {
	play(t, setting{lag: time.Second}, func(s *stage) {
		s.sent(0, 3)
		s.part(0, 2)
		s.lasting(s.net.cut(link{s.controllers[0].name, s.r[0].name}))
		one := s.send(0, 10*time.Second)
		s.soon("the controller has taken the member out", 5*time.Second, func() bool { return s.inSync(0, 1) })
		if s.inside(0).PartitionEpoch < s.record().PartitionEpoch && s.inside(0).HighWatermark > 3 {
			s.judge.complain("I8", "the leader no longer waits for a member that it does not know to be out")
		}
		s.heal()
		s.soon("the write is answered", 10*time.Second, one.over)
	})
}

// One broker loses its end while the others are cut off each other and the
// controller, and all are back at once.
func TestStoryPowerCutAmongTheIsolated(t *testing.T) {
	play(t, setting{}, func(s *stage) {
		s.load.pump(s.topic, 0, 20*time.Millisecond, s.through(1))
		for i := range 3 {
			s.stepFor(time.Second)
			s.r[i].cutPower(0)
			a, b := s.isolate((i+1)%3), s.isolate((i+2)%3)
			s.stepFor(4 * time.Second)
			a()
			b()
			s.r[i].start()
			s.soon("all is well", 20*time.Second, func() bool { return s.inSync(0, 1, 2) })
			s.r[i].lossy = false
		}
	})
}

// Nothing happens for long, and then one record comes: nobody is late for it.
func TestStoryIdleForLong(t *testing.T) {
	play(t, setting{}, func(s *stage) {
		s.sent(0, 1)
		before := s.record().PartitionEpoch
		time.Sleep(20 * time.Minute)
		s.sent(0, 1)
		s.stepFor(2 * time.Second)
		if now := s.record(); now.PartitionEpoch != before {
			s.judge.complain("72", "after a long rest the partition became %+v", *now)
		}
	})
}

// A broker comes back with an empty disk, as another one under its number: it is
// let in when the old one is dead, and catches up before it counts.
func TestStoryEmptyDisk(t *testing.T) {
	for i, who := range []string{"leader", "follower"} {
		t.Run(who, func(t *testing.T) {
			play(t, setting{}, func(s *stage) {
				s.sent(0, 5)
				s.r[i].kill()
				s.stepFor(100 * time.Millisecond)
				s.r[i].mem, s.r[i].lossy = vfs.NewMem(), true
				s.r[i].start()
				s.soon("it has caught up", 30*time.Second, func() bool { return s.inSync(0, 1, 2) })
				s.sent(s.leader(), 1)
			})
		})
	}
}

// logFiles calls fn with each log file of the partition on a disk.
func (s *stage) logFiles(mem *vfs.Mem, fn func(name string)) {
	s.t.Helper()
	dir := path.Join("data", s.topic.id, "0")
	entries, err := mem.ReadDir(dir)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name, ".log") {
			fn(path.Join(dir, e.Name))
		}
	}
}

// A bit flips on a disk, in what was long durable: it is found, not served, and
// the copy is made whole from the others. It does not lead meanwhile.
func TestStoryBitFlip(t *testing.T) {
	for i, who := range []string{"leader", "follower"} {
		t.Run(who, func(t *testing.T) {
			play(t, setting{}, func(s *stage) {
				s.sent(0, 5)
				s.stepFor(1500 * time.Millisecond)
				h := s.r[i]
				h.kill()
				h.lossy = true
				s.logFiles(h.mem, func(name string) {
					f, err := h.mem.Open(name)
					if err != nil {
						s.t.Fatal(err)
					}
					var b [1]byte
					if _, err := f.ReadAt(b[:], 200); err != nil {
						s.t.Fatal(err)
					}
					b[0] ^= 4
					if _, err := f.WriteAt(b[:], 200); err != nil {
						s.t.Fatal(err)
					}
				})
				s.stepFor(200 * time.Millisecond)
				s.soon("it does not lead", 10*time.Second, func() bool { l := s.record().Leader; return l != s.id(i) && l != state.NoLeader })
				h.start()
				s.leads(1 - i)
				s.sent(1-i, 3)
				s.soon("it is whole again", 30*time.Second, func() bool { return s.inSync(0, 1, 2) })
				h.lossy = false
			})
		})
	}
}

// The directory of a partition is gone, though the broker ended in order: it
// does not lead an empty log.
func TestStoryDirectoryIsGone(t *testing.T) {
	play(t, setting{}, func(s *stage) {
		s.sent(0, 5)
		h := s.r[0]
		h.leaving = true
		h.proc.cancel()
		s.soon("it has shut down", 10*time.Second, h.ended)
		h.mem = h.proc.disk.kill()
		s.net.die(h.name, true)
		if err := h.mem.RemoveAll(path.Join("data", s.topic.id, "0")); err != nil {
			s.t.Fatal(err)
		}
		h.lossy = true
		h.start()
		s.soon("it has caught up", 30*time.Second, func() bool { return s.inSync(0, 1, 2) })
		s.sent(s.leader(), 1)
	})
}

// The leader dies while a follower catches up: it is not taken for one that has.
func TestStoryLeaderDiesWhileOneCatchesUp(t *testing.T) {
	play(t, setting{}, func(s *stage) {
		s.sent(0, 3)
		s.r[2].kill()
		s.soon("it is missed", 10*time.Second, func() bool { return s.inSync(0, 1) })
		s.sent(0, 20)
		s.lasting(s.net.delay(500*time.Millisecond, link{s.r[0].name, s.r[2].name}))
		s.r[2].start()
		s.soon("it follows", 10*time.Second, func() bool {
			b := s.picture().brokers[s.id(2)]
			return b != nil && b.Incarnation != s.r[2].before && b.Phase == state.BrokerActive
		})
		s.stepFor(300 * time.Millisecond)
		s.r[0].kill()
		s.leads(1)
		s.stepFor(time.Second)
		s.r[1].kill()
		s.stepFor(5 * time.Second)
	})
}

// No controller runs for a minute: records flow on, and afterwards leaders are
// elected again.
func TestStoryNoController(t *testing.T) {
	play(t, setting{controllers: 3}, func(s *stage) {
		p := s.load.pump(s.topic, 0, 50*time.Millisecond, s.through(1))
		for _, h := range s.controllers {
			h.kill()
		}
		for range 12 {
			time.Sleep(5 * time.Second)
			s.step()
		}
		if acked, _, _ := p.counts(); acked < 800 {
			s.judge.complain("49", "%d writes were acknowledged in a minute without controllers", acked)
		}
		for _, h := range s.controllers {
			h.start()
		}
		s.stepFor(10 * time.Second)
		s.r[0].kill()
		s.soon("another one leads", 10*time.Second, func() bool { return s.record().Leader != s.id(0) && s.record().Leader != state.NoLeader })
	})
}
