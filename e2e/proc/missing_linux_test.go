package proc

import (
	"strconv"
	"strings"
	"testing"
	"time"
)

// patience is the --timeout of the commands below, and late by how much they
// may miss it.
const (
	patience = 2 * time.Second
	late     = 500 * time.Millisecond
)

// A command that can't be done while a broker is missing ends by --timeout,
// fails, and names the broker (AD-10).
func TestCLI_missingBroker(t *testing.T) {
	g := cluster(t, Cluster{Controllers: 1, Brokers: 3, ControllerSet: []string{"cluster.session_timeout=1s", "cluster.fast_fencing=false"}})
	here, missing := g.Brokers[0], g.Brokers[2]
	here.cli(t, "topic", "create", "spread", "--partitions", "3", "--replication-factor", "1")
	here.cli(t, "topic", "create", "three", "--replication-factor", "3")
	lost := ledBy(t, here, "spread", 3)
	if err := missing.Pause(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = missing.Resume() }()

	// Nobody has noticed yet.
	if r := inTime(t, here, "topic", "describe", "spread"); r.Code != 1 || !strings.Contains(r.Stdout, "broker 3") {
		t.Errorf("describe: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	if r := inTime(t, here, "topic", "list", "--brokers", missing.Client); r.Code != 3 || !strings.Contains(r.Stderr, missing.Client) {
		t.Errorf("at the missing broker: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	eventually(t, "the broker is fenced", func() bool {
		return strings.Contains(here.cli(t, "broker", "list"), "fenced")
	})
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"produce", "spread", "--partition", lost}, 3, "waits for broker 3"},
		{[]string{"consume", "spread", "--partition", lost, "--exit-at-end"}, 3, "waits for broker 3"},
		{[]string{"topic", "describe", "spread"}, 1, "waits for broker 3"},
		{[]string{"topic", "create", "another", "--replication-factor", "3"}, 1, "2 at present; not in service: broker 3"},
		{[]string{"topic", "add-partitions", "three", "--to", "2"}, 1, "not in service: broker 3"},
		{[]string{"cluster", "health"}, 1, "broker 3"},
		{[]string{"topic", "delete", "three"}, 0, "deleted"},
	} {
		if r := inTime(t, here, c.args...); r.Code != c.code || !strings.Contains(r.Stdout+r.Stderr, c.want) {
			t.Errorf("%v: exit code %d, want %d and %q in\n%s%s", c.args, r.Code, c.code, c.want, r.Stdout, r.Stderr)
		}
	}
}

// inTime runs a command, which must end by --timeout.
func inTime(t *testing.T, n *Node, args ...string) Result {
	t.Helper()
	cmd := n.command(t, append(args, "--timeout", patience.String())...)
	cmd.Stdin = strings.NewReader("x\n")
	begun := time.Now()
	r := n.try(t, cmd)
	if took := time.Since(begun); took > patience+late {
		t.Errorf("%v took %v\n%s%s", args, took, r.Stdout, r.Stderr)
	}
	return r
}

// ledBy returns the number of a partition that a broker leads.
func ledBy(t *testing.T, n *Node, topic string, broker int) string {
	t.Helper()
	for line := range strings.Lines(n.cli(t, "partition", "list", "--leader", strconv.Itoa(broker))) {
		if name, _, _ := strings.Cut(line, " "); strings.HasPrefix(name, topic+"/") {
			return strings.TrimPrefix(name, topic+"/")
		}
	}
	t.Fatalf("broker %d leads nothing of %s", broker, topic)
	return ""
}
