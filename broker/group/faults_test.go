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
	g.Restored(now, topics)
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
