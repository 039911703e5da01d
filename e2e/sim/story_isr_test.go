package sim

import (
	"testing"
	"time"
)

// expansion brings the story to where the leader has proposed its last follower
// and the controller has not heard of it: that follower had been out of the ISR
// because no controller heard it, and has all records.
func (s *stage) expansion() {
	s.sent(0, 3)
	back := s.outlaw(2)
	s.soon("the last follower is fenced", 5*time.Second, func() bool { return s.inSync(0, 1) })
	s.late(0, 1500*time.Millisecond)
	back()
	s.soon("the leader proposes it", 5*time.Second, func() bool { return s.proposes(0) })
}

// A proposed member holds the high watermark back from the moment it is
// proposed: the controller may have carried it out, and elect it.
func TestStoryProposedMemberIsWaitedFor(t *testing.T) {
	play(t, setting{}, func(s *stage) {
		s.expansion()
		s.part(0, 2)
		s.send(0, time.Second)
		s.soon("the proposal arrives", 3*time.Second, func() bool { return s.inSync(0, 1, 2) })
		s.stepFor(500 * time.Millisecond)
	})
}

// A proposal that started from a state of the partition that is over is refused:
// its leader no longer waits for whom it names.
func TestStoryProposalOfAnEarlierState(t *testing.T) {
	play(t, setting{}, func(s *stage) {
		s.expansion()
		s.part(0, 2)
		one := s.send(0, 3*time.Second)
		s.stepFor(50 * time.Millisecond)
		s.alter(1, map[string]string{"min.insync.replicas": "1"})
		s.soon("the record is acknowledged without the last follower", 2*time.Second, one.over)
		s.stepFor(3 * time.Second)
	})
}

// A proposed member counts only under the registration under which it caught up:
// its next process may have less.
func TestStoryProposedMemberStartsAnew(t *testing.T) {
	play(t, setting{}, func(s *stage) {
		s.expansion()
		s.sent(0, 3)
		s.part(0, 2)
		s.r[2].cutPower(0)
		s.step()
		s.r[2].start()
		s.stepFor(3 * time.Second)
	})
}

// Only members that the controller has confirmed count towards the minimum: a
// proposed one may never be elected, and somebody else then is.
func TestStoryMinimumIsOfTheCommittedISR(t *testing.T) {
	play(t, setting{}, func(s *stage) {
		s.sent(0, 3)
		back := s.outlaw(2)
		s.soon("the last follower is fenced", 5*time.Second, func() bool { return s.inSync(0, 1) })
		s.outlaw(1)
		s.stepFor(2 * time.Second)
		s.part(0, 1)
		s.send(0, 10*time.Second) // and the other one does not get it
		s.soon("the other one is fenced, too", 5*time.Second, func() bool { return s.inSync(0) && s.eligible(1) })
		s.late(0, 1500*time.Millisecond)
		back()
		s.soon("the leader proposes the last follower", 5*time.Second, func() bool { return s.proposes(0) })
		s.net.reset(s.r[0].name, s.r[2].name) // which has it, and says so once more
		s.stepFor(time.Second)
	})
}

// While several proposals are under way, each of them counts.
func TestStoryEveryProposalCounts(t *testing.T) {
	play(t, setting{configs: map[string]string{"min.insync.replicas": "1", "flush": "async"}}, func(s *stage) {
		s.sent(0, 3)
		back := s.outlaw(1)
		s.soon("the first follower is fenced", 5*time.Second, func() bool { return s.inSync(0, 2) })
		goOn := s.lasting(s.r[2].proc.disk.hang())
		s.send(0, 10*time.Second)
		s.soon("the other one lags", 10*time.Second, func() bool { return s.inSync(0) })
		s.late(0, 1500*time.Millisecond)
		back()
		s.soon("the leader proposes the first one", 5*time.Second, func() bool { return s.proposes(0) })
		s.part(0, 1)
		s.net.reset(s.r[0].name, s.r[1].name)
		goOn()
		s.stepFor(600 * time.Millisecond) // for the leader to propose the other one instead, if it would
		s.send(0, time.Second)
		s.stepFor(2 * time.Second)
	})
}

// Lowering the minimum empties the ELR: who is in it was complete only while the
// high watermark stood still.
func TestStoryMinimumIsLowered(t *testing.T) {
	play(t, setting{}, func(s *stage) {
		s.sent(0, 3)
		s.outlaw(2)
		s.soon("one follower is fenced", 5*time.Second, func() bool { return s.inSync(0, 1) })
		s.outlaw(1)
		s.soon("and so is the other one", 5*time.Second, func() bool { return s.inSync(0) && s.eligible(1) })
		s.part(0, 1)
		s.part(0, 2)
		s.alter(0, map[string]string{"min.insync.replicas": "1"})
		s.sent(0, 1)
		s.stepFor(200 * time.Millisecond)
		s.r[0].kill() // and nobody may take its place
		s.stepFor(5 * time.Second)
	})
}

// The minimum changes while the ISR is too small for the old one and for the new
// one: whoever is eligible stays so. The leader's disk is lost, and nothing else.
func TestStoryMinimumChangesWhileOneStands(t *testing.T) {
	play(t, setting{configs: map[string]string{"min.insync.replicas": "3", "flush": "async"}}, func(s *stage) {
		s.sent(0, 5)
		for i := 1; i < 3; i++ {
			s.part(0, i)
			s.r[i].kill()
			s.soon("it is fenced", 10*time.Second, func() bool { return len(s.record().ISR) == 3-i })
			s.r[i].start()
		}
		s.soon("both are eligible", 10*time.Second, func() bool { return s.eligible(1, 2) })
		s.stepFor(time.Second)
		s.r[0].cutPower(0)
		s.alter(1, map[string]string{"min.insync.replicas": "2"})
		s.leads(1)
	})
}

// A follower joins the ISR only with all that is committed.
func TestStoryJoinsBelowTheHighWatermark(t *testing.T) {
	play(t, setting{}, func(s *stage) {
		s.sent(0, 3)
		goOn := s.lasting(s.r[2].proc.disk.hang())
		s.send(0, 10*time.Second)
		s.soon("a follower lags", 10*time.Second, func() bool { return s.inSync(0, 1) })
		s.sent(0, 3)
		s.net.reset(s.r[0].name, s.r[2].name)
		s.stepFor(3 * time.Second) // it subscribes anew, and can't append
		goOn()
		s.soon("the follower has caught up", 5*time.Second, func() bool { return s.inSync(0, 1, 2) })
	})
}
