package proc

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// AD-03: a broker that was down while a topic was deleted, and made anew under the
// same name, gives up what it held of the old one when it comes back, and nobody is
// shown a record of it.
func TestCluster_lateBrokerAD03(t *testing.T) {
	t.Parallel()
	g := cluster(t, Cluster{Controllers: 1, Brokers: 3})
	here, late := g.Brokers[0], g.Brokers[2]
	here.cli(t, "topic", "create", "again", "--partitions", "3", "--replication-factor", "3")
	write(t, here, "again", strings.Repeat("old\n", 30))
	var old []string
	eventually(t, "all hold it", func() bool {
		old = topicOn(t, late)
		return len(old) == 1
	})
	late.Kill()
	eventually(t, "the one that was killed is out of service", func() bool {
		return strings.Contains(here.cli(t, "broker", "list"), "fenced")
	})
	here.cli(t, "topic", "delete", "again")
	here.cli(t, "topic", "create", "again", "--partitions", "2", "--replication-factor", "2")
	write(t, here, "again", "new\n")
	late.restart(t)
	eventually(t, "what it held of the old topic is gone", func() bool { return !slices.Contains(topicOn(t, late), old[0]) })
	for _, n := range g.Brokers {
		if got := n.cli(t, "consume", "again", "--exit-at-end", "--print", "%o %v"); got != "0 new\n" {
			t.Errorf("by %s: %q", n.Name, got)
		}
	}
	if got := late.cli(t, "cluster", "health"); strings.Contains(got, "quarantine") {
		t.Error(got)
	}
}

// topicOn returns the folders of topics that a broker has.
func topicOn(t *testing.T, n *Node) (ids []string) {
	t.Helper()
	for _, name := range must[[]string](t)(filepath.Glob(filepath.Join(n.Data, "*", "topic"))) {
		if data, err := os.ReadFile(name); err == nil && strings.Contains(string(data), "again") {
			ids = append(ids, filepath.Base(filepath.Dir(name)))
		}
	}
	return ids
}
