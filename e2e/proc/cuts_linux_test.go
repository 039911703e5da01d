package proc

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/runnelmq/runnel/client"
)

// Links between processes lose everything, one way or both: records flow on, as
// soon as a broker that is heard by too few was replaced, nothing is lost, and
// the end that readers are told never goes back (RP-01).
func TestCluster_linksCut(t *testing.T) {
	t.Parallel()
	g := cluster(t, Cluster{
		Controllers: controllers, Brokers: 3, Links: true,
		ControllerSet: []string{"cluster.session_timeout=1s"}, BrokerSet: []string{"replication.lag_time_max=2s"},
	})
	createTxns(t, g)
	l := startLoad(t, g)
	l.flowing(t, time.Now(), flowsWithin)
	ends := watchEnds(t, g)
	defer ends()
	one, two := g.Brokers[0].Name, g.Brokers[1].Name
	both := func(a, b string) { g.Links.Cut(a, b); g.Links.Cut(b, a) }
	all := func(cut func(name string)) {
		for _, n := range g.All() {
			if n.Name != one {
				cut(n.Name)
			}
		}
	}
	for _, c := range []struct {
		name  string
		short bool
		cut   func()
	}{
		{"a broker is cut off from all", true, func() { all(func(n string) { both(one, n) }) }},
		{"nobody hears a broker", true, func() { all(func(n string) { g.Links.Cut(one, n) }) }},
		{"a broker hears nobody", false, func() { all(func(n string) { g.Links.Cut(n, one) }) }},
		{"two brokers are cut off from each other", false, func() { both(one, two) }},
		{"a broker is not heard by another", false, func() { g.Links.Cut(one, two) }},
		{"a broker is cut off from the controllers", false, func() {
			for _, n := range g.Controllers {
				both(one, n.Name)
			}
		}},
	} {
		if !c.short && !whole() {
			continue
		}
		begin := time.Now()
		c.cut()
		l.flowing(t, begin, flowsWithin)
		t.Logf("%s: every partition takes records again after %v", c.name, time.Since(begin).Round(time.Millisecond))
		g.Links.Heal()
		settled(t, g)
		l.flowing(t, time.Now(), flowsWithin)
	}
	l.check(t)
}

// watchEnds asks every broker again and again where the partitions end, and fails
// the test when an end goes back. What it returns stops it.
func watchEnds(t *testing.T, g *Group) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, b := range g.Brokers {
		c := must[*client.Client](t)(client.New([]string{b.Client}))
		wg.Go(func() {
			defer c.Close()
			var seen [txnsPartitions]int64
			answers := 0
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for ctx.Err() == nil {
				<-tick.C
				ask, done := context.WithTimeout(ctx, time.Second)
				offsets, err := c.NewAdmin().ListOffsets(ask, txns, client.Latest())
				done()
				if err != nil {
					continue
				}
				for _, o := range offsets {
					if o.Err != nil {
						continue
					}
					answers++
					if o.Offset < seen[o.Partition] {
						t.Errorf("%s: partition %d ended at %d, and then at %d", b.Name, o.Partition, seen[o.Partition], o.Offset)
					}
					seen[o.Partition] = o.Offset
				}
			}
			if answers == 0 {
				t.Errorf("%s never said where a partition ends", b.Name)
			}
		})
	}
	return func() {
		cancel()
		wg.Wait()
	}
}
