package coordinator

import (
	"context"
	"sync"
	"time"

	"github.com/runnelmq/runnel/broker/group"
	"github.com/runnelmq/runnel/internal/record"
)

// A Membership is one Join stream at its coordinator. Its methods may be called
// by one goroutine, and Next by another. Those that take a context wait while too many
// messages of the member are not done yet; when it ends before, its cause is the error,
// and the message was not heard.
type Membership struct {
	shard *shard
	group string
	id    group.Stream
	wake  chan struct{} // cap 1
	// slots holds a token for each message that is not done: who sends faster than
	// that waits.
	slots chan struct{}

	member string // once it joined; the caller's goroutine only

	// mu guards the fields below
	mu sync.Mutex

	joined     *group.Joined
	assignment *Assignment
	pong       uint64
	ponged     bool
	err        error
	ended      bool
}

// An Assigned partition is one a member is to own, and where it begins.
type Assigned struct {
	Part  group.Part
	Epoch int64
	// Committed is where the group has come; nil: nowhere yet.
	Committed *group.Offset
}

// An Assignment is what a member is to own.
type Assignment struct {
	Revision    uint64
	MemberEpoch int64
	Parts       []Assigned // by part
}

// News is what a member is to be told, in the order of the fields.
type News struct {
	Joined     *group.Joined
	Assignment *Assignment
	Pong       *uint64
	// Err is why the stream ends. End without it: the member left.
	Err error
	End bool
}

// Next waits for news. Of what was not fetched in time only the newest is told.
func (m *Membership) Next(ctx context.Context) (News, error) {
	for {
		m.mu.Lock()
		n := News{Joined: m.joined, Assignment: m.assignment, Err: m.err, End: m.ended}
		if m.ponged {
			n.Pong = new(m.pong)
		}
		m.joined, m.assignment, m.ponged = nil, nil, false
		m.mu.Unlock()
		if n != (News{}) {
			return n, nil
		}
		select {
		case <-m.wake:
		case <-ctx.Done():
			return News{}, context.Cause(ctx)
		}
	}
}

func (m *Membership) push(set func()) {
	m.mu.Lock()
	if !m.ended {
		set()
	}
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// end is the last that is told.
func (m *Membership) end(err error) { m.push(func() { m.err, m.ended = err, true }) }

func (m *Membership) heard(sequence uint64) {
	m.push(func() { m.pong, m.ponged = max(m.pong, sequence), true })
}

// Join joins, goes on, or changes the subscription.
func (m *Membership) Join(ctx context.Context, member string, epoch int64, terms group.Terms, sequence uint64) error {
	m.member = member
	return m.submit(ctx, task{writes: true, fail: m.end, do: func(s *shard) {
		g := s.touch(m.group)
		if err := g.Join(s.now, m.id, member, epoch, terms, &s.fx); err != nil {
			s.answer(func(failed error) { m.end(orElse(failed, err)) })
			return
		}
		m.heard(sequence)
	}})
}

func orElse(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

// Own reports what the member owns, having carried out the given revision.
func (m *Membership) Own(ctx context.Context, revision uint64, owned map[group.Part]bool, sequence uint64) error {
	member := m.member
	return m.submit(ctx, task{writes: true, fail: m.end, do: func(s *shard) {
		if g := s.groups[m.group]; g != nil {
			s.touch(m.group)
			g.Own(s.now, m.id, member, revision, func(p group.Part) bool { return owned[p] }, &s.fx)
		}
		m.heard(sequence)
	}})
}

// Ping proves that the member is alive.
func (m *Membership) Ping(ctx context.Context, sequence uint64) error {
	member := m.member
	return m.submit(ctx, task{fail: m.end, do: func(s *shard) {
		if g := s.groups[m.group]; g != nil && g.Heard(s.now, m.id, member) {
			m.heard(sequence)
		}
	}})
}

// Leave leaves for good; then the stream ends.
func (m *Membership) Leave(ctx context.Context, sequence uint64) error {
	member := m.member
	return m.submit(ctx, task{writes: true, fail: m.end, do: func(s *shard) {
		if g := s.groups[m.group]; g != nil {
			s.touch(m.group)
			g.Leave(s.now, m.id, member, &s.fx)
		}
		m.heard(sequence)
	}})
}

// Close notes that the stream is gone, which is no leave. It does not wait.
func (m *Membership) Close() {
	member := m.member
	m.shard.submit(task{fail: func(error) {}, do: func(s *shard) {
		delete(s.streams, m.id)
		if g := s.groups[m.group]; g != nil {
			g.Close(m.id, member)
		}
	}})
}

// maxSlots is how many messages of a member may be under way.
const maxSlots = 64

// submit hands a task over, when there is a slot.
func (m *Membership) submit(ctx context.Context, t task) error {
	select {
	case m.slots <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	do, fail := t.do, t.fail
	t.do = func(s *shard) {
		<-m.slots
		do(s)
	}
	t.fail = func(err error) {
		<-m.slots
		fail(err)
	}
	m.shard.submit(t)
	return nil
}

// send tells a member what is now durable.
func (s *shard) send(m *group.Message) {
	to := s.streams[m.Stream]
	if to == nil {
		return
	}
	if m.Joined != nil {
		to.push(func() { to.joined = m.Joined })
	}
	if a := m.Assignment; a != nil {
		out := &Assignment{Revision: a.Revision, MemberEpoch: a.Epoch, Parts: make([]Assigned, len(a.Owned))}
		g := s.groups[to.group]
		for i, o := range a.Owned {
			out.Parts[i] = Assigned{Part: o.Part, Epoch: o.Epoch}
			if g != nil {
				out.Parts[i].Committed = g.Committed(o.Part)
			}
		}
		to.push(func() { to.assignment = out })
	}
	if m.Err != nil || m.Left {
		to.end(m.Err)
		delete(s.streams, m.Stream)
	}
}

// A task is done by a shard's goroutine, or fails without having been begun.
type task struct {
	writes bool
	do     func(s *shard)
	fail   func(error)
}

// A waiter waits for all records below an offset to be committed.
type waiter struct {
	next    record.Offset
	changes []group.Change
	answers []answer
	told    []group.Message
}

// An answer is given when the waiter's records are committed.
type answer struct {
	fn    func(error)
	wrote bool // its outcome is unknown when they may not be
}

// since is how long ago a time was, never negative.
func since(now, t time.Time) time.Duration { return max(now.Sub(t), 0) }
