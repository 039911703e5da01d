package proc

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/runnelmq/runnel/client"
)

// The metadata are lost, and restored from a backup that is older than some of
// the records: brokers take the restored controller for their own, everything
// that was acknowledged is there, and what the backup does not know is left alone
// and told of. So is a partition that was added after the backup: added once more
// it is empty. What was done since does not hinder anybody to restore the same
// backup again, and a broker that runs on over it is not let in before it is started
// anew: nobody would know which of its copies are the best.
func TestCluster_metadataRestored(t *testing.T) {
	t.Parallel()
	g := cluster(t, Cluster{Controllers: 1, Brokers: 3})
	createTxns(t, g)
	l := startLoad(t, g)
	l.flowing(t, time.Now(), flowsWithin)
	lost, broker := g.Controllers[0], g.Brokers[0]
	file := filepath.Join(t.TempDir(), "metadata.backup")
	broker.cli(t, "topic", "create", "grown", "--partitions", "1", "--replication-factor", "3")
	broker.cli(t, "controller", "backup", file, "--etcd-endpoints", lost.Etcd)
	broker.cli(t, "topic", "create", "later", "--replication-factor", "3")
	grow(t, g)
	for i, b := range g.Brokers { // leaders and their epochs change after the backup, too
		if i > 0 && !whole() {
			break
		}
		b.Kill()
		l.flowing(t, time.Now(), flowsWithin)
		b.restart(t)
	}
	l.flowing(t, time.Now(), flowsWithin)
	for _, running := range []bool{false, true} { // the brokers, meanwhile
		for _, b := range g.Brokers {
			if !running {
				b.stop(t)
			}
		}
		lost.stop(t)
		if err := os.RemoveAll(lost.Data); err != nil {
			t.Fatal(err)
		}
		broker.cli(t, append([]string{"controller", "restore", file}, lost.flags...)...)
		if running {
			if err := lost.Start(); err != nil {
				t.Fatal(err)
			}
			for _, b := range g.Brokers {
				eventually(t, b.Name+" says that it is to be started anew", func() bool { return strings.Contains(b.Log(), "restored from a backup while") })
			}
			for _, b := range g.Brokers {
				b.Kill()
			}
			lost.stop(t)
		}
		for _, n := range g.All() {
			if err := n.Start(); err != nil {
				t.Fatal(err)
			}
		}
		if err := g.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.flowing(t, time.Now(), flowsWithin)
		grow(t, g)
		if !running {
			lost.Kill() // another epoch of the controllers
			lost.restart(t)
		}
	}
	l.check(t)
	settled(t, g)
	equal(t, g, txnsPartitions+3) // the copies of what nobody knows among them
	health := broker.try(t, broker.command(t, "cluster", "health"))
	if health.Code != 1 || !strings.Contains(health.Stdout, "quarantined") {
		t.Errorf("cluster health: exit code %d\n%s", health.Code, health.Stdout)
	}
}

// grow gives the topic "grown" a second partition, which must be empty, and
// writes a record to it.
func grow(t *testing.T, g *Group) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := must[*client.Client](t)(client.New(g.Seeds()))
	defer c.Close()
	if _, _, err := c.NewAdmin().AddPartitions(ctx, "grown", 2); err != nil {
		t.Fatal(err)
	}
	p := must[*client.Producer](t)(c.NewProducer(client.PartitionBy(func(*client.Record, int32) int32 { return 1 })))
	rs := must[[]client.Result](t)(p.ProduceSync(ctx, client.Record{Topic: "grown", Value: []byte("of this partition")}))
	if rs[0].Offset != 0 {
		t.Errorf("the first record of the added partition is at offset %d", rs[0].Offset)
	}
	if err := p.Close(ctx); err != nil {
		t.Error(err)
	}
}

// An older copy of a controller's data is put back: a broker that was started since
// is not let in, as who was in sync then need not have all records now. What is
// backed up of it and restored serves.
func TestCluster_olderMetadata(t *testing.T) {
	t.Parallel()
	g := cluster(t, Cluster{Controllers: 1, Brokers: 1})
	ctl, broker := g.Controllers[0], g.Brokers[0]
	broker.cli(t, "topic", "create", "grown", "--partitions", "1")
	ctl.stop(t)
	if err := os.CopyFS(ctl.Data+".old", os.DirFS(ctl.Data)); err != nil {
		t.Fatal(err)
	}
	ctl.restart(t)
	broker.Kill()
	broker.restart(t)
	grow(t, g)
	broker.stop(t)
	ctl.stop(t)
	putBack(t, ctl)
	ctl.restart(t)
	if err := broker.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the broker ends", func() bool { return !broker.Running() })
	if log := broker.Log(); broker.Code() != 1 || !strings.Contains(log, "older copy") {
		t.Fatalf("exit code %d\n%s", broker.Code(), log)
	}
	file := filepath.Join(t.TempDir(), "metadata.backup")
	broker.cli(t, "controller", "backup", file, "--etcd-endpoints", ctl.Etcd)
	ctl.stop(t)
	wipe(t, ctl)
	broker.cli(t, append([]string{"controller", "restore", file}, ctl.flags...)...)
	ctl.restart(t)
	broker.restart(t)
	grow(t, g)
}
