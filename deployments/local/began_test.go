package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A cluster is started with the ports it began with, or not at all.
func TestRemember(t *testing.T) {
	began := options{data: t.TempDir(), basePort: 9420, controllers: 3, brokers: 3}
	for range 2 {
		if err := remember(began); err != nil {
			t.Fatal(err)
		}
	}
	more := began
	more.brokers = 5 // brokers come and go
	if err := remember(more); err != nil {
		t.Error(err)
	}
	for _, change := range []func(*options){func(o *options) { o.basePort = 7420 }, func(o *options) { o.controllers = 1 }} {
		other := began
		change(&other)
		err := remember(other)
		if err == nil || !strings.Contains(err.Error(), "--base-port 9420 --controllers 3") || !strings.Contains(err.Error(), "CLUSTER_DATA=") {
			t.Errorf("%+v: %v", other, err)
		}
	}
	if err := os.WriteFile(filepath.Join(began.data, "cluster.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := remember(began); err == nil || !strings.Contains(err.Error(), "cluster.json") {
		t.Errorf("a damaged file: %v", err)
	}
}
