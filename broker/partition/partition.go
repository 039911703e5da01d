// Package partition keeps the local replicas of partitions: what a leader may
// append, what is committed, and who waits for it.
package partition

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/record"
)

// Appended says where a batch went.
type Appended struct {
	Base, Last   record.Offset
	AppendTimeMs int64
	LogStart     record.Offset
	Epoch        record.Epoch // leader epoch of the batch
	// Duplicate is true when the batch of this producer and sequence was stored
	// before: the rest is that of the first time.
	Duplicate bool
}

// A State is a partition at one moment. Immutable.
type State struct {
	Leader        bool
	Epoch         record.Epoch // leader epoch, of whoever leads
	LogStart      record.Offset
	HighWatermark record.Offset // first offset that is not committed
	LastStable    record.Offset // first offset of the oldest open transaction, else HighWatermark
	LogEnd        record.Offset
	// MinISRMet says whether a write with acks ALL would be taken.
	MinISRMet bool
	// Moving: the leadership is being handed over, and nothing is appended.
	Moving bool
	// Settled says whether HighWatermark covers all that earlier leaders may
	// have committed: only then does it answer "where is the end?".
	Settled bool
	// Err says why the partition can't be served here, nil when it can.
	Err error
}

// A host is what a partition needs of the broker around it.
type host struct {
	self      metadata.BrokerID
	store     *metadata.Store
	disk      func() commitlog.DiskState
	confirmed func() bool
	flush     func(*Partition) // asks a flusher to make p durable, soon
	prove     func(*Partition) // asks for p's log to be read through, soon
	control   Control
	number    func() uint64 // of the next proposal
	lagMax    time.Duration
	metrics   *counters
	log       zerolog.Logger
}

// registered says who is registered as the broker id, as the newest metadata
// know it.
func (h *host) registered(id metadata.BrokerID) (epoch int64, eligible bool) {
	b, ok := h.store.Load().Broker(id)
	if !ok {
		return 0, false
	}
	return b.Epoch, b.Phase == metadata.BrokerActive
}

// A Partition is the local replica of one partition.
type Partition struct {
	id     uuid.UUID
	number int32
	host   *host
	log    *commitlog.Log
	// producers is a function of the log.
	producers *producers

	// writing holds one token: who has it may write to the log or change the
	// role. It is a channel, not a mutex, because its holder waits for a disk.
	writing chan struct{}

	topic atomic.Pointer[metadata.Topic]
	state atomic.Pointer[State]

	writingSince, syncingSince stall

	// mu guards the fields below
	mu sync.Mutex

	core core
	// fed is how many bytes clients appended here, as stored, since the log was
	// opened.
	fed     int64
	known   metadata.Partition // as last applied
	stopped error              // why it is out of service for good, nil while it is not
	// suspicion is why the log may miss what was acknowledged, "" when it does not.
	suspicion string
	commits   commitQueue
	reads     readQueue
	flusher   flushState
	// refusal is what a client is told while another broker leads.
	refusal error
	askedAt time.Time // for another leader
	hurt    hurt      // when damage was met
	proving bool      // the log is about to be read through, or is

	subs    map[metadata.BrokerID]*subscription // of followers, while leading
	ackNote *notifier                           // of the subscription at the leader, while following
	deletes []*deleteWaiter

	// due holds callbacks in the order of their cause. One goroutine at a time
	// runs them, so that none overtakes another.
	due        []callback
	delivering bool
}

// A callback is one of the three, to be called without locks.
type callback struct {
	commit func(error)
	err    error
	read   func()
	note   *notifier
}

// A notifier is a callback that is called again and again: each call covers all
// that happened before it began.
type notifier struct {
	fn  func()
	due atomic.Bool
}

// noteLocked makes a notifier due, unless it is.
func (p *Partition) noteLocked(n *notifier) {
	if n != nil && n.due.CompareAndSwap(false, true) {
		p.due = append(p.due, callback{note: n})
	}
}

// flushState says what a flusher knows of the partition.
type flushState uint8

const (
	clean    flushState = iota // nothing asked for
	queued                     // a flusher will come
	flushing                   // one is here
	dirty                      // one is here, and must come again
)

func newPartition(h *host, t *metadata.Topic, n int32, log *commitlog.Log, known *producers, rec *commitlog.Recovery) *Partition {
	p := &Partition{
		id: t.ID, number: n, host: h, log: log, producers: known,
		writing: make(chan struct{}, 1), subs: map[metadata.BrokerID]*subscription{},
	}
	p.writingSince.zero, p.syncingSince.zero = time.Now(), time.Now()
	if rec.Suspicion != commitlog.NotSuspect {
		p.suspicion = rec.Suspicion.String()
	}
	p.topic.Store(t)
	p.core.self, p.core.registered, p.core.lag.max = h.self, h.registered, h.lagMax
	p.refusal = notLeader(h.store.Load(), t, n, &metadata.Partition{Leader: metadata.NoBroker})
	p.core.logStart = log.Start()
	p.core.own = progress{written: log.End(), durable: log.Durable()}
	p.core.hw = min(max(rec.HighWatermark, log.Start()), log.End())
	p.state.Store(&State{})
	p.mu.Lock()
	p.publishLocked()
	p.mu.Unlock()
	return p
}

// Topic returns the topic as it is now.
func (p *Partition) Topic() *metadata.Topic { return p.topic.Load() }

// Number returns the partition's number.
func (p *Partition) Number() int32 { return p.number }

// Size returns the bytes of the log on disk.
func (p *Partition) Size() int64 { return p.log.Size() }

// Segments returns how many files hold the log.
func (p *Partition) Segments() int { return p.log.Segments() }

// State returns the partition as it is now.
func (p *Partition) State() State { return *p.state.Load() }

// Confirmed says whether this leader may answer what a newer one could
// contradict: it is in touch with a controller, or with every other broker that
// could have been elected.
func (p *Partition) Confirmed() bool {
	if p.host.confirmed() {
		return true
	}
	return p.ConfirmedSince(time.Now().Add(-p.host.control.Timeout()))
}

// ConfirmedSince says whether this broker leads, and led after that time for
// certain: every other broker that could have been elected has answered what was
// sent to it later, or there is none.
func (p *Partition) ConfirmedSince(since time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.core.confirmed(since, p.linkAtLocked)
}

// Overlap is for how long after an election an earlier leader may still take
// itself for confirmed.
func (p *Partition) Overlap() time.Duration { return p.host.control.Timeout() }

// End returns a state whose HighWatermark may be answered as the end of the
// partition, or why none may be: ErrNotLeader and its like,
// ErrOffsetNotAvailable, ErrUnconfirmed.
func (p *Partition) End() (State, error) {
	st := p.State()
	switch {
	case st.Err != nil:
		return st, st.Err
	case !st.Settled:
		return st, fmt.Errorf("%s: %w: try again", p, ErrOffsetNotAvailable)
	case !p.Confirmed():
		return st, fmt.Errorf("%s: %w: try again", p, ErrUnconfirmed)
	}
	return st, nil
}

// String returns topic/number.
func (p *Partition) String() string { return fmt.Sprintf("%s/%d", p.Topic().Name, p.number) }

// Damage says which of the stored records can't be read, nil when all can.
func (p *Partition) Damage() error {
	d := p.log.Damage()
	if len(d) == 0 {
		return nil
	}
	return &CorruptError{Topic: p.Topic().Name, Partition: p.number, Path: p.log.Dir(), Position: -1, From: d[0].From, Next: d[0].To, Err: p.log.Unopened()}
}

func (p *Partition) damagedHere() bool { return p.Damage() != nil }

// Suspicion says why the log may miss what was acknowledged, "" when it does
// not.
func (p *Partition) Suspicion() string {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.suspicion
}

// publishLocked makes the state what core says, and the waiters due that it
// concerns.
func (p *Partition) publishLocked() {
	old := p.state.Load()
	st := &State{
		Leader: p.core.role == leading, Epoch: p.core.epoch,
		LogStart: p.core.logStart, HighWatermark: p.core.hw, LastStable: p.core.hw, LogEnd: p.core.own.written,
		MinISRMet: p.core.enough(), Settled: p.core.settled(), Moving: p.core.moving,
	}
	switch {
	case p.stopped != nil:
		st.Leader, st.Settled, st.Err = false, false, p.stopped
	case !st.Leader:
		st.Err = p.refusal
	}
	p.state.Store(st)
	p.noteChangeLocked(old, st)
	p.deletedLocked(st)
	for _, fn := range p.commits.due(st.HighWatermark) {
		p.due = append(p.due, callback{commit: fn})
	}
	if !st.Leader || !st.MinISRMet {
		for _, fn := range p.commits.all() {
			p.due = append(p.due, callback{commit: fn, err: p.uncertainLocked()})
		}
	}
	readers := p.reads.due
	if old.Leader != st.Leader || old.Epoch != st.Epoch || old.LogStart != st.LogStart || st.Err != nil || old.Settled != st.Settled {
		readers = func(record.Offset) []func() { return p.reads.all() }
	}
	for _, fn := range readers(st.HighWatermark) {
		p.due = append(p.due, callback{read: fn})
	}
	if old.HighWatermark != st.HighWatermark {
		p.log.SetHighWatermark(st.HighWatermark)
	}
}

// noteChangeLocked tells the other ends of subscriptions what changed.
func (p *Partition) noteChangeLocked(old, st *State) {
	if st.Leader {
		if old.LogEnd == st.LogEnd && old.HighWatermark == st.HighWatermark && old.LogStart == st.LogStart && old.MinISRMet == st.MinISRMet {
			return
		}
		for _, s := range p.subs {
			p.noteLocked(s.note)
		}
		return
	}
	for _, s := range p.subs { // they have ended
		p.noteLocked(s.note)
	}
	clear(p.subs)
	p.noteLocked(p.ackNote)
}

func (p *Partition) isStopped() bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.stopped != nil
}

// stop takes the partition out of service for good, and says so to all who
// wait. The caller delivers.
func (p *Partition) stop(why error) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.stopped == nil {
		p.stopped = why
		p.publishLocked()
	}
}
