package group

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runnelmq/runnel/internal/refusal"
)

// A stage is a group with members that do at once what they are told, unless
// they are said to be slow.
type stage struct {
	t      *testing.T
	g      *Group
	now    time.Time
	topics topicList
	slow   map[string]bool
	at     map[string]Stream
	next   Stream
	// last is what each member was told last; failures are how streams ended.
	last     map[string]*Assignment
	joined   map[string]*Joined
	failures map[Stream]error
	told     map[string]int // assignments by member
}

func newStage(t *testing.T, topics ...*Topic) *stage {
	t.Helper()
	return &stage{
		t: t, g: New("g", Limits{MaxMembers: 10, Retention: time.Hour}), now: time.UnixMilli(1e12), topics: topics,
		slow: map[string]bool{}, at: map[string]Stream{}, last: map[string]*Assignment{}, joined: map[string]*Joined{},
		failures: map[Stream]error{}, told: map[string]int{},
	}
}

func basic(topics ...string) Terms {
	return Terms{Topics: topics, Assignor: Sticky, Session: 10 * time.Second, Rebalance: time.Minute}
}

// settle lets effects arrive until nothing more happens.
func (s *stage) settle(fx *Effects) {
	s.t.Helper()
	for range 100 {
		s.g.Settle(s.now, NewResolver(s.topics), fx)
		for i := range fx.Changes {
			s.g.Confirm(&fx.Changes[i])
		}
		messages := fx.Messages
		*fx = Effects{}
		if len(messages) == 0 {
			return
		}
		for _, m := range messages {
			if m.Err != nil {
				s.failures[m.Stream] = m.Err
			}
			for id, at := range s.at {
				if at != m.Stream {
					continue
				}
				if m.Joined != nil {
					s.joined[id] = m.Joined
				}
				if a := m.Assignment; a != nil {
					s.last[id] = a
					s.told[id]++
					if !s.slow[id] {
						s.report(id, fx)
					}
				}
			}
		}
	}
	s.t.Fatal("the group does not come to rest")
}

func (s *stage) report(id string, fx *Effects) {
	a := s.last[id]
	owned := map[Part]bool{}
	for _, o := range a.Owned {
		owned[o.Part] = true
	}
	s.g.Own(s.now, s.at[id], id, a.Revision, func(p Part) bool { return owned[p] }, fx)
}

// join opens a new stream for a member.
func (s *stage) join(id string, epoch int64, terms Terms) error {
	s.t.Helper()
	var fx Effects
	s.next++
	old, had := s.at[id]
	s.at[id] = s.next
	err := s.g.Join(s.now, s.next, id, epoch, terms, &fx)
	if err != nil {
		if delete(s.at, id); had {
			s.at[id] = old
		}
	}
	s.settle(&fx)
	return err
}

func (s *stage) do(fn func(fx *Effects)) {
	s.t.Helper()
	var fx Effects
	fn(&fx)
	s.settle(&fx)
}

func (s *stage) pass(d time.Duration) {
	s.t.Helper()
	s.now = s.now.Add(d)
	s.do(func(fx *Effects) { s.g.Tick(s.now, fx) })
}

func (s *stage) owns(id string) int {
	if s.last[id] == nil {
		return -1
	}
	return len(s.last[id].Owned)
}

func (s *stage) wantOwned(want map[string]int) {
	s.t.Helper()
	got := map[string]int{}
	for id := range want {
		got[id] = s.owns(id)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		s.t.Errorf("owned partitions (-want +got):\n%s", diff)
	}
}

// A newcomer gets its share, whoever keeps what it has hears nothing, and the
// others only what they lose.
func TestGroup_movesOnlyWhatMustMove(t *testing.T) {
	s := newStage(t, topicOf(0, 4))
	for _, id := range []string{"a", "b"} {
		if err := s.join(id, 0, basic("t000")); err != nil {
			t.Fatal(err)
		}
	}
	s.wantOwned(map[string]int{"a": 2, "b": 2})
	told := maps.Clone(s.told)
	if err := s.join("c", 0, basic("t000")); err != nil {
		t.Fatal(err)
	}
	s.wantOwned(map[string]int{"a": 1, "b": 2, "c": 1})
	if s.told["b"] != told["b"] {
		t.Error("a member whose partitions stayed was told something")
	}
	if s.g.Phase() != Stable {
		t.Errorf("phase %d", s.g.Phase())
	}
}

// CG-01: who goes in the middle of a rebalance holds nobody up.
func TestGroup_membersGoWhileRebalancingCG01(t *testing.T) {
	s := newStage(t, topicOf(0, 6))
	s.slow["a"] = true
	for _, id := range []string{"a", "b", "c"} {
		if err := s.join(id, 0, basic("t000")); err != nil {
			t.Fatal(err)
		}
	}
	if s.g.Phase() != Rebalancing {
		t.Fatal("a does not answer, and the group is stable")
	}
	s.do(func(fx *Effects) { s.g.Leave(s.now, s.at["a"], "a", fx) })
	s.wantOwned(map[string]int{"b": 3, "c": 3})
	// The other two die in silence.
	s.pass(10 * time.Second)
	if s.g.Phase() != Empty {
		t.Fatalf("phase %d after all members died", s.g.Phase())
	}
	if err := s.join("d", 0, basic("t000")); err != nil {
		t.Fatal(err)
	}
	s.wantOwned(map[string]int{"d": 6})
}

// CG-03: a client that tries again and again is one member.
func TestGroup_noGhostsCG03(t *testing.T) {
	s := newStage(t, topicOf(0, 6))
	s.slow["a"] = true
	if err := s.join("a", 0, basic("t000")); err != nil {
		t.Fatal(err)
	}
	for range 500 {
		if err := s.join("b", 0, basic("t000")); err != nil {
			t.Fatal(err)
		}
	}
	if s.g.Size() != 2 {
		t.Errorf("%d members", s.g.Size())
	}
	s.do(func(fx *Effects) { s.report("a", fx) })
	s.wantOwned(map[string]int{"a": 3, "b": 3})
}

// CG-04: a static member whose answer was lost is not its own rival. Another
// process with its name takes its place, once.
func TestGroup_staticMembersCG04(t *testing.T) {
	s := newStage(t, topicOf(0, 4))
	static := basic("t000")
	static.Instance = "pod-0"
	if err := s.join("old", 0, static); err != nil {
		t.Fatal(err)
	}
	if err := s.join("other", 0, basic("t000")); err != nil {
		t.Fatal(err)
	}
	for _, epoch := range []int64{0, s.joined["old"].Epoch} {
		if err := s.join("old", epoch, static); err != nil {
			t.Fatalf("its own retry at epoch %d: %v", epoch, err)
		}
	}
	epoch, stream, had := s.g.Epoch(), s.at["old"], s.last["old"].Owned
	if err := s.join("new", 0, static); err != nil {
		t.Fatal(err)
	}
	if s.g.Epoch() != epoch || s.told["other"] != 2 {
		t.Errorf("a restart rebalanced: epoch %d after %d, the other was told %d times", s.g.Epoch(), epoch, s.told["other"])
	}
	if diff := cmp.Diff(had, s.last["new"].Owned); diff != "" || !s.joined["new"].Resumed {
		t.Errorf("the new process has other partitions: %s", diff)
	}
	if err := s.failures[stream]; !errors.Is(err, ErrFencedMember) || err.(*refusal.Error).Facts["instanceId"] != "pod-0" { //nolint:errorlint // known
		t.Errorf("the old process was told %v", err)
	}
	for _, epoch := range []int64{0, epoch} { // it tries again all the same
		if err := s.join("old", epoch, static); !errors.Is(err, ErrFencedMember) {
			t.Errorf("the replaced process joined at epoch %d: %v", epoch, err)
		}
	}
	if _, err := s.g.Commit(s.now, "old", epoch, nil, &Effects{}); !errors.Is(err, ErrFencedMember) {
		t.Errorf("the replaced process commits: %v", err)
	}
	if s.failures[s.at["new"]] != nil || s.g.Size() != 2 {
		t.Error("the new process was fenced too")
	}
}

// CG-12: patterns find topics that are made later, deleted ones are revoked once,
// and what is no pattern is refused.
func TestGroup_patternsCG12(t *testing.T) {
	s := newStage(t, &Topic{ID: topicID(1), Name: "evt.a", Partitions: 2})
	terms := basic()
	terms.Pattern = `evt\..*`
	for _, id := range []string{"a", "b"} {
		if err := s.join(id, 0, terms); err != nil {
			t.Fatal(err)
		}
	}
	refresh := func() { s.do(func(*Effects) { s.g.Refresh(s.now, NewResolver(s.topics)) }) }
	s.topics = append(s.topics, &Topic{ID: topicID(2), Name: "evt.b", Partitions: 4}, &Topic{ID: topicID(3), Name: "other.evt.c", Partitions: 4})
	refresh()
	s.wantOwned(map[string]int{"a": 3, "b": 3})
	epoch := s.g.Epoch()
	s.topics = s.topics[1:]
	refresh()
	s.wantOwned(map[string]int{"a": 2, "b": 2})
	for range 10 {
		refresh()
	}
	if s.g.Epoch() != epoch+1 {
		t.Errorf("a deletion caused %d epochs", s.g.Epoch()-epoch)
	}
	terms.Pattern = "other.*"
	if err := s.join("a", s.joined["a"].Epoch, terms); err != nil {
		t.Fatal(err)
	}
	s.wantOwned(map[string]int{"a": 4, "b": 4})
	for _, bad := range []string{"(", "a)|(b", "(?=x)", strings.Repeat("a", maxPatternLength+1)} {
		terms := basic()
		terms.Pattern = bad
		if err := terms.Check(func(string) error { return nil }); !errors.Is(err, ErrInvalidSubscription) {
			t.Errorf("pattern %.20q: %v", bad, err)
		}
	}
}

// CG-16: who was paused past its session changes nothing when it comes back.
func TestGroup_pausedMemberCG16(t *testing.T) {
	topic := topicOf(0, 1)
	s := newStage(t, topic)
	p := Part{topic.ID, 0}
	if err := s.join("a", 0, basic("t000")); err != nil {
		t.Fatal(err)
	}
	if err := s.join("b", 0, basic("t000")); err != nil {
		t.Fatal(err)
	}
	owner, other := "a", "b"
	epoch := s.last[owner].Epoch
	for range 10 {
		s.now = s.now.Add(3 * time.Second)
		s.g.Heard(s.now, s.at[other], other)
		s.pass(0)
	}
	s.wantOwned(map[string]int{other: 1})
	var fx Effects
	if errs, err := s.g.Commit(s.now, other, s.last[other].Epoch, []Commit{{Part: p, Offset: 500}}, &fx); err != nil || errs[0] != nil {
		t.Fatal(errs, err)
	}
	if _, err := s.g.Commit(s.now, owner, epoch, []Commit{{Part: p, Offset: 120}}, &fx); !errors.Is(err, ErrUnknownMember) {
		t.Errorf("it committed: %v", err)
	}
	if err := s.join(owner, epoch, basic("t000")); !errors.Is(err, ErrUnknownMember) {
		t.Errorf("it went on: %v", err)
	}
	if err := s.join(owner, 0, basic("t000")); err != nil {
		t.Error(err)
	}
	if got := s.g.Last(p).Offset; got != 500 {
		t.Errorf("committed %d", got)
	}
}

// CG-21: while a topic is missing there is one empty assignment, and no rebalance.
func TestGroup_missingTopicCG21(t *testing.T) {
	s := newStage(t, topicOf(1, 2))
	for _, id := range []string{"a", "b", "c"} {
		if err := s.join(id, 0, basic("t000")); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.join("d", 0, basic("t000", "t001")); err != nil {
		t.Fatal(err)
	}
	s.wantOwned(map[string]int{"a": 0, "b": 0, "c": 0, "d": 2}) // the missing one starves nobody
	epoch, told := s.g.Epoch(), maps.Clone(s.told)
	for range 20 {
		for id, at := range s.at {
			s.g.Heard(s.now, at, id)
		}
		s.pass(time.Second)
		s.do(func(*Effects) { s.g.Refresh(s.now, NewResolver(s.topics)) })
	}
	if s.g.Epoch() != epoch || !maps.Equal(s.told, told) || s.told["a"] != 1 || s.g.Phase() != Stable {
		t.Errorf("epoch %d after %d, told %v after %v", s.g.Epoch(), epoch, s.told, told)
	}
	s.topics = append(s.topics, topicOf(0, 4))
	s.do(func(*Effects) { s.g.Refresh(s.now, NewResolver(s.topics)) })
	s.wantOwned(map[string]int{"a": 2, "b": 1, "c": 1, "d": 2})
}

// A member that does not give up partitions in time is expelled, alone.
func TestGroup_rebalanceTimeout(t *testing.T) {
	s := newStage(t, topicOf(0, 4))
	s.slow["a"] = true
	for _, id := range []string{"a", "b"} {
		if err := s.join(id, 0, basic("t000")); err != nil {
			t.Fatal(err)
		}
	}
	for range 59 {
		s.now = s.now.Add(time.Second)
		for id, at := range s.at {
			s.g.Heard(s.now, at, id)
		}
		s.pass(0)
	}
	s.wantOwned(map[string]int{"b": 0})
	s.now = s.now.Add(time.Second)
	s.g.Heard(s.now, s.at["b"], "b")
	s.g.Heard(s.now, s.at["a"], "a")
	s.pass(0)
	s.wantOwned(map[string]int{"b": 4})
	if err := s.failures[s.at["a"]]; !errors.Is(err, ErrUnknownMember) {
		t.Errorf("the slow one was told %v", err)
	}
}

// A broken stream is no leave; what was to be given up meanwhile is, afterwards.
func TestGroup_resumes(t *testing.T) {
	s := newStage(t, topicOf(0, 4))
	s.slow["a"] = true
	if err := s.join("a", 0, basic("t000")); err != nil {
		t.Fatal(err)
	}
	first := s.at["a"]
	s.g.Close(first, "a")
	if err := s.join("b", 0, basic("t000")); err != nil {
		t.Fatal(err)
	}
	epoch := s.g.Epoch()
	s.slow["a"] = false
	if err := s.join("a", s.joined["a"].Epoch, basic("t000")); err != nil {
		t.Fatal(err)
	}
	if !s.joined["a"].Resumed || s.g.Epoch() != epoch || s.last["a"].Revision != 1 {
		t.Errorf("%+v, epoch %d after %d, %+v", s.joined["a"], s.g.Epoch(), epoch, s.last["a"])
	}
	s.wantOwned(map[string]int{"a": 2, "b": 2})
	// The former stream has no say any more.
	if s.g.Heard(s.now, first, "a") {
		t.Error("a frame of an old stream counts")
	}
	newest := s.at["a"]
	s.slow["a"] = true
	if err := s.join("a", s.joined["a"].Epoch, basic("t000")); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(s.failures[newest], ErrFencedMember) {
		t.Errorf("the older stream was told %v", s.failures[newest])
	}
	if err := s.join("a", epoch+1, basic("t000")); !errors.Is(err, ErrFencedMemberEpoch) {
		t.Errorf("an epoch nobody gave out: %v", err)
	}
	if _, err := s.g.Commit(s.now, "a", epoch+1, nil, &Effects{}); !errors.Is(err, ErrFencedMemberEpoch) {
		t.Errorf("a commit at an epoch nobody gave out: %v", err)
	}
}

// A reset takes partitions back, and what was read before it can't be committed.
func TestGroup_reset(t *testing.T) {
	topic := topicOf(0, 4)
	s := newStage(t, topic)
	for _, id := range []string{"a", "b"} {
		if err := s.join(id, 0, basic("t000")); err != nil {
			t.Fatal(err)
		}
	}
	before := s.last["a"]
	s.slow["a"] = true
	parts := []Part{before.Owned[0].Part}
	s.do(func(*Effects) { s.g.Hold(s.now, parts) })
	if s.g.Free(parts) || s.owns("a") != 1 {
		t.Fatal("taken back without the member's word")
	}
	if errs, err := s.g.Commit(s.now, "a", before.Epoch, []Commit{{Part: parts[0], Offset: 9}}, &Effects{}); err != nil || errs[0] != nil {
		t.Errorf("its last commit: %v %v", errs, err)
	}
	s.do(func(fx *Effects) { s.report("a", fx) })
	if !s.g.Free(parts) {
		t.Fatal("not released")
	}
	s.do(func(fx *Effects) {
		s.g.Reset(s.now, []Commit{{Part: parts[0], Offset: 3}}, fx)
		s.g.Let(s.now, parts)
	})
	after := s.last["a"]
	if len(after.Owned) != 2 || after.Owned[0].Epoch <= before.Epoch || s.g.Committed(parts[0]).Offset != 3 {
		t.Errorf("after the reset %+v, committed %+v", after, s.g.Committed(parts[0]))
	}
	errs, err := s.g.Commit(s.now, "a", before.Epoch, []Commit{{Part: parts[0], Offset: 10}, {Part: after.Owned[1].Part, Offset: 10}}, &Effects{})
	if err != nil || !errors.Is(errs[0], ErrStaleAssignment) || errs[1] != nil {
		t.Errorf("commits of before the reset: %v %v", errs, err)
	}
}

// CG-06: what nobody uses is deleted, and the offsets of deleted topics are.
func TestGroup_retentionCG06(t *testing.T) {
	s := newStage(t, topicOf(0, 2))
	p, q := Part{topicOf(0, 2).ID, 0}, Part{topicOf(5, 1).ID, 0}
	s.do(func(fx *Effects) {
		if errs, err := s.g.Commit(s.now, "", 0, []Commit{{Part: p, Offset: 1}, {Part: q, Offset: 1}}, fx); err != nil || errs[0] != nil {
			t.Error(errs, err)
		}
	})
	if err := s.join("a", 0, basic("t000")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.g.Commit(s.now, "", 0, nil, &Effects{}); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("a commit of nobody's while there are members: %v", err)
	}
	if err := s.g.Delete(&Effects{}); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("deleted with members: %v", err)
	}
	retain := func() {
		s.do(func(fx *Effects) { s.g.Retain(s.now, func(o *Offset) bool { return o.Part != q }, fx) })
	}
	s.now = s.now.Add(2 * time.Hour)
	s.g.Heard(s.now, s.at["a"], "a")
	retain()
	if s.g.Committed(p) == nil || s.g.Committed(q) != nil {
		t.Error("with a member, only the offsets of deleted topics go")
	}
	s.do(func(fx *Effects) { s.g.Leave(s.now, s.at["a"], "a", fx) })
	s.now = s.now.Add(time.Hour - time.Millisecond)
	retain()
	if s.g.Blank() {
		t.Error("gone too early")
	}
	s.now = s.now.Add(time.Millisecond)
	retain()
	if !s.g.Blank() {
		t.Error("still there")
	}
	if !errors.Is(s.g.Delete(&Effects{}), ErrNotFound) {
		t.Error("a group that is not there was deleted")
	}
}

func TestGroup_isBounded(t *testing.T) {
	s := newStage(t, topicOf(0, 2))
	for i := range 10 {
		if err := s.join(fmt.Sprint("m", i), 0, basic("t000")); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.join("one more", 0, basic("t000")); !errors.Is(err, ErrFull) {
		t.Error(err)
	}
	for _, id := range []string{"", strings.Repeat("x", 250), "a\x00b", "\xff"} {
		if err := CheckID(id); !errors.Is(err, ErrInvalidID) {
			t.Errorf("id %.20q: %v", id, err)
		}
	}
	for name, terms := range map[string]Terms{"empty": basic(), "internal": basic("__consumer_offsets"), "long": basic(strings.Repeat("x", maxTopicsBytes+1))} {
		if err := terms.Check(func(string) error { return nil }); !errors.Is(err, ErrInvalidSubscription) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
