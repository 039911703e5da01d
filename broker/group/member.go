package group

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"
)

// A member is one consumer of a group.
type member struct {
	id       string
	terms    Terms
	replaced []string
	topics   []*Topic // that it reads, as of the last target

	// epoch is at most the group's. Invariant: every epoch in owned is at most
	// epoch.
	epoch int64
	// storedEpoch is epoch as last stored: a higher one is not told before it is.
	storedEpoch int64
	// owned is what the member was told to own, or was and has not confirmed the
	// loss of, with the epochs at which that came to it.
	owned map[Part]int64
	// target is what it is to own.
	target map[Part]bool
	// revoking are those of owned that it has been told to give up.
	revoking map[Part]revocation

	stream   Stream
	revision uint64 // of the last Assignment on stream
	// unsaved: it is not what is stored.
	unsaved bool
	// owes: an Assignment is due even if nothing changed.
	owes  bool
	heard time.Time
	// spared is until when it is not expelled for silence, whatever was heard.
	spared time.Time
}

// A revocation is a partition that a member is to give up.
type revocation struct {
	revision uint64 // the first Assignment of the stream without it
	deadline time.Time
}

func newMember(id string) *member {
	return &member{id: id, owned: map[Part]int64{}, target: map[Part]bool{}, revoking: map[Part]revocation{}}
}

// name orders members for assignors.
func (m *member) name() string {
	if m.terms.Instance != "" {
		return "i" + m.terms.Instance
	}
	return "m" + m.id
}

// settled says whether the member owns what it is to own.
func (m *member) settled() bool {
	return len(m.owned) == len(m.target) && len(m.revoking) == 0
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// deadline returns when the member is expelled if nothing is heard, and why.
func (m *member) deadline() (at time.Time, why string) {
	at, why = later(m.heard.Add(m.terms.Session), m.spared), fmt.Sprintf("nothing was heard of it for %s", m.terms.Session)
	for _, r := range m.revoking {
		if r.deadline.Before(at) {
			at, why = r.deadline, fmt.Sprintf("it did not give up partitions within %s", m.terms.Rebalance)
		}
	}
	return at, why
}

// ownedList returns what the member owns and is to keep, by part.
func (m *member) ownedList() []Owned {
	out := make([]Owned, 0, len(m.owned))
	for _, p := range slices.SortedFunc(maps.Keys(m.owned), Part.Compare) {
		if _, gone := m.revoking[p]; !gone {
			out = append(out, Owned{p, m.owned[p]})
		}
	}
	return out
}

// save stores the member.
func (g *Group) saveMember(m *member, fx *Effects) {
	m.storedEpoch, m.unsaved = m.epoch, false
	state := &Member{ID: m.id, Terms: m.terms, Epoch: m.epoch, Replaced: slices.Clone(m.replaced)}
	for _, p := range slices.SortedFunc(maps.Keys(m.owned), Part.Compare) {
		state.Owned = append(state.Owned, Owned{p, m.owned[p]})
	}
	fx.change(Change{Group: g.id, Member: state})
}

// remove takes a member out and frees what it owned. The caller bumps.
func (g *Group) remove(m *member, why error, fx *Effects) {
	for p := range m.owned {
		delete(g.owners, p)
	}
	delete(g.members, m.id)
	if g.statics[m.terms.Instance] == m {
		delete(g.statics, m.terms.Instance)
	}
	fx.change(Change{Group: g.id, MemberGone: m.id})
	fx.tell(Message{Stream: m.stream, Err: why, Left: why == nil})
	m.stream = 0
}

// Join lets a member in, or go on. Streams are numbered in the order in which they
// were opened. A member's gets Joined and an Assignment with the next Settle. Errors: ErrUnknownMember, ErrFencedMember,
// ErrFencedMemberEpoch, ErrFull; the stream is then to end.
func (g *Group) Join(now time.Time, s Stream, id string, epoch int64, terms Terms, fx *Effects) error {
	m := g.members[id]
	if m == nil {
		return g.admit(now, s, id, epoch, terms, fx)
	}
	switch {
	case epoch > g.epoch || epoch < 0:
		return fail(ErrFencedMemberEpoch, map[string]string{"memberEpoch": strconv.FormatInt(m.epoch, 10)},
			"member %s of group %q is not at epoch %d: drop all it owns and join with member_epoch 0", id, g.id, epoch)
	case s < m.stream: // its last words arrived late
		return g.overtaken(id)
	case terms.Instance != m.terms.Instance:
		return fail(ErrInvalidSubscription, nil, "member %s of group %q joined with instance_id %q before: a member keeps it for life", id, g.id, m.terms.Instance)
	}
	g.attach(m, s, fx)
	changed := terms.key() != m.terms.key() || terms.Rack != m.terms.Rack || terms.Assignor != m.terms.Assignor
	other := terms.Session != m.terms.Session || terms.Rebalance != m.terms.Rebalance || terms.ClientName != m.terms.ClientName
	if !changed && !other {
		terms.ClientAddress, m.terms.ClientAddress = m.terms.ClientAddress, terms.ClientAddress // not worth a record
	} else {
		m.terms, m.unsaved = terms, true
	}
	g.hear(m, now) // by the new terms: they may be shorter
	if epoch == 0 && len(m.owned) > 0 {
		// It owns nothing, so there is nothing to wait for; and begins anew with what it
		// gets: what it committed before is not to be taken any more.
		for p := range m.owned {
			g.release(m, p)
		}
		m.unsaved = true
		g.bump(now)
	}
	if changed {
		g.bump(now)
	}
	fx.tell(Message{Stream: s, Joined: m.joined(epoch != 0)})
	return nil
}

// admit lets a new member in, which may take another one's place.
func (g *Group) admit(now time.Time, s Stream, id string, epoch int64, terms Terms, fx *Effects) error {
	old := g.statics[terms.Instance]
	switch {
	case old != nil && slices.Contains(old.replaced, id):
		return g.replacedError(id, terms.Instance)
	case epoch != 0:
		return g.unknown(id)
	case old != nil:
		g.replace(now, old, s, id, terms, fx)
		return nil
	case len(g.members) >= g.limits.MaxMembers:
		return fail(ErrFull, map[string]string{"group": g.id, "maxMembers": strconv.Itoa(g.limits.MaxMembers)},
			"group %q has %d members, and may have no more: see group.max_members", g.id, len(g.members))
	}
	m := newMember(id)
	m.terms = terms
	g.members[id] = m
	if terms.Instance != "" {
		g.statics[terms.Instance] = m
	}
	g.bump(now)
	m.epoch, m.unsaved = g.epoch, true
	g.attach(m, s, fx)
	g.hear(m, now)
	fx.tell(Message{Stream: s, Joined: m.joined(false)})
	return nil
}

// maxReplaced is how many former processes of a static member are remembered.
const maxReplaced = 4

// replace gives the place of a static member to its next process.
func (g *Group) replace(now time.Time, old *member, s Stream, id string, terms Terms, fx *Effects) {
	m := newMember(id)
	m.terms, m.epoch, m.owned, m.target, m.topics = terms, old.epoch, old.owned, old.target, old.topics
	m.replaced = append(slices.Clone(old.replaced), old.id)
	m.replaced = m.replaced[max(len(m.replaced)-maxReplaced, 0):]
	old.owned = map[Part]int64{}
	g.remove(old, g.replacedError(old.id, terms.Instance), fx)
	for p := range m.owned {
		g.owners[p] = m
	}
	g.members[id], g.statics[terms.Instance] = m, m
	m.revoking = old.revoking
	g.releaseRevoked(m) // the process that worked on them has been replaced
	g.attach(m, s, fx)
	g.hear(m, now)
	g.saveMember(m, fx)
	if terms.key() != old.terms.key() || terms.Rack != old.terms.Rack || terms.Assignor != old.terms.Assignor {
		g.bump(now)
	}
	fx.tell(Message{Stream: s, Joined: m.joined(true)})
}

func (m *member) joined(resumed bool) *Joined {
	return &Joined{Member: m.id, Epoch: m.epoch, Session: m.terms.Session, Rebalance: m.terms.Rebalance, Resumed: resumed}
}

func (g *Group) unknown(id string) error {
	return fail(ErrUnknownMember, nil, "group %q has no member %s, or has none any more: drop all it owned and join with member_epoch 0", g.id, id)
}

func (g *Group) replacedError(id, instance string) error {
	return fail(ErrFencedMember, map[string]string{"instanceId": instance},
		"another process joined group %q with instance_id %q and took the place of %s: give each process an instance_id of its own", g.id, instance, id)
}

func (g *Group) overtaken(id string) error {
	return fail(ErrFencedMember, nil, "a newer stream of member %s of group %q has taken over", id, g.id)
}

// attach makes s the stream of m. The former one is told so.
func (g *Group) attach(m *member, s Stream, fx *Effects) {
	if m.stream != 0 && m.stream != s {
		fx.tell(Message{Stream: m.stream, Err: g.overtaken(m.id)})
	}
	if m.stream != s {
		m.stream, m.revision = s, 0
		for p, r := range m.revoking {
			r.revision = 1 // the first Assignment of this stream leaves them out
			m.revoking[p] = r
		}
	}
	m.owes, g.unsettled = true, true
}

func (g *Group) hear(m *member, now time.Time) {
	m.heard = now
	at, _ := m.deadline()
	g.dueAt(at)
}

// of returns the member whose stream s is.
func (g *Group) of(s Stream, id string) *member {
	if m := g.members[id]; m != nil && m.stream == s && s != 0 {
		return m
	}
	return nil
}

// Heard notes that a message came on a member's stream, and says whether it is
// still that member's.
func (g *Group) Heard(now time.Time, s Stream, id string) bool {
	m := g.of(s, id)
	if m != nil {
		m.heard = now // its deadline only moves away
	}
	return m != nil
}

// Own takes a member's report in: what it was told to give up with the given
// revision or an earlier one and does not list any more is released.
func (g *Group) Own(now time.Time, s Stream, id string, revision uint64, owned func(Part) bool, fx *Effects) {
	m := g.of(s, id)
	if m == nil {
		return
	}
	m.heard = now
	if revision > m.revision {
		return
	}
	released := false
	for p, r := range m.revoking {
		if r.revision <= revision && !owned(p) {
			g.release(m, p)
			released = true
		}
	}
	if released {
		g.saveMember(m, fx) // now, so that it stands before whoever gets them
		g.unsettled = true
	}
}

// releaseRevoked gives up what the member was to give up. The next save stores it.
func (g *Group) releaseRevoked(m *member) {
	for p := range m.revoking {
		g.release(m, p)
		m.unsaved, g.unsettled = true, true
	}
}

// release makes p nobody's.
func (g *Group) release(m *member, p Part) {
	delete(m.revoking, p)
	delete(m.owned, p)
	delete(g.owners, p)
}

// Leave takes a member out at its own wish.
func (g *Group) Leave(now time.Time, s Stream, id string, fx *Effects) {
	m := g.of(s, id)
	if m == nil {
		return
	}
	g.remove(m, nil, fx)
	g.bump(now)
}

// Close notes that a stream ended, which is no leave.
func (g *Group) Close(s Stream, id string) {
	if m := g.of(s, id); m != nil {
		m.stream = 0
	}
}
