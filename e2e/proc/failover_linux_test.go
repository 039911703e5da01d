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

// A failover is one way to lose a leader, and to get it back.
type failover struct {
	name string
	hurt func(g *Group, leader *Node) error
	heal func(g *Group, leader *Node) error
	// aim is what the worst should stay below; on a loaded machine it may not,
	// so it is told and not judged.
	aim time.Duration
}

func failovers() []failover {
	start := func(_ *Group, n *Node) error { return n.Start() }
	return []failover{
		{"kill -9 of a leader", func(_ *Group, n *Node) error { n.Kill(); return nil }, start, time.Second},
		{"SIGTERM of a leader", func(_ *Group, n *Node) error { return n.Stop(time.Minute) }, start, 200 * time.Millisecond},
		{"SIGSTOP of a leader", func(_ *Group, n *Node) error { return n.Pause() }, func(_ *Group, n *Node) error { return n.Resume() }, 4 * time.Second},
		{
			"kill -9 of the active controller and a leader together",
			func(g *Group, n *Node) error {
				activeController(g).Kill()
				n.Kill()
				return nil
			},
			func(g *Group, n *Node) error {
				for _, c := range g.Controllers {
					if !c.Running() {
						if err := c.Start(); err != nil {
							return err
						}
					}
				}
				return n.Start()
			}, 3500 * time.Millisecond,
		},
	}
}

// How long it takes from the loss of a leader until every partition it led has
// a record acknowledged that was sent after that. RUNNEL_TRIALS says how often
// each is tried; the figures are printed.
func TestFailoverTimes(t *testing.T) {
	trials, err := strconv.Atoi(os.Getenv("RUNNEL_TRIALS"))
	if err != nil {
		t.Skip("RUNNEL_TRIALS is not set to a number, such as 20")
	}
	for _, f := range failovers() {
		t.Run(f.name, func(t *testing.T) {
			g := cluster(t, Cluster{Controllers: controllers, Brokers: 3})
			createTxns(t, g)
			l := startLoad(t, g)
			var took []time.Duration
			for range trials {
				l.flowing(t, time.Now(), flowsWithin)
				apart(t)
				leader := settled(t, g)
				begin := time.Now()
				if err := f.hurt(g, leader); err != nil {
					t.Fatal(err)
				}
				l.flowing(t, begin, time.Minute)
				took = append(took, time.Since(begin))
				if err := f.heal(g, leader); err != nil {
					t.Fatal(err)
				}
			}
			r := l.check(t)
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
	timer := time.NewTimer(4 * time.Second)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
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

// activeController returns the controller that brokers name; any, when they
// know none.
func activeController(g *Group) *Node {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c, err := client.New(g.Seeds())
	if err != nil {
		return g.Controllers[0]
	}
	defer c.Close()
	if d, err := c.NewAdmin().DescribeCluster(ctx); err == nil {
		for _, n := range g.Controllers {
			if n.Internal == d.Controller {
				return n
			}
		}
	}
	return g.Controllers[0]
}
