// Package proc runs the real binary in processes of its own, for tests that
// kill it and for measurements from outside.
package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A Binary is the path of a built runnel.
type Binary string

// Build builds cmd/runnel into dir, from the module that the working directory
// is in, with the flags of the caller's environment: what `go test` has compiled
// need not be compiled again.
func Build(ctx context.Context, dir string) (Binary, error) {
	if err := readSources(); err != nil {
		return "", err
	}
	path, err := buildTo(ctx, filepath.Join(dir, "runnel"), "cmd/runnel")
	return Binary(path), err
}

// buildTo builds a command of the module, and returns the path.
func buildTo(ctx context.Context, path, command string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "build", "-o", path, "github.com/runnelmq/runnel/"+command)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
}

// readSources lists the folders of the module. `go test` takes a result from
// its cache when nothing changed that the test has looked at, and it does not
// see what a child process looks at: without this, a test of the binary would
// go on passing whatever the binary does.
func readSources() error {
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	for {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			break
		}
		if root == filepath.Dir(root) {
			return errors.New("this is not within the module")
		}
		root = filepath.Dir(root)
	}
	for _, room := range []string{"api", "broker", "client", "cmd", "controller", "internal"} {
		err := filepath.WalkDir(filepath.Join(root, room), func(_ string, _ os.DirEntry, err error) error { return err })
		if err != nil {
			return err
		}
	}
	return nil
}

// A Result is what a command that ended has left.
type Result struct {
	Code   int // exit code; -1 when it was killed
	Stdout string
	Stderr string
}

// Command returns a command of the binary that ends with ctx.
func (b Binary) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, string(b), args...)
	dieWithParent(cmd)
	return cmd
}

// Do runs a command to its end. An exit code other than 0 is no error.
func Do(cmd *exec.Cmd) (Result, error) {
	var stdout, stderr bytes.Buffer
	if cmd.Stdout == nil {
		cmd.Stdout = &stdout
	}
	cmd.Stderr = &stderr
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		err = nil
	}
	r := Result{Code: -1, Stdout: stdout.String(), Stderr: stderr.String()}
	if cmd.ProcessState != nil {
		r.Code = cmd.ProcessState.ExitCode()
	}
	return r, err
}

// ErrExited is returned by what waits for a process that has ended.
var ErrExited = errors.New("the process has ended")

// A Process is a running server. Its log is kept, and shown when it fails.
type Process struct {
	cmd    *exec.Cmd
	log    *tail
	exited chan struct{} // closed when the process is gone
	wait   sync.WaitGroup
	err    error // of cmd.Wait; read after exited
}

// Start starts the binary and does not wait for anything. More output than the
// log keeps goes to more, which may be nil. The caller ends it with Stop or
// Kill.
func (b Binary) Start(env []string, more io.Writer, args ...string) (*Process, error) {
	p := &Process{cmd: exec.Command(string(b), args...), log: &tail{max: 64 << 10}, exited: make(chan struct{})} //nolint:noctx // Stop and Kill end it, on purpose in their own way
	dieWithParent(p.cmd)
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stderr = p.log
	if more != nil {
		p.cmd.Stderr = io.MultiWriter(p.log, more)
	}
	p.cmd.Stdout = p.cmd.Stderr
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.wait.Go(func() {
		p.err = p.cmd.Wait()
		close(p.exited)
	})
	return p, nil
}

// Pid returns its process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Log returns the end of what it has printed.
func (p *Process) Log() string { return p.log.String() }

// Exited is closed when the process is gone.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Running reports whether the process has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// Code returns the exit code of a process that is gone; -1 when a signal
// ended it.
func (p *Process) Code() int {
	<-p.exited
	return p.cmd.ProcessState.ExitCode()
}

// Kill ends it as a crash would, and returns when it is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // it may be gone already
	p.wait.Wait()
}

// Stop asks it to stop and waits; after the given time it is killed, which is
// an error, as is any exit code but 0.
func (p *Process) Stop(within time.Duration) error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	force := time.NewTimer(within)
	defer force.Stop()
	select {
	case <-p.exited:
	case <-force.C:
		p.Kill()
		return fmt.Errorf("it did not stop within %v; its log ends\n%s", within, p.Log())
	}
	p.wait.Wait()
	if p.err != nil {
		return fmt.Errorf("it stopped with %w; its log ends\n%s", p.err, p.Log())
	}
	return nil
}

// poll calls ok every few milliseconds until it returns true, the process is
// gone, or ctx is done.
func (p *Process) poll(ctx context.Context, what string, ok func() bool) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok() {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w; the log ends\n%s", what, ctx.Err(), p.Log())
		case <-p.exited:
			return fmt.Errorf("waiting for %s: %w with code %d; its log ends\n%s", what, ErrExited, p.Code(), p.Log())
		case <-tick.C:
		}
	}
}

// A tail keeps the end of what is written to it.
type tail struct {
	max int

	// mu guards the fields below
	mu sync.Mutex

	kept []byte
}

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, b...)
	if over := len(t.kept) - t.max; over > t.max { // now and then, not for every line
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.kept))
}
