package proc

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// flowsWithin bounds the time until every partition takes records again, on a
// loaded machine.
const flowsWithin = 30 * time.Second

// controllers is how many the clusters of these tests have.
const controllers = 3

// With every broker killed and restarted in turn, nothing acknowledged is lost.
func TestCluster_brokersKilledInTurn(t *testing.T) {
	t.Parallel()
	g := cluster(t, Cluster{Controllers: controllers, Brokers: 3})
	createTxns(t, g)
	l := startLoad(t, g)
	l.flowing(t, time.Now(), flowsWithin)
	for _, b := range g.Brokers {
		killed := time.Now()
		b.Kill()
		l.flowing(t, killed, flowsWithin)
		t.Logf("%s killed: every partition takes records again after %v", b.Name, time.Since(killed).Round(time.Millisecond))
		b.restart(t)
		l.flowing(t, time.Now(), flowsWithin)
	}
	l.check(t)
}

// A leader that hangs loses its partitions, and does no harm when it goes on.
func TestCluster_brokersPausedInTurn(t *testing.T) {
	t.Parallel()
	if !whole() {
		t.Skip("a part of make e2e: it waits for sessions to time out")
	}
	g := cluster(t, Cluster{Controllers: controllers, Brokers: 3})
	createTxns(t, g)
	l := startLoad(t, g)
	l.flowing(t, time.Now(), flowsWithin)
	for _, b := range g.Brokers {
		paused := time.Now()
		if err := b.Pause(); err != nil {
			t.Fatal(err)
		}
		l.flowing(t, paused, flowsWithin)
		t.Logf("%s paused: every partition takes records again after %v", b.Name, time.Since(paused).Round(time.Millisecond))
		if err := b.Resume(); err != nil {
			t.Fatal(err)
		}
		l.flowing(t, time.Now(), flowsWithin)
	}
	l.check(t)
}

// Brokers that are stopped in turn hand over first: no outcome is unknown.
func TestCluster_rollingRestart(t *testing.T) {
	t.Parallel()
	g := cluster(t, Cluster{Controllers: controllers, Brokers: 3})
	createTxns(t, g)
	l := startLoad(t, g)
	l.flowing(t, time.Now(), flowsWithin)
	for _, b := range g.Brokers {
		stopped := time.Now()
		b.stop(t)
		l.flowing(t, stopped, flowsWithin)
		t.Logf("%s stopped: every partition takes records again after %v", b.Name, time.Since(stopped).Round(time.Millisecond))
		b.restart(t)
		l.flowing(t, time.Now(), flowsWithin)
	}
	if r := l.check(t); r.Unknown+r.Failed > 0 {
		t.Errorf("%d records of unknown outcome and %d failed, want none", r.Unknown, r.Failed)
	}
}

// All brokers killed at once come back by themselves.
func TestCluster_allBrokersKilled(t *testing.T) {
	t.Parallel()
	g := cluster(t, Cluster{Controllers: controllers, Brokers: 3})
	createTxns(t, g)
	l := startLoad(t, g)
	for round := range 2 {
		l.flowing(t, time.Now(), flowsWithin)
		for _, b := range g.Brokers {
			b.Kill()
		}
		if round > 0 && whole() {
			pass(t, 25*time.Second) // a controller that hears nobody makes way for another, again and again
		}
		back := time.Now()
		for _, b := range g.Brokers {
			if err := b.Start(); err != nil {
				t.Fatal(err)
			}
		}
		if err := g.Ready(t.Context()); err != nil { // one alone is not, while the others miss
			t.Fatal(err)
		}
		l.flowing(t, time.Now(), flowsWithin)
		t.Logf("every partition takes records again %v after the start", time.Since(back).Round(time.Millisecond))
	}
	l.check(t)
}

// With the controllers away records go on, written and read on every partition,
// and afterwards elections.
func TestCluster_controllersKilled(t *testing.T) {
	t.Parallel()
	g := cluster(t, Cluster{Controllers: controllers, Brokers: 3})
	createTxns(t, g)
	l := startLoad(t, g)
	l.flowing(t, time.Now(), flowsWithin)
	for _, c := range g.Controllers {
		c.Kill()
	}
	within := flowsWithin
	if whole() {
		within = 2 * time.Second
	}
	away := time.NewTimer(controllersAway(t))
	defer away.Stop()
	for left := true; left; {
		select {
		case <-away.C:
			left = false
		default:
		}
		l.flowing(t, time.Now(), within)
		l.readUp(t, within)
	}
	for _, c := range g.Controllers {
		if err := c.Start(); err != nil { // none is ready before a majority is up
			t.Fatal(err)
		}
	}
	if err := g.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	g.Brokers[0].Kill()
	l.flowing(t, killed, flowsWithin)
	g.Brokers[0].restart(t)
	l.check(t)
}

func controllersAway(t *testing.T) time.Duration {
	t.Helper()
	if whole() {
		return time.Minute
	}
	return 4 * time.Second // longer than a session
}

// Random faults, for as long as RUNNEL_FAULTS says, from the seed that is
// printed and that RUNNEL_FAULTS_SEED sets.
func TestCluster_randomFaults(t *testing.T) {
	long, err := time.ParseDuration(os.Getenv("RUNNEL_FAULTS"))
	if err != nil {
		t.Skip("RUNNEL_FAULTS is not set to a duration, such as 60s")
	}
	seed := uint64(time.Now().UnixNano()) //nolint:gosec // any will do
	if s := os.Getenv("RUNNEL_FAULTS_SEED"); s != "" {
		seed = must[uint64](t)(strconv.ParseUint(s, 10, 64))
	}
	t.Logf("seed %d: RUNNEL_FAULTS_SEED=%d does the same faults again", seed, seed)
	g := cluster(t, Cluster{Controllers: controllers, Brokers: 3, Links: true})
	createTxns(t, g)
	l := startLoad(t, g)
	l.flowing(t, time.Now(), flowsWithin)
	d := &faultDriver{t: t, g: g, rng: rand.New(rand.NewPCG(seed, 0))}
	d.hurt(long, func() { l.flowing(t, time.Now(), 2*flowsWithin) })
	g.Links.Heal()
	d.living()
	if err := g.Ready(t.Context()); err != nil {
		t.Error(err)
	}
	l.flowing(t, time.Now(), flowsWithin)
	l.check(t)
}
