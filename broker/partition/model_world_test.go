package partition

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/record"
)

// A mutation takes a protection away. Each hook that is nil changes nothing.
type mutation struct {
	name string

	core          func(b *modelBroker)                      // before and after each event of a core
	lead          func(b *modelBroker)                      // when a core has begun to lead
	frame         func(b *modelBroker, d *Data)             // at the follower
	ack           func(leader *modelBroker, a *FollowerAck) // at the leader
	propose       func(b *modelBroker) (proposal, bool)     // instead of the core's
	keepSub       bool                                      // a follower keeps its subscription over new epochs of one leader
	ackEverywhere bool                                      // a follower tells every leader it ever had where its log ends

	noInitialAck, noProgress bool

	anyPartitionEpoch, anyMemberEpoch, unfenceEarly, keepELR, lateProposals bool // the controller's

	setup setup // what a walk needs to meet it
}

// A setup is what may happen in a walk.
type setup struct {
	sync      bool
	min       int
	changeMin bool
	lossy     int  // crashes that lose what was not synced
	slow      bool // the controller takes long to hear of proposals
	moves     bool // leaders are moved all the time
	restless  bool // brokers restart quickly
	sessions  bool // sessions begin all the time
	fences    bool // live brokers are fenced for a moment
}

// A world is one partition on three brokers with a controller, a network and
// disks, all of which do what they like within their contracts.
type world struct {
	rng     *rand.Rand
	mut     mutation
	setup   setup
	now     time.Time
	calm    bool // no faults at present
	brokers []*modelBroker
	ctl     *modelController
	streams []*stream

	records   int
	committed []modelRecord // by offset, what any high watermark has covered; zero: nothing yet
	leaders   leaderships
	lossy     int
	tracing   bool
	forgiven  bool // records were lost, and it was said
	// deleted is up to where records were said to be deleted.
	deleted record.Offset
	log     []string
	bad     error
}

// A modelBroker is one broker.
type modelBroker struct {
	w       *world
	id      metadata.BrokerID
	epoch   int64 // registration of this incarnation
	alive   bool
	core    core
	log     *modelLog
	views   []view // told, not yet applied
	seen    view   // last applied
	session uint64
	subs    int64
	numbers uint64
	out     *stream                         // to the leader it follows
	stash   map[metadata.BrokerID]*follower // a mutation's
}

// A stream carries messages of one follower to one leader and back, in order
// each way. A broken one may still deliver a part of what is in it.
type stream struct {
	follower, leader *modelBroker
	followerEpoch    int64
	leaderEpoch      int64 // registrations at its opening
	broken           bool
	slow             int   // how late what is left in a broken one comes
	current          int64 // the last subscription the leader heard of in it
	up               []any // FollowerSubscribe, FollowerAck, gone
	down             []any // modelAnswer, modelData, modelProgress
}

type (
	gone        struct{}
	modelEnded  struct{ subscription int64 }
	modelAnswer struct {
		subscription int64
		SubscribeAnswer
	}
	modelData struct {
		Data
		records []modelRecord
	}
	modelProgress struct {
		subscription int64
		hw, logStart record.Offset
	}
)

func newWorld(seed uint64, s setup, mut mutation) *world {
	w := &world{rng: rand.New(rand.NewPCG(seed, 7)), mut: mut, setup: s, now: t0, leaders: leaderships{}, lossy: s.lossy}
	w.ctl = &modelController{w: w, registered: map[metadata.BrokerID]int64{}, fenced: map[metadata.BrokerID]bool{}, lost: map[metadata.BrokerID]bool{}}
	w.ctl.part = metadata.Partition{
		Leader: 1, LeaderEpoch: 1, PartitionEpoch: 1, Replicas: ids(1, 2, 3), ISR: ids(1, 2, 3), MinISR: s.min, Sync: s.sync,
	}
	for _, id := range ids(1, 2, 3) {
		b := &modelBroker{w: w, id: id, alive: true, epoch: 1, log: &modelLog{}, session: 1}
		w.ctl.registered[id] = 1
		w.brokers = append(w.brokers, b)
		b.begin(0)
	}
	for _, b := range w.brokers {
		b.views = []view{w.ctl.view(1)}
		b.apply()
	}
	return w
}

// trace notes what happens, in the walk that is shown to people.
func (w *world) trace(format string, args ...any) {
	if w.tracing {
		w.log = append(w.log, fmt.Sprintf(format, args...))
	}
}

func (w *world) fail(format string, args ...any) {
	if w.bad == nil {
		w.bad = fmt.Errorf(format, args...) //nolint:err113 // for the one who reads the test's output
	}
}

// begin makes a core as a start does.
func (b *modelBroker) begin(hw record.Offset) {
	b.core = core{self: b.id, logStart: b.log.Start(), own: b.log.progress(), lag: lagClock{max: 3 * time.Second}}
	b.core.hw = min(max(hw, b.log.Start()), b.log.End())
	b.core.registered = func(id metadata.BrokerID) (int64, bool) { return b.seen.registered[id], !b.seen.fenced[id] }
	b.seen = view{}
}

func (b *modelBroker) mutate() {
	if b.w.mut.core != nil {
		b.w.mut.core(b)
	}
}

// apply takes the next thing the controller told.
func (b *modelBroker) apply() {
	v := b.views[0]
	b.views = b.views[1:]
	b.mutate()
	defer b.mutate()
	if v.rejected != 0 {
		b.core.rejected(v.rejected, b.w.now)
		return
	}
	b.seen = v
	mayLead := !v.fenced[b.id] && v.registered[b.id] == b.epoch
	p := &v.part
	was := b.core
	switch {
	case p.Leader == b.id && mayLead && b.core.role == leading && b.core.epoch == p.LeaderEpoch:
		b.core.resolve(p, v.session)
	case p.Leader == b.id && mayLead:
		b.core.stand(idle, p, v.session)
		b.endStream()
		b.log.startEpoch(p.LeaderEpoch, b.log.End())
		b.core.lead(p, v.session, b.log.progress(), b.w.now)
		if b.w.mut.lead != nil {
			b.w.mut.lead(b)
		}
		if other, ok := b.w.leaders[b.core.epoch]; ok && other != b.id {
			b.w.fail("brokers %d and %d lead in epoch %d", other, b.id, b.core.epoch)
		}
		b.w.leaders[b.core.epoch] = b.id
	default:
		r := idle
		if p.Leader != metadata.NoBroker && p.Leader != b.id {
			r = following
		}
		if b.core.stand(r, p, v.session) {
			b.endStream()
		}
		if b.w.mut.keepSub && was.role == following && r == following && was.follow.leader == p.Leader {
			b.core.follow.phase, b.core.follow.subscription = was.follow.phase, was.follow.subscription
		}
	}
}

func (b *modelBroker) endStream() {
	if b.w.mut.ackEverywhere {
		b.out = nil
	}
	if b.out != nil && !b.w.mut.keepSub {
		b.w.breakStream(b.out)
		b.out = nil
	}
}

// breakStream loses a part of what is in it, both ways.
func (w *world) breakStream(s *stream) {
	if s.broken {
		return
	}
	s.broken, s.slow = true, w.rng.IntN(3)*20
	s.up = s.up[:w.rng.IntN(len(s.up)+1)]
	s.down = s.down[:w.rng.IntN(len(s.down)+1)]
	if f := s.follower; f.out == s {
		f.core.unsubscribe(f.core.follow.subscription)
		f.out = nil
	}
	// The leader's end notices after what it still reads.
	s.up = append(s.up, gone{})
}

// subscribe opens a stream if need be and asks.
func (b *modelBroker) subscribe() {
	if b.core.role != following || b.core.follow.phase != unsubscribed {
		return
	}
	leader := b.w.brokers[b.core.follow.leader-1]
	if !leader.alive {
		return
	}
	if b.out != nil && (b.out.leader != leader || b.out.leaderEpoch != leader.epoch) {
		b.w.breakStream(b.out)
		b.out = nil
	}
	b.mutate()
	if n := len(b.log.epochs); n > 0 && b.log.epochs[n-1].start >= b.log.End() {
		b.log.truncate(b.log.End())
	}
	b.subs++
	s, ok := b.core.ask(b.subs, b.log, false)
	if !ok {
		return
	}
	s.BrokerEpoch = b.epoch
	if b.out == nil {
		b.out = &stream{follower: b, leader: leader, followerEpoch: b.epoch, leaderEpoch: leader.epoch}
		b.w.streams = append(b.w.streams, b.out)
	}
	b.out.up = append(b.out.up, s)
	b.w.trace("%d subscribes %d at %d in epoch %d: next %d last %d", b.id, s.Subscription, s.Leader, s.Epoch, s.NextOffset, s.LastEpoch)
}

// acknowledge says what the follower has, if it may.
func (b *modelBroker) acknowledge() {
	if b.w.mut.ackEverywhere {
		for _, s := range b.w.streams {
			if s.follower == b && s.followerEpoch == b.epoch {
				s.up = append(s.up, FollowerAck{Follower: b.id, Written: b.log.End(), Durable: b.log.synced})
			}
		}
		return
	}
	if b.out == nil {
		return
	}
	if a, ok := b.core.acknowledge(b.core.follow.subscription); ok {
		a.Follower, a.BrokerEpoch = b.id, b.epoch
		b.out.up = append(b.out.up, a)
	}
}

// up delivers the next message of a stream to its leader.
func (w *world) up(s *stream) {
	m := s.up[0]
	l, f := s.leader, s.follower.id
	if !l.alive || l.epoch != s.leaderEpoch {
		s.up = nil
		return
	}
	l.mutate()
	defer l.mutate()
	switch m := m.(type) {
	case FollowerSubscribe:
		a, err := l.core.subscribe(m, l.log, w.now)
		if errors.Is(err, ErrPark) {
			if w.rng.IntN(3) > 0 {
				return // it waits, and all behind it
			}
			a = SubscribeAnswer{Kind: Refused}
		}
		s.current = m.Subscription
		w.trace("%d answers %d: %+v", l.id, f, a)
		s.down = append(s.down, modelAnswer{m.Subscription, a})
	case FollowerAck:
		if w.mut.ack != nil {
			w.mut.ack(l, &m)
		}
		ok := l.core.ack(m, w.now)
		w.trace("%d has the ack of %d: %d/%d in %d, taken: %v, hw %d", l.id, f, m.Written, m.Durable, m.Epoch, ok, l.core.hw)
		l.proposeISR(false)
	case gone:
		if fl := l.core.followers[f]; fl != nil && fl.brokerEpoch == s.followerEpoch {
			l.core.gone(f, s.current, w.now)
		}
	}
	s.up = s.up[1:]
}

// push sends the next records to a follower.
func (b *modelBroker) push(s *stream) {
	f := b.core.followers[s.follower.id]
	if b.core.role != leading || f == nil || !f.subscribed || s.broken || f.brokerEpoch != s.followerEpoch || f.subscription != s.current {
		return
	}
	from := f.sent
	if from < b.log.Start() {
		s.down = append(s.down, modelEnded{f.subscription})
		b.core.gone(s.follower.id, f.subscription, b.w.now)
		return
	}
	end := min(b.core.own.written, from+record.Offset(1+b.w.rng.IntN(3)))
	if from >= end {
		return
	}
	m := modelData{Data: Data{
		Epoch: b.core.epoch, Subscription: f.subscription, Start: from, Next: end, HighWatermark: b.core.hw, LogStart: b.core.logStart,
	}}
	for o := from; o < end; o++ {
		r, _ := b.log.at(o)
		m.records = append(m.records, r)
	}
	if e := b.log.EpochAt(from - 1); e != commitlog.NoEpoch {
		m.PrevEpoch, m.HasPrevEpoch = e, true
	}
	b.core.sentTo(f, end, b.w.now)
	s.down = append(s.down, m)
}

func (b *modelBroker) sendProgress(s *stream) {
	f := b.core.followers[s.follower.id]
	if b.w.mut.noProgress || b.core.role != leading || f == nil || !f.subscribed || s.broken || f.brokerEpoch != s.followerEpoch || f.subscription != s.current {
		return
	}
	s.down = append(s.down, modelProgress{f.subscription, b.core.hw, b.core.logStart})
}

// down delivers the next message of a stream to its follower.
func (w *world) down(s *stream) {
	m := s.down[0]
	s.down = s.down[1:]
	b := s.follower
	if !b.alive || b.epoch != s.followerEpoch {
		s.down = nil
		return
	}
	b.mutate()
	defer b.mutate()
	switch m := m.(type) {
	case modelAnswer:
		b.answered(m)
	case modelProgress:
		if _, ok := b.core.acknowledge(m.subscription); ok {
			b.core.learn(m.hw)
			b.followStart(m.logStart)
		}
	case modelEnded:
		b.core.unsubscribe(m.subscription)
	case modelData:
		b.data(m)
	}
}

func (b *modelBroker) answered(m modelAnswer) {
	do, err := b.core.answered(m.subscription, m.SubscribeAnswer, b.log)
	if errors.Is(err, ErrDiverged) {
		b.w.trace("%d REFUSES: %v", b.id, err)
		if !b.w.forgiven {
			b.w.fail("broker %d refuses its leader though nothing was lost: %v", b.id, err)
		}
	}
	if err != nil {
		return
	}
	switch do.kind {
	case noChange:
		if !b.w.mut.noInitialAck {
			b.acknowledge()
		}
		b.followStart(m.LogStart)
	case truncate:
		b.log.truncate(do.to)
		b.core.changed(b.log.Start(), b.log.progress())
		b.w.trace("%d cuts to %d", b.id, do.to)
	case empty:
		b.log.reset(do.to)
		b.core.emptied(do.to)
		b.w.trace("%d empties to %d", b.id, do.to)
	}
}

func (b *modelBroker) followStart(logStart record.Offset) {
	if to, ok := b.core.start(logStart); ok {
		b.log.deleteBefore(to)
		b.core.cut(b.log.Start())
		if !b.w.mut.noInitialAck {
			b.acknowledge()
		}
	}
}

func (b *modelBroker) data(m modelData) {
	if b.w.mut.frame != nil {
		b.w.mut.frame(b, &m.Data)
	}
	if err := b.core.admit(&m.Data, b.log); err != nil {
		return
	}
	for _, r := range m.records {
		if r.epoch > m.Epoch {
			b.core.unsubscribe(m.Subscription)
			return
		}
		b.log.append(r)
	}
	b.core.taken(b.log.progress(), m.HighWatermark)
	b.w.trace("%d appends [%d,%d) of epoch %d", b.id, m.Start, m.Next, m.Epoch)
	b.acknowledge()
	b.followStart(m.LogStart)
}

func (b *modelBroker) append() {
	if b.core.role != leading || b.core.moving || (!b.core.enough() && b.w.rng.IntN(2) == 0) {
		return // what is not to be acknowledged by all is appended below the minimum too
	}
	b.w.records++
	b.log.append(modelRecord{b.core.epoch, b.w.records})
	b.mutate()
	b.core.appended(b.log.End(), b.w.now)
	b.mutate()
}

func (b *modelBroker) flush() {
	if b.log.synced == b.log.End() {
		return
	}
	b.log.synced = b.log.End()
	b.mutate()
	b.core.synced(b.log.synced)
	b.mutate()
	b.acknowledge()
}

// tick lets a leader propose.
func (b *modelBroker) tick() { b.proposeISR(true) }

func (b *modelBroker) proposeISR(judge bool) {
	b.mutate()
	number := func() uint64 { b.numbers++; return uint64(b.epoch)<<32 | b.numbers }
	p, ok := b.core.propose(number, judge, b.w.now)
	if b.w.mut.propose != nil {
		if p, ok = b.w.mut.propose(b); ok {
			p.base, p.session, p.number = b.core.partitionEpoch, b.core.session, number()
			b.core.proposals = append(b.core.proposals, p)
		}
	}
	if ok && p.session == b.session { // else the snapshot of the session settles it
		b.w.ctl.inbox = append(b.w.ctl.inbox, modelProposal{b.id, metadata.Proposal{
			LeaderEpoch: b.core.epoch, PartitionEpoch: p.base, ISR: b.core.members(p), Number: p.number, Session: p.session,
		}})
		b.w.trace("%d proposes %v", b.id, p.isr)
	}
	b.mutate()
}

func (b *modelBroker) crash() {
	b.alive, b.views = false, nil
	b.endStream()
	b.core.role = idle
	b.w.ctl.fence(b.id)
	b.w.trace("CRASH %d", b.id)
}

func (b *modelBroker) restart() {
	lost := false
	hw := b.core.hw
	if b.w.lossy > 0 && b.w.rng.IntN(2) == 0 {
		b.w.lossy--
		to := max(b.log.synced, b.log.start)
		if n := int(b.log.End() - to); n > 0 {
			to += record.Offset(b.w.rng.IntN(n + 1))
		}
		b.log.truncate(to)
		// Under sync, all that counted was synced.
		lost = !b.w.setup.sync
		b.w.trace("LOST: %d has up to %d, synced %d", b.id, to, b.log.synced)
	}
	b.alive, b.epoch, b.subs = true, b.epoch+1, 0
	b.begin(record.Offset(b.w.rng.IntN(int(hw) + 1)))
	if lost {
		b.w.ctl.lost[b.id] = true
	}
	b.w.ctl.register(b, lost)
	b.w.ctl.connect(b)
	b.w.trace("RESTART %d as %d", b.id, b.epoch)
}

// forgive gives up what a recovery election lost: it is said, not hidden.
func (w *world) forgive(leader metadata.BrokerID) {
	l := w.brokers[leader-1].log
	w.forgiven = true
	for o := range w.committed {
		if r, ok := l.at(record.Offset(o)); record.Offset(o) >= l.start && (!ok || r != w.committed[o]) {
			w.committed = slices.Delete(w.committed, o, len(w.committed))
			break
		}
	}
}
