package sim

import (
	"context"
	"testing"
	"time"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// retire has an operator fence a broker, which stays so until its next process.
func (s *stage) retire(i, through int) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	id := s.r[i].id
	if _, err := runnelv1.NewAdminServiceClient(s.conns[s.id(through)]).FenceBroker(ctx, &runnelv1.FenceBrokerRequest{BrokerId: &id}); err != nil {
		s.t.Errorf("fence %s: %v", s.r[i].name, err)
	}
}

// lateFrames brings the story to where frames of the first leader are on their way to
// the last follower, which follows the next leader by now; that one has other
// records in their place, and they are on their way, too. What comes late is to
// be dropped. arrived is how many of the frames were there before the change.
func (s *stage) lateFrames(arrived int) {
	s.sent(0, 3)
	s.mute(0, 1)
	for range arrived {
		s.send(0, 10*time.Second)
	}
	s.stepFor(50 * time.Millisecond)
	s.lasting(s.net.delay(time.Second, link{s.r[0].name, s.r[2].name}))
	for range 3 {
		s.send(0, 10*time.Second)
	}
	s.stepFor(20 * time.Millisecond)
	s.retire(0, 1)
	s.leads(1)
	s.soon("the last follower follows the next leader", time.Second, func() bool {
		in := s.inside(2)
		return in.Epoch == s.inside(1).Epoch && in.LogEnd == 3 && s.inside(1).Settled
	})
	s.stepFor(50 * time.Millisecond)
	s.lasting(s.net.delay(2*time.Second, link{s.r[1].name, s.r[2].name}))
	for range 3 + arrived {
		s.send(1, 10*time.Second)
	}
	s.stepFor(2 * time.Second)
	s.r[0].kill()
	s.stepFor(3 * time.Second)
}

// A frame of an earlier leader that comes late is dropped, though it fits where
// the log ends.
func TestStoryLateFrame(t *testing.T) {
	play(t, setting{}, func(s *stage) { s.lateFrames(0) })
}

// A frame of an earlier leader that comes late is dropped, and leaves no hole in
// the log that was cut meanwhile.
func TestStoryLateFrameBehindACut(t *testing.T) {
	play(t, setting{}, func(s *stage) { s.lateFrames(2) })
}
