package sim

import (
	"os"
	"testing"
	"time"

	"google.golang.org/grpc"
)

// through returns a connection to always the same broker.
func (s *stage) through(i int) func() grpc.ClientConnInterface {
	return func() grpc.ClientConnInterface { return s.conns[s.id(i)] }
}

// restart ends a broker in an orderly way and starts it again. Its copies are taken
// for what they were.
func (s *stage) restart(i int) { s.restarts(i, false) }

// reboot is restart with the machine: it forgets what was not synced.
func (s *stage) reboot(i int) { s.restarts(i, true) }

func (s *stage) restarts(i int, machine bool) {
	s.t.Helper()
	h := s.r[i]
	h.leaving = true
	h.proc.cancel()
	s.soon("it has shut down", 10*time.Second, h.ended)
	if machine {
		h.mem = h.proc.disk.powerCut(s.rng, 0)
		h.boots++
	} else {
		h.mem = h.proc.disk.kill()
	}
	s.net.die(h.name, true)
	h.start()
	s.soon("it has opened its copy", 10*time.Second, func() bool { return s.replica(s.id(i), s.key) != nil })
	if p := s.replica(s.id(i), s.key); p != nil && p.Suspicion() != "" {
		s.judge.complain("5", "a broker ended in an orderly way, and its copy is suspect: %s", p.Suspicion())
	}
}

// Writes through a broker that does not lead keep their order while a leader
// refuses them, because it is about to be replaced, and takes the next ones,
// because nobody is ready to replace it.
func TestStoryOrderThroughAProxy(t *testing.T) {
	play(t, setting{}, func(s *stage) {
		p := s.load.pump(s.topic, 0, 5*time.Millisecond, s.through(2))
		s.soon("records flow", 5*time.Second, func() bool { acked, _, _ := p.counts(); return acked > 20 })
		s.lasting(s.net.delay(300*time.Millisecond, link{s.r[1].name, s.r[0].name}))
		s.lasting(s.net.delay(150*time.Millisecond, link{s.r[2].name, s.r[0].name}))
		s.stepFor(time.Second)
		s.restart(0)
		s.stepFor(2 * time.Second)
	})
}

// The leadership is handed over again and again, under a stream through a
// broker: everything is stored once, in order, and nothing is uncertain.
func TestStoryManyHandOvers(t *testing.T) {
	moves := 6
	if os.Getenv("RUNNEL_SOAK_SEEDS") != "" {
		moves = 100
	}
	play(t, setting{}, func(s *stage) {
		p := s.load.pump(s.topic, 0, 2*time.Millisecond, s.through(2))
		for n := range moves {
			if n%3 == 0 {
				s.reboot(n % 2)
			} else {
				s.restart(n % 2)
			}
			s.soon("all is well", 20*time.Second, func() bool { return s.inSync(0, 1, 2) })
			s.stepFor(50 * time.Millisecond)
		}
		acked, refused, uncertain := p.counts()
		s.t.Logf("%d acknowledged, %d refused, %d uncertain", acked, refused, uncertain)
		if uncertain > 0 || refused > 0 || acked < 10*moves {
			s.judge.complain("76", "over %d hand-overs %d writes were acknowledged, %d refused, %d uncertain", moves, acked, refused, uncertain)
		}
	})
}
