package proc

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// built are the binaries under test, built once for all tests of a run.
var built struct {
	path  Binary
	local string // what `make cluster` runs
	err   error
}

func TestMain(m *testing.M) {
	if seeds := os.Getenv(memberSeeds); seeds != "" {
		if err := beMember(seeds); err != nil {
			panic(err)
		}
		return
	}
	dir, err := os.MkdirTemp("", "runnel-e2e-")
	if err != nil {
		panic(err)
	}
	built.path, built.err = Build(context.Background(), dir)
	if built.err == nil {
		built.local, built.err = buildTo(context.Background(), filepath.Join(dir, "local"), "deployments/local")
	}
	m.Run()
	if err := os.RemoveAll(dir); err != nil {
		panic(err)
	}
}

// whole is true when the tests are to take their whole input.
func whole() bool { return os.Getenv("RUNNEL_E2E") == "full" }

func binary(t *testing.T) Binary {
	t.Helper()
	if testing.Short() {
		t.Skip("starts processes")
	}
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.path
}

// dev starts a node for the test, which ends with it. Its log is shown when
// the test fails.
func dev(t *testing.T, d Dev) *Node {
	t.Helper()
	if d.Data == "" {
		d.Data = t.TempDir()
	}
	n, err := StartDev(t.Context(), binary(t), d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		n.Kill()
		if t.Failed() {
			t.Logf("the node's log ends\n%s", n.Log())
		}
	})
	return n
}

// cli runs a command against the node and wants exit code 0. It returns what
// the command printed.
func (n *Node) cli(t *testing.T, args ...string) string {
	t.Helper()
	r := n.try(t, n.command(t, args...))
	if r.Code != 0 {
		t.Fatalf("runnel %s: exit code %d\n%s%s", strings.Join(args, " "), r.Code, r.Stdout, r.Stderr)
	}
	return r.Stdout
}

// command returns a command that speaks to the node.
func (n *Node) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandWithin)
	t.Cleanup(cancel)
	cmd := binary(t).Command(ctx, args...)
	cmd.Env = append(os.Environ(), "RUNNEL_BROKERS="+n.Client)
	return cmd
}

// commandWithin bounds every command, so that one that hangs fails its test.
const commandWithin = 15 * time.Minute

func (n *Node) try(t *testing.T, cmd *exec.Cmd) Result {
	t.Helper()
	r, err := Do(cmd)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// stop ends the node in order and wants it to say that all went well.
func (n *Node) stop(t *testing.T) {
	t.Helper()
	if err := n.Stop(time.Minute); err != nil {
		t.Fatal(err)
	}
}

// produced is what `produce --format json` counts.
type produced struct{ Acknowledged, Failed, Unknown int }

func must[T any](t *testing.T) func(T, error) T {
	t.Helper()
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// eventually waits until ok is true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	give := time.NewTimer(time.Minute)
	defer give.Stop()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-give.C:
			t.Fatalf("not within a minute: %s", what)
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		}
	}
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
