package commitlog_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/vfs"
)

const (
	holdRootEnv = "RUNNEL_TEST_HOLD_ROOT"
	holding     = "holding"
)

// TestMain lets a test start this binary again as a process that opens the
// root named in the environment, writes to it, and holds it.
func TestMain(m *testing.M) {
	if dir := os.Getenv(holdRootEnv); dir != "" {
		if err := holdRoot(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1) //nolint:forbidigo // this is main
		}
		return
	}
	m.Run()
}

func holdRoot(dir string) error {
	r, err := commitlog.OpenRoot(vfs.OS(), dir, commitlog.RootOptions{ClusterID: "c1", BrokerID: 1})
	if err != nil {
		return err
	}
	log, _, err := r.OpenPartition(topicA, "topic-a", 0, commitlog.Config{}, true)
	if err != nil {
		return err
	}
	for i := range 3 {
		if err := appendValue(log, fmt.Sprint("value ", i)); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintln(os.Stdout, holding); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil { // until the test closes it
		return err
	}
	return r.Close(7)
}

// A holder is another process that holds a root.
type holder struct {
	cmd   *exec.Cmd
	stdin io.Closer
}

func startHolder(t *testing.T, dir string) *holder {
	t.Helper()
	exe, err := os.Executable()
	rootMust(t, err)
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), holdRootEnv+"="+dir)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	rootMust(t, err)
	stdout, err := cmd.StdoutPipe()
	rootMust(t, err, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || strings.TrimSpace(line) != holding {
		t.Fatalf("the other process says %q, %v", line, err)
	}
	return &holder{cmd, stdin}
}

func TestRoot_twoProcesses(t *testing.T) {
	opts := commitlog.RootOptions{ClusterID: "c1", BrokerID: 1}
	t.Run("killed", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "data")
		h := startHolder(t, dir)
		_, err := commitlog.OpenRoot(vfs.OS(), dir, opts)
		if !errors.Is(err, commitlog.ErrInUse) || !strings.Contains(err.Error(), dir) {
			t.Fatalf("while the other holds it: %v, want ErrInUse naming the directory", err)
		}
		rootMust(t, h.cmd.Process.Kill())
		_ = h.cmd.Wait()
		r, err := commitlog.OpenRoot(vfs.OS(), dir, opts)
		rootMust(t, err)
		if s := r.Start(); s.Clean || s.Fresh || !s.SameBoot {
			t.Errorf("after its death: %+v, want the same boot", s)
		}
		checkHeld(t, r)
	})
	t.Run("ended in order", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "data")
		h := startHolder(t, dir)
		rootMust(t, h.stdin.Close(), h.cmd.Wait())
		r, err := commitlog.OpenRoot(vfs.OS(), dir, opts)
		rootMust(t, err)
		if s := r.Start(); !s.Clean || s.BrokerEpoch != 7 {
			t.Errorf("start %+v, want clean of epoch 7", s)
		}
		checkHeld(t, r)
	})
}

func checkHeld(t *testing.T, r *commitlog.Root) {
	t.Helper()
	log, rec, err := r.OpenPartition(topicA, "topic-a", 0, commitlog.Config{}, false)
	rootMust(t, err)
	want := []string{"value 0", "value 1", "value 2"}
	if got := mustRead(t, log); !slices.Equal(got, want) || rec.Suspicion != commitlog.NotSuspect {
		t.Errorf("records %q, %+v, want %q", got, rec, want)
	}
	rootMust(t, r.Close(8))
}
