package proc

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The metadata are lost, and restored from a backup that is older than some of
// the records: brokers take the restored controller for their own, everything
// that was acknowledged is there, and what the backup does not know is left alone
// and told of.
func TestCluster_metadataRestored(t *testing.T) {
	t.Parallel()
	g := cluster(t, Cluster{Controllers: 1, Brokers: 3})
	createTxns(t, g)
	l := startLoad(t, g)
	l.flowing(t, time.Now(), flowsWithin)
	lost, broker := g.Controllers[0], g.Brokers[0]
	file := filepath.Join(t.TempDir(), "metadata.backup")
	broker.cli(t, "controller", "backup", file, "--etcd-endpoints", lost.Etcd)
	broker.cli(t, "topic", "create", "later", "--replication-factor", "3")
	for i, b := range g.Brokers { // leaders and their epochs change after the backup, too
		if i > 0 && !whole() {
			break
		}
		b.Kill()
		l.flowing(t, time.Now(), flowsWithin)
		b.restart(t)
	}
	l.flowing(t, time.Now(), flowsWithin)
	for _, b := range g.Brokers {
		b.stop(t)
	}
	lost.stop(t)
	if err := os.RemoveAll(lost.Data); err != nil {
		t.Fatal(err)
	}
	broker.cli(t, append([]string{"controller", "restore", file}, lost.flags...)...)
	for _, n := range g.All() {
		if err := n.Start(); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.flowing(t, time.Now(), flowsWithin)
	l.check(t)
	settled(t, g)
	equal(t, g, txnsPartitions+1) // the copies of what nobody knows among them
	health := broker.try(t, broker.command(t, "cluster", "health"))
	if health.Code != 1 || !strings.Contains(health.Stdout, "quarantined") {
		t.Errorf("cluster health: exit code %d\n%s", health.Code, health.Stdout)
	}
}
