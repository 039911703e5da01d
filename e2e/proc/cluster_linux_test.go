package proc

import (
	"testing"
	"time"
)

// flowsWithin bounds the time until every partition takes records again, on a
// loaded machine.
const flowsWithin = 30 * time.Second

// With every broker killed and restarted in turn, nothing acknowledged is lost.
func TestCluster_brokersKilledInTurn(t *testing.T) {
	g := cluster(t, Cluster{Controllers: 1, Brokers: 3})
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
