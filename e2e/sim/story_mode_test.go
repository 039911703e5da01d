package sim

import (
	"testing"
	"time"
)

// noneLeft brings the story to where the two copies that have all that was ever acknowledged are away, one of them killed, and the
// leader without power: after the other one had left the ISR, or not. The third one lives, and gets nothing.
func (s *stage) noneLeft(alone bool) {
	s.part(0, 2)
	s.part(1, 2)
	s.r[2].kill()
	s.soon("one follower is fenced", 5*time.Second, func() bool { return s.inSync(0, 1) })
	s.r[2].start()
	s.stepFor(2 * time.Second)
	s.sent(0, 3)
	s.r[1].kill()
	if alone {
		s.soon("the other one is fenced, too", 5*time.Second, func() bool { return s.inSync(0) && s.eligible(1) })
	}
	s.r[0].cutPower(0)
	s.soon("nobody leads", 10*time.Second, func() bool { return s.record().Leader < 0 })
}

// What was written without a disk is not trusted after a power cut because a disk would count now: the other copy has it.
func TestStoryDiskCountsFromNowOn(t *testing.T) {
	for name, c := range map[string]struct {
		alone   bool
		configs map[string]string
	}{
		"a lower minimum": {false, map[string]string{"min.insync.replicas": "1"}}, "a lower minimum, alone": {true, map[string]string{"min.insync.replicas": "1"}},
		"sync": {false, map[string]string{"flush": "sync"}}, "sync, alone": {true, map[string]string{"flush": "sync"}},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, setting{configs: map[string]string{"min.insync.replicas": "2"}}, func(s *stage) {
				s.noneLeft(c.alone)
				s.alter(2, c.configs)
				s.r[0].start()
				s.stepFor(5 * time.Second)
				s.r[1].start()
				s.soon("the other one leads", 10*time.Second, func() bool { return s.record().Leader == s.id(1) })
			})
		})
	}
}

// What was durable when it was acknowledged is trusted after a power cut, although a disk does not count any more.
func TestStoryDiskCountedUntilNow(t *testing.T) {
	play(t, setting{configs: map[string]string{"min.insync.replicas": "1"}}, func(s *stage) {
		for i := 1; i < 3; i++ {
			s.part(0, i)
			s.r[i].kill()
			s.soon("it is fenced", 5*time.Second, func() bool { return len(s.record().ISR) == 3-i })
			s.r[i].start()
		}
		s.sent(0, 3)
		s.r[0].cutPower(0)
		s.soon("nobody leads", 10*time.Second, func() bool { return s.record().Leader < 0 })
		s.alter(1, map[string]string{"min.insync.replicas": "2"})
		s.r[0].start()
		s.soon("it leads again", 10*time.Second, func() bool { return s.record().Leader == s.id(0) })
	})
}

// Fewer copies are to be enough, and disks to count instead, and the leader's power is cut before it hears of it. Those that were
// killed meanwhile have what it lost, and they are still known to.
func TestStoryDisksTakeThePlaceOfCopies(t *testing.T) {
	play(t, setting{configs: map[string]string{"min.insync.replicas": "2", "flush.interval.ms": "3600000"}}, func(s *stage) {
		s.sent(0, 5)
		var links []link
		for _, ctl := range s.controllers {
			links = append(links, link{ctl.name, s.r[0].name})
		}
		hears := s.lasting(s.net.cut(links...))
		s.alter(1, map[string]string{"min.insync.replicas": "1"})
		for i := 1; i < 3; i++ {
			s.r[i].kill()
			s.soon("it is fenced", 5*time.Second, func() bool { return len(s.record().ISR) == 3-i })
		}
		s.r[0].cutPower(0)
		hears()
		s.r[0].start()
		s.soon("nobody leads", 10*time.Second, func() bool { return s.record().Leader < 0 })
		s.stepFor(2 * time.Second)
		s.r[1].start()
		s.r[2].start()
		s.soon("one that was killed leads", 10*time.Second, func() bool { return s.record().Leader >= 0 && s.record().Leader != s.id(0) })
		s.soon("the minimum is lowered", 10*time.Second, func() bool { return s.record().MinISR == 1 })
	})
}
