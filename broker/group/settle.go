package group

import (
	"maps"
	"slices"
	"time"
)

// Settle finds a new target when one is due, and brings every member as close to
// it as is safe: it is told to give up what is not to be its, and gets what is,
// once that is nobody's. Call it after events, before their effects are stored.
func (g *Group) Settle(now time.Time, topics *Resolver, fx *Effects) {
	if g.dirty {
		g.retarget(topics)
		g.dirty, g.unsettled = false, true
	}
	if g.unsaved {
		g.save(fx)
	}
	if !g.unsettled {
		return
	}
	g.unsettled = false
	members := g.sorted()
	news := make([]bool, len(members))
	for i, m := range members {
		news[i] = g.revoke(m, now)
		if m.unsaved {
			g.saveMember(m, fx) // what it released stands before whoever gets it
		}
	}
	for i, m := range members {
		news[i] = g.grant(m, fx) || news[i]
	}
	for i, m := range members {
		if news[i] || m.owes {
			g.tell(m, fx)
		}
	}
}

// allowed says whether m is to own p now.
func (g *Group) allowed(m *member, p Part) bool { return m.target[p] && g.held[p] == 0 }

// revoke notes what m is to give up, and says whether that changed.
func (g *Group) revoke(m *member, now time.Time) (changed bool) {
	if len(m.revoking) == 0 && len(m.owned) == 0 {
		return false
	}
	for p := range m.owned {
		_, was := m.revoking[p]
		switch is := !g.allowed(m, p); {
		case is && !was:
			r := revocation{revision: m.revision + 1, deadline: now.Add(m.terms.Rebalance)}
			m.revoking[p] = r
			g.dueAt(r.deadline)
			changed = true
		case was && !is:
			delete(m.revoking, p)
			changed = true
		}
	}
	return changed
}

// grant gives m what is to be its and is nobody's, unless it still has to give
// something up, and says whether there was anything.
func (g *Group) grant(m *member, fx *Effects) (changed bool) {
	if len(m.revoking) > 0 {
		return false
	}
	m.epoch = g.epoch
	if len(m.owned) == len(m.target) {
		return false
	}
	for p := range m.target {
		if g.owners[p] == nil && g.held[p] == 0 {
			m.owned[p], g.owners[p] = m.epoch, m
			changed = true
		}
	}
	if changed {
		g.saveMember(m, fx)
	}
	return changed
}

// tell sends m what it is to own.
func (g *Group) tell(m *member, fx *Effects) {
	if m.stream == 0 {
		return // it is told when it comes back
	}
	m.owes = false
	m.revision++
	if m.storedEpoch != m.epoch {
		g.saveMember(m, fx)
	}
	fx.tell(Message{Stream: m.stream, Assignment: &Assignment{Revision: m.revision, Epoch: m.epoch, Owned: m.ownedList()}})
}

// retarget divides the partitions that the members read anew.
func (g *Group) retarget(topics *Resolver) {
	members := g.sorted()
	readers := make([]Reader, len(members))
	claimed := map[Part]bool{}
	for i, m := range members {
		m.topics = topics.of(&m.terms)
		readers[i] = Reader{Name: m.name(), Rack: m.terms.Rack, Topics: m.topics, Has: slices.SortedFunc(maps.Keys(m.target), Part.Compare)}
		for p := range m.target {
			claimed[p] = true
		}
	}
	for i, m := range members { // better back to who still works on it than to a third one
		for _, p := range slices.SortedFunc(maps.Keys(m.owned), Part.Compare) {
			if !claimed[p] {
				readers[i].Has = append(readers[i].Has, p)
			}
		}
	}
	for i, share := range g.assignor.Assign(readers) {
		target := make(map[Part]bool, len(share))
		for _, p := range share {
			target[p] = true
		}
		members[i].target = target
	}
}

// Refresh looks whether the subscribed topics are what they were, and begins a
// new epoch when they are not.
func (g *Group) Refresh(now time.Time, topics *Resolver) {
	for _, m := range g.members {
		if !sameShape(m.topics, topics.of(&m.terms)) {
			g.bump(now)
			return
		}
	}
}

// Restore takes one stored change in, in the order of the log.
func (g *Group) Restore(c *Change) {
	switch {
	case c.State != nil:
		g.stored = true
		g.epoch, g.assignor, g.emptySinceMs = max(g.epoch, c.State.Epoch), c.State.Assignor, c.State.EmptySinceMs
	case c.Gone:
		g.stored, g.epoch, g.emptySinceMs = false, 0, 0
	case c.Member != nil:
		g.restoreMember(c.Member)
	case c.MemberGone != "":
		if m := g.members[c.MemberGone]; m != nil {
			g.remove(m, nil, &Effects{})
		}
	case c.Offset != nil:
		g.offsets[c.Offset.Part] = &offset{last: c.Offset, stable: c.Offset}
	case c.OffsetGone != nil:
		delete(g.offsets, *c.OffsetGone)
	}
}

func (g *Group) restoreMember(s *Member) {
	if old := g.members[s.ID]; old != nil {
		g.remove(old, nil, &Effects{})
	}
	m := newMember(s.ID)
	m.terms, m.replaced = s.Terms, slices.Clone(s.Replaced)
	m.epoch, m.storedEpoch = s.Epoch, s.Epoch
	g.epoch = max(g.epoch, s.Epoch)
	for _, o := range s.Owned {
		if other := g.owners[o.Part]; other != nil { // never, unless the log lacks a record
			g.release(other, o.Part)
			delete(other.target, o.Part)
		}
		m.owned[o.Part], m.target[o.Part] = o.Epoch, true
		g.owners[o.Part] = m
	}
	g.members[s.ID] = m
	if m.terms.Instance != "" {
		g.statics[m.terms.Instance] = m
	}
}

// Restored ends the restoring: every member gets its time anew, and the target
// is found again. Only if that is another one does a new epoch begin. For as
// long as overlap, an earlier coordinator that has not heard of this one may
// answer members, who then believe that they are alive.
func (g *Group) Restored(now time.Time, overlap time.Duration, topics *Resolver) {
	if len(g.members) == 0 {
		if g.stored && g.emptySinceMs == 0 { // the last one's end was stored, and no more of that turn
			g.emptySinceMs, g.unsaved = now.UnixMilli(), true
		}
		return
	}
	g.emptySinceMs = 0
	g.Revive(now)
	for _, m := range g.members {
		m.spared = now.Add(overlap + m.terms.Session)
	}
	g.retarget(topics)
	for _, m := range g.members {
		same := len(m.target) == len(m.owned)
		for p := range m.owned {
			same = same && m.target[p]
		}
		if !same {
			g.bump(now)
			return
		}
	}
}

// MemberView describes a member.
type MemberView struct {
	ID        string
	Terms     Terms
	Epoch     int64
	Owned     int
	Target    int
	Connected bool
	Heard     time.Time
}

// Members returns the members by id.
func (g *Group) Members() []MemberView {
	out := make([]MemberView, 0, len(g.members))
	for _, m := range g.sorted() {
		out = append(out, MemberView{
			ID: m.id, Terms: m.terms, Epoch: m.epoch, Owned: len(m.owned), Target: len(m.target), Connected: m.stream != 0, Heard: m.heard,
		})
	}
	return out
}

// A PartView describes a partition.
type PartView struct {
	Part  Part
	Owner string // member id; "": nobody
	Next  string // whose it is to be, when that is another
	Epoch int64  // of the assignment to Owner
	// Committed is the last durable commit; nil: none.
	Committed *Offset
}

// Parts returns every partition that is assigned, to be assigned or has a
// durable offset, by part.
func (g *Group) Parts() []PartView {
	at := map[Part]*PartView{}
	view := func(p Part) *PartView {
		if at[p] == nil {
			at[p] = &PartView{Part: p}
		}
		return at[p]
	}
	for p, m := range g.owners {
		v := view(p)
		v.Owner, v.Epoch = m.id, m.owned[p]
	}
	for _, m := range g.members {
		for p := range m.target {
			if v := view(p); v.Owner != m.id {
				v.Next = m.id
			}
		}
	}
	for p, o := range g.offsets {
		if o.stable != nil {
			view(p).Committed = o.stable
		}
	}
	out := make([]PartView, 0, len(at))
	for _, v := range at {
		out = append(out, *v)
	}
	slices.SortFunc(out, func(a, b PartView) int { return a.Part.Compare(b.Part) })
	return out
}

// Committed returns the last durable commit of a partition; nil: none.
func (g *Group) Committed(p Part) *Offset {
	if o := g.offsets[p]; o != nil {
		return o.stable
	}
	return nil
}

// AllCommitted returns all durable commits, by part.
func (g *Group) AllCommitted() []*Offset {
	var out []*Offset
	for _, o := range g.offsets {
		if o.stable != nil {
			out = append(out, o.stable)
		}
	}
	slices.SortFunc(out, func(a, b *Offset) int { return a.Part.Compare(b.Part) })
	return out
}

// Uncommitted returns how many partitions have an owner and no durable offset: where
// their owners began, the group does not know.
func (g *Group) Uncommitted() (n int) {
	for p := range g.owners {
		if o := g.offsets[p]; o == nil || o.stable == nil {
			n++
		}
	}
	return n
}

// Confirm notes that a change is durable: from here on it is what readers see.
func (g *Group) Confirm(c *Change) {
	switch {
	case c.Offset != nil:
		if o := g.offsets[c.Offset.Part]; o != nil {
			o.stable = c.Offset
		}
	case c.OffsetGone != nil:
		if o := g.offsets[*c.OffsetGone]; o != nil {
			o.stable = nil
			if o.last == nil {
				delete(g.offsets, *c.OffsetGone)
			}
		}
	}
}
