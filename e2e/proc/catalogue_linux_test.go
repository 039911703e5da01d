package proc

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runnelmq/runnel/client"
)

// A leader that hangs for 40 s, and whose session is longer than that, has led
// all the time: nobody is fenced for it, and it removes no follower that it
// could not hear (row 73).
func TestCluster_leaderPausedWithinItsSession(t *testing.T) {
	if !whole() {
		t.Skip("a part of make e2e: it pauses a broker for 40 s")
	}
	g := cluster(t, Cluster{Controllers: controllers, Brokers: 3, ControllerSet: []string{"cluster.session_timeout=60s"}})
	createTxns(t, g)
	l := startLoad(t, g)
	l.flowing(t, time.Now(), flowsWithin)
	leader := settled(t, g)
	before := led(t, leader)
	if len(before) == 0 {
		t.Fatal("the broker leads nothing: this proves nothing")
	}
	if err := leader.Pause(); err != nil {
		t.Fatal(err)
	}
	paused := time.Now()
	pass(t, 40*time.Second)
	if err := leader.Resume(); err != nil {
		t.Fatal(err)
	}
	resumed := time.Now()
	l.flowing(t, resumed, flowsWithin)
	t.Logf("%d partitions led through a pause of %v: all take records again after %v",
		len(before), resumed.Sub(paused).Round(time.Millisecond), time.Since(resumed).Round(time.Millisecond))
	pass(t, 15*time.Second) // longer than a follower may lag: who is to be removed, is by now
	settled(t, g)
	if diff := cmp.Diff(before, led(t, leader)); diff != "" {
		t.Errorf("what the paused broker leads, -before +after:\n%s", diff)
	}
	l.check(t)
}

// leading is what the controllers decided of a partition. Epoch moves with each
// change of it, also with one that was taken back.
type leading struct {
	Epoch, LeaderEpoch int64
	ISR                []int32
}

// led returns the partitions that a broker leads, by their number, as it has
// them.
func led(t *testing.T, n *Node) map[int32]leading {
	t.Helper()
	c := must[*client.Client](t)(client.New([]string{n.Client}))
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	id := must[client.ClusterDescription](t)(c.NewAdmin().DescribeCluster(ctx)).BrokerID
	ds := must[[]client.TopicDescription](t)(c.NewAdmin().DescribeTopics(ctx, []string{txns}))
	if len(ds) != 1 || ds[0].Err != nil {
		t.Fatalf("%+v", ds)
	}
	parts := map[int32]leading{}
	for _, p := range ds[0].Partitions {
		if p.Leader == id {
			parts[p.Partition] = leading{p.PartitionEpoch, p.LeaderEpoch, p.ISR}
		}
	}
	return parts
}

// Two of three controllers lose their disks. They begin no other cluster while
// the third is there to tell; when it is not, and they do, no broker goes over
// to it, and none touches its data (row 78).
func TestCluster_twoControllersEmptied(t *testing.T) {
	t.Parallel()
	if !whole() {
		t.Skip("a part of make e2e: it waits for what must not happen")
	}
	g := cluster(t, Cluster{Controllers: controllers, Brokers: 3})
	createTxns(t, g)
	l := startLoad(t, g)
	l.flowing(t, time.Now(), flowsWithin)
	settled(t, g)
	topics := topicDirs(t, g)
	kept, lost := g.Controllers[0], g.Controllers[1:]
	for _, c := range lost {
		c.Kill()
		if err := os.Rename(c.Data, c.Data+".lost"); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range lost {
		t.Run(c.Name+" without --bootstrap", func(t *testing.T) {
			p := must[*Process](t)(c.plain())
			refuses(t, p, "there is no metadata here")
		})
		t.Run(c.Name+" with --bootstrap", func(t *testing.T) {
			p := must[*Process](t)(c.again())
			refuses(t, p, "runnel controller remove "+c.Name)
		})
	}
	l.flowing(t, time.Now(), flowsWithin)

	// With nobody to tell them, they begin another cluster.
	kept.Kill()
	for _, c := range lost {
		if err := os.RemoveAll(c.Data); err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range lost {
		if err := c.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	l.flowing(t, time.Now(), flowsWithin)
	restarted := g.Brokers[2]
	restarted.Kill()
	if err := restarted.Start(); err != nil {
		t.Fatal(err)
	}
	for _, b := range g.Brokers {
		eventually(t, b.Name+" says that this is another cluster", func() bool {
			return regexp.MustCompile("another cluster|belongs to cluster").MatchString(b.Log())
		})
	}
	pass(t, 10*time.Second) // three sessions
	if restarted.Running() && ready(t, restarted) {
		t.Error("the broker that was restarted is in service in another cluster")
	}
	for _, b := range g.Brokers[:2] {
		if !b.Running() {
			t.Errorf("%s has ended", b.Name)
		}
	}
	if diff := cmp.Diff(topics, topicDirs(t, g)); diff != "" {
		t.Errorf("directories of topics, -before +meanwhile:\n%s", diff)
	}

	// The disks are found again.
	for _, c := range lost {
		c.Kill()
		if err := os.RemoveAll(c.Data); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(c.Data+".lost", c.Data); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range g.Controllers {
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
	}
	if !restarted.Running() {
		if err := restarted.Start(); err != nil {
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
	if diff := cmp.Diff(topics, topicDirs(t, g)); diff != "" {
		t.Errorf("directories of topics, -before +after:\n%s", diff)
	}
	for _, b := range g.Brokers {
		if q := quarantined(t, b); q != "0" {
			t.Errorf("%s: %s topics are quarantined, want 0", b.Name, q)
		}
	}
}

// refuses wants a process to end by itself, to fail, and to say why.
func refuses(t *testing.T, p *Process, why string) {
	t.Helper()
	defer p.Kill()
	give := time.NewTimer(time.Minute)
	defer give.Stop()
	select {
	case <-p.Exited():
	case <-give.C:
		t.Fatalf("it does not end:\n%s", p.Log())
	}
	if p.Code() == 0 || !strings.Contains(p.Log(), why) {
		t.Errorf("exit code %d, want another and %q:\n%s", p.Code(), why, p.Log())
	}
}

// topicDirs returns the folders that each broker has of partitions.
func topicDirs(t *testing.T, g *Group) map[string][]string {
	t.Helper()
	dirs := map[string][]string{}
	for _, b := range g.Brokers {
		err := filepath.WalkDir(b.Data, func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // a file that is replaced just now
			}
			if err == nil && d.IsDir() {
				dirs[b.Name] = append(dirs[b.Name], strings.TrimPrefix(path, b.Data))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(dirs[b.Name]) < txnsPartitions {
			t.Fatalf("%s has %q: these are not all partitions", b.Name, dirs[b.Name])
		}
	}
	return dirs
}

// ready asks once whether a node takes work.
func ready(t *testing.T, n *Node) bool {
	t.Helper()
	code, _ := get(t, n, "/readyz")
	return code == http.StatusOK
}

// quarantined returns how many topics a broker has that the cluster does not know.
func quarantined(t *testing.T, n *Node) string {
	t.Helper()
	_, body := get(t, n, "/metrics")
	found := regexp.MustCompile(`(?m)^runnel_quarantined_directories (\S+)$`).FindStringSubmatch(body)
	if found == nil {
		t.Fatalf("%s has no figure of what is quarantined", n.Name)
	}
	return found[1]
}

// get reads a page of a node's admin port; code 0: it does not answer.
func get(t *testing.T, n *Node, path string) (code int, body string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req := must[*http.Request](t)(http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.Admin+path, http.NoBody))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, ""
	}
	defer resp.Body.Close()
	return resp.StatusCode, string(must[[]byte](t)(io.ReadAll(resp.Body)))
}
