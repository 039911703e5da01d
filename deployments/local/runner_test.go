package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// One that does not come up ends a start, and not a cluster that runs.
func TestJudge(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(log, []byte("what to do\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &server{name: "controller-3", log: log}
	refused := exec.CommandContext(t.Context(), os.Args[0], "-no-such-flag").Run()
	if exit, ok := errors.AsType[*exec.ExitError](refused); !ok || exit.ExitCode() <= 0 {
		t.Fatal(refused)
	}
	r := &runner{}
	if _, err := r.judge(s, refused, time.Second); err == nil || !strings.Contains(err.Error(), "controller-3 does not come up") || !strings.Contains(err.Error(), "what to do") {
		t.Errorf("in a start: %v", err)
	}
	r.up.Store(true)
	for want, lived := range map[string]time.Duration{"does not come up": time.Second, "ended": time.Minute} {
		said, err := r.judge(s, refused, lived)
		if err != nil || !strings.Contains(said, "controller-3 "+want) || strings.Contains(said, "what to do") != (want != "ended") {
			t.Errorf("after %v: %q, %v", lived, said, err)
		}
	}
}
