package group

import (
	"errors"
	"testing"
	"time"
)

// What was said on a stream before a newer one took over, and arrives after it,
// takes nothing back.
func TestGroup_olderStreamStaysOut(t *testing.T) {
	s := newStage(t, topicOf(0, 2))
	if err := s.join("a", 0, basic("t000")); err != nil {
		t.Fatal(err)
	}
	older := s.at["a"]
	if err := s.join("a", s.joined["a"].Epoch, basic("t000")); err != nil {
		t.Fatal(err)
	}
	newer := s.at["a"]
	s.do(func(fx *Effects) {
		if err := s.g.Join(s.now, older, "a", s.joined["a"].Epoch, basic("t000", "t001"), fx); !errors.Is(err, ErrFencedMember) {
			t.Errorf("a late join of the older stream: %v", err)
		}
	})
	if s.failures[newer] != nil || !s.g.Heard(s.now, newer, "a") {
		t.Errorf("the newer stream was told %v", s.failures[newer])
	}
}

// A member that joins again with a shorter session is expelled by that one.
func TestGroup_shorterSession(t *testing.T) {
	s := newStage(t, topicOf(0, 2))
	long := basic("t000")
	long.Session = 5 * time.Minute
	if err := s.join("a", 0, long); err != nil {
		t.Fatal(err)
	}
	s.pass(time.Second) // its end is known
	short := basic("t000")
	short.Session = time.Second
	if err := s.join("a", s.joined["a"].Epoch, short); err != nil {
		t.Fatal(err)
	}
	s.pass(2 * time.Second)
	if n := s.g.Size(); n != 0 {
		t.Errorf("%d members after the shorter session", n)
	}
}

// A group whose last member's end was stored, but not since when it is empty, is
// not taken for one that has been empty for ever.
func TestGroup_emptySinceItWasFoundSo(t *testing.T) {
	p := Part{topicOf(0, 1).ID, 0}
	now := time.UnixMilli(1e12)
	g := New("g", Limits{MaxMembers: 10, Retention: time.Hour})
	for _, c := range []Change{
		{Group: "g", State: &State{Epoch: 3, Assignor: Sticky}},
		{Group: "g", Member: &Member{ID: "a", Terms: basic("t000"), Epoch: 3, Owned: []Owned{{p, 3}}}},
		{Group: "g", Offset: &Offset{Part: p, Offset: 7, LeaderEpoch: -1, CommitMs: now.Add(-48 * time.Hour).UnixMilli()}},
		{Group: "g", MemberGone: "a"},
	} {
		g.Restore(&c)
	}
	topics := NewResolver(topicList{topicOf(0, 1)})
	g.Restored(now, 0, topics)
	var fx Effects
	g.Retain(now, func(*Offset) bool { return true }, &fx)
	g.Settle(now, topics, &fx)
	if len(fx.Changes) != 1 || fx.Changes[0].State == nil || fx.Changes[0].State.EmptySinceMs != now.UnixMilli() {
		t.Errorf("changes: %+v", fx.Changes)
	}
	if at := g.ExpiresAt(); !at.Equal(now.Add(time.Hour)) {
		t.Errorf("it expires at %s", at)
	}
}

// A member may be connected to the coordinator before this one, which answers
// its pings until it has heard of its end: whom that one has kept alive is not
// expelled here while it still hands records out.
func TestGroup_outlivesAnEarlierCoordinator(t *testing.T) {
	const overlap = 3 * time.Second
	now := time.UnixMilli(1e12)
	g := New("g", Limits{MaxMembers: 10, Retention: time.Hour})
	topics := NewResolver(topicList{topicOf(0, 1)})
	g.Restore(&Change{Group: "g", State: &State{Epoch: 3, Assignor: Sticky}})
	for _, id := range []string{"a", "b"} {
		g.Restore(&Change{Group: "g", Member: &Member{ID: id, Terms: basic("t000"), Epoch: 3}})
	}
	g.Restored(now, overlap, topics)
	var fx Effects
	if err := g.Join(now, 1, "a", 3, basic("t000"), &fx); err != nil {
		t.Fatal(err)
	}
	lease := now.Add(overlap + basic("t000").Session)
	for _, c := range []struct {
		at   time.Time
		want int
	}{{lease.Add(-time.Millisecond), 2}, {lease, 0}} {
		g.Tick(c.at, &fx)
		g.Settle(c.at, topics, &fx)
		if n := g.Size(); n != c.want {
			t.Errorf("%d members %s after the restart, want %d", n, c.at.Sub(now), c.want)
		}
	}
}

// slowOwner returns a group in which "a" is told to give half of what it owns to
// "b", and does not.
func slowOwner(t *testing.T) *stage {
	t.Helper()
	s := newStage(t, topicOf(0, 2))
	s.slow["a"] = true
	for _, id := range []string{"a", "b"} {
		if err := s.join(id, 0, basic("t000")); err != nil {
			t.Fatal(err)
		}
	}
	s.wantOwned(map[string]int{"a": 1, "b": 0})
	return s
}

// A report of what was never told gives nothing up.
func TestGroup_reportOfTheFuture(t *testing.T) {
	s := slowOwner(t)
	none := func(Part) bool { return false }
	s.do(func(fx *Effects) { s.g.Own(s.now, s.at["a"], "a", s.last["a"].Revision+1, none, fx) })
	s.wantOwned(map[string]int{"b": 0})
}

// Who is to give something up stays at its epoch until it has.
func TestGroup_epochWaitsForWhatIsGivenUp(t *testing.T) {
	s := slowOwner(t)
	if at := s.last["a"].Epoch; at >= s.g.Epoch() {
		t.Errorf("a is at epoch %d of %d, and has given nothing up", at, s.g.Epoch())
	}
	s.do(func(fx *Effects) { s.report("a", fx) })
	s.wantOwned(map[string]int{"a": 1, "b": 1})
}

// A coordinator that could not listen blames nobody for what was not given up.
func TestGroup_revivesRevocations(t *testing.T) {
	s := slowOwner(t)
	s.now = s.now.Add(59 * time.Second)
	s.g.Revive(s.now)
	for range 10 {
		for _, id := range []string{"a", "b"} {
			s.g.Heard(s.now, s.at[id], id)
		}
		s.pass(5 * time.Second)
	}
	if n := s.g.Size(); n != 2 {
		t.Errorf("%d members 50 s after they were revived", n)
	}
}

// commit has a member commit one offset, and returns what is committed then.
func (s *stage) commit(id string, epoch int64, c Commit) (int64, error) {
	s.t.Helper()
	var fx Effects
	errs, err := s.g.Commit(s.now, id, epoch, []Commit{c}, &fx)
	if err == nil {
		err = errs[0]
	}
	s.settle(&fx)
	if last := s.g.Committed(c.Part); last != nil {
		return last.Offset, err
	}
	return -1, err
}

// A commit of a stream that was given up arrives after later ones of the same
// member: it sets nothing back, nor forth what was set back on purpose. Who gives
// no sequence is taken at their word.
func TestGroup_commitComesLate(t *testing.T) {
	p := Part{topicOf(0, 1).ID, 0}
	s := newStage(t, topicOf(0, 1))
	if err := s.join("a", 0, basic("t000")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		offset   int64
		sequence uint64
		want     int64
	}{
		{204, 1, 204}, {208, 2, 208}, {204, 1, 208}, {208, 2, 208}, {100, 4, 100}, {220, 3, 100}, {110, 5, 110}, {90, 0, 90}, {120, 6, 120},
	} {
		got, err := s.commit("a", s.last["a"].Epoch, Commit{Part: p, Offset: c.offset, Sequence: c.sequence})
		if err != nil || got != c.want {
			t.Errorf("after offset %d with sequence %d: %d is committed, want %d: %v", c.offset, c.sequence, got, c.want, err)
		}
	}
}

// The commits of another process, of the next owner, and of who has begun anew
// begin with any sequence.
func TestGroup_sequencesBeginAnew(t *testing.T) {
	p := Part{topicOf(0, 1).ID, 0}
	terms := basic("t000")
	terms.Instance = "i"
	s := newStage(t, topicOf(0, 1))
	for i, step := range []struct {
		name, id string
		before   func() error
	}{
		{"the first", "a", func() error { return s.join("a", 0, terms) }},
		{"itself, anew", "a", func() error { return s.join("a", 0, terms) }},
		{"the next process of its instance", "b", func() error { return s.join("b", 0, terms) }},
		{"the next owner", "c", func() error {
			s.do(func(fx *Effects) { s.g.Leave(s.now, s.at["b"], "b", fx) })
			return s.join("c", 0, basic("t000"))
		}},
	} {
		if err := step.before(); err != nil {
			t.Fatal(err)
		}
		want := int64(100 - 10*i)
		got, err := s.commit(step.id, s.last[step.id].Epoch, Commit{Part: p, Offset: want, Sequence: uint64(10 - i)}) //nolint:gosec // small
		if err != nil || got != want {
			t.Errorf("%s: %d is committed, want %d: %v", step.name, got, want, err)
		}
	}
}

// A member that took all for lost, and joins again before the coordinator does,
// begins anew where the group stands. What it committed before that and arrives
// later would be set back by what it commits then, and is refused.
func TestGroup_beginsAnewWithWhatItHad(t *testing.T) {
	topic := topicOf(0, 2)
	s := newStage(t, topic)
	for _, id := range []string{"a", "b"} {
		if err := s.join(id, 0, basic("t000")); err != nil {
			t.Fatal(err)
		}
	}
	before, other := s.last["a"], s.told["b"]
	if err := s.join("a", 0, basic("t000")); err != nil {
		t.Fatal(err)
	}
	s.wantOwned(map[string]int{"a": 1, "b": 1})
	after := s.last["a"]
	p := after.Owned[0].Part
	if p != before.Owned[0].Part || s.told["b"] != other {
		t.Errorf("partitions moved: %v, before %v; the other one was told %d times, before %d", after, before, s.told["b"], other)
	}
	if _, err := s.commit("a", before.Epoch, Commit{Part: p, Offset: 208, Sequence: 7}); !errors.Is(err, ErrStaleAssignment) {
		t.Errorf("a commit of before: %v", err)
	}
	if got, err := s.commit("a", after.Epoch, Commit{Part: p, Offset: 204, Sequence: 8}); err != nil || got != 204 {
		t.Errorf("a commit of after: %d is committed: %v", got, err)
	}
}
