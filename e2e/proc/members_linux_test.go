package proc

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
)

// The levers of the controllers work against a cluster that runs.
func TestControllerCommands(t *testing.T) {
	t.Parallel()
	g := cluster(t, Cluster{Controllers: controllers, Brokers: 1})
	broker := g.Brokers[0]
	broker.cli(t, "topic", "create", "kept", "--partitions", "2")
	etcd := g.Controllers[0].Etcd
	var members []struct{ Name, Role string }
	out := broker.cli(t, "controller", "members", "--etcd-endpoints", etcd, "--format", "json")
	if err := json.Unmarshal([]byte(out), &members); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	leaders := 0
	for _, m := range members {
		if m.Role == "leader" {
			leaders++
		}
	}
	if len(members) != controllers || leaders != 1 {
		t.Errorf("%+v: want %d members, one of them the leader", members, controllers)
	}

	file := filepath.Join(t.TempDir(), "metadata.backup")
	broker.cli(t, "controller", "backup", file, "--etcd-endpoints", etcd)
	again := broker.try(t, broker.command(t, "controller", "backup", file, "--etcd-endpoints", etcd))
	if again.Code != 1 || !strings.Contains(again.Stderr, "exists") {
		t.Errorf("a backup over another: exit code %d\n%s", again.Code, again.Stderr)
	}
	onto := broker.try(t, broker.command(t, "controller", "restore", file, "--set", "data_dir="+g.Controllers[0].Data))
	if onto.Code != 1 || !strings.Contains(onto.Stderr, "with every broker and controller stopped: move ") {
		t.Errorf("a restore over data: exit code %d\n%s", onto.Code, onto.Stderr)
	}

	// A lost member is removed, and another joins under its name.
	lost := g.Controllers[2]
	lost.Kill()
	broker.cli(t, "controller", "remove", lost.Name, "--etcd-endpoints", etcd)
	fresh := lost.joining(t.TempDir(), etcd)
	if err := fresh.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.Controllers[2] = fresh
	// It was not ready before it had a vote: two of three are a majority, also
	// with the new one.
	r := broker.try(t, broker.command(t, "controller", "members", "--etcd-endpoints", etcd))
	if r.Code != 0 || strings.Count(r.Stdout, "follower")+strings.Count(r.Stdout, "leader") != controllers {
		t.Errorf("the new member is ready and has no vote: exit code %d\n%s", r.Code, r.Stdout)
	}
	g.Controllers[1].Kill()
	eventually(t, "a topic can be created", func() bool {
		return broker.try(t, broker.command(t, "topic", "create", "later", "--if-not-exists")).Code == 0
	})
}
