package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// A server is one process, over all its lives.
type server struct {
	name    string
	address string
	admin   string   // of the admin HTTP port
	ports   []string // all that it listens at, with these two
	log     string   // file
	command []string

	// mu guards the fields below
	mu sync.Mutex

	cmd      *exec.Cmd
	ended    chan struct{} // of cmd: closed when it is gone
	begun    time.Time
	stopping bool
}

func (s *server) pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return 0
	}
	return s.cmd.Process.Pid
}

// A runner keeps the servers running.
type runner struct {
	out     io.Writer
	servers []*server  // controllers, then brokers
	broken  chan error // a server that does not stay up; holds one
	watch   sync.WaitGroup
	// up is true once all were ready: from then on the others can go on without
	// one that does not come up.
	up atomic.Bool
}

// start starts all and waits until they are ready.
func (r *runner) start(ctx context.Context) error {
	for _, s := range r.servers {
		if err := r.launch(s); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	for _, s := range r.servers {
		if err := r.ready(ctx, s); err != nil {
			return err
		}
	}
	r.up.Store(true)
	return nil
}

// launch starts a server's process, and again whenever it ends by itself.
func (r *runner) launch(s *server) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return nil
	}
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()                                   // the process has its own
	cmd := exec.Command(s.command[0], s.command[1:]...) //nolint:noctx // it is told to stop, not killed
	cmd.Stdout, cmd.Stderr = log, log
	apart(cmd)
	if err := cmd.Start(); err != nil {
		return err
	}
	s.cmd, s.ended, s.begun = cmd, make(chan struct{}), time.Now()
	ended := s.ended
	r.watch.Go(func() {
		err := cmd.Wait()
		close(ended)
		r.over(s, err)
	})
	return nil
}

// over decides what to do about a process that is gone.
func (r *runner) over(s *server, cause error) {
	s.mu.Lock()
	stopping, lived := s.stopping, time.Since(s.begun)
	s.mu.Unlock()
	if stopping {
		return
	}
	said, err := r.judge(s, cause, lived)
	if err != nil {
		r.fail(err)
		return
	}
	fmt.Fprintln(r.out, said)
	timer := time.NewTimer(restartAfter)
	defer timer.Stop()
	<-timer.C
	before := s.pid()
	if err := r.launch(s); err != nil {
		r.fail(fmt.Errorf("%s: %w", s.name, err))
		return
	}
	if pid := s.pid(); pid != before { // else everything is being stopped
		fmt.Fprintf(r.out, "%s runs again, pid %d.\n", s.name, pid)
	}
}

// judge returns what to say of a process that is gone and is started again, or
// why it is not. While all are being started, one that does not come up is a
// mistake; later on it is a fault like others, which the cluster is there for.
func (r *runner) judge(s *server, cause error, lived time.Duration) (string, error) {
	how := "by itself"
	if cause != nil {
		how = cause.Error()
	}
	if exit, ok := errors.AsType[*exec.ExitError](cause); !ok || exit.ExitCode() <= 0 || lived >= restartAfter {
		return fmt.Sprintf("%s ended: %s. It is started again in %v.", s.name, how, restartAfter), nil
	}
	end := fmt.Sprintf("its log, %s, ends\n%s", s.log, lastLines(s.log, 10))
	if !r.up.Load() {
		return "", fmt.Errorf("%s does not come up: %s; %s", s.name, how, end)
	}
	return fmt.Sprintf("%s does not come up: %s. The others go on, and it is tried again in %v; %s", s.name, how, restartAfter, end), nil
}

func (r *runner) fail(err error) {
	select {
	case r.broken <- err:
	default: // another one was first
	}
}

// ready waits until a server takes work.
func (r *runner) ready(ctx context.Context, s *server) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	c := &http.Client{Timeout: time.Second}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.admin+"/readyz", http.NoBody)
		if err != nil {
			return err
		}
		if resp, err := c.Do(req); err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-tick.C:
		case err := <-r.broken:
			return err
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w; its log, %s, ends\n%s", s.name, context.Cause(ctx), s.log, lastLines(s.log, 10))
		}
	}
}

// stop ends the brokers one after the other, each of which hands its work to
// the rest, and then the controllers.
func (r *runner) stop() error {
	var errs []error
	for _, s := range r.servers {
		s.mu.Lock()
		s.stopping = true
		s.mu.Unlock()
	}
	for _, s := range slices.Backward(r.servers) {
		if err := s.end(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.name, err))
		}
	}
	r.watch.Wait()
	return errors.Join(errs...)
}

// end asks a process to stop, and kills it when it does not.
func (s *server) end() error {
	s.mu.Lock()
	cmd, ended := s.cmd, s.ended
	s.mu.Unlock()
	if cmd == nil {
		return nil
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return ignoreDone(err)
	}
	timer := time.NewTimer(stopWithin)
	defer timer.Stop()
	select {
	case <-ended:
		return nil
	case <-timer.C:
	}
	err := ignoreDone(cmd.Process.Kill())
	<-ended
	return errors.Join(err, fmt.Errorf("it did not stop within %v and was killed; see %s", stopWithin, s.log))
}

func ignoreDone(err error) error {
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// lastLines returns the end of a file, for an error.
func lastLines(path string, n int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
