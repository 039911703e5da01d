package sim

import (
	"context"
	"testing"
	"time"
)

// A leader is cut off the controllers alone: as soon as another one leads it
// acknowledges nothing more, and within a session's time it says nothing about the
// end of the log either.
func TestStoryLeaderCutOffTheControllers(t *testing.T) {
	play(t, setting{controllers: 3}, func(s *stage) {
		s.sent(0, 3)
		back := s.outlaw(0)
		p := s.load.pump(s.topic, 0, 20*time.Millisecond, s.through(1))
		one := s.send(0, 10*time.Second)
		s.soon("until then it is the leader", time.Second, one.over)
		if one.err != nil {
			s.t.Errorf("a leader whose followers hear it refuses: %v", one.err)
		}
		s.leads(1)
		s.sent(1, 1)
		moved, answered := time.Now(), time.Duration(0)
		for time.Since(moved) < 6*time.Second {
			if _, epoch, err := s.latest(context.Background(), s.topic, 0, int(s.id(0))); err == nil && epoch < s.record().LeaderEpoch {
				answered = time.Since(moved)
			}
			one := s.send(0, 100*time.Millisecond)
			s.soon("the write is answered", 2*time.Second, one.over)
			if one.err == nil {
				s.judge.complain("I10", "a leader that was replaced %v ago acknowledged a write", time.Since(moved))
			}
			s.stepFor(50 * time.Millisecond)
		}
		if answered > 4*time.Second {
			s.judge.complain("12", "a leader that was replaced told where the log ends %v later", answered)
		}
		if acked, _, _ := p.counts(); acked < 100 {
			s.judge.complain("12", "%d writes were acknowledged", acked)
		}
		back()
		s.soon("the old leader is in sync", 10*time.Second, func() bool { return s.inSync(0, 1, 2) })
	})
}

// The store stands still for so long that all leases end, and comes back: no broker
// is fenced, nobody is elected, and what was written meanwhile was acknowledged.
func TestStoryAllLeasesEnd(t *testing.T) {
	play(t, setting{controllers: 3}, func(s *stage) {
		s.sent(0, 3)
		before := s.record()
		p := s.load.pump(s.topic, 0, 20*time.Millisecond, s.through(1))
		s.kv.SetDown(true)
		s.stepFor(15 * time.Second)
		s.kv.ExpireLeases()
		s.kv.SetDown(false)
		s.stepFor(15 * time.Second)
		if now := s.record(); now.PartitionEpoch != before.PartitionEpoch {
			s.judge.complain("52", "%+v became %+v", *before, *now)
		}
		for id, b := range s.picture().brokers {
			if b.Epoch > 3 {
				s.judge.complain("52", "broker %d is registered anew: %+v", id, *b)
			}
		}
		if acked, refused, uncertain := p.counts(); acked < 1000 || refused+uncertain > 0 {
			s.judge.complain("52", "of the writes %d were acknowledged, %d refused, and %d are uncertain", acked, refused, uncertain)
		}
		s.soon("a controller is active", 10*time.Second, func() bool { return s.active() != nil })
		s.r[0].kill()
		s.leads(1)
	})
}
