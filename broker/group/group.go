package group

import (
	"maps"
	"slices"
	"strconv"
	"time"
)

// Limits bound a group.
type Limits struct {
	// MaxMembers is how many members a group may have.
	MaxMembers int
	// Retention is for how long the offsets of an empty group are kept.
	Retention time.Duration
}

// A Phase is what a group is doing.
type Phase uint8

// The phases.
const (
	Empty       Phase = 1 // no members
	Rebalancing Phase = 2 // partitions are changing hands
	Stable      Phase = 3 // every member owns what it is to own
)

// A Group is one consumer group at its coordinator. It is not safe for use by
// several goroutines. Its methods note in Effects what is to be stored and told;
// what is told must wait until all that was to be stored by then is committed.
type Group struct {
	id     string
	limits Limits

	// epoch rises with every change of members, subscriptions or topics.
	epoch    int64
	assignor Assignor
	members  map[string]*member
	statics  map[string]*member // by instance id
	// owners says whose each partition is. Invariant: owners[p] == m exactly when
	// m.owned has p, so that no partition has two owners.
	owners map[Part]*member
	// held partitions are given to nobody, while their offsets are being reset.
	held    map[Part]int
	offsets map[Part]*offset
	// emptySinceMs is since when there are no members; 0 while there are.
	emptySinceMs int64
	stored       bool // the group's own record is

	// dirty: the target is not what the members and topics ask for.
	dirty bool
	// unsaved: the group's own record is not what is stored.
	unsaved bool
	// unsettled: somebody may be told something.
	unsettled bool
	// due is not after the next time at which something happens by itself.
	due time.Time
}

// An offset keeps the last commit, and the last one that is known to be durable.
type offset struct {
	last, stable *Offset
}

// New returns a group that nobody has heard of.
func New(id string, limits Limits) *Group {
	return &Group{
		id: id, limits: limits, assignor: Sticky, members: map[string]*member{}, statics: map[string]*member{},
		owners: map[Part]*member{}, held: map[Part]int{}, offsets: map[Part]*offset{},
	}
}

// ID returns the group's id.
func (g *Group) ID() string { return g.id }

// Epoch returns the group epoch.
func (g *Group) Epoch() int64 { return g.epoch }

// Assignor returns the assignor in force.
func (g *Group) Assignor() Assignor { return g.assignor }

// Size returns how many members there are.
func (g *Group) Size() int { return len(g.members) }

// Blank says whether nothing is known of the group: it is as if it never was.
func (g *Group) Blank() bool {
	return !g.stored && len(g.members) == 0 && len(g.offsets) == 0 && len(g.held) == 0
}

// Phase returns what the group is doing.
func (g *Group) Phase() Phase {
	if len(g.members) == 0 {
		return Empty
	}
	for _, m := range g.members {
		if g.dirty || !m.settled() {
			return Rebalancing
		}
	}
	return Stable
}

// Exists returns ErrNotFound when nothing is known of the group.
func (g *Group) Exists() error {
	if g.Blank() {
		return NotFound(g.id)
	}
	return nil
}

// NotFound says that there is no such group.
func NotFound(id string) error {
	return fail(ErrNotFound, map[string]string{"group": id}, "group %q does not exist: it has neither members nor committed offsets", id)
}

// sorted returns the members by id: what is done in order is done in this one.
func (g *Group) sorted() []*member {
	out := make([]*member, 0, len(g.members))
	for _, id := range slices.Sorted(maps.Keys(g.members)) {
		out = append(out, g.members[id])
	}
	return out
}

// save stores the group's own record.
func (g *Group) save(fx *Effects) {
	g.stored, g.unsaved = true, false
	fx.change(Change{Group: g.id, State: &State{Epoch: g.epoch, Assignor: g.assignor, EmptySinceMs: g.emptySinceMs}})
}

// bump begins a new group epoch, with a new target. The next Settle stores it.
func (g *Group) bump(now time.Time) {
	g.epoch++
	g.dirty, g.unsaved = true, true
	g.assignor = choose(g.members)
	switch {
	case len(g.members) > 0:
		g.emptySinceMs = 0
	case g.emptySinceMs == 0:
		g.emptySinceMs = now.UnixMilli()
	}
}

// Delete removes an empty group with all its offsets.
func (g *Group) Delete(fx *Effects) error {
	if err := g.Exists(); err != nil {
		return err
	}
	if n := len(g.members); n > 0 {
		return fail(ErrNotEmpty, map[string]string{"group": g.id, "members": strconv.Itoa(n)}, "group %q has members (%d): stop them first", g.id, n)
	}
	g.erase(fx)
	return nil
}

func (g *Group) erase(fx *Effects) {
	for _, p := range slices.SortedFunc(maps.Keys(g.offsets), Part.Compare) {
		g.forget(p, fx)
	}
	if g.stored {
		fx.change(Change{Group: g.id, Gone: true})
	}
	g.stored, g.unsaved, g.epoch, g.emptySinceMs = false, false, 0, 0
}

// forget removes a committed offset.
func (g *Group) forget(p Part, fx *Effects) {
	o := g.offsets[p]
	if o == nil || o.last == nil {
		return
	}
	o.last = nil
	fx.change(Change{Group: g.id, OffsetGone: &p})
}

// ExpiresAt returns when an empty group is deleted; zero while it has members.
func (g *Group) ExpiresAt() time.Time {
	if len(g.members) > 0 || g.Blank() {
		return time.Time{}
	}
	last := g.emptySinceMs
	for _, o := range g.offsets {
		if o.last != nil {
			last = max(last, o.last.CommitMs)
		}
	}
	return time.UnixMilli(last).Add(g.limits.Retention)
}

// Retain deletes the group when it has been empty for too long, and offsets that
// are not to be kept: those of topics that were deleted.
func (g *Group) Retain(now time.Time, keep func(*Offset) bool, fx *Effects) {
	var dead []Part
	for p, o := range g.offsets {
		if o.last != nil && !keep(o.last) {
			dead = append(dead, p)
		}
	}
	slices.SortFunc(dead, Part.Compare)
	for _, p := range dead {
		g.forget(p, fx)
	}
	if at := g.ExpiresAt(); !at.IsZero() && !now.Before(at) && len(g.held) == 0 {
		g.erase(fx)
	}
}

// Tick expels who was silent for its session timeout, or did not give up
// partitions in time, and returns when to come again; zero: never.
func (g *Group) Tick(now time.Time, fx *Effects) time.Time {
	if len(g.members) == 0 {
		return time.Time{}
	}
	if now.Before(g.due) {
		return g.due
	}
	expelled := false
	g.due = time.Time{}
	for _, m := range g.sorted() {
		at, why := m.deadline()
		if !now.Before(at) {
			g.remove(m, fail(ErrUnknownMember, nil, "member %s of group %q was expelled: %s; join again with member_epoch 0", m.id, g.id, why), fx)
			expelled = true
			continue
		}
		g.dueAt(at)
	}
	if expelled {
		g.bump(now)
	}
	return g.due
}

func (g *Group) dueAt(at time.Time) {
	if g.due.IsZero() || at.Before(g.due) {
		g.due = at
	}
}

// Revive restarts every member's timers: a coordinator that was not there, or
// could not listen, blames nobody for that.
func (g *Group) Revive(now time.Time) {
	for _, m := range g.members {
		m.heard = now
		for p, r := range m.revoking {
			r.deadline = now.Add(m.terms.Rebalance)
			m.revoking[p] = r
		}
	}
	g.due = time.Time{}
}

// Detach lets go of all streams, without a word: their members live on.
func (g *Group) Detach() {
	for _, m := range g.members {
		m.stream = 0
	}
}
