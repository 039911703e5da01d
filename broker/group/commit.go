package group

import (
	"slices"
	"strconv"
	"time"
)

// A Commit is one partition of a commit.
type Commit struct {
	Part        Part
	Offset      int64
	LeaderEpoch int64 // -1: not given
	Metadata    string
	// Sequence rises with each commit of the member; 0: not given.
	Sequence uint64
}

// Commit takes commits of a member, or with an empty member id of nobody's, and
// returns the failures by index. One that the member has made others after changes
// nothing, and is no failure: see Last. The error is that of all of them: ErrNotEmpty,
// ErrUnknownMember, ErrFencedMember, ErrFencedMemberEpoch.
func (g *Group) Commit(now time.Time, member string, epoch int64, commits []Commit, fx *Effects) ([]error, error) {
	m, err := g.committer(member, epoch)
	if err != nil {
		return nil, err
	}
	errs := make([]error, len(commits))
	for i := range commits {
		c := &commits[i]
		if errs[i] = g.fence(m, epoch, c.Part); errs[i] != nil {
			continue
		}
		if by := m.turn(c); !g.overtook(c.Part, by) {
			g.store(now, *c, by, fx)
		}
	}
	g.ensure(now, fx)
	return errs, nil
}

// committer returns who commits; nil without an error: not a member.
func (g *Group) committer(id string, epoch int64) (*member, error) {
	if id == "" {
		if n := len(g.members); n > 0 {
			return nil, fail(ErrNotEmpty, map[string]string{"group": g.id, "members": strconv.Itoa(n)},
				"group %q has members (%d): a commit must name a member and its epoch, or the members be stopped; see ResetOffsets", g.id, n)
		}
		return nil, nil
	}
	m := g.members[id]
	if m == nil {
		for _, other := range g.statics {
			if slices.Contains(other.replaced, id) {
				return nil, g.replacedError(id, other.terms.Instance)
			}
		}
		return nil, g.unknown(id)
	}
	if epoch <= 0 || epoch > m.epoch {
		return nil, fail(ErrFencedMemberEpoch, map[string]string{"memberEpoch": strconv.FormatInt(m.epoch, 10)},
			"member %s of group %q was never at epoch %d: drop all it owns and join with member_epoch 0", id, g.id, epoch)
	}
	return m, nil
}

// fence says why m may not commit for a partition.
func (g *Group) fence(m *member, epoch int64, p Part) error {
	if m == nil {
		if g.held[p] > 0 {
			return fail(ErrStaleAssignment, nil, "the offsets of group %q are being reset: try again", g.id)
		}
		return nil
	}
	facts := map[string]string{"memberEpoch": strconv.FormatInt(m.epoch, 10)}
	own, ok := m.owned[p]
	if !ok {
		return fail(ErrStaleAssignment, facts, "partition %d is not the member's, or not any more: drop what was read of it", p.Number)
	}
	if own > epoch {
		facts["assignmentEpoch"] = strconv.FormatInt(own, 10)
		return fail(ErrStaleAssignment, facts, "partition %d came to the member anew at epoch %d, after the %d of the commit: drop what was read of it before", p.Number, own, epoch)
	}
	return nil
}

// turn is the place of a commit among those of m, which may be nil.
func (m *member) turn(c *Commit) Turn {
	if m == nil || c.Sequence == 0 {
		return Turn{}
	}
	return Turn{c.Sequence, m.id, m.owned[c.Part]}
}

// overtook says whether a later commit of the same member was taken, since the
// partition came to it.
func (g *Group) overtook(p Part, by Turn) bool {
	last := g.Last(p)
	return last != nil && last.By.Sequence > by.Sequence && by == Turn{by.Sequence, last.By.Member, last.By.Assigned}
}

func (g *Group) store(now time.Time, c Commit, by Turn, fx *Effects) {
	o := g.offsets[c.Part]
	if o == nil {
		o = &offset{}
		g.offsets[c.Part] = o
	}
	o.last = &Offset{Part: c.Part, Offset: c.Offset, LeaderEpoch: c.LeaderEpoch, Metadata: c.Metadata, CommitMs: now.UnixMilli(), By: by}
	fx.change(Change{Group: g.id, Offset: o.last})
}

// ensure gives a group that has nothing but offsets a record of its own.
func (g *Group) ensure(now time.Time, fx *Effects) {
	if !g.stored && len(g.members) == 0 && len(g.offsets) > 0 {
		g.emptySinceMs = now.UnixMilli()
		g.save(fx)
	}
}

// Hold takes partitions back from whoever owns them, and gives them to nobody
// until Let.
func (g *Group) Hold(now time.Time, parts []Part) {
	for _, p := range parts {
		g.held[p]++
	}
	if len(g.members) > 0 {
		g.bump(now)
	}
}

// Free says whether nobody owns any of the partitions.
func (g *Group) Free(parts []Part) bool {
	return !slices.ContainsFunc(parts, func(p Part) bool { return g.owners[p] != nil })
}

// Let ends a Hold.
func (g *Group) Let(now time.Time, parts []Part) {
	for _, p := range parts {
		if g.held[p]--; g.held[p] <= 0 {
			delete(g.held, p)
		}
	}
	if len(g.members) > 0 {
		g.bump(now) // what was read before belongs to an older assignment
	}
}

// Last returns the last commit, durable or not; nil: none.
func (g *Group) Last(p Part) *Offset {
	if o := g.offsets[p]; o != nil {
		return o.last
	}
	return nil
}

// Reset sets offsets of partitions that are held and free.
func (g *Group) Reset(now time.Time, commits []Commit, fx *Effects) {
	for _, c := range commits {
		g.store(now, c, Turn{}, fx)
	}
	g.ensure(now, fx)
}
