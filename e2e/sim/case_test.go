package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runnelmq/runnel/controller/state"
	"github.com/runnelmq/runnel/e2e/history"
)

// scene runs a story in a cluster of three brokers, and judges how it ended.
func scene(t *testing.T, controllers int, busy bool, story func(c *cluster)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, shape{controllers: controllers, brokers: 3, lag: 5 * time.Second, latency: 2 * time.Millisecond})
		defer c.report()
		l := c.newLoad()
		c.topics = []*topic{{name: "orders", partitions: 2, history: history.New(history.Options{})}}
		if err := c.create(c.topics[0], 30*time.Second, 3, map[string]string{"min.insync.replicas": "2"}); err != nil {
			t.Fatal(err)
		}
		for n := range int32(2) {
			if busy {
				l.write(c.topics[0], n, rand.New(rand.NewPCG(uint64(n), 3)))
				l.read(c.topics[0], n, rand.New(rand.NewPCG(uint64(n), 4)))
			}
		}
		c.passFor(2 * time.Second)
		story(c)
		c.settle(newSchedule(c), l)
		c.finish(l)
	})
}

func (c *cluster) passFor(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		c.pass()
	}
}

// All processes are killed, and no machine is: everybody comes back with all it
// had, without an operator, and nothing is suspect or elected in despair.
func TestCaseAllBrokersKilled(t *testing.T) {
	scene(t, 1, true, func(c *cluster) {
		for _, h := range c.brokers {
			h.kill()
		}
		c.passFor(time.Second)
		for _, h := range c.brokers {
			h.start()
		}
		c.passFor(2 * time.Second)
		for _, h := range c.brokers {
			for _, p := range h.proc.Partitions().All() {
				if why := p.Suspicion(); why != "" {
					c.judge.complain("61", "%s on %s is suspect: %s", p, h.name, why)
				}
			}
		}
	})
}

// A controller that reaches nobody fences nobody: no epoch moves, and what is
// written meanwhile is acknowledged.
func TestCaseControllerIsolated(t *testing.T) {
	scene(t, 1, true, func(c *cluster) {
		before := c.pass().partitions
		acked := c.judge.acks()
		var links []link
		for _, h := range c.brokers {
			links = append(links, link{"c0", h.name}, link{h.name, "c0"})
		}
		heal := c.net.cut(links...)
		c.passFor(30 * time.Second)
		if now := c.judge.acks(); now < acked+50 {
			c.judge.complain("64", "%d records were acknowledged in 30 s without a controller", now-acked)
		}
		heal()
		c.passFor(10 * time.Second)
		for k, rec := range c.pass().partitions {
			if old := before[k]; old.LeaderEpoch != rec.LeaderEpoch || old.PartitionEpoch != rec.PartitionEpoch {
				c.judge.complain("64", "%s: %+v became %+v", c.judge.name(k), *old, *rec)
			}
		}
	})
}

// Nobody writes, and leaders come and go: each new one knows within a second
// where its log ends.
func TestCaseIdleLeaders(t *testing.T) {
	scene(t, 1, false, func(c *cluster) {
		for range 5 {
			rec := c.first()
			h := c.brokers[rec.Leader]
			h.kill()
			elected := c.await(5*time.Second, func() bool {
				now := c.first()
				return now.Leader != state.NoLeader && now.LeaderEpoch > rec.LeaderEpoch
			})
			settled := c.await(time.Second, func() bool {
				p := c.replica(c.first().Leader, rec.PartitionKey())
				return p != nil && p.State().Settled
			})
			if !elected || !settled {
				c.judge.complain("71", "after the end of %s: elected %v, settled %v: %+v", h.name, elected, settled, *c.first())
			}
			h.start()
			if !c.await(10*time.Second, func() bool { return len(c.first().ISR) == 3 }) {
				c.judge.complain("71", "%s is not in sync again: %+v", h.name, *c.first())
			}
		}
	})
}

// first returns the record of the first topic's first partition.
func (c *cluster) first() *state.Partition {
	for k, rec := range c.picture().partitions {
		if k.Number == 0 && k.Topic.String() == c.topics[0].id {
			return rec
		}
	}
	panic(fmt.Sprintf("no partition of %s", c.topics[0].id))
}

// await waits until a condition holds, for a time at most.
func (c *cluster) await(d time.Duration, cond func() bool) bool {
	for end := time.Now().Add(d); time.Now().Before(end); {
		if cond() {
			return true
		}
		c.pass()
	}
	return cond()
}

// The network keeps what is cut, in order, and tells of resets.
func TestNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		lis, err := n.listen("b", "b:1")
		if err != nil {
			t.Fatal(err)
		}
		there, err := n.dial(t.Context(), "a", "b", "b:1", func() bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		here, err := lis.Accept()
		if err != nil {
			t.Fatal(err)
		}
		heal := n.cut(link{"a", "b"})
		write(t, there, "one ")
		write(t, here, "back")
		if got := read(t, there, 4); got != "back" {
			t.Errorf("against a one-way cut came %q", got)
		}
		if err := here.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		if n, err := here.Read(make([]byte, 9)); err == nil {
			t.Errorf("%d bytes went through a cut", n)
		}
		if err := here.SetReadDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		write(t, there, "two!")
		heal()
		if got := read(t, here, 8); got != "one two!" {
			t.Errorf("after the cut came %q", got)
		}
		slow := n.delay(time.Second, link{"a", "b"})
		start := time.Now()
		write(t, there, "late")
		if got, took := read(t, here, 4), time.Since(start); got != "late" || took != time.Second {
			t.Errorf("%q came after %v", got, took)
		}
		slow()
		n.reset("b", "a")
		for _, c := range []interface{ Read([]byte) (int, error) }{there, here} {
			if _, err := c.Read(make([]byte, 1)); err == nil {
				t.Error("a reset was not noticed")
			}
		}
		n.die("b", true)
		if _, err := n.dial(t.Context(), "a", "b", "b:1", func() bool { return true }); err == nil {
			t.Error("a dead host took a connection")
		}
	})
}

func write(t *testing.T, c interface{ Write([]byte) (int, error) }, s string) {
	t.Helper()
	if _, err := c.Write([]byte(s)); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, c interface{ Read([]byte) (int, error) }, n int) string {
	t.Helper()
	var got []byte
	for len(got) < n {
		b := make([]byte, n-len(got))
		m, err := c.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		got = slices.Concat(got, b[:m])
	}
	return string(got)
}
