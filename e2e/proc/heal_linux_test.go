package proc

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/runnelmq/runnel/client"
	"github.com/runnelmq/runnel/internal/record"
)

// A broker that was the last in sync comes back before the others, and its data
// are gone, old or damaged: it may not lead, and heals by itself once there is
// somebody to copy from. In the end all copies are equal.
func TestCluster_badDataHeal(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(t *testing.T, n *Node){"wiped": wipe, "old": putBack, "corrupt": corrupt} {
		t.Run(name, func(t *testing.T) {
			g := cluster(t, Cluster{Controllers: 1, Brokers: 3, ControllerSet: []string{"cluster.session_timeout=1s"}})
			createTxns(t, g)
			l := startLoad(t, g)
			l.flowing(t, time.Now(), flowsWithin)
			bad := g.Brokers[0]
			bad.stop(t)
			if err := os.CopyFS(bad.Data+".old", os.DirFS(bad.Data)); err != nil {
				t.Fatal(err)
			}
			bad.restart(t)
			settled(t, g)
			l.flowing(t, time.Now(), flowsWithin)
			for _, b := range g.Brokers[1:] {
				b.Kill()
			}
			isr(t, bad, 1)
			bad.Kill()
			spoil(t, bad)
			if err := bad.Start(); err != nil {
				t.Fatal(err)
			}
			pass(t, aloneFor)
			for _, b := range g.Brokers[1:] {
				if err := b.Start(); err != nil {
					t.Fatal(err)
				}
			}
			if err := g.Ready(t.Context()); err != nil {
				t.Fatal(err)
			}
			l.flowing(t, time.Now(), flowsWithin)
			l.check(t)
			settled(t, g)
			equal(t, g, txnsPartitions)
		})
	}
}

// isr waits until n replicas of each partition are in sync, as a broker has it.
func isr(t *testing.T, at *Node, n int) {
	t.Helper()
	c := must[*client.Client](t)(client.New([]string{at.Client}))
	defer c.Close()
	eventually(t, "the replicas in sync are as many as they should be", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		ds, err := c.NewAdmin().DescribeTopics(ctx, []string{txns})
		return err == nil && len(ds) == 1 && len(ds[0].Partitions) == txnsPartitions &&
			!slices.ContainsFunc(ds[0].Partitions, func(p client.PartitionDescription) bool { return len(p.ISR) != n })
	})
}

// aloneFor is the time that a broker which has just been started needs to come
// into service and to lead what it may.
const aloneFor = 1500 * time.Millisecond

// pass lets time pass.
func pass(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}

func wipe(t *testing.T, n *Node) {
	t.Helper()
	if err := os.RemoveAll(n.Data); err != nil {
		t.Fatal(err)
	}
}

// putBack replaces a broker's data by what they were earlier.
func putBack(t *testing.T, n *Node) {
	t.Helper()
	wipe(t, n)
	if err := os.Rename(n.Data+".old", n.Data); err != nil {
		t.Fatal(err)
	}
}

// corrupt damages the first third of every log.
func corrupt(t *testing.T, n *Node) {
	t.Helper()
	logs := logsOf(t, n)
	if len(logs) == 0 {
		t.Fatalf("%s holds no log", n.Name)
	}
	for _, name := range logs {
		f := must[*os.File](t)(os.OpenFile(name, os.O_RDWR, 0))
		size := must[os.FileInfo](t)(f.Stat()).Size()
		if _, err := f.WriteAt([]byte{0xff, 0x00, 0xff, 0x00, 0xff, 0x00, 0xff, 0x00}, size/3); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// logsOf returns the segments of a broker's partitions, in order.
func logsOf(t *testing.T, n *Node) []string {
	t.Helper()
	names := must[[]string](t)(filepath.Glob(filepath.Join(n.Data, "*", "*", "*.log")))
	slices.Sort(names)
	return names
}

// equal waits until all brokers have the same bytes of each of so many partitions.
func equal(t *testing.T, g *Group, partitions int) {
	t.Helper()
	eventually(t, "the copies are equal", func() bool {
		want := digests(t, g.Brokers[0])
		if len(want) != partitions {
			t.Fatalf("%s holds %d partitions", g.Brokers[0].Name, len(want))
		}
		for _, b := range g.Brokers[1:] {
			if got := digests(t, b); fmt.Sprint(got) != fmt.Sprint(want) {
				return false
			}
		}
		return true
	})
}

// digests returns the digest of each partition's batches. Where segments end is each
// broker's own affair.
func digests(t *testing.T, n *Node) map[string]string {
	t.Helper()
	whole := map[string]hash.Hash{}
	out := map[string]string{}
	for _, name := range logsOf(t, n) {
		dir := must[string](t)(filepath.Rel(n.Data, filepath.Dir(name)))
		if filepath.Ext(dir) != "" {
			continue // set aside
		}
		h, ok := whole[dir]
		if !ok {
			h = sha256.New()
			whole[dir] = h
		}
		data := must[[]byte](t)(os.ReadFile(name))
		_, _ = h.Write(data) // of a hash, it can't fail
	}
	for dir, h := range whole {
		out[dir] = hex.EncodeToString(h.Sum(nil))
	}
	return out
}

// A leader that finds damage in committed records gives its leaderships away and
// fetches a good copy; whoever reads meanwhile, and has brokers look at what came
// damaged, gets every record.
func TestCluster_damagedLeader(t *testing.T) {
	t.Parallel()
	g := cluster(t, Cluster{Controllers: 1, Brokers: 3, BrokerSet: []string{"replication.lag_time_max=2s"}})
	createTxns(t, g)
	l := startLoad(t, g)
	l.flowing(t, time.Now(), flowsWithin)
	bad := g.Brokers[0]
	bad.stop(t) // in order: what is damaged afterwards is not looked at as it starts
	damagePayloads(t, bad)
	bad.restart(t)
	settled(t, g)
	for _, b := range g.Brokers[1:] { // so that it leads all
		b.stop(t)
	}
	for _, b := range g.Brokers[1:] {
		b.restart(t)
	}
	settled(t, g)
	c := must[*client.Client](t)(client.New(g.Seeds()))
	defer c.Close()
	leads, _ := leaderships(t.Context(), c, len(g.Brokers))
	if leads == nil || leads[0] != txnsPartitions {
		t.Fatalf("the damaged one does not lead all: %v", leads)
	}
	l.readUp(t, flowsWithin)
	l.check(t)
	settled(t, g) // reading found damage, and what is damaged is being copied anew
	equal(t, g, txnsPartitions)
}

// damagePayloads flips a bit of the records of each log's second batch, whose
// header stays as it is.
func damagePayloads(t *testing.T, n *Node) {
	t.Helper()
	for _, name := range logsOf(t, n) {
		data := must[[]byte](t)(os.ReadFile(name))
		at := 0
		for range 2 {
			f, v := record.ParseFrame(data[at:], int64(len(data)-at), record.MaxFrameSize)
			if v != record.OK {
				t.Fatalf("%s at byte %d: %v", name, at, v)
			}
			if at == 0 {
				at = f.Size
				continue
			}
			data[at+(f.PayloadStart+f.PayloadEnd)/2] ^= 1
		}
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
