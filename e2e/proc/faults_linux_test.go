package proc

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// A faultDriver hurts a cluster, one way after the other, and heals it.
type faultDriver struct {
	t   *testing.T
	g   *Group
	rng *rand.Rand
}

// kinds returns what the driver can do.
func (d *faultDriver) kinds() []fault {
	return []fault{
		{"kill a broker", func() string { return d.restarts(d.broker(), (*Node).Kill) }},
		{"pause a broker", func() string { return d.pauses(d.broker()) }},
		{"stop a broker", func() string { return d.restarts(d.broker(), d.terminate) }},
		{"kill all brokers", d.killAll},
		{"kill a controller", func() string { return d.restarts(d.controller(), (*Node).Kill) }},
		{"pause a controller", func() string { return d.pauses(d.controller()) }},
		{"kill a controller and a broker", d.killBoth},
		{"cut a link", func() string { return d.cuts(false) }},
		{"cut a link one way", func() string { return d.cuts(true) }},
		{"cut a broker off", d.isolate},
	}
}

// A fault hurts, waits, heals, and says what it hurt.
type fault struct {
	name string
	do   func() string
}

func (d *faultDriver) broker() *Node     { return d.g.Brokers[d.rng.IntN(len(d.g.Brokers))] }
func (d *faultDriver) controller() *Node { return d.g.Controllers[d.rng.IntN(len(d.g.Controllers))] }

// wait lasts between a moment and longer than any timeout that is in force.
func (d *faultDriver) wait() time.Duration {
	long := time.Duration(50+d.rng.IntN(5000)) * time.Millisecond
	timer := time.NewTimer(long)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-d.t.Context().Done():
		d.t.Fatal(d.t.Context().Err())
	}
	return long
}

func (d *faultDriver) restarts(n *Node, end func(*Node)) string {
	end(n)
	long := d.wait()
	d.start(n)
	return fmt.Sprintf("%s for %v", n.Name, long)
}

// terminate stops a process in order. One that has only just been started may
// not listen to the signal yet, and dies of it.
func (d *faultDriver) terminate(n *Node) {
	if err := n.Stop(time.Minute); err != nil && !strings.Contains(err.Error(), "signal: terminated") {
		d.t.Errorf("%s: %v", n.Name, err)
	}
}

// start starts a process that has ended, and does not wait.
func (d *faultDriver) start(n *Node) {
	if err := n.Start(); err != nil {
		d.t.Fatal(err)
	}
}

func (d *faultDriver) pauses(n *Node) string {
	if err := n.Pause(); err != nil {
		d.t.Fatal(err)
	}
	long := d.wait()
	if err := n.Resume(); err != nil {
		d.t.Fatal(err)
	}
	return fmt.Sprintf("%s for %v", n.Name, long)
}

func (d *faultDriver) killAll() string {
	for _, b := range d.g.Brokers {
		b.Kill()
	}
	long := d.wait()
	for _, b := range d.g.Brokers {
		d.start(b)
	}
	return fmt.Sprintf("for %v", long)
}

func (d *faultDriver) killBoth() string {
	c, b := d.controller(), d.broker()
	c.Kill()
	b.Kill()
	long := d.wait()
	d.start(c)
	d.start(b)
	return fmt.Sprintf("%s and %s for %v", c.Name, b.Name, long)
}

func (d *faultDriver) cuts(oneWay bool) string {
	all := d.g.All()
	from, to := d.broker(), all[d.rng.IntN(len(all))]
	for to == from {
		to = all[d.rng.IntN(len(all))]
	}
	if oneWay && d.rng.IntN(2) == 0 {
		from, to = to, from
	}
	d.g.Links.Cut(from.Name, to.Name)
	if !oneWay {
		d.g.Links.Cut(to.Name, from.Name)
	}
	long := d.wait()
	d.g.Links.Heal()
	return fmt.Sprintf("%s to %s for %v", from.Name, to.Name, long)
}

func (d *faultDriver) isolate() string {
	b := d.broker()
	for _, n := range d.g.All() {
		d.g.Links.Cut(b.Name, n.Name)
		d.g.Links.Cut(n.Name, b.Name)
	}
	long := d.wait()
	d.g.Links.Heal()
	return fmt.Sprintf("%s for %v", b.Name, long)
}

// living fails the test when a process has ended that the driver did not end.
func (d *faultDriver) living() {
	for _, n := range d.g.All() {
		if !n.Running() {
			d.t.Fatalf("%s has ended by itself, with code %d", n.Name, n.Code())
		}
	}
}

// hurt does so many random faults as fit into a time, and begins with each kind
// once as far as that goes.
func (d *faultDriver) hurt(long time.Duration, settled func()) {
	ctx, cancel := context.WithTimeout(d.t.Context(), long)
	defer cancel()
	kinds := d.kinds()
	for i, order := 0, d.rng.Perm(len(kinds)); ctx.Err() == nil; i++ {
		f := kinds[d.rng.IntN(len(kinds))]
		if i < len(order) {
			f = kinds[order[i]]
		}
		d.living()
		begin := time.Now()
		what := f.do()
		d.t.Logf("%v %s: %s", begin.Format("15:04:05.000"), f.name, what)
		if d.rng.IntN(2) == 0 { // else the next one comes while this one heals
			settled()
		}
	}
}
