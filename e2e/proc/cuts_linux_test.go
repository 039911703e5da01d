package proc

import (
	"testing"
	"time"
)

// Links between processes lose everything, one way or both: records flow on, as
// soon as a broker that is heard by too few was replaced, and nothing is lost.
func TestCluster_linksCut(t *testing.T) {
	g := cluster(t, Cluster{
		Controllers: controllers, Brokers: 3, Links: true,
		ControllerSet: []string{"cluster.session_timeout=1s"}, BrokerSet: []string{"replication.lag_time_max=2s"},
	})
	createTxns(t, g)
	l := startLoad(t, g)
	l.flowing(t, time.Now(), flowsWithin)
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
