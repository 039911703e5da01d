package client

import "time"

// wake schedules the partition when it has something to send.
func (pt *partition) wake() {
	pt.mu.Lock()
	schedule := pt.scheduleLocked(time.Now())
	pt.mu.Unlock()
	if schedule {
		pt.push()
	}
}

// push puts a partition that was scheduled into the ready list of its lane.
func (pt *partition) push() {
	pt.mu.Lock()
	l := pt.lane
	pt.mu.Unlock()
	if !l.push(pt) {
		pt.unschedule()
	}
}

// unschedule takes the partition, which was in a ready list, out of it, and
// schedules it as it is now right.
func (pt *partition) unschedule() {
	pt.mu.Lock()
	pt.scheduled = false
	pt.mu.Unlock()
	pt.wake()
}

// scheduleLocked marks the partition as scheduled and returns true when it has
// something to send and was not.
func (pt *partition) scheduleLocked(now time.Time) bool {
	if pt.scheduled || !pt.sendableLocked(now) || !pt.routedLocked() {
		return false
	}
	pt.scheduled = true
	return true
}

func (pt *partition) sendableLocked(now time.Time) bool {
	switch {
	case len(pt.refused) > 0 || pt.num.gap || len(pt.inflight) >= pt.p.o.inFlight || now.Before(pt.pausedTill):
		return false
	case len(pt.queue) > 0:
		return pt.provenLocked(pt.queue[0])
	case pt.open == nil || !pt.provenLocked(pt.open):
		return false
	case pt.open.urgent || pt.p.memory.pressed():
		return true
	case pt.p.o.linger == 0:
		return len(pt.inflight) == 0
	}
	return now.Sub(pt.open.opened) >= pt.p.o.linger
}

// routedLocked reports whether the next batch can go, and sees to it that lane
// is where to. What goes another way waits until nothing is in flight.
func (pt *partition) routedLocked() bool {
	if !pt.p.identified() {
		return false
	}
	c := pt.p.c
	to, epoch := c.route(c.cluster.view.Load(), pt.topic.name, pt.id, pt.number)
	if pt.lane != nil && pt.lane.place == to && !pt.lane.ended.Load() {
		if len(pt.inflight) == 0 {
			pt.epoch = epoch
		}
		return true
	}
	if len(pt.inflight) > 0 {
		return false
	}
	pt.lane, pt.epoch = pt.p.laneTo(to), epoch
	return true
}

// moved looks whether there is another leader than the one that what is in
// flight went to. From that one nothing may come for long; with numbers, what
// it was sent can be sent to the new leader as well.
func (pt *partition) moved() {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	if pt.recalling || !pt.strandedLocked() {
		return
	}
	pt.recalling = true
	after := recallAfter
	if pt.lane.place == viaSeed {
		after = recallProxied
	}
	time.AfterFunc(after, pt.recall)
}

// How long the former leader may take to answer, and how long a broker that
// passes on what it is sent, and will notice by itself.
const (
	recallAfter   = 250 * time.Millisecond
	recallProxied = time.Second
)

func (pt *partition) strandedLocked() bool {
	if !pt.p.o.idempotent || len(pt.inflight) == 0 || pt.lane == nil || pt.epoch == 0 {
		return false // with epoch 0 it is not known who led
	}
	addr, epoch := pt.p.c.cluster.view.Load().leader(pt.topic.name, pt.id, pt.number)
	return epoch > pt.epoch && (place(addr) != pt.lane.place || addr == "")
}

func (pt *partition) recall() {
	pt.mu.Lock()
	pt.recalling = false
	l, stranded := pt.lane, pt.strandedLocked()
	pt.mu.Unlock()
	if !stranded {
		return
	}
	l.recall(pt, errLeaderMoved)
	pt.moved() // what was just being sent
}

// provenLocked reports whether b may follow what is in flight. With numbers
// anything may: the leader takes nothing after what it has refused.
func (pt *partition) provenLocked(b *batch) bool {
	if len(pt.inflight) == 0 || pt.p.o.idempotent {
		return true
	}
	return b.size() <= pt.proven && pt.inflight[len(pt.inflight)-1].sized <= pt.proven
}

// take moves the next batch in flight, on lane l, and returns it; nil when
// there is nothing to send there. The partition is no longer scheduled, unless
// more is true.
func (pt *partition) take(l *lane, now time.Time) (b *batch, more bool) {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	pt.scheduled = false
	if !pt.sendableLocked(now) {
		return nil, false
	}
	if !pt.routedLocked() || pt.lane != l {
		return nil, pt.scheduleLocked(now) // for another lane, or none yet
	}
	if len(pt.queue) == 0 {
		pt.sealLocked()
	}
	b = pt.queue[0]
	pt.queue = pt.queue[1:]
	b.stage = stageInFlight
	b.sized = b.size()
	if pt.p.o.idempotent {
		pt.num.assign(b)
	}
	pt.inflight = append(pt.inflight, b)
	return b, pt.scheduleLocked(now)
}
