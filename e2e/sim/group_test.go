package sim

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/client"
	"github.com/runnelmq/runnel/internal/lifecycle"
)

// longestSession is how long a member may be silent, and others up to 3 s less.
const longestSession = 5 * time.Second

// A groupWatch is what is known of a consumer group: what its members were
// handed, by which right, and what they were told is committed.
type groupWatch struct {
	l      *load
	name   string
	topics []*topic

	// mu guards the fields below
	mu sync.Mutex

	parts map[client.PartitionID]*watchedPart
}

// A watchedPart is a partition as the group's members see it.
type watchedPart struct {
	handed    map[int64]bool
	committed int64 // told to be
	seen      int64 // answered by a broker, last
	// holder is who was handed the last record, over those before it.
	holder *tenure
	over   map[*tenure]bool
}

// A tenure is one assignment of a partition to a member.
type tenure struct{ member string }

// join has n members of a group read topics, and come and go, until the load
// ends.
func (l *load) join(name string, n int, rng *rand.Rand, topics ...*topic) *groupWatch {
	w := l.watch(name, topics...)
	for range n {
		rng := rand.New(rand.NewPCG(rng.Uint64(), 10))
		l.wg.Go(func() {
			for l.ctx.Err() == nil {
				ctx, cancel := context.WithTimeout(l.ctx, time.Duration(500+rng.IntN(12_000))*time.Millisecond)
				w.life(ctx, rng, func() bool { return false })
				cancel()
				lifecycle.Wait(l.ctx, time.Duration(rng.IntN(1500))*time.Millisecond)
			}
		})
	}
	l.wg.Go(func() { w.ask(rng) })
	return w
}

// watch begins to note what is known of a group that reads topics.
func (l *load) watch(name string, topics ...*topic) *groupWatch {
	w := &groupWatch{l: l, name: name, topics: topics, parts: map[client.PartitionID]*watchedPart{}}
	for _, t := range topics {
		for p := range t.partitions {
			w.parts[client.PartitionID{Topic: t.name, Partition: p}] = &watchedPart{handed: map[int64]bool{}, over: map[*tenure]bool{}}
		}
	}
	return w
}

// life is one member's, until ctx ends or enough is done: it leaves, or it dies.
func (w *groupWatch) life(ctx context.Context, rng *rand.Rand, enough func() bool) {
	m := &watchedMember{w: w, tenures: map[client.PartitionID]*tenure{}}
	c, err := client.New(w.l.c.addresses(), client.Dialer(m.dialer()))
	if err != nil {
		w.l.c.t.Fatal(err)
	}
	manual := rng.IntN(2) == 0
	opts := []client.GroupOption{
		client.Topics(w.names()...), client.SessionTimeout(longestSession - time.Duration(rng.IntN(4))*time.Second), client.RebalanceTimeout(5 * time.Second),
		client.CommitInterval(time.Duration(100+rng.IntN(900)) * time.Millisecond), client.WithGroupHooks(client.GroupHooks{
			OnAssign: m.assigned, OnRevoke: m.gone, OnLost: func(ps []client.PartitionID, _ error) { m.gone(ps) },
		}),
	}
	if manual {
		opts = append(opts, client.ManualCommit())
	}
	g, err := c.NewGroup(w.name, opts...)
	if err != nil {
		w.l.c.t.Fatal(err)
	}
	m.id = g.MemberID()
	for rec, err := range g.Records(ctx) {
		if err != nil {
			if ctx.Err() == nil {
				w.l.c.judge.complain("I5", "a member of %s: %v", w.name, err)
			}
			break
		}
		m.handed(&rec)
		if manual && rng.IntN(8) == 0 {
			m.commit(ctx, g, rec)
		}
		if rng.IntN(20) == 0 {
			lifecycle.Wait(ctx, time.Duration(rng.IntN(300))*time.Millisecond)
		}
		if enough() {
			break
		}
	}
	if rng.IntN(3) == 0 {
		m.die()
	}
	_ = g.Close() // of a commit that fails nothing is told
	if err := c.Close(); err != nil {
		w.l.c.judge.complain("I5", "a member's client can't be closed: %v", err)
	}
}

func (w *groupWatch) names() (out []string) {
	for _, t := range w.topics {
		out = append(out, t.name)
	}
	return out
}

// A watchedMember is one life of a member.
type watchedMember struct {
	w  *groupWatch
	id string

	// mu guards the fields below
	mu sync.Mutex

	tenures map[client.PartitionID]*tenure
	conns   []net.Conn
	dead    bool
}

func (m *watchedMember) dialer() func(context.Context, string) (net.Conn, error) {
	dial := m.w.l.c.dialer(clientHost, func() bool { return true })
	return func(ctx context.Context, addr string) (net.Conn, error) {
		conn, err := dial(ctx, addr)
		if err != nil {
			return nil, err
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.dead {
			return nil, errors.Join(net.ErrClosed, conn.Close())
		}
		m.conns = append(m.conns, conn)
		return conn, nil
	}
}

// die breaks all connections, and lets none be made.
func (m *watchedMember) die() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead = true
	for _, c := range m.conns {
		_ = c.Close()
	}
}

func (m *watchedMember) assigned(ps []client.PartitionID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range ps {
		m.tenures[p] = &tenure{m.id}
		m.w.l.c.logs.note("%s: %s/%d: %s has it", m.w.name, p.Topic, p.Partition, m.id)
	}
}

func (m *watchedMember) gone(ps []client.PartitionID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range ps {
		m.w.l.c.logs.note("%s: %s/%d: %s has it no more", m.w.name, p.Topic, p.Partition, m.id)
		delete(m.tenures, p)
	}
}

// handed notes that a record was handed to the member. Nobody is handed one
// after another member was (I15).
func (m *watchedMember) handed(rec *client.Record) {
	at := client.PartitionID{Topic: rec.Topic, Partition: rec.Partition}
	m.mu.Lock()
	by := m.tenures[at]
	m.mu.Unlock()
	w := m.w
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.parts[at]
	p.handed[rec.Offset] = true
	switch {
	case by == nil:
		w.l.c.judge.complain("I15", "%s/%d: %s was handed offset %d, and has not the partition", rec.Topic, rec.Partition, m.id, rec.Offset)
	case p.holder == by:
	case p.over[by]:
		w.l.c.judge.complain("I15", "%s/%d: %s was handed offset %d after %s was handed others", rec.Topic, rec.Partition, m.id, rec.Offset, p.holder.member)
	default:
		p.over[p.holder] = true
		p.holder = by
		w.l.c.logs.note("%s: %s/%d: %s is handed offset %d, the first of its tenure", w.name, rec.Topic, rec.Partition, m.id, rec.Offset)
	}
}

func (m *watchedMember) commit(ctx context.Context, g *client.Group, rec client.Record) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if g.Commit(ctx, rec) != nil {
		return
	}
	m.w.told(client.PartitionID{Topic: rec.Topic, Partition: rec.Partition}, m.id, rec.Offset+1)
}

// told notes that a member was told that an offset is committed.
func (w *groupWatch) told(at client.PartitionID, member string, offset int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.parts[at]
	p.committed = max(p.committed, offset)
	w.l.c.logs.note("%s: %s/%d: %s was told that %d is committed", w.name, at.Topic, at.Partition, member, offset)
}

// ask asks brokers what is committed, again and again: never less than what was
// told to be before, nor more than members were handed (I14).
func (w *groupWatch) ask(rng *rand.Rand) {
	for w.l.ctx.Err() == nil {
		lifecycle.Wait(w.l.ctx, time.Duration(rng.IntN(500))*time.Millisecond)
		before := w.committed()
		now, err := w.fetch(w.l.ctx, rng.IntN(len(w.l.c.conns)))
		if err == nil {
			w.compare(before, now)
		}
	}
}

func (w *groupWatch) committed() map[client.PartitionID]int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[client.PartitionID]int64{}
	for at, p := range w.parts {
		out[at] = p.committed
	}
	return out
}

// fetch asks a broker what the group has committed.
func (w *groupWatch) fetch(ctx context.Context, through int) (map[client.PartitionID]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	resp, err := runnelv1.NewGroupServiceClient(w.l.c.conns[through]).FetchOffsets(ctx, &runnelv1.FetchOffsetsRequest{Group: w.name})
	if err != nil {
		return nil, err
	}
	out := map[client.PartitionID]int64{}
	for _, o := range resp.GetOffsets() {
		out[client.PartitionID{Topic: o.GetTopic(), Partition: o.GetPartition()}] = o.GetOffset()
	}
	return out, nil
}

func (w *groupWatch) compare(before, now map[client.PartitionID]int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for at, p := range w.parts {
		if now[at] != p.seen {
			w.l.c.logs.note("%s: %s/%d: %d is committed, before %d", w.name, at.Topic, at.Partition, now[at], p.seen)
			p.seen = now[at]
		}
		if now[at] < before[at] {
			w.l.c.judge.complain("I14", "%s/%d: %d is committed by %s, and before it was %d", at.Topic, at.Partition, now[at], w.name, before[at])
		}
		for o := range now[at] {
			if !p.handed[o] {
				w.l.c.judge.complain("I5", "%s/%d: %d is committed by %s, and nobody was handed %d", at.Topic, at.Partition, now[at], w.name, o)
				break
			}
		}
	}
}

// end asks brokers in turn where a partition ends: connections come back.
func (w *groupWatch) end(t *topic, n int32) (end int64, err error) {
	for try := range 10 {
		if end, _, err = w.l.c.latest(context.Background(), t, n, try%len(w.l.c.conns)); err == nil {
			break
		}
		time.Sleep(time.Second)
	}
	return end, err
}

// finish has one member read all that is left, and looks whether all was read.
func (w *groupWatch) finish(rng *rand.Rand) {
	ends := map[client.PartitionID]int64{}
	for _, t := range w.topics {
		for n := range t.partitions {
			end, err := w.end(t, n)
			if err != nil {
				w.l.c.judge.complain("I19", "%s/%d does not tell its end: %v", t.name, n, err)
				return
			}
			ends[client.PartitionID{Topic: t.name, Partition: n}] = end
		}
	}
	left := func() map[client.PartitionID]int64 {
		w.mu.Lock()
		defer w.mu.Unlock()
		out := maps.Clone(ends)
		maps.DeleteFunc(out, func(at client.PartitionID, end int64) bool { return end == 0 || w.parts[at].handed[end-1] })
		return out
	}
	ctx, cancel := context.WithTimeout(context.Background(), settleTime)
	defer cancel()
	for ctx.Err() == nil && len(left()) > 0 {
		w.life(ctx, rng, func() bool { return len(left()) == 0 })
	}
	if l := left(); len(l) > 0 {
		w.l.c.judge.complain("I19", "%s does not come to the ends %v", w.name, l)
	}
	var now map[client.PartitionID]int64
	var err error
	for try := range 10 {
		if now, err = w.fetch(context.Background(), try%len(w.l.c.conns)); err == nil {
			break
		}
		time.Sleep(time.Second)
	}
	if err != nil {
		w.l.c.judge.complain("I19", "%s does not tell what it has committed: %v", w.name, err)
		return
	}
	w.compare(w.committed(), now)
	w.mu.Lock()
	defer w.mu.Unlock()
	handed, tenures := 0, 0
	for _, p := range w.parts {
		handed += len(p.handed)
		tenures += len(p.over)
	}
	w.l.c.t.Logf("%s: %d records were handed out in %d tenures, and %v was committed", w.name, handed, tenures, now)
	for at, end := range ends {
		for o := range end {
			if !w.parts[at].handed[o] {
				w.l.c.judge.complain("I5", "%s/%d: no member of %s was handed %d, of %d", at.Topic, at.Partition, w.name, o, end)
				break
			}
		}
	}
}
