// Package partition keeps the local replicas of partitions: what a leader may
// append, what is committed, and who waits for it.
package partition

import (
	"errors"
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
	Epoch        record.Epoch
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
	log       zerolog.Logger
}

// A Partition is the local replica of one partition.
type Partition struct {
	id     uuid.UUID
	number int32
	host   *host
	log    *commitlog.Log

	// writing holds one token: who has it may write to the log or change the
	// role. It is a channel, not a mutex, because its holder waits for a disk.
	writing chan struct{}

	topic atomic.Pointer[metadata.Topic]
	state atomic.Pointer[State]

	// mu guards the fields below
	mu sync.Mutex

	core    core
	known   metadata.Partition // as last applied
	stopped error              // why it is out of service for good, nil while it is not
	commits commitQueue
	reads   readQueue
	flusher flushState

	// due holds callbacks in the order of their cause. One goroutine at a time
	// runs them, so that none overtakes another.
	due        []callback
	delivering bool
}

// A callback is one of the two, to be called without locks.
type callback struct {
	commit func(error)
	err    error
	read   func()
}

// flushState says what a flusher knows of the partition.
type flushState uint8

const (
	clean    flushState = iota // nothing asked for
	queued                     // a flusher will come
	flushing                   // one is here
	dirty                      // one is here, and must come again
)

func newPartition(h *host, t *metadata.Topic, n int32, log *commitlog.Log, hw record.Offset) *Partition {
	p := &Partition{id: t.ID, number: n, host: h, log: log, writing: make(chan struct{}, 1)}
	p.topic.Store(t)
	p.core.self = h.self
	p.core.logStart = log.Start()
	p.core.own = progress{written: log.End(), durable: log.Durable()}
	p.core.hw = min(max(hw, log.Start()), log.End())
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
// contradict: it is in touch with a controller, or no other broker could have
// been elected.
func (p *Partition) Confirmed() bool {
	if p.host.confirmed() {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.core.role == leading && p.core.alone(p.known.ELR)
}

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
	return &CorruptError{Topic: p.Topic().Name, Partition: p.number, Path: p.log.Dir(), Position: -1, From: d[0].From, Next: d[0].To}
}

// Suspicion says why the log may miss what was acknowledged, "" when it does
// not.
func (p *Partition) Suspicion() string {
	if s := p.log.Suspicion(); s != commitlog.NotSuspect {
		return s.String()
	}
	return ""
}

// Append appends a batch, when this broker leads the partition, in the given
// leader epoch if one is given. It returns when the log has the batch, which
// is before it is committed: see WhenCommitted. All errors but
// ErrCommitUncertain mean that nothing was stored.
func (p *Partition) Append(b *record.Batch, epoch *record.Epoch) (Appended, error) {
	p.writing <- struct{}{}
	a, err := p.appendToken(b, epoch)
	<-p.writing
	p.deliver()
	return a, err
}

// appendToken needs the writing token.
func (p *Partition) appendToken(b *record.Batch, epoch *record.Epoch) (Appended, error) {
	st := p.state.Load()
	if err := p.admit(st, epoch); err != nil {
		return Appended{}, err
	}
	t := p.Topic()
	got, err := p.log.Append(b, st.Epoch, timestampType(t.Config.TimestampType))
	if err != nil {
		return Appended{}, p.appendFailed(b, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()

	p.core.appended(got.Last + 1)
	p.publishLocked()
	if p.core.sync {
		p.flushLocked()
	}
	return Appended{Base: got.Base, Last: got.Last, AppendTimeMs: got.AppendTimeMs, LogStart: st.LogStart, Epoch: st.Epoch}, nil
}

// admit says why an append must be refused.
func (p *Partition) admit(st *State, epoch *record.Epoch) error {
	if st.Err != nil {
		return st.Err
	}
	if epoch != nil && *epoch != st.Epoch {
		if *epoch > st.Epoch {
			return fmt.Errorf("%s: %w: try again", p, ErrUnknownEpoch)
		}
		return facts(ErrFencedEpoch, map[string]string{"leaderEpoch": format(st.Epoch)},
			"%s: the leader epoch is %d, not %d: refresh the metadata", p, st.Epoch, *epoch)
	}
	if !st.MinISRMet {
		p.mu.Lock()
		isr, need := len(p.core.committed), p.core.minISR
		p.mu.Unlock()
		return facts(ErrNotEnoughReplicas, map[string]string{"isr": format(isr), "minIsr": format(need)},
			"%s: %d replicas are in sync, min.insync.replicas is %d: nothing was stored, try again", p, isr, need)
	}
	if d := p.host.disk(); d.Hard || (d.Soft && !p.Topic().Internal) {
		return p.full(d.Free)
	}
	return nil
}

func (p *Partition) full(free int64) error {
	return facts(ErrStorageFull, map[string]string{"freeBytes": format(free)},
		"%s: the disk has only %d bytes free: writes are refused until there is room; reads and deletes go on", p, free)
}

// appendFailed turns an error of the log into one of ours.
func (p *Partition) appendFailed(b *record.Batch, err error) error {
	switch {
	case errors.Is(err, commitlog.ErrStorageFull):
		return p.full(p.host.disk().Free)
	case errors.Is(err, commitlog.ErrTooManyFiles):
		return fmt.Errorf("%s: %w: nothing was stored, try again", p, ErrNoDescriptors)
	case errors.Is(err, commitlog.ErrTooLarge):
		limit := format(p.Topic().Config.MaxMessageBytes)
		return facts(ErrTooLarge, map[string]string{"size": format(b.FrameSize()), "maxBytes": limit},
			"%s: a batch of %d bytes is over the limit: split it, or raise max.message.bytes (%s)", p, b.FrameSize(), limit)
	case errors.Is(err, commitlog.ErrFailed):
		p.stop(fmt.Errorf("%s: %w: %w", p, ErrStorageFailed, err))
		// The write failed half way: the next start may find the batch whole.
		return fmt.Errorf("%s: %w: %w", p, ErrCommitUncertain, err)
	case errors.Is(err, commitlog.ErrClosed):
		return fmt.Errorf("%s: %w", p, ErrDeleted)
	}
	return fmt.Errorf("append to %s: %w", p, err)
}

// WhenCommitted calls fn once: with nil when the high watermark has passed
// last, with ErrCommitUncertain when that can't be promised any more. It may
// do so before it returns. fn is called without locks, in the order of
// offsets, never two at a time of one partition; it must not block. After
// cancel has returned true it is never called.
func (p *Partition) WhenCommitted(last record.Offset, fn func(error)) (cancel func() bool) {
	p.mu.Lock()
	var err error
	switch {
	case p.core.hw > last: // committed, whatever became of the leadership since
	case p.stopped != nil || p.core.role != leading:
		err = p.uncertainLocked()
	default:
		e := p.commits.add(&commitWaiter{last: last, fn: fn})
		p.mu.Unlock()
		return func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()

			return p.commits.cancel(e)
		}
	}
	p.due = append(p.due, callback{commit: fn, err: err})
	p.mu.Unlock()
	p.deliver()
	return func() bool { return false }
}

// uncertainLocked is what becomes of writes whose leader stopped leading.
func (p *Partition) uncertainLocked() error {
	why := p.stopped
	if why == nil {
		why = errors.New("the leadership was lost before the record was committed") //nolint:err113 // a text, not a kind
	}
	return fmt.Errorf("%s: %w: %w", p, ErrCommitUncertain, opaque{why})
}

// opaque is an error that is told of, but is not the kind of what wraps it.
type opaque struct{ error }

// WhenReadable calls fn once when there is something to read at from: the high
// watermark passed it, or the state changed in another way that a reader must
// look at (leadership, log start, an error, deletion). It checks after it has
// registered, so no wake-up is lost; fn may be called before it returns. fn is
// called without locks and must not block. After cancel it is not called,
// unless it was about to be.
func (p *Partition) WhenReadable(from record.Offset, fn func()) (cancel func()) {
	p.mu.Lock()
	if p.core.hw <= from && from >= p.core.logStart && p.stopped == nil && p.core.role == leading {
		e := p.reads.add(&readWaiter{from: from, fn: fn})
		p.mu.Unlock()
		return func() {
			p.mu.Lock()
			defer p.mu.Unlock()

			p.reads.cancel(e)
		}
	}
	p.due = append(p.due, callback{read: fn})
	p.mu.Unlock()
	p.deliver()
	return func() {}
}

// deliver runs due callbacks, unless another goroutine is at it: that one will
// run ours too.
func (p *Partition) deliver() {
	p.mu.Lock()
	if p.delivering {
		p.mu.Unlock()
		return
	}
	p.delivering = true
	for len(p.due) > 0 {
		batch := p.due
		p.due = nil
		p.mu.Unlock()
		for _, c := range batch {
			if c.commit != nil {
				c.commit(c.err)
			} else {
				c.read()
			}
		}
		p.mu.Lock()
	}
	p.delivering = false
	p.mu.Unlock()
}

// publishLocked makes the state what core says, and the waiters due that it
// concerns.
func (p *Partition) publishLocked() {
	old := p.state.Load()
	st := &State{
		Leader: p.core.role == leading, Epoch: p.core.epoch,
		LogStart: p.core.logStart, HighWatermark: p.core.hw, LastStable: p.core.hw, LogEnd: p.core.own.written,
		MinISRMet: p.core.enough(), Settled: p.core.settled(),
	}
	switch {
	case p.stopped != nil:
		st.Leader, st.Err = false, p.stopped
	case !st.Leader:
		st.Err = notLeader(p.host.store.Load(), p.Topic(), p.number, &p.known)
	}
	p.state.Store(st)
	for _, fn := range p.commits.due(st.HighWatermark) {
		p.due = append(p.due, callback{commit: fn})
	}
	if !st.Leader || !st.MinISRMet {
		for _, fn := range p.commits.all() {
			p.due = append(p.due, callback{commit: fn, err: p.uncertainLocked()})
		}
	}
	readers := p.reads.due
	if old == nil || old.Leader != st.Leader || old.Epoch != st.Epoch || old.LogStart != st.LogStart || st.Err != nil || old.Settled != st.Settled {
		readers = func(record.Offset) []func() { return p.reads.all() }
	}
	for _, fn := range readers(st.HighWatermark) {
		p.due = append(p.due, callback{read: fn})
	}
	if old != nil && old.HighWatermark != st.HighWatermark {
		p.log.SetHighWatermark(st.HighWatermark)
	}
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

// Read copies stored batches that hold offsets of [from, end) into dst, whole
// ones, the first of which may begin before from; n is 0 when there is nothing.
// end is at most the high watermark. Errors: OutOfRangeError, CorruptError,
// ErrShortBuffer, and why the partition can't be served.
func (p *Partition) Read(dst []byte, from, end record.Offset) (n int, err error) {
	st := p.state.Load()
	if st.Err != nil {
		return 0, st.Err
	}
	if from < st.LogStart || from > st.LogEnd {
		return 0, outOfRange(st, from)
	}
	if end = min(end, st.HighWatermark); from >= end {
		return 0, nil
	}
	n, err = p.log.Read(dst, from, end)
	if err != nil {
		return 0, p.readFailed(from, err)
	}
	return n, nil
}

func outOfRange(st *State, off record.Offset) error {
	return &OutOfRangeError{Offset: off, LogStart: st.LogStart, HighWatermark: st.HighWatermark, LogEnd: st.LogEnd}
}

func (p *Partition) readFailed(from record.Offset, err error) error {
	if c, ok := errors.AsType[*commitlog.CorruptError](err); ok {
		return &CorruptError{Topic: p.Topic().Name, Partition: p.number, Path: c.Path, Position: c.Position, From: c.Offset, Next: c.NextOffset}
	}
	switch {
	case errors.Is(err, commitlog.ErrShortBuffer):
		return err
	case errors.Is(err, commitlog.ErrOutOfRange):
		return outOfRange(p.state.Load(), from) // retention went on meanwhile
	case errors.Is(err, commitlog.ErrClosed):
		return fmt.Errorf("%s: %w", p, ErrDeleted)
	case errors.Is(err, commitlog.ErrTooManyFiles):
		return fmt.Errorf("%s: %w: try again", p, ErrNoDescriptors)
	case errors.Is(err, commitlog.ErrFailed):
		return fmt.Errorf("%s: %w: %w", p, ErrStorageFailed, err)
	}
	return fmt.Errorf("read %s at %d: %w", p, from, err)
}

// OffsetForTime finds the first committed record whose time is at or after ms.
// That there is none is an answer only of a settled, confirmed leader; else it
// is the error of End.
func (p *Partition) OffsetForTime(ms int64) (off record.Offset, tsMs int64, found bool, err error) {
	st := p.State()
	if st.Err != nil {
		return 0, 0, false, st.Err
	}
	off, tsMs, found, err = p.log.OffsetForTime(ms, st.HighWatermark)
	if err != nil {
		return 0, 0, false, p.readFailed(st.LogStart, err)
	}
	if !found {
		_, err = p.End()
	}
	return off, tsMs, found, err
}

// ToHighWatermark asks DeleteRecords for all that is committed.
const ToHighWatermark record.Offset = -1

// DeleteRecords makes before, or the high watermark for ToHighWatermark, the
// log start, and returns the log start there is then: it never falls.
func (p *Partition) DeleteRecords(before record.Offset) (logStart record.Offset, err error) {
	p.writing <- struct{}{}
	logStart, err = p.deleteToken(before)
	<-p.writing
	p.deliver()
	return logStart, err
}

// deleteToken needs the writing token.
func (p *Partition) deleteToken(before record.Offset) (record.Offset, error) {
	st, err := p.End()
	if err != nil {
		return 0, err
	}
	if before == ToHighWatermark {
		before = st.HighWatermark
	}
	if before < 0 || before > st.HighWatermark {
		return 0, outOfRange(&st, before)
	}
	if before > st.LogStart {
		if err := p.log.DeleteBefore(before); err != nil {
			return 0, p.changeFailed("delete records of", err)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()

	p.core.cut(p.log.Start())
	p.publishLocked()
	return p.core.logStart, nil
}

func (p *Partition) changeFailed(what string, err error) error {
	switch {
	case errors.Is(err, commitlog.ErrFailed):
		err = fmt.Errorf("%s: %w: %w", p, ErrStorageFailed, err)
		p.stop(err)
		return err
	case errors.Is(err, commitlog.ErrStorageFull):
		return p.full(p.host.disk().Free)
	case errors.Is(err, commitlog.ErrTooManyFiles):
		return fmt.Errorf("%s: %w: try again", p, ErrNoDescriptors)
	case errors.Is(err, commitlog.ErrClosed):
		return fmt.Errorf("%s: %w", p, ErrDeleted)
	}
	return fmt.Errorf("%s %s: %w", what, p, err)
}

// flushLocked asks for a flusher, unless one is on its way.
func (p *Partition) flushLocked() {
	switch p.flusher {
	case clean:
		p.flusher = queued
		p.host.flush(p)
	case flushing:
		p.flusher = dirty
	case queued, dirty:
	}
}

// flushOnce makes what was appended so far durable, and the high watermark
// move by it. Only flushers call it. Appends go on meanwhile: they are in the
// next turn.
func (p *Partition) flushOnce() {
	p.mu.Lock()
	p.flusher = flushing
	p.mu.Unlock()
	err := p.log.Sync()
	if err != nil && !errors.Is(err, commitlog.ErrClosed) {
		p.stop(fmt.Errorf("%s: %w: %w", p, ErrStorageFailed, err))
	}
	p.mu.Lock()
	again := p.flusher == dirty && err == nil
	p.flusher = clean
	if err == nil && p.core.synced(p.log.Durable()) {
		p.publishLocked()
	}
	if again {
		p.flushLocked()
	}
	p.mu.Unlock()
	p.deliver()
}

// maintain rolls and retains, as a leader. It says what retention removed.
func (p *Partition) maintain(now time.Time) (removed int, err error) {
	st := p.State()
	if st.Err != nil || !st.Settled {
		return 0, nil
	}
	p.writing <- struct{}{}
	err = p.log.RollIfDue(now.UnixMilli())
	if err == nil {
		removed, err = p.log.Retain(now.UnixMilli(), p.State().HighWatermark)
	}
	p.mu.Lock()
	if start := p.log.Start(); start != p.core.logStart {
		p.core.cut(start)
		p.publishLocked()
	}
	p.mu.Unlock()
	<-p.writing
	if err != nil && errors.Is(err, commitlog.ErrFailed) {
		p.stop(fmt.Errorf("%s: %w: %w", p, ErrStorageFailed, err))
	}
	p.deliver()
	return removed, err
}
