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
