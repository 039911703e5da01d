package sim

import (
	"context"
	"testing"
	"time"

	"github.com/runnelmq/runnel/controller/state"
)

// leads waits until the store names a leader, and its broker leads.
func (s *stage) leads(i int) {
	s.t.Helper()
	s.soon(s.r[i].name+" leads", 10*time.Second, func() bool {
		return s.record().Leader == s.id(i) && s.inside(i).Leader && int64(s.inside(i).Epoch) == s.record().LeaderEpoch
	})
}

// What a follower acknowledged in an earlier epoch does not count in a new one
// of the same leader: it may have been cut since.
func TestStoryAcksEndWithTheirEpoch(t *testing.T) {
	play(t, setting{}, func(s *stage) {
		s.sent(0, 3)
		loud := s.mute(0, 1)
		for range 3 {
			s.send(0, 10*time.Second) // only the last follower gets them
		}
		s.stepFor(100 * time.Millisecond)
		back := s.isolate(0)
		s.leads(1)
		s.sent(1, 1)
		s.part(0, 2)
		loud()
		back()
		s.soon("the old leader has cut what was not committed, and is in sync", 10*time.Second, func() bool { return s.inSync(0, 1, 2) && s.inside(0).LogEnd == 4 })
		s.r[1].kill()
		s.leads(0)
		s.send(0, time.Second)
		s.send(0, time.Second)
		s.stepFor(500 * time.Millisecond)
	})
}

// A follower that hears of a new epoch subscribes anew, also with the same
// leader.
func TestStorySameLeaderInANewEpoch(t *testing.T) {
	play(t, setting{}, func(s *stage) {
		s.sent(0, 3)
		s.part(0, 2)
		s.send(0, 10*time.Second)
		s.soon("the last follower lags", 10*time.Second, func() bool { return s.inSync(0, 1) })
		deaf := s.outlaw(1)
		s.soon("the other one is fenced", 5*time.Second, func() bool { return s.inSync(0) })
		back := s.outlaw(0)
		s.soon("nobody leads", 5*time.Second, func() bool { return s.record().Leader == state.NoLeader })
		back()
		s.leads(0)
		deaf()
		s.soon("the other one is in sync again", 10*time.Second, func() bool { return s.inSync(0, 1) })
	})
}

// divergence brings the story to where the old leader, cut off, has records that
// nobody else got, and the next one has committed others in their place.
func (s *stage) divergence() (back func()) {
	s.sent(0, 3)
	back = s.isolate(0)
	for range 40 {
		s.send(0, 10*time.Second)
	}
	s.leads(1)
	s.sent(1, 1)
	return back
}

// A subscribe is not an acknowledgement: its sender may have to cut its log
// first.
func TestStorySubscribeIsNoAck(t *testing.T) {
	play(t, setting{}, func(s *stage) {
		back := s.divergence()
		s.lasting(s.net.delay(400*time.Millisecond, link{s.r[1].name, s.r[0].name}))
		back()
		for range 30 {
			s.sent(1, 1)
			s.stepFor(100 * time.Millisecond)
		}
		s.soon("the old leader is in sync", 10*time.Second, func() bool { return s.inSync(0, 1, 2) })
	})
}

// A log that is not the leader's is cut before anything is appended to it.
func TestStoryDivergingLogIsCut(t *testing.T) {
	play(t, setting{}, func(s *stage) {
		s.divergence()()
		s.soon("the old leader is in sync", 10*time.Second, func() bool { return s.inSync(0, 1, 2) })
	})
}

// staleHighWatermark brings the story to where a new leader has all that is
// committed, and has not heard how much that is; nobody is in sync with it who
// could tell it. The last follower is connected, and has less.
func (s *stage) staleHighWatermark() {
	s.sent(0, 3)
	deaf := s.outlaw(2)
	s.soon("the last follower is fenced", 5*time.Second, func() bool { return s.inSync(0, 1) })
	s.part(0, 2)
	s.lasting(s.net.delay(300*time.Millisecond, link{s.r[0].name, s.r[1].name}))
	one := s.send(0, 10*time.Second)
	s.soon("a record is acknowledged", time.Second, one.over)
	s.r[0].kill()
	s.leads(1)
	hang := s.r[2].proc.disk.hang()
	s.lasting(hang)
	deaf()
	s.soon("the last follower is in service", 5*time.Second, func() bool {
		b := s.picture().brokers[s.id(2)]
		return b != nil && b.Phase == state.BrokerActive
	})
}

// A follower joins the ISR only with all that the leader had when its epoch
// began: its high watermark may be behind.
func TestStoryJoinsBelowTheStartOfTheEpoch(t *testing.T) {
	play(t, setting{}, func(s *stage) {
		s.staleHighWatermark()
		if in := s.inside(1); in.HighWatermark >= in.LogEnd {
			s.t.Errorf("the new leader knows all: %+v", in)
		}
		s.stepFor(3 * time.Second)
	})
}

// A new leader does not say where the log ends before it knows.
func TestStoryEndIsToldWhenItIsKnown(t *testing.T) {
	play(t, setting{}, func(s *stage) {
		s.staleHighWatermark()
		for range 20 {
			committed := s.end()
			if at, _, err := s.latest(context.Background(), s.topic, 0, int(s.id(1))); err == nil && at < committed {
				s.judge.complain("I9", "the leader says that the log ends at %d, and %d records were committed", at, committed)
			}
			s.stepFor(50 * time.Millisecond)
		}
	})
}

// A write that was appended, and whose leader lost the leadership, may be in the
// log of the next one: it is not refused as if nothing had happened.
func TestStoryParkedWriteIsUncertain(t *testing.T) {
	play(t, setting{}, func(s *stage) {
		s.sent(0, 3)
		s.mute(1, 0)
		s.mute(2, 0)
		one := s.send(0, 30*time.Second)
		s.soon("the followers have it", time.Second, func() bool { return s.inside(1).LogEnd == 4 && s.inside(2).LogEnd == 4 })
		back := s.isolate(0)
		s.leads(1)
		s.sent(1, 1)
		back()
		s.heal()
		s.soon("the write is answered", 10*time.Second, one.over)
	})
}

// Nothing is written, and yet everybody hears where the log ends, and who comes
// back is in sync at once.
func TestStoryIdleFollowersComeBack(t *testing.T) {
	play(t, setting{}, func(s *stage) {
		s.sent(0, 3)
		s.must("I19", "everybody knows what is committed", time.Second, func() bool {
			return s.inside(0).HighWatermark == 3 && s.inside(1).HighWatermark == 3 && s.inside(2).HighWatermark == 3
		})
		for i := range 3 {
			s.r[i].kill()
			s.soon("it is missed", 10*time.Second, func() bool { return len(s.record().ISR) == 2 })
			s.r[i].start()
			s.must("I19", "who was away is in sync again", 8*time.Second, func() bool { return s.inSync(0, 1, 2) })
		}
	})
}
