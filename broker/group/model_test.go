package group

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/runnelmq/runnel/internal/refusal"
)

// topicList is a fixed set of topics.
type topicList []*Topic

func (l topicList) Named(name string) (*Topic, bool) {
	i := slices.IndexFunc(l, func(t *Topic) bool { return t.Name == name })
	if i < 0 {
		return nil, false
	}
	return l[i], true
}

func (l topicList) All() []*Topic { return l }

// A world is a coordinator with a log, and clients that reach it over slow and
// breakable streams. The coordinator may die with the part of its log that was
// not committed.
type world struct {
	t      *rapid.T
	now    time.Time
	topics topicList
	limits Limits

	g         *Group
	log       []Change
	committed int
	// told are messages that wait for the log to be committed up to their place.
	told    []toldAt
	streams Stream
	clients []*client
	offsets []offsetFrame // on their way
	places  []offsetFrame // all there ever were: each commits its number
}

type toldAt struct {
	at int
	m  Message
}

// A client does what group_service.proto asks for.
type client struct {
	id     string
	static string
	epoch  int64
	stream Stream // 0: none
	// up are frames on their way to the coordinator, down those to the client.
	up   []frame
	down []Message
	// has is what the client works on, with the epochs of assignment. Those not in
	// wants are about to be dropped.
	has      map[Part]int64
	wants    map[Part]int64
	revision uint64
	heard    time.Time // when that was sent which was answered last
	gone     bool
	final    bool // another process has its place
	// life counts how often it lost everything; joined is the last of them that the
	// coordinator has heard of. sent counts its commits.
	life, joined int
	sent         uint64
}

type frame struct {
	stream Stream
	sent   time.Time
	join   bool
	life   int
	epoch  int64
	leave  bool
	rev    uint64 // 0: ping
	owned  map[Part]bool
}

const (
	modelSession = 10 * time.Second
	modelOverlap = 3 * time.Second
)

func (c *client) terms() Terms {
	return Terms{Topics: []string{"t000", "t002"}, Pattern: "t001", Instance: c.static, Assignor: Sticky, Session: modelSession, Rebalance: 30 * time.Second}
}

func newWorld(t *rapid.T) *world {
	w := &world{
		t: t, now: time.UnixMilli(1_000_000), topics: topicList{topicOf(0, 5), topicOf(1, 2)},
		limits: Limits{MaxMembers: 100, Retention: 7 * 24 * time.Hour},
	}
	w.g = New("g", w.limits)
	return w
}

// settle ends an event: effects go to the log and to those who wait for it.
func (w *world) settle(fx *Effects) {
	w.g.Settle(w.now, NewResolver(w.topics), fx)
	w.log = append(w.log, fx.Changes...)
	for _, m := range fx.Messages {
		w.told = append(w.told, toldAt{len(w.log), m})
	}
}

// commit makes the log durable up to n, and releases what waited for it.
func (w *world) commit(n int) {
	for ; w.committed < n; w.committed++ {
		w.g.Confirm(&w.log[w.committed])
	}
	for len(w.told) > 0 && w.told[0].at <= w.committed {
		m := w.told[0].m
		w.told = w.told[1:]
		for _, c := range w.clients {
			if c.stream == m.Stream && m.Stream != 0 {
				c.down = append(c.down, m)
			}
		}
	}
}

// crash replaces the coordinator by one that has read the log up to n.
func (w *world) crash(n int) {
	w.log = w.log[:n]
	w.committed = n
	w.told = nil
	w.g = New("g", w.limits)
	for i := range w.log {
		w.g.Restore(&w.log[i])
	}
	w.g.Restored(w.now, modelOverlap, NewResolver(w.topics))
	var fx Effects
	w.settle(&fx)
	for _, c := range w.clients {
		c.stream, c.up, c.down = 0, nil, nil
	}
}

func (w *world) connect(c *client) {
	w.streams++
	c.stream, c.revision, c.up, c.down = w.streams, 0, nil, nil
	c.send(frame{join: true, epoch: c.epoch, life: c.life}, w.now)
}

func (c *client) send(f frame, now time.Time) {
	f.stream, f.sent = c.stream, now
	c.up = append(c.up, f)
}

func (c *client) report(now time.Time) {
	owned := map[Part]bool{}
	for p := range c.has {
		owned[p] = true
	}
	c.send(frame{rev: c.revision, owned: owned}, now)
}

// lose drops everything: the client is, or must take itself for, expelled.
func (c *client) lose() {
	c.epoch = 0
	c.life++
	clear(c.has)
	clear(c.wants)
}

// receive takes the first frame of c in.
func (w *world) receive(c *client) {
	f := c.up[0]
	c.up = c.up[1:]
	var fx Effects
	switch {
	case f.join:
		if err := w.g.Join(w.now, f.stream, c.id, f.epoch, c.terms(), &fx); err != nil {
			fx.tell(Message{Stream: f.stream, Err: err})
		} else if f.epoch == 0 {
			c.joined = f.life
		}
	case f.leave:
		w.g.Leave(w.now, f.stream, c.id, &fx)
	case f.rev > 0:
		w.g.Own(w.now, f.stream, c.id, f.rev, func(p Part) bool { return f.owned[p] }, &fx)
	default:
		w.g.Heard(w.now, f.stream, c.id)
	}
	if w.g.of(f.stream, c.id) != nil && c.stream == f.stream && f.sent.After(c.heard) {
		c.heard = f.sent // the pong, which never waits for the log
	}
	w.settle(&fx)
}

// deliver lets c handle the first message for it.
func (w *world) deliver(c *client) {
	m := c.down[0]
	c.down = c.down[1:]
	if c.gone {
		return
	}
	if m.Joined != nil {
		c.epoch = m.Joined.Epoch
	}
	if a := m.Assignment; a != nil {
		c.epoch, c.revision = a.Epoch, a.Revision
		clear(c.wants)
		for _, o := range a.Owned {
			c.wants[o.Part] = o.Epoch
			c.has[o.Part] = o.Epoch
		}
		c.report(w.now)
	}
	if m.Err != nil || m.Left {
		c.stream = 0
		if _, replaced := m.Err.(*refusal.Error); replaced && errors.Is(m.Err, ErrFencedMember) && m.Err.(*refusal.Error).Facts["instanceId"] != "" { //nolint:errorlint,forcetypeassert // known
			c.final, c.gone = true, true
		}
		c.lose()
	}
}

// check holds what must always be true.
func (w *world) check() {
	owner := map[Part]string{}
	for _, c := range w.clients {
		if c.gone {
			continue
		}
		if !w.now.Before(c.heard.Add(modelSession)) {
			c.lose() // it hands out no more records
		}
		for p := range c.has {
			if other, ok := owner[p]; ok {
				w.t.Fatalf("%v is worked on by %s and by %s", p, other, c.id)
			}
			owner[p] = c.id
		}
	}
	for p, m := range w.g.owners {
		if _, ok := m.owned[p]; !ok || w.g.members[m.id] != m {
			w.t.Fatalf("owners and members disagree about %v", p)
		}
	}
	for _, m := range w.g.members {
		for p, e := range m.owned {
			if w.g.owners[p] != m || e > m.epoch || m.epoch > w.g.epoch {
				w.t.Fatalf("%s owns %v since %d, at %d of %d", m.id, p, e, m.epoch, w.g.epoch)
			}
		}
	}
}

// pick returns a client that passes; nil: none does.
func (w *world) pick(pass func(*client) bool) *client {
	var some []*client
	for _, c := range w.clients {
		if pass(c) {
			some = append(some, c)
		}
	}
	if len(some) == 0 {
		return nil
	}
	return rapid.SampledFrom(some).Draw(w.t, "client")
}

// An action does something, if somebody passes.
type action struct {
	weight int
	pass   func(*client) bool // nil: it is nobody's
	do     func(*client)
}

func (w *world) actions() []action {
	up := func(c *client) bool { return c.stream != 0 && !c.gone && c.revision > 0 }
	return []action{
		{30, func(c *client) bool { return len(c.up) > 0 }, w.receive},
		{30, func(c *client) bool { return len(c.down) > 0 }, w.deliver},
		{15, func(c *client) bool { return len(c.has) > len(c.wants) }, w.finish},
		{15, func(c *client) bool { return !c.gone && c.stream == 0 }, w.connect},
		{20, nil, func(*client) { w.commit(rapid.IntRange(w.committed, len(w.log)).Draw(w.t, "upto")) }},
		{10, func(c *client) bool { return len(c.has) > 0 && c.epoch > 0 }, w.sendOffset},
		{10, nil, w.takeOffset},
		{8, up, func(c *client) { c.send(frame{}, w.now) }},
		{5, nil, func(*client) { w.start() }},
		{4, func(c *client) bool { return c.stream != 0 }, w.breakStream},
		{2, up, func(c *client) {
			c.lose()
			c.gone = true
			c.send(frame{leave: true}, w.now)
		}},
		{1, func(c *client) bool { return !c.gone }, func(c *client) {
			c.lose()
			c.gone, c.stream, c.up, c.down = true, 0, nil, nil
		}},
		{6, nil, func(*client) { w.pass(time.Duration(rapid.IntRange(100, 4000).Draw(w.t, "ms")) * time.Millisecond) }},
		{3, nil, func(*client) { w.crash(rapid.IntRange(w.committed, len(w.log)).Draw(w.t, "kept")) }},
		{3, nil, func(*client) {
			w.topics = w.drawTopics(w.t)
			w.g.Refresh(w.now, NewResolver(w.topics))
			w.settle(&Effects{})
		}},
		{5, nil, func(*client) { w.reset() }},
	}
}

func (w *world) start() {
	if len(w.clients) < 7 {
		c := &client{id: uuid.UUID{15: byte(len(w.clients) + 1)}.String(), life: 1, joined: 1, has: map[Part]int64{}, wants: map[Part]int64{}, heard: w.now}
		w.clients = append(w.clients, c)
		w.connect(c)
	}
}

func (w *world) breakStream(c *client) {
	if rapid.Bool().Draw(w.t, "noticed") {
		w.g.Close(c.stream, c.id)
	}
	c.stream, c.up, c.down = 0, nil, nil
}

func (w *world) finish(c *client) {
	maps.DeleteFunc(c.has, func(p Part, _ int64) bool { _, wanted := c.wants[p]; return !wanted })
	if c.stream != 0 {
		c.report(w.now)
	}
}

func (w *world) pass(d time.Duration) {
	w.now = w.now.Add(d)
	w.check()
	var fx Effects
	w.g.Tick(w.now, &fx)
	w.settle(&fx)
}

// act does one of the actions.
func (w *world) act(actions []action, total int) {
	at := rapid.IntRange(0, total-1).Draw(w.t, "action")
	for _, a := range actions {
		if at -= a.weight; at >= 0 {
			continue
		}
		if a.pass == nil {
			a.do(nil)
		} else if c := w.pick(a.pass); c != nil {
			a.do(c)
		}
		return
	}
}

func (w *world) drawTopics(t *rapid.T) topicList {
	next := topicList{}
	for i, topic := range w.topics {
		switch rapid.IntRange(0, 3).Draw(t, "fate") {
		case 0:
			next = append(next, topicOf(i, topic.Partitions+1))
		case 1: // made anew under its name
			again := topicOf(i, 3)
			again.ID[0] = topic.ID[0] + 1
			next = append(next, again)
		default:
			next = append(next, topic)
		}
	}
	if len(next) == 2 && rapid.Bool().Draw(t, "third") {
		next = append(next, topicOf(2, 2))
	}
	return next
}

// reset holds some partitions, and writes when nobody owns them, now or never.
func (w *world) reset() {
	parts := []Part{{topicOf(0, 1).ID, 0}, {topicOf(0, 1).ID, 1}}
	var fx Effects
	if len(w.g.held) == 0 {
		w.g.Hold(w.now, parts)
	} else if free := w.g.Free(parts); free || rapid.IntRange(0, 9).Draw(w.t, "give up") == 0 {
		if free {
			for _, p := range parts {
				w.g.Reset(w.now, []Commit{{Part: p, Offset: 0}}, &fx)
			}
		}
		w.g.Let(w.now, parts)
	}
	w.settle(&fx)
}

// An offsetFrame is a commit on its way.
type offsetFrame struct {
	c        *client
	part     Part
	epoch    int64 // of the member
	assigned int64 // when the partition came to it
	life     int   // of the client
	sequence uint64
	offset   int64
}

// sendOffset commits as a client would, for something that it works on.
func (w *world) sendOffset(c *client) {
	p := rapid.SampledFrom(slices.SortedFunc(maps.Keys(c.has), Part.Compare)).Draw(w.t, "part")
	c.sent++
	f := offsetFrame{c, p, c.epoch, c.has[p], c.life, c.sent, int64(len(w.places))}
	w.offsets, w.places = append(w.offsets, f), append(w.places, f)
}

// place is the commit that is the last of a partition in the log; nil: none.
func (w *world) place(p Part) *offsetFrame {
	for _, c := range slices.Backward(w.log) {
		if o := c.Offset; o != nil && o.Part == p {
			if o.By.Sequence == 0 {
				return nil // a reset's
			}
			return &w.places[o.Offset]
		}
		if c.OffsetGone != nil && *c.OffsetGone == p {
			return nil
		}
	}
	return nil
}

// takeOffset lets a commit arrive, however late. It is taken exactly when the
// partition has been its member's all the time, which has not begun anew with it,
// and changes something exactly when that member has no later one in its place.
func (w *world) takeOffset(*client) {
	if len(w.offsets) == 0 {
		return
	}
	i := rapid.IntRange(0, len(w.offsets)-1).Draw(w.t, "which")
	f := w.offsets[i]
	w.offsets = slices.Delete(w.offsets, i, i+1)
	var fx Effects
	errs, err := w.g.Commit(w.now, f.c.id, f.epoch, []Commit{{Part: f.part, Offset: f.offset, Sequence: f.sequence}}, &fx)
	m := w.g.members[f.c.id]
	theirs := m != nil && w.g.owners[f.part] == m && m.owned[f.part] == f.assigned
	if taken := err == nil && errs[0] == nil; taken != theirs {
		w.t.Fatalf("%s commits %v, its since %d, at %d: taken %v; it has it now: %v (%v %v)", f.c.id, f.part, f.assigned, f.epoch, taken, theirs, errs, err)
	}
	if theirs && f.life < f.c.joined {
		w.t.Fatalf("%s commits %v, of before it lost everything, and has begun with it anew", f.c.id, f.part)
	}
	want := f.offset
	if was := w.place(f.part); was != nil && was.c == f.c && was.assigned == f.assigned && was.sequence > f.sequence {
		want = was.offset
	}
	if theirs && w.g.Last(f.part).Offset != want {
		w.t.Fatalf("%s commits %v with its %d. commit: %d is committed, not %d", f.c.id, f.part, f.sequence, w.g.Last(f.part).Offset, want)
	}
	w.settle(&fx)
}

// second is one in which all frames of all clients but one arrive.
func (w *world) second(but *client) {
	w.commit(len(w.log))
	w.now = w.now.Add(time.Second)
	w.check()
	var fx Effects
	if len(w.g.held) > 0 {
		w.g.Let(w.now, slices.Collect(maps.Keys(w.g.held)))
	}
	w.g.Tick(w.now, &fx)
	w.settle(&fx)
	for _, c := range w.clients {
		if c.gone || c == but {
			continue
		}
		if c.stream == 0 {
			w.connect(c)
		}
		maps.DeleteFunc(c.has, func(p Part, _ int64) bool { _, wanted := c.wants[p]; return !wanted })
		for len(c.down) > 0 {
			w.deliver(c)
		}
		if c.stream != 0 && c.revision > 0 {
			c.report(w.now)
		}
		for len(c.up) > 0 {
			w.receive(c)
		}
	}
	w.check()
}

// calm lets everything that is under way arrive, and checks that the group is
// stable and complete then.
func (w *world) calm() {
	for range 60 {
		w.second(nil)
	}
	live := 0
	held := 0
	for _, c := range w.clients {
		if !c.gone {
			live++
			held += len(c.has)
		}
	}
	if live == 0 {
		return
	}
	want := 0
	for _, topic := range w.topics {
		want += int(topic.Partitions)
	}
	if w.g.Size() != live || w.g.Phase() != Stable || held != want {
		w.t.Fatalf("%d clients are left and work on %d of %d partitions; the group has %d members and phase %d", live, held, want, w.g.Size(), w.g.Phase())
	}
	epoch := w.g.epoch
	w.crash(len(w.log))
	if w.g.epoch != epoch || w.g.Phase() != Stable {
		w.t.Fatalf("a new coordinator began epoch %d after %d, phase %d", w.g.epoch, epoch, w.g.Phase())
	}
}

func TestGroup_model(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		for range 3 {
			w.start()
		}
		actions, total := w.actions(), 0
		for _, a := range actions {
			total += a.weight
		}
		for range rapid.IntRange(50, 250).Draw(t, "steps") {
			w.act(actions, total)
			w.check()
		}
		w.calm()
	})
}

// A client that is cut off together with the coordinator before this one works
// on for as long as that one answers it, and nobody else works on the same.
func TestGroup_modelOverlap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		for range 3 {
			w.start()
		}
		for range 10 {
			w.second(nil)
		}
		left := w.pick(func(c *client) bool { return len(c.has) > 0 })
		w.crash(len(w.log))
		for i := range 30 {
			if time.Duration(i+1)*time.Second <= modelOverlap {
				left.heard = w.now
			}
			w.second(left)
		}
		if len(left.has) > 0 {
			t.Fatalf("after 30 s it still works on %v", left.has)
		}
		w.calm()
	})
}

func (m Message) String() string {
	return fmt.Sprintf("joined %v, assignment %v, err %v", m.Joined, m.Assignment, m.Err)
}
