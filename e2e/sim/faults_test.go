package sim

import (
	"fmt"
	"time"

	"github.com/runnelmq/runnel/controller/store"
	"github.com/runnelmq/runnel/controller/store/storetest"
)

// maxTick is how much time passes between two looks, at most.
const maxTick = 100 * time.Millisecond

// A heal ends a fault. It is called again at the next tick until it returns
// true.
type heal struct {
	at   time.Time
	what string
	fn   func() bool
}

// A fault begins something bad and returns what ends it; nil: nothing could be
// done now.
type fault struct {
	name   string
	weight int
	begin  func(c *cluster) (what string, end func() bool)
}

func faults() []fault {
	return []fault{
		{"kill", 6, killBroker},
		{"power", 3, cutPower},
		{"restart", 2, restartBroker},
		{"disk", 1, breakDisk},
		{"hang", 2, hangDisk},
		{"full", 1, fillDisk},
		{"isolate", 4, isolateBroker},
		{"cut", 4, cutLinks},
		{"one-way", 4, cutOneWay},
		{"delay", 3, delayLinks},
		{"reset", 2, resetLink},
		{"controller", 3, killController},
		{"controller-cut", 2, isolateController},
		{"lease", 1, func(c *cluster) (string, func() bool) { c.kv.ExpireLeases(); return "all leases end", instant }},
		{"watch", 1, func(c *cluster) (string, func() bool) {
			c.kv.Compact()
			c.kv.BreakWatches()
			return "the store forgets its history and breaks all watches", instant
		}},
		{"ambiguous", 3, ambiguousCommits},
		{"store-down", 1, func(c *cluster) (string, func() bool) {
			c.kv.SetDown(true)
			return "the store is down", func() bool { c.kv.SetDown(false); return true }
		}},
	}
}

func instant() bool { return true }

// one returns any of the hosts for which ok.
func one[T any](c *cluster, hosts []T, ok func(T) bool) (h T, found bool) {
	for _, i := range c.rng.Perm(len(hosts)) {
		if ok(hosts[i]) {
			return hosts[i], true
		}
	}
	return h, false
}

func up(h *brokerHost) bool { return !h.down && !h.leaving }

func killBroker(c *cluster) (string, func() bool) {
	h, ok := one(c, c.brokers, up)
	if !ok {
		return "", nil
	}
	h.kill()
	return "kill " + h.name, func() bool { h.start(); return true }
}

// cutPower takes what was not synced from one broker. While its copies are not
// whole again no other one may lose any: that much is promised, and no more.
func cutPower(c *cluster) (string, func() bool) {
	for _, h := range c.brokers {
		if h.lossy {
			return "", nil
		}
	}
	h, ok := one(c, c.brokers, up)
	if !ok {
		return "", nil
	}
	h.cutPower([]int{0, 0, 50, 90}[c.rng.IntN(4)])
	return "power cut at " + h.name, func() bool { h.start(); return true }
}

// breakDisk has a disk fail. Its broker ends, and has lost what was not synced.
func breakDisk(c *cluster) (string, func() bool) {
	for _, h := range c.brokers {
		if h.lossy {
			return "", nil
		}
	}
	h, ok := one(c, c.brokers, up)
	if !ok {
		return "", nil
	}
	p := h.proc
	h.lossy = true
	p.disk.fail(errIO)
	return "the disk of " + h.name + " fails", func() bool {
		switch {
		case h.proc != p || h.down: // something else has ended the process
			return true
		case h.ended():
			h.restartAfterFailure()
			return true
		case p.disk.failedAt().IsZero(): // nothing was written
			p.disk.fail(nil)
			return true
		}
		return false
	}
}

func hangDisk(c *cluster) (string, func() bool) {
	h, ok := one(c, c.brokers, up)
	if !ok {
		return "", nil
	}
	return "the disk of " + h.name + " hangs", healing(h.proc.disk.hang())
}

// fillDisk leaves little room on a disk.
func fillDisk(c *cluster) (string, func() bool) {
	h, ok := one(c, c.brokers, up)
	if !ok {
		return "", nil
	}
	free, total, err := h.proc.disk.mem.Free("data")
	if err != nil {
		return "", nil // it has not begun to use it
	}
	room := int64(c.rng.IntN(256 << 10))
	h.proc.disk.mem.SetCapacity(total - free + room)
	return fmt.Sprintf("the disk of %s has room for %d bytes", h.name, room), func() bool {
		h.mem.SetCapacity(0)
		h.proc.disk.mem.SetCapacity(0)
		return true
	}
}

func restartBroker(c *cluster) (string, func() bool) {
	h, ok := one(c, c.brokers, up)
	if !ok {
		return "", nil
	}
	h.leaving = true
	p := h.proc
	p.cancel()
	return "restart " + h.name, func() bool {
		select {
		case <-p.done:
		default:
			return false
		}
		if h.proc == p && !h.down {
			h.mem = p.disk.kill() // the process has ended; its files are closed
			c.net.die(h.name, true)
			h.start()
		}
		return true
	}
}

// hosts are the names of all hosts.
func (c *cluster) hosts() []string {
	names := []string{clientHost}
	for _, h := range c.brokers {
		names = append(names, h.name)
	}
	for _, h := range c.controllers {
		names = append(names, h.name)
	}
	return names
}

// isolateBroker holds all traffic of a broker, as if it were stopped.
func isolateBroker(c *cluster) (string, func() bool) {
	h := c.brokers[c.rng.IntN(len(c.brokers))]
	var links []link
	spared := clientHost // sometimes its clients stay with it
	if c.rng.IntN(3) > 0 {
		spared = ""
	}
	for _, other := range c.hosts() {
		if other != h.name && other != spared {
			links = append(links, link{h.name, other}, link{other, h.name})
		}
	}
	return "isolate " + h.name + " but for " + spared, healing(c.net.cut(links...))
}

func healing(fn func()) func() bool { return func() bool { fn(); return true } }

// pair returns two hosts, the first of which is a broker.
func (c *cluster) pair() (a, b string) {
	a = c.brokers[c.rng.IntN(len(c.brokers))].name
	for b = a; b == a; {
		b = c.hosts()[c.rng.IntN(len(c.hosts()))]
	}
	return a, b
}

func cutLinks(c *cluster) (string, func() bool) {
	a, b := c.pair()
	return fmt.Sprintf("cut between %s and %s", a, b), healing(c.net.cut(link{a, b}, link{b, a}))
}

func cutOneWay(c *cluster) (string, func() bool) {
	a, b := c.pair()
	if c.rng.IntN(2) == 0 {
		a, b = b, a
	}
	return fmt.Sprintf("cut from %s to %s", a, b), healing(c.net.cut(link{a, b}))
}

func delayLinks(c *cluster) (string, func() bool) {
	a, b := c.pair()
	d := time.Duration(1+c.rng.IntN(800)) * time.Millisecond
	return fmt.Sprintf("%v from %s to %s", d, a, b), healing(c.net.delay(d, link{a, b}))
}

func resetLink(c *cluster) (string, func() bool) {
	a, b := c.pair()
	c.net.reset(a, b)
	return fmt.Sprintf("reset between %s and %s", a, b), instant
}

func killController(c *cluster) (string, func() bool) {
	h, ok := one(c, c.controllers, func(h *controllerHost) bool { return !h.down })
	if !ok {
		return "", nil
	}
	h.kill()
	return "kill " + h.name, func() bool { h.start(); return true }
}

func isolateController(c *cluster) (string, func() bool) {
	h := c.controllers[c.rng.IntN(len(c.controllers))]
	links := []link{{h.name, storeHost}}
	what := "from the store"
	if c.rng.IntN(2) == 0 {
		links, what = nil, "from all hosts"
		for _, other := range c.hosts() {
			if other != h.name {
				links = append(links, link{h.name, other}, link{other, h.name})
			}
		}
	}
	return fmt.Sprintf("isolate %s %s", h.name, what), healing(c.net.cut(links...))
}

func ambiguousCommits(c *cluster) (string, func() bool) {
	seed := c.rng.Uint64()
	c.kv.Inject(func([]store.Write) storetest.Fault {
		seed = seed*6364136223846793005 + 1442695040888963407
		switch seed >> 60 {
		case 0, 1:
			return storetest.FaultBefore
		case 2, 3, 4:
			return storetest.FaultAfter
		case 5:
			return storetest.FaultDelayed
		default:
			return storetest.FaultNone
		}
	})
	return "answers of the store get lost", func() bool {
		c.kv.Inject(nil)
		c.kv.Release()
		return true
	}
}

// A schedule begins faults and ends them.
type schedule struct {
	c      *cluster
	menu   []fault
	total  int
	heals  []heal
	next   time.Time
	counts map[string]int
}

func newSchedule(c *cluster) *schedule {
	s := &schedule{c: c, menu: faults(), counts: map[string]int{}}
	for _, f := range s.menu {
		s.total += f.weight
	}
	return s
}

// step ends what is due, and begins something new now and then.
func (s *schedule) step(now time.Time) {
	s.healDue(now)
	if now.Before(s.next) {
		return
	}
	s.next = now.Add(time.Duration(s.c.rng.IntN(1500)) * time.Millisecond)
	n := s.c.rng.IntN(s.total)
	for _, f := range s.menu {
		if n -= f.weight; n >= 0 {
			continue
		}
		what, end := f.begin(s.c)
		if end == nil {
			return
		}
		s.counts[f.name]++
		lasts := time.Duration(s.c.rng.IntN(1000)) * time.Millisecond
		if s.c.rng.IntN(3) == 0 {
			lasts = time.Duration(s.c.rng.IntN(9000)) * time.Millisecond
		}
		s.c.logs.note("%s for %v", what, lasts)
		s.heals = append(s.heals, heal{now.Add(lasts), what, end})
		return
	}
}

func (s *schedule) healDue(now time.Time) {
	var left []heal
	for _, h := range s.heals {
		if now.Before(h.at) || !h.fn() {
			left = append(left, h)
			continue
		}
		s.c.logs.note("over: %s", h.what)
	}
	s.heals = left
}

// healAll ends all faults as soon as they can be ended.
func (s *schedule) healAll() {
	for i := range s.heals {
		s.heals[i].at = time.Time{}
	}
	s.healDue(time.Now())
}
