package proc

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// OP-06: a node that may open fewer files than its partitions and clients need
// goes on with what fits, says so, loses nothing, and needs no restart when there
// are enough.
func TestFewDescriptors(t *testing.T) {
	if !whole() {
		t.Skip("it takes long: make e2e")
	}
	n := dev(t, Dev{Data: t.TempDir()})
	limit := func(files uint64) {
		t.Helper()
		var was unix.Rlimit
		if err := unix.Prlimit(n.Pid(), unix.RLIMIT_NOFILE, nil, &was); err != nil {
			t.Fatal(err)
		}
		if err := unix.Prlimit(n.Pid(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: min(files, was.Max), Max: was.Max}, nil); err != nil {
			t.Fatal(err)
		}
	}
	n.cli(t, "topic", "create", "before")
	write(t, n, "before", "early\n")
	limit(256)
	for range 60 {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", n.Client)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() }) // it was idle
	}
	n.try(t, n.command(t, "topic", "create", "wide", "--partitions", "300")) // done, or not yet everywhere
	n.try(t, n.command(t, "topic", "create", "wider", "--partitions", "100"))

	health := n.try(t, n.command(t, "cluster", "health"))
	says(t, health.Stdout, "few_descriptors")
	lines := make([]string, 400)
	for i := range lines {
		lines[i] = fmt.Sprintf("k%d\tv%d\n", i, i)
	}
	some := n.command(t, "produce", "wide", "--key-separator", "\t", "--timeout", "2s", "--format", "json")
	some.Stdin = strings.NewReader(strings.Join(lines, ""))
	n.try(t, some) // what is not taken is refused
	if got := n.cli(t, "consume", "before", "--exit-at-end"); got != "early\n" {
		t.Errorf("read %q while there are few descriptors", got)
	}
	if !n.Running() {
		t.Fatalf("the node ended for lack of descriptors:\n%s", n.Log())
	}

	// More connections than there are descriptors: most are closed at once, and
	// what the logs and etcd need stays free.
	for range 300 {
		if c, err := new(net.Dialer).DialContext(t.Context(), "tcp", n.Client); err == nil {
			t.Cleanup(func() { _ = c.Close() })
		}
	}
	n.try(t, n.command(t, "topic", "create", "more", "--partitions", "50", "--timeout", "2s"))
	if !n.Running() {
		t.Fatalf("the node ended for lack of descriptors:\n%s", n.Log())
	}
	if said := strings.Count(n.Log(), "replicas can't be opened now"); said == 0 || said > 20 {
		t.Errorf("%d warnings that replicas wait, want a few", said)
	}

	limit(1 << 14)
	eventually(t, "health with enough descriptors", func() bool {
		return n.try(t, n.command(t, "cluster", "health")).Code == 0
	})
	write(t, n, "before", "late\n")
	if got := n.cli(t, "consume", "before", "--exit-at-end"); got != "early\nlate\n" {
		t.Errorf("read %q", got)
	}
	all := n.command(t, "produce", "wide", "--key-separator", "\t")
	all.Stdin = strings.NewReader(strings.Join(lines, ""))
	if r := n.try(t, all); r.Code != 0 {
		t.Errorf("with enough descriptors: %s", r.Stderr)
	}
	got := n.cli(t, "consume", "wide", "--exit-at-end")
	for i := range lines {
		if v := fmt.Sprintf("v%d\n", i); !strings.Contains("\n"+got, "\n"+v) {
			t.Errorf("no %q", v)
		}
	}
}
