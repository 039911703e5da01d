package proc

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/runnelmq/runnel/internal/freeport"
)

// local is what `make cluster` runs.
type local struct {
	cmd  *exec.Cmd
	out  *tail
	wait errgroup.Group
}

// startLocal starts a whole cluster and waits until it says that it is ready.
func startLocal(t *testing.T, data string, args ...string) *local {
	t.Helper()
	l := &local{out: &tail{max: 64 << 10}}
	l.cmd = exec.Command(runner(t), append([]string{"--runnel", string(binary(t)), "--data", data}, args...)...) //nolint:noctx // it is told to stop, to see it stop
	dieWithParent(l.cmd)
	ready := &awaited{text: "Ctrl-C stops all", seen: make(chan struct{})}
	l.cmd.Stdout = io.MultiWriter(l.out, ready)
	l.cmd.Stderr = l.out
	if err := l.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	l.wait.Go(func() error { defer close(ended); return l.cmd.Wait() })
	t.Cleanup(func() {
		_ = l.cmd.Process.Kill() // it has ended already, unless the test failed
		_ = l.wait.Wait()
	})
	give := time.NewTimer(2 * time.Minute)
	defer give.Stop()
	select {
	case <-ready.seen:
		return l
	case <-ended:
		t.Fatalf("it ended: %s", l.out)
	case <-give.C:
		t.Fatalf("it is not ready: %s", l.out)
	}
	return nil
}

// runner is the path of what `make cluster` runs.
func runner(t *testing.T) string {
	t.Helper()
	binary(t)
	return built.local
}

// stop ends it as Ctrl-C does.
func (l *local) stop(t *testing.T) {
	t.Helper()
	if err := l.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := l.wait.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, l.out)
	}
}

// An awaited text closes seen once it was written.
type awaited struct {
	text string
	seen chan struct{}
	all  strings.Builder
}

// Write implements io.Writer.
func (a *awaited) Write(b []byte) (int, error) {
	before := strings.Contains(a.all.String(), a.text)
	a.all.Write(b)
	if !before && strings.Contains(a.all.String(), a.text) {
		close(a.seen)
	}
	return len(b), nil
}

// `make cluster` starts a whole cluster, tells what works, and keeps the data.
func TestLocalCluster(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	base := must[int](t)(freeport.TakeRange(t.Context(), 30))
	flags := []string{"--base-port", strconv.Itoa(base)}
	l := startLocal(t, data, flags...)
	typed := func(args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		r, err := Do(binary(t).Command(ctx, args...))
		if err != nil || r.Code != 0 {
			t.Fatalf("%v: exit code %d, %v\n%s%s", args, r.Code, err, r.Stdout, r.Stderr)
		}
		return r.Stdout
	}
	// What it tells to type, works as typed.
	commands := regexp.MustCompile(`(?m)^  \S*/runnel (.*)$`).FindAllStringSubmatch(l.out.String(), -1)
	if len(commands) < 3 {
		t.Fatalf("it tells of %d commands:\n%s", len(commands), l.out)
	}
	for _, c := range commands {
		args := strings.Fields(c[1])
		if args[0] == "bench" {
			args = append(args, "--records", "1000")
		}
		typed(args...)
	}
	broker := "127.0.0.1:" + strconv.Itoa(base)
	before := strings.Count(typed("consume", "txns", "--exit-at-end", "--brokers", broker), "\n")
	if before != 1000 {
		t.Errorf("read %d records, want 1000", before)
	}
	l.stop(t)

	l = startLocal(t, data, flags...)
	if after := strings.Count(typed("consume", "txns", "--exit-at-end", "--brokers", broker), "\n"); after != before {
		t.Errorf("read %d records after a restart, want %d", after, before)
	}
	l.stop(t)
}

// A start that cannot succeed says why, and leaves nothing running.
func TestLocalCluster_badStart(t *testing.T) {
	t.Parallel()
	runner := runner(t)
	base := must[int](t)(freeport.TakeRange(t.Context(), 30))
	data := t.TempDir()
	taken := must[*os.File](t)(os.Create(filepath.Join(data, "broker-2")))
	defer taken.Close()
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no binary":           {[]string{"--runnel", "/nowhere/runnel"}, "make build"},
		"two controllers":     {[]string{"--controllers", "2"}, "majority"},
		"a file for a folder": {[]string{"--data", data, "--base-port", strconv.Itoa(base)}, "broker-2"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			r, err := Do(exec.CommandContext(ctx, runner, append([]string{"--runnel", string(binary(t))}, c.args...)...))
			if err != nil {
				t.Fatal(err)
			}
			if r.Code != 1 || !strings.Contains(r.Stderr, c.want) {
				t.Errorf("exit code %d, and it says\n%s%s", r.Code, r.Stdout, r.Stderr)
			}
		})
	}
}
