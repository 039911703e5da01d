package proc

import (
	"context"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/runnelmq/runnel/client"
)

// A failover is one way to lose a leader or a controller, and to get it back.
type failover struct {
	name string
	hurt func(t *testing.T, s *stage) error
	// over waits until all is well again and returns how long it was not.
	over func(t *testing.T, s *stage) time.Duration
	heal func(s *stage) error
	// aim is what the worst should stay below; on a loaded machine it may not,
	// so it is told and not judged.
	aim time.Duration
}

// A stage is where a failover happens.
type stage struct {
	g      *Group
	l      *load
	leader *Node // of most partitions
	active *Node // controller
	begin  time.Time
}

// flows waits until every partition has a record acknowledged that was sent
// after the fault.
func flows(t *testing.T, s *stage) time.Duration {
	t.Helper()
	s.l.flowing(t, s.begin, time.Minute)
	return time.Since(s.begin)
}

// silent waits until every partition has a record acknowledged that was sent
// now, and returns the longest time that one of them had none. It is for a
// leader that serves for a while after it was told to stop.
func silent(t *testing.T, s *stage) time.Duration {
	t.Helper()
	s.l.flowing(t, time.Now(), time.Minute)
	return s.l.silence()
}

func failovers() []failover {
	start := func(s *stage) error { return s.leader.Start() }
	back := func(s *stage) error { return s.active.Start() }
	return []failover{
		{"kill -9 of a leader", func(_ *testing.T, s *stage) error { s.leader.Kill(); return nil }, flows, start, time.Second},
		{"SIGTERM of a leader", func(_ *testing.T, s *stage) error { return s.leader.Stop(time.Minute) }, silent, start, 200 * time.Millisecond},
		{
			"SIGSTOP of a leader",
			func(_ *testing.T, s *stage) error { return s.leader.Pause() }, flows,
			func(s *stage) error { return s.leader.Resume() }, 4 * time.Second,
		},
		{"kill -9 of the active controller", func(_ *testing.T, s *stage) error { s.active.Kill(); return nil }, serves, back, 500 * time.Millisecond},
		{
			"kill -9 of the active controller that leads etcd too",
			func(t *testing.T, s *stage) error {
				t.Helper()
				leadEtcd(t, s)
				s.begin = time.Now()
				s.active.Kill()
				return nil
			}, serves, back, 2500 * time.Millisecond,
		},
		{
			"kill -9 of the active controller and a leader together",
			func(_ *testing.T, s *stage) error {
				s.active.Kill()
				s.leader.Kill()
				return nil
			}, flows,
			func(s *stage) error {
				if err := s.active.Start(); err != nil {
					return err
				}
				return s.leader.Start()
			}, 3500 * time.Millisecond,
		},
	}
}

// How long it takes from the loss of a leader until every partition it led has
// a record acknowledged that was sent after that, or from the loss of the active
// controller until another one decides. RUNNEL_TRIALS says how often each is
// tried; the figures are printed.
func TestFailoverTimes(t *testing.T) {
	trials, err := strconv.Atoi(os.Getenv("RUNNEL_TRIALS"))
	if err != nil {
		t.Skip("RUNNEL_TRIALS is not set to a number, such as 20")
	}
	for _, f := range failovers() {
		t.Run(f.name, func(t *testing.T) {
			g := cluster(t, Cluster{Controllers: controllers, Brokers: 3})
			createTxns(t, g)
			s := &stage{g: g, l: startLoad(t, g)}
			var took []time.Duration
			for range trials {
				if err := g.Ready(t.Context()); err != nil {
					t.Fatal(err)
				}
				s.l.flowing(t, time.Now(), flowsWithin)
				apart(t)
				s.leader = settled(t, g)
				s.active, _ = activeController(t, g)
				s.l.silence()
				s.begin = time.Now()
				if err := f.hurt(t, s); err != nil {
					t.Fatal(err)
				}
				took = append(took, f.over(t, s))
				if err := f.heal(s); err != nil {
					t.Fatal(err)
				}
			}
			_, epoch := activeController(t, g)
			t.Logf("the controllers are in epoch %d", epoch)
			r := s.l.check(t)
			slices.Sort(took)
			t.Logf("%s, %d trials: median %v, worst %v (aim: below %v); %d of %d outcomes unknown",
				f.name, trials, took[len(took)/2].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond), f.aim, r.Unknown, r.Sent)
		})
	}
}

// apart waits a little longer than a session lasts: when brokers are lost faster
// than that, the controllers believe no sign but silence.
func apart(t *testing.T) {
	t.Helper()
	pass(t, 4*time.Second)
}

// settled waits until every replica is in sync, and returns the broker that
// leads most partitions.
func settled(t *testing.T, g *Group) *Node {
	t.Helper()
	c := must[*client.Client](t)(client.New(g.Seeds()))
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		leads, whole := leaderships(ctx, c, len(g.Brokers))
		if whole {
			most := 0
			for i := range leads {
				if leads[i] > leads[most] {
					most = i
				}
			}
			return g.Brokers[most]
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("the replicas do not come in sync again")
		}
	}
}

// leaderships returns how many partitions each broker leads, and whether all
// replicas are in sync.
func leaderships(ctx context.Context, c *client.Client, brokers int) ([]int, bool) {
	ds, err := c.NewAdmin().DescribeTopics(ctx, []string{txns})
	if err != nil || len(ds) != 1 || ds[0].Err != nil {
		return nil, false
	}
	leads := make([]int, brokers)
	for _, p := range ds[0].Partitions {
		if p.Leader < 1 || int(p.Leader) > brokers || len(p.ISR) < len(p.Replicas) {
			return nil, false
		}
		leads[p.Leader-1]++
	}
	return leads, len(ds[0].Partitions) > 0
}

// activeController waits until the brokers name an active controller, and
// returns it and its epoch.
func activeController(t *testing.T, g *Group) (active *Node, epoch int64) {
	t.Helper()
	c := must[*client.Client](t)(client.New(g.Seeds()))
	defer c.Close()
	eventually(t, "an active controller is known", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		d, err := c.NewAdmin().DescribeCluster(ctx)
		if err != nil {
			return false
		}
		for _, n := range g.Controllers {
			if n.Internal == d.Controller && n.Running() {
				active, epoch = n, d.ControllerEpoch
			}
		}
		return active != nil
	})
	return active, epoch
}
