package active

import (
	"context"
	"time"

	"github.com/runnelmq/runnel/controller/sessions"
	"github.com/runnelmq/runnel/controller/state"
)

// Times of hand-overs.
const (
	moveRetry     = 250 * time.Millisecond  // after a leader put a hand-over off
	forceLeaving  = 1500 * time.Millisecond // after which a broker that shuts down loses its leaderships unasked
	forceRequest  = 2 * time.Second         // after which a leader that asked to be replaced is
	moveLapse     = 5 * time.Second         // after which any other hand-over is given up
	maxRebalances = 64                      // hand-overs to preferred leaders at a time
	planPeriod    = time.Second             // how often it is looked who should lead
)

// A HandOver asks the broker of a session to give a leadership away.
type HandOver struct {
	Key   state.PartitionKey
	Epoch int64
	To    state.BrokerID
}

// A cause says why a leadership moves.
type cause string

// The causes of moves, as the metric names them.
const (
	moveShutdown  cause = "shutdown"
	moveRequest   cause = "request"
	movePreferred cause = "preferred"
	moveDisk      cause = "disk"
)

// A move is a hand-over under way. It ends with the session of the leader, with its epoch, or with the change.
type move struct {
	cause    cause
	session  *sessions.Session
	from, to state.BrokerID
	epoch    int64
	begun    time.Time
	ask      time.Time // when to ask, or to ask again
	asked    bool      // and not answered
	released bool
	drop     bool // the old leader's copy may lack something
}

// force returns after how long the leader is replaced without its consent; 0: never.
func (m *move) force() time.Duration {
	switch m.cause {
	case moveShutdown:
		return forceLeaving
	case moveRequest:
		return forceRequest
	default:
		return 0
	}
}

// A LeadershipRequest is a leader's wish to be replaced.
type LeadershipRequest struct {
	Key    state.PartitionKey
	Epoch  int64
	Reason string // for people
	// Suspect is true when the leader's copy may lack something: it leaves the ISR, too, and is not eligible.
	Suspect bool
}

// Replace moves a leadership because its leader asks for it. Nothing happens when nobody can take over.
func (a *Active) Replace(ctx context.Context, adm *Admission, r LeadershipRequest) error {
	return a.do(ctx, func(context.Context) error {
		s := adm.Session
		if a.roster.Connected(s.Broker()) != s {
			return nil
		}
		var to state.BrokerID
		ok := false
		a.view(func(i *state.Image) {
			p := i.Partition(r.Key)
			if p != nil && p.Leader == s.Broker() && p.LeaderEpoch == r.Epoch {
				to = a.successor(i, p)
				ok = to != state.NoLeader
			}
		})
		if m := a.desk.moves[r.Key]; !ok || (m != nil && m.cause == moveRequest) {
			return nil
		}
		a.Log.Warn().Int32("broker", int32(s.Broker())).Stringer("topic_id", r.Key.Topic).Int32("partition", r.Key.Number).
			Str("reason", r.Reason).Int32("to", int32(to)).Msg("a leader asks to be replaced")
		a.begin(r.Key, &move{cause: moveRequest, session: s, from: s.Broker(), to: to, epoch: r.Epoch, drop: r.Suspect})
		return nil
	})
}

// Released takes a leader's answer to a hand-over: it takes no more records, or it goes on.
func (a *Active) Released(ctx context.Context, adm *Admission, k state.PartitionKey, epoch int64, released bool) error {
	return a.do(ctx, func(context.Context) error {
		m := a.desk.moves[k]
		switch {
		case m == nil || m.session != adm.Session || m.epoch != epoch || !m.asked:
		case released:
			m.released = true
		case m.force() == 0:
			delete(a.desk.moves, k)
			delete(a.desk.misled, k) // it waits its full time again
		default:
			m.asked, m.ask = false, time.Now().Add(moveRetry)
		}
		return nil
	})
}

func (a *Active) begin(k state.PartitionKey, m *move) {
	m.begun = time.Now()
	m.ask = m.begun
	a.desk.moves[k] = m
}

// plan begins the hand-overs that are due, asks leaders, and forgets what has become pointless. It commits nothing.
func (a *Active) plan() {
	now := time.Now()
	a.view(func(i *state.Image) {
		a.planLeaving(i)
		if !now.Before(a.desk.planNext) {
			a.desk.planNext = now.Add(planPeriod)
			a.planPreferred(i, now)
			a.planDisk(i)
		}
		for k, m := range a.desk.moves {
			p := i.Partition(k)
			over := p == nil || p.Leader != m.from || p.LeaderEpoch != m.epoch || a.roster.Connected(m.from) != m.session ||
				(m.force() == 0 && now.Sub(m.begun) > moveLapse)
			if over {
				delete(a.desk.moves, k)
				continue
			}
			if m.asked || m.released || now.Before(m.ask) {
				continue
			}
			if m.to = i.Successor(p, m.to); m.to == state.NoLeader {
				delete(a.desk.moves, k)
				continue
			}
			m.asked = true
			m.session.Tell(&HandOver{Key: k, Epoch: m.epoch, To: m.to})
		}
	})
}

// planLeaving hands over what brokers lead that shut down, and lets those drain that lead nothing any more that another could
// lead, and are in no ISR that can spare them.
func (a *Active) planLeaving(i *state.Image) {
	for id, s := range a.desk.leaving {
		if a.roster.Connected(id) != s {
			delete(a.desk.leaving, id)
			continue
		}
		led := i.Leads(id)
		for _, p := range led {
			k := p.PartitionKey()
			if m := a.desk.moves[k]; m == nil || m.force() == 0 {
				a.begin(k, &move{cause: moveShutdown, session: s, from: id, to: a.successor(i, p), epoch: p.LeaderEpoch})
			}
		}
		if len(led) == 0 && i.Settled(id) {
			s.LetDrain()
			delete(a.desk.leaving, id)
		}
	}
}

// A misled is since when a partition could be led by its preferred leader, unchanged.
type misled struct {
	revision state.Revision
	since    time.Time
}

// planPreferred hands leaderships back to preferred leaders once their partitions have been whole for long enough.
func (a *Active) planPreferred(i *state.Image, now time.Time) {
	moving := a.moving(movePreferred)
	seen := map[state.PartitionKey]misled{}
	for _, p := range i.Misled() {
		k := p.PartitionKey()
		m, ok := a.desk.misled[k]
		if !ok || m.revision != p.Revision {
			m = misled{p.Revision, now}
		}
		seen[k] = m
		s, preferred := a.roster.Connected(p.Leader), a.roster.Connected(p.Replicas[0])
		if s == nil || preferred == nil || preferred.DiskLow() || a.desk.moves[k] != nil || moving >= maxRebalances || now.Sub(m.since) < a.cfg.PreferredAfter {
			continue
		}
		moving++
		a.begin(k, &move{cause: movePreferred, session: s, from: p.Leader, to: p.Replicas[0], epoch: p.LeaderEpoch})
	}
	a.desk.misled = seen
}

// planDisk hands over what brokers lead whose disks are nearly full, to brokers whose disks are not: they refuse clients' records.
func (a *Active) planDisk(i *state.Image) {
	moving := a.moving(moveDisk)
	for _, b := range i.Brokers() {
		s := a.roster.Connected(b.ID)
		if s == nil || !s.DiskLow() {
			continue
		}
		for _, p := range i.Leads(b.ID) {
			k, to := p.PartitionKey(), a.successor(i, p)
			if a.low(to) || a.desk.moves[k] != nil || moving >= maxRebalances {
				continue
			}
			moving++
			a.begin(k, &move{cause: moveDisk, session: s, from: b.ID, to: to, epoch: p.LeaderEpoch})
		}
	}
}

// moving returns how many leaderships are being handed over for a cause.
func (a *Active) moving(why cause) int {
	n := 0
	for _, m := range a.desk.moves {
		if m.cause == why {
			n++
		}
	}
	return n
}

// low reports whether a broker's disk is nearly full, as far as is known.
func (a *Active) low(id state.BrokerID) bool {
	s := a.roster.Connected(id)
	return s != nil && s.DiskLow()
}

// successor returns who is to take a leadership over: the first, in order of preference, whose disk is not nearly full, else the
// first that can.
func (a *Active) successor(i *state.Image, p *state.Partition) state.BrokerID {
	for _, id := range p.Replicas {
		if !a.low(id) && i.Successor(p, id) == id {
			return id
		}
	}
	return i.Successor(p, state.NoLeader)
}

// moveWork returns the next transaction of leaderships that were released, or that must move without.
func (a *Active) moveWork(i *state.Image) work {
	var w work
	moved := map[state.PartitionKey]*move{}
	for k, m := range a.desk.moves {
		force := !m.released && m.force() > 0 && time.Since(m.begun) >= m.force()
		if (!m.released && !force) || len(w.changes) == state.MaxChanges || a.roster.Connected(m.from) != m.session {
			continue
		}
		c, ok := i.Move(k, m.from, m.epoch, m.to, m.drop, m.released)
		if !ok {
			delete(a.desk.moves, k)
			continue
		}
		w.changes = append(w.changes, c)
		moved[k] = m
	}
	w.note = func() {
		for k, m := range moved {
			a.Metrics.moves.WithLabelValues(string(m.cause)).Inc()
			delete(a.desk.moves, k)
		}
	}
	return w
}
