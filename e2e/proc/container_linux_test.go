package proc

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/runnelmq/runnel/internal/freeport"
)

// The first process of a container has no parent to lean on, and its SIGTERM
// has no default action: it stops in order all the same (OP-10).
func TestFirstProcessStopsInOrder(t *testing.T) {
	t.Parallel()
	ports := must[[]string](t)(freeport.Take(t.Context(), 2))
	data, client := t.TempDir(), "127.0.0.1:"+ports[0]
	cmd := exec.CommandContext(t.Context(), string(binary(t)), "dev", "--data", data, "--listen", client, "--admin", "127.0.0.1:"+ports[1])
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	err := cmd.Start()
	if errors.Is(err, os.ErrPermission) {
		t.Skip("this user can't make a process the first one")
	}
	if err != nil {
		t.Fatal(err)
	}
	n := &Node{Data: data, Client: client, Admin: "127.0.0.1:" + ports[1]}
	eventually(t, "it takes work", func() bool { return n.try(t, n.command(t, "topic", "create", "first", "--if-not-exists")).Code == 0 })
	write(t, n, "first", "x\n")
	asked := time.Now()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || time.Since(asked) > stopsWithin {
		t.Errorf("after %v: %v\n%s", time.Since(asked), err, log.String())
	}
	again := dev(t, Dev{Data: data})
	if got := again.cli(t, "consume", "first", "--exit-at-end"); got != "x\n" {
		t.Errorf("read %q", got)
	}
	if strings.Contains(again.Log(), "orderly") {
		t.Errorf("the first run did not end in order:\n%s", again.Log())
	}
}
