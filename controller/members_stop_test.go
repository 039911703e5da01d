package controller_test

import (
	"testing"
	"time"

	"github.com/runnelmq/runnel/controller"
)

// Controllers that are stopped one after the other end quickly, also those that are left without a majority: the active one can
// tell nobody then that it resigns, and no member takes the lead of etcd over. What runs containers waits for 10 s.
func TestThreeMembers_end_quickly(t *testing.T) {
	const quickly = 5 * time.Second
	tr := newTrio(t)
	for n := range 3 {
		tr.start(n, controller.Deps{Bootstrap: true})
	}
	act := tr.active(0, 1, 2)
	for _, n := range append(others(act), act) {
		start := time.Now()
		if err := tr.stops[n](); err != nil {
			t.Errorf("controller %d: %v", n, err)
		}
		took := time.Since(start)
		if took > quickly {
			t.Errorf("controller %d ended after %v, want at most %v", n, took, quickly)
		}
	}
}
