package proc

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// What an operator types at a node.
func TestAdmin(t *testing.T) {
	t.Parallel()
	n := dev(t, Dev{})
	t.Run("names", names(n))
	t.Run("counts", counts(n))
	t.Run("configs", configs(n))
	t.Run("exit at end", exitAtEnd(n))
	t.Run("created again", createdAgain(n))
	t.Run("interrupt", interruptProduce(n))
}

// fails runs a command that is refused, and changes nothing.
func fails(t *testing.T, n *Node, want string, args ...string) {
	t.Helper()
	before := n.cli(t, "topic", "list")
	if r := n.try(t, n.command(t, args...)); r.Code == 0 || !strings.Contains(r.Stderr, want) {
		t.Errorf("%v: exit code %d, want a failure and %q in\n%s%s", args, r.Code, want, r.Stdout, r.Stderr)
	}
	if after := n.cli(t, "topic", "list"); after != before {
		t.Errorf("%v was refused, and left\n%s", args, after)
	}
}

// Every name that is taken works to the end, the longest one with many
// partitions, too; all others are refused by the server (AD-01).
func names(n *Node) func(t *testing.T) {
	return func(t *testing.T) {
		for _, bad := range []string{"", ".", "..", "a/b", "ünï", strings.Repeat("x", 250), strings.Repeat("x", 255), "__internal"} {
			fails(t, n, "INVALID_TOPIC_NAME", "topic", "create", "--", bad)
		}
		clean := entries(t, n)
		for name, partitions := range map[string]int{"-dash": 1, "A": 1, "a": 1, "...": 1, strings.Repeat("y", 249): 300} {
			last := strconv.Itoa(partitions - 1)
			n.cli(t, "topic", "create", "--partitions", strconv.Itoa(partitions), "--", name)
			cmd := n.command(t, "produce", "--partition", last, "--", name)
			cmd.Stdin = strings.NewReader("in " + name + "\n")
			if r := n.try(t, cmd); r.Code != 0 {
				t.Errorf("%.20s: %s", name, r.Stderr)
			}
			if got := n.cli(t, "consume", "--exit-at-end", "--print", "%p %v", "--", name); got != last+" in "+name+"\n" {
				t.Errorf("%.20s: read %q", name, got)
			}
			n.cli(t, "topic", "delete", "--", name)
		}
		eventually(t, "what was deleted is off the disk", func() bool { return entries(t, n) == clean })
	}
}

// entries returns how many files and folders the broker has.
func entries(t *testing.T, n *Node) int {
	t.Helper()
	count := 0
	err := filepath.WalkDir(filepath.Join(n.Data, "broker"), func(_ string, _ os.DirEntry, err error) error {
		count++
		if os.IsNotExist(err) {
			return nil // it is being deleted
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return count
}

// Counts that can't be are refused with both numbers (AD-06).
func counts(n *Node) func(t *testing.T) {
	return func(t *testing.T) {
		for _, c := range []struct{ flag, value, want string }{
			{"--partitions", "0", "at least one partition"},
			{"--partitions", "-1", "-1 partitions: a topic has 1 to 10000"},
			{"--partitions", "1000000", "1000000 partitions: a topic has 1 to 10000"},
			{"--replication-factor", "0", "at least one partition and one replica"},
			{"--replication-factor", "-1", "replication factor -1"},
			{"--replication-factor", "2", "replication factor 2: it must be from 1 to the number of usable brokers, 1 at present"},
		} {
			fails(t, n, c.want, "topic", "create", "counted", c.flag, c.value)
			fails(t, n, c.want, "topic", "create", "counted", c.flag, c.value, "--dry-run")
		}
		before := n.cli(t, "topic", "list")
		n.cli(t, "topic", "create", "counted", "--partitions", "4", "--dry-run")
		if after := n.cli(t, "topic", "list"); after != before {
			t.Errorf("a dry run left\n%s", after)
		}
		n.cli(t, "topic", "create", "counted", "--partitions", "4")
		for to, want := range map[string]string{"3": "not 3; partitions can't be taken away", "4": "has 4 partitions", "0": "--to", "10001": "at most 10000"} {
			fails(t, n, want, "topic", "add-partitions", "counted", "--to", to)
		}
		for _, typed := range [][]string{{"produce", "cou"}, {"topic", "describe", "cou"}} { // and the Tab key
			if got := n.cli(t, append([]string{"__complete"}, typed...)...); !strings.HasPrefix(got, "counted\n") {
				t.Errorf("%v is completed by %q", typed, got)
			}
		}
		n.cli(t, "topic", "add-partitions", "counted", "--to", "5", "--dry-run")
		if got := n.cli(t, "topic", "describe", "counted"); !strings.Contains(got, "partitions 4,") {
			t.Errorf("after all that was refused\n%s", got)
		}
	}
}

// The command line and the file of a controller refuse what the API does
// (AD-04).
func configs(n *Node) func(t *testing.T) {
	return func(t *testing.T) {
		n.cli(t, "topic", "create", "configured", "--config", "retention.ms=1000")
		before := n.cli(t, "topic", "describe", "configured")
		for _, kv := range []string{"segment.bytes=-1", "segment.bytes=1GiB", "retention.ms=", "flush=never", "no.such.key=1", "retention.bytes=9223372036854775808"} {
			key, value, _ := strings.Cut(kv, "=")
			fails(t, n, key, "topic", "create", "refused", "--config", kv)
			fails(t, n, key, "topic", "alter", "configured", "--config", kv, "--config", "retention.ms=5")
			file := filepath.Join(t.TempDir(), "controller.yaml")
			if err := os.WriteFile(file, []byte("topics: {configs: {"+key+": '"+value+"'}}\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			if r := n.try(t, n.command(t, "controller", "--config", file, "--check-config")); r.Code != 2 || !strings.Contains(r.Stderr, key) {
				t.Errorf("%s in a file: exit code %d\n%s", kv, r.Code, r.Stderr)
			}
		}
		if after := n.cli(t, "topic", "describe", "configured"); after != before {
			t.Errorf("what was refused changed the topic to\n%s", after)
		}
	}
}

// Reading to the end ends, whatever there is, with all that was there (AD-09).
func exitAtEnd(n *Node) func(t *testing.T) {
	return func(t *testing.T) {
		const records = 1000
		for _, partitions := range []int{1, 12} {
			topic := "ends-" + strconv.Itoa(partitions)
			n.cli(t, "topic", "create", topic, "--partitions", strconv.Itoa(partitions))
			for _, want := range []int{0, records} {
				if want > 0 {
					cmd := n.command(t, "produce", topic, "--key-separator", ",")
					var lines strings.Builder
					for i := range records {
						lines.WriteString(strconv.Itoa(i) + ",x\n")
					}
					cmd.Stdin = strings.NewReader(lines.String())
					if r := n.try(t, cmd); r.Code != 0 {
						t.Fatal(r.Stderr)
					}
				}
				begun := time.Now()
				got := n.cli(t, "consume", topic, "--exit-at-end")
				if lines := strings.Count(got, "\n"); lines != want || time.Since(begun) > 20*time.Second {
					t.Errorf("%s: %d records after %v, want %d", topic, lines, time.Since(begun), want)
				}
			}
		}
		exitAtEndOfGroups(t, n, records)
		if r := n.try(t, n.command(t, "consume", "ends-1", "--exit-at-end", "--from", "1001")); r.Code != 1 || r.Stdout != "" ||
			!strings.Contains(r.Stderr, "OFFSET_OUT_OF_RANGE") {
			t.Errorf("from beyond the end: exit code %d\n%s", r.Code, r.Stderr)
		}
		if got := n.cli(t, "consume", "ends-1", "--exit-at-end", "--from", "1000"); got != "" {
			t.Errorf("from the end: %s", got)
		}
	}
}

// exitAtEndOfGroups reads the same as groups, of one member and of two at once.
func exitAtEndOfGroups(t *testing.T, n *Node, records int) {
	t.Helper()
	n.cli(t, "topic", "create", "ends-empty", "--partitions", "3")
	for topic, want := range map[string]int{"ends-1": records, "ends-12": records, "ends-empty": 0} {
		for members := 1; members <= 2; members++ {
			group := topic + "-" + strconv.Itoa(members)
			begun := time.Now()
			var all sync.WaitGroup
			results, errs := make([]Result, members), make([]error, members)
			for i := range members {
				cmd := n.command(t, "consume", topic, "--group", group, "--exit-at-end")
				all.Go(func() { results[i], errs[i] = Do(cmd) })
			}
			all.Wait()
			lines := 0
			for i, r := range results {
				if lines += strings.Count(r.Stdout, "\n"); r.Code != 0 || errs[i] != nil {
					t.Errorf("%s: exit code %d, %v\n%s", group, r.Code, errs[i], r.Stderr)
				}
			}
			if lines != want || time.Since(begun) > 20*time.Second {
				t.Errorf("%s: %d records after %v, want %d", group, lines, time.Since(begun), want)
			}
			if want == 0 {
				continue
			}
			if got := n.cli(t, "group", "describe", group, "--format", "json"); !strings.Contains(got, `"lag_records": 0`) {
				t.Errorf("%s is not at the end:\n%s", group, got)
			}
			if got := n.cli(t, "consume", topic, "--group", group, "--exit-at-end"); got != "" {
				t.Errorf("%s read again:\n%s", group, got)
			}
		}
	}
}

// A topic of an old name is a new one, with other partitions, from offset 0, and
// nothing of the old one in it, also after a crash (AD-03).
func createdAgain(n *Node) func(t *testing.T) {
	return func(t *testing.T) {
		n.cli(t, "topic", "create", "twice", "--partitions", "4")
		write(t, n, "twice", strings.Repeat("old\n", 100))
		n.cli(t, "topic", "delete", "twice")
		n.cli(t, "topic", "create", "twice", "--partitions", "2")
		write(t, n, "twice", "new\n")
		for range 2 {
			if got := n.cli(t, "consume", "twice", "--exit-at-end", "--print", "%o %v"); got != "0 new\n" {
				t.Errorf("read %q", got)
			}
			n.Kill()
			n.restart(t)
		}
	}
}

// A producer that waits for its next line ends at Ctrl-C, and what it had read
// is stored.
func interruptProduce(n *Node) func(t *testing.T) {
	return func(t *testing.T) {
		n.cli(t, "topic", "create", "interrupted")
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		cmd := n.command(t, "produce", "interrupted")
		cmd.Stdin = r
		var stderr strings.Builder
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_ = r.Close()
		if _, err := w.WriteString("kept\n"); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the line is stored", func() bool { return n.cli(t, "consume", "interrupted", "--exit-at-end") == "kept\n" })
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 130 || !strings.Contains(stderr.String(), "records acknowledged: 1;") {
			t.Errorf("%v, exit code %d\n%s", err, cmd.ProcessState.ExitCode(), stderr.String())
		}
	}
}
