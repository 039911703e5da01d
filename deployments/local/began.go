package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// A beginning is what a cluster can't change later: its controllers know each
// other by the ports they began with.
type beginning struct {
	BasePort    int `json:"base_port"`
	Controllers int `json:"controllers"`
}

// remember refuses to start a cluster that began otherwise, and keeps how it
// begins when it is new.
func remember(o options) error {
	path := filepath.Join(o.data, "cluster.json")
	now := beginning{BasePort: o.basePort, Controllers: o.controllers}
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		if text, err = json.Marshal(now); err != nil {
			return err
		}
		return os.WriteFile(path, append(text, '\n'), 0o600)
	}
	if err != nil {
		return err
	}
	var began beginning
	if err := json.Unmarshal(text, &began); err != nil {
		return fmt.Errorf("%s: %w: remove it, if you know what --base-port and --controllers the cluster began with", path, err)
	}
	if began != now {
		return fmt.Errorf("the cluster in %s began with --base-port %d --controllers %d, and its controllers know each other by that:\n"+
			"start it with the same (make cluster CLUSTER_FLAGS=\"--base-port %[2]d --controllers %[3]d\"),\n"+
			"or begin another one in another folder (make cluster CLUSTER_DATA=runnel-cluster-2 CLUSTER_FLAGS=\"--base-port %d --controllers %d\")",
			o.data, began.BasePort, began.Controllers, now.BasePort, now.Controllers)
	}
	return nil
}
