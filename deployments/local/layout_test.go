package main

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Whose port somebody has is said before anything is started or kept.
func TestRun_portInUse(t *testing.T) {
	var lc net.ListenConfig
	taken, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, port, err := net.SplitHostPort(taken.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(t.TempDir(), "cluster")
	o := options{data: data, basePort: n - 4, controllers: 1, brokers: 1}
	if err := free(t.Context(), plan(o).brokers); err == nil || !strings.Contains(err.Error(), "broker-1 can't have its port") {
		t.Errorf("the port of broker-1 for metrics is taken: %v", err)
	}
	err = run(t.Context(), []string{"--runnel", os.Args[0], "--data", data, "--base-port", strconv.Itoa(n - 4), "--controllers", "1", "--brokers", "1"}, t.Output())
	if err == nil || !strings.Contains(err.Error(), "make dev") {
		t.Errorf("run: %v", err)
	}
	if _, err := os.Stat(data); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s was made: %v", data, err)
	}
}
