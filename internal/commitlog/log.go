package commitlog

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// A Log is the log of one partition. Everything that changes it takes turns;
// readers wait for nobody. All methods may be called concurrently.
//
// Lock order: cleaning, writing, then syncing, then checkpointing; mu inside
// any.
type Log struct {
	fs     vfs.FS
	dir    string
	failed *Failure
	now    func() time.Time
	events func(Event)
	idle   *IdleFiles
	config atomic.Pointer[Config]

	// view is what readers look at. Only who writes replaces it.
	view atomic.Pointer[view]
	// end is the next offset. Readers load it before sizes of segments.
	end atomic.Int64
	// durable is the offset below which all is synced. Invariant: <= end,
	// but for the moment in which a truncation lowers both.
	durable atomic.Int64
	// cuts counts truncations. It is raised when end and sizes are lowered
	// and before any byte changes: a reader that finds it raised reads again.
	cuts atomic.Uint64
	// epochs is the history of leader epochs.
	epochs atomic.Pointer[epochList]
	// highWatermark is remembered for the checkpoint.
	highWatermark atomic.Int64
	// looseEnd is where the log ended when only what is durable began to count.
	looseEnd atomic.Int64
	// clean is how far compaction has come; who checkpoints replaces it.
	clean atomic.Pointer[cleanState]
	// purgedTo and cleanedTo are those of the next checkpoint.
	purgedTo, cleanedTo atomic.Int64
	// bytesRead counts what recovery, index rebuilding and compaction read.
	bytesRead atomic.Int64
	closed    atomic.Bool
	// tentative says that the checkpoint may not be durable, because it was just made
	// or a process that was killed left it so: the next one is written even if it
	// says the same. Who has the checkpointing turn changes it.
	tentative atomic.Bool

	// cleaning is held by who compacts the log, and guards cleanClocks.
	cleaning    turn
	cleanClocks clocks

	// writing is held by who changes the log, and guards writer and producers.
	writing   turn
	writer    writer
	producers producerFiles
	// syncing is held by who syncs, or shortens what a sync would cover.
	syncing turn
	group   syncGroup
	// checkpointing is held by who writes side files, and guards kept.
	checkpointing turn
	kept          kept

	// mu guards the fields below.
	mu sync.Mutex
	// unsynced are the segments with bytes that no sync covered, in order,
	// each with its file acquired. The last one is the active segment, also
	// when all of it is synced.
	unsynced []*segment
	// entriesMade counts the files that were made, and entriesSynced those of
	// them whose names a sync of the directory covered.
	entriesMade, entriesSynced int
	// seen is the damage that reads have found, besides the view's, when
	// cuts was seenCuts.
	seen     []Range
	seenCuts uint64
	// closedOff are segments that could not be opened.
	closedOff []unread
	// closing says that no compaction may begin, stopClean ends the one under
	// way, nil without one.
	closing   bool
	stopClean func()
}

// A view is an immutable picture of a log.
type view struct {
	// segments are in order of their base offsets. Invariant: at least one;
	// the last one is the active one.
	segments []*segment
	start    record.Offset
	// damage are the offsets that are known to be damaged, in order.
	damage []Range
}

func (v *view) active() *segment { return v.segments[len(v.segments)-1] }

// writer is what only the writer touches.
type writer struct {
	// lastAppendMs is the last batch's append time, or a floor for the next.
	lastAppendMs int64
	clocks       clocks
}

// kept is what the side files hold.
type kept struct {
	checkpoint checkpoint
	epochs     *epochList // as in the file; compared by identity
	suspicion  Suspicion
	loose      bool // what was not durable may have been counted
}

// OpenLog opens the log in dir, and makes it when there is none. It must not
// be open already. On an error nothing but leftovers of a crash has changed.
func OpenLog(fsys vfs.FS, dir string, cfg Config, opts OpenOptions) (*Log, Recovery, error) {
	l := &Log{
		fs: fsys, dir: dir, failed: opts.Failed, now: opts.Now, idle: opts.Idle,
		cleaning: newTurn(), writing: newTurn(), syncing: newTurn(), checkpointing: newTurn(),
		producers: producerFiles{owner: cfg.Producers, every: producersEvery},
	}
	if l.failed == nil {
		l.failed = NewFailure()
	}
	if l.now == nil {
		l.now = time.Now
	}
	if l.idle == nil {
		l.idle = NewIdleFiles(defaultIdleFiles)
	}
	cfg = cfg.withDefaults()
	l.config.Store(&cfg)
	if err := l.failed.Err(); err != nil {
		return nil, Recovery{}, err
	}
	report, err := l.open(opts)
	if err != nil {
		l.abandon()
		l.idle.closeAll()
		if vfs.IsTooManyFiles(err) && !errors.Is(err, ErrTooManyFiles) {
			err = fmt.Errorf("%w: %w", ErrTooManyFiles, err)
		}
		return nil, Recovery{}, fmt.Errorf("open %s: %w", dir, err)
	}
	l.events = opts.OnEvent
	now := l.now()
	l.writer.clocks = clocks{now.UnixMilli(), now}
	l.cleanClocks = l.writer.clocks
	return l, report, nil
}

// SetConfig changes how the log is kept from now on. Where the log's owner comes
// to count what is not durable, that is durable when it returns: a power cut may
// take it, whatever counts by the next start. On an error nothing has changed, or
// the root has failed.
// Where only what is durable counts from now on, all is made durable, and the
// checkpoint says so. No append may be under way.
func (l *Log) SetConfig(cfg Config) error {
	cfg = cfg.withDefaults()
	switch was := l.Config().Flush; {
	case was == cfg.Flush:
	case cfg.Flush == FlushSync:
		l.looseEnd.Store(l.end.Load())
		l.config.Store(&cfg)
		if err := l.Sync(); errors.Is(err, ErrFailed) {
			return err
		}
		if err := l.Checkpoint(); errors.Is(err, ErrFailed) {
			return err
		} // and else the next one says it: until then the log claims less than it could
		return nil
	default:
		l.checkpointing.take()
		defer l.checkpointing.give()

		if err := l.usable(); err != nil {
			return err
		}
		tight := !l.kept.loose
		l.kept.loose = true
		if err := l.checkpointLocked(); err != nil {
			l.kept.loose = !tight
			return err
		}
	}
	l.config.Store(&cfg)
	return nil
}

// Config returns the configuration in force, defaults filled in.
func (l *Log) Config() Config { return *l.config.Load() }

// Dir returns the partition's directory.
func (l *Log) Dir() string { return l.dir }

// Start returns the log start: the first offset that may be read.
func (l *Log) Start() record.Offset { return l.view.Load().start }

// End returns the next offset to be written.
func (l *Log) End() record.Offset { return record.Offset(l.end.Load()) }

// Durable returns the offset below which all is synced.
func (l *Log) Durable() record.Offset { return record.Offset(l.durable.Load()) }

// Size returns the bytes of all segments together.
func (l *Log) Size() int64 {
	var n int64
	for _, s := range l.view.Load().segments {
		n += s.size.Load()
	}
	return n
}

// Segments returns how many segments there are.
func (l *Log) Segments() int { return len(l.view.Load().segments) }

// BytesRead returns how many bytes recovery, the making of indexes and compaction
// read since the log was opened.
func (l *Log) BytesRead() int64 { return l.bytesRead.Load() }

// Damage returns the offsets below the end that are known to be damaged: by
// what recovery found, and what reads have met since.
func (l *Log) Damage() []Range {
	end := l.End()
	v := l.view.Load()
	l.mu.Lock()
	defer l.mu.Unlock()

	known := append([]Range(nil), v.damage...)
	if l.seenCuts == l.cuts.Load() { // else what was damaged may have been written anew
		for _, r := range l.seen {
			known = addRange(known, r)
		}
	}
	for _, u := range l.closedOff {
		if slices.Contains(v.segments, u.segment) {
			known = addRange(known, u.offsets)
		}
	}
	return clampRanges(known, v.start, end)
}

// NoteDamage is for who looks into the payloads that Read gave it, and found
// that those of the offsets from from up to next are damaged.
func (l *Log) NoteDamage(from, next record.Offset, what string) {
	v := l.view.Load()
	_ = l.found(&CorruptError{Path: v.segments[v.find(from)].file.path, Position: -1, Offset: from, NextOffset: next, What: what})
}

// found notes the damage that a read met, and tells the owner of it once. It
// returns err.
func (l *Log) found(err error) error {
	c, ok := errors.AsType[*CorruptError](err)
	if !ok || c.Offset >= c.NextOffset {
		return err
	}
	r := Range{c.Offset, c.NextOffset}
	if len(clampRanges(l.Damage(), r.From, r.From+1)) > 0 {
		return err
	}
	l.mu.Lock()
	if cuts := l.cuts.Load(); cuts != l.seenCuts {
		l.seen, l.seenCuts = nil, cuts
	}
	if c.segment != nil {
		l.closedOff = append(l.closedOff, unread{c.segment, r, c.Err})
	} else {
		l.seen = addRange(l.seen, r)
	}
	l.mu.Unlock()

	what := c.What
	if c.Err != nil {
		what += ": " + c.Err.Error()
	}
	l.event(Event{Kind: EventDamage, Path: c.Path, Position: c.Position, Detail: fmt.Sprintf("offsets %d to %d: %s", r.From, r.To-1, what)})
	return err
}

// SetHighWatermark remembers hw for the next checkpoint, and that is all.
// Before the first call a checkpoint keeps the one it was opened with.
func (l *Log) SetHighWatermark(hw record.Offset) { l.highWatermark.Store(int64(hw)) }

// Suspicion returns why the log may miss what was acknowledged; see
// [Recovery].
func (l *Log) Suspicion() Suspicion {
	l.checkpointing.take()
	defer l.checkpointing.give()
	return l.kept.suspicion
}

// SetSuspicion declares the log suspect, or with [NotSuspect] lifts that when
// it has caught up or was elected knowingly. It is durable when it returns.
func (l *Log) SetSuspicion(s Suspicion) error {
	l.checkpointing.take()
	defer l.checkpointing.give()

	if err := l.usable(); err != nil {
		return err
	}
	l.kept.suspicion = s
	return l.checkpointLocked()
}

// LastEpoch returns the latest leader epoch the log knows, also one without a
// record, or NoEpoch.
func (l *Log) LastEpoch() record.Epoch { return l.epochs.Load().last() }

// EpochAt returns the leader epoch of the record at offset, removed ones
// included, or NoEpoch when the log does not know it.
func (l *Log) EpochAt(offset record.Offset) record.Epoch { return l.epochs.Load().at(offset) }

// EpochEnd answers where leader epoch e ends in this log: with the largest
// known epoch that is not above e, and the start of the one after it, or the
// log's end for the latest. For an e below all known epochs it is e itself and
// the start of the lowest; without any it is NoEpoch and the end.
func (l *Log) EpochEnd(e record.Epoch) (epoch record.Epoch, end record.Offset) {
	end = l.End()
	return l.epochs.Load().end(e, l.Start(), end)
}

// StartEpoch lets leader epoch e begin at the log's end, before any record of
// it. It is ErrStaleEpoch for an epoch below the last one, and changes nothing
// for the last one itself. Becoming durable before the first record of e is
// not needed: recovery learns epochs from the batches above the recovery
// point, and the checkpoint writes the file before it moves that.
func (l *Log) StartEpoch(e record.Epoch) error {
	l.writing.take()
	defer l.writing.give()

	if err := l.usable(); err != nil {
		return err
	}
	if err := l.freshProducers(); err != nil {
		return err
	}
	return l.startEpochLocked(e, l.End())
}

func (l *Log) startEpochLocked(e record.Epoch, start record.Offset) error {
	list := *l.epochs.Load()
	last := list.last()
	if e < last || e < 0 {
		return fmt.Errorf("%w: %d after %d", ErrStaleEpoch, e, last)
	}
	if e > last {
		list = list.begin(e, start)
		l.epochs.Store(&list)
	}
	return nil
}

// usable returns why the log cannot be used any more.
func (l *Log) usable() error {
	if l.closed.Load() {
		return ErrClosed
	}
	return l.failed.Err()
}

// event tells the owner.
func (l *Log) event(e Event) {
	if l.events != nil {
		l.events(e)
	}
}

// check judges the error of an operation that changes a file: what does not
// say that there is no room fails the root.
func (l *Log) check(err error) error {
	switch {
	case err == nil:
		return nil
	case vfs.IsNoSpace(err):
		return fmt.Errorf("%w: %w", ErrStorageFull, err)
	case vfs.IsTooManyFiles(err):
		return fmt.Errorf("%w: %w", ErrTooManyFiles, err)
	case errors.Is(err, errGone), errors.Is(err, errBadIndex), errors.Is(err, ErrStorageFull), errors.Is(err, ErrTooManyFiles), errors.Is(err, ErrCorrupt):
		return err
	default:
		return l.failed.Set(err)
	}
}

// Checkpoint writes down the recovery point, the high watermark and the log
// start, and the leader epochs and index entries they rely on. It syncs no
// batches: see Sync. When nothing changed it writes nothing.
func (l *Log) Checkpoint() error {
	l.checkpointing.take()
	defer l.checkpointing.give()

	if err := l.usable(); err != nil {
		return err
	}
	if l.Config().Flush == FlushSync && l.durable.Load() >= min(l.looseEnd.Load(), l.end.Load()) {
		l.kept.loose = false
	}
	for _, s := range l.view.Load().segments {
		if err := s.index.flush(); err != nil && !errors.Is(err, errGone) {
			if err = l.check(err); !errors.Is(err, ErrStorageFull) && !errors.Is(err, ErrTooManyFiles) {
				return err
			}
		}
	}
	return l.checkpointLocked()
}

// checkpointLocked writes the checkpoint if it differs from the one on the
// disk. It REQUIRES the checkpointing turn.
func (l *Log) checkpointLocked() error { return l.checkpointFrom(l.Start()) }

// checkpointFrom is checkpointLocked with a log start.
func (l *Log) checkpointFrom(start record.Offset) error {
	// The durable mark first: the epochs of all that is below it are in a
	// list that is loaded later.
	next := l.kept.checkpoint
	next.recoveryPoint = record.Offset(l.durable.Load())
	if err := l.keepEpochs(); err != nil {
		return err
	}
	next.logStart = start
	next.highWatermark = record.Offset(l.highWatermark.Load())
	next.suspicion, next.loose = l.kept.suspicion, l.kept.loose
	next.purgedTo, next.cleanedTo = record.Offset(l.purgedTo.Load()), record.Offset(l.cleanedTo.Load())
	for _, s := range l.view.Load().segments {
		next.lastAppendMs = max(next.lastAppendMs, s.lastAppend.Load())
	}
	if next == l.kept.checkpoint && !l.tentative.Load() {
		return nil
	}
	return l.store(next)
}

// Grown reports whether a checkpoint of the log is durable: then it is not to be
// opened as a young one again.
func (l *Log) Grown() bool { return !l.tentative.Load() }

// store writes a checkpoint under the next number, durably. It REQUIRES the
// checkpointing turn.
func (l *Log) store(next checkpoint) error {
	next.seq++
	if err := l.check(next.write(l.fs, l.dir, l.failed)); err != nil {
		return err
	}
	l.kept.checkpoint = next
	if !l.tentative.Load() {
		return nil
	}
	// All of the file is durable by that, and now its entry is to be.
	if err := l.syncEntries(); err != nil {
		return err
	}
	l.tentative.Store(false)
	return nil
}

// keepEpochs writes the leader epochs if they changed. It REQUIRES the
// checkpointing turn.
func (l *Log) keepEpochs() error {
	list := l.epochs.Load()
	if list == l.kept.epochs {
		return nil
	}
	l.mu.Lock()
	made := l.entriesMade
	l.mu.Unlock()
	if err := l.check(list.write(l.fs, l.dir)); err != nil {
		return err
	}
	l.entriesDurable(made)
	l.kept.epochs = list
	return nil
}

// Close makes the log durable, writes the checkpoint that a clean start
// trusts, and closes the files. Reads that are under way end as they may. A
// log of a failed root is closed without another word to the disk.
func (l *Log) Close() error {
	l.stopCleaning()
	l.writing.take()
	defer l.writing.give()

	if l.closed.Load() {
		return nil
	}
	err := l.failed.Err()
	if err == nil {
		err = l.Sync()
	}
	if err == nil {
		err = l.Checkpoint()
	}
	if err == nil {
		err = l.saveProducers(false)
	}
	// Who waits for one of these turns finds the log closed, and writes to
	// no file that is not its any more.
	l.syncing.take()
	l.checkpointing.take()
	l.closed.Store(true)
	l.checkpointing.give()
	l.syncing.give()
	l.abandon()
	return err
}

// abandon closes all files, and leaves what they hold as it is.
func (l *Log) abandon() {
	l.mu.Lock()
	held := l.unsynced
	l.unsynced = nil
	l.mu.Unlock()

	for _, s := range held {
		s.file.release()
	}
	if v := l.view.Load(); v != nil {
		for _, s := range v.segments {
			s.retire()
		}
	}
}

func (l *Log) path(name string) string { return filepath.Join(l.dir, name) }

// maxOffset is the last offset a log can have an end at.
const maxOffset = record.Offset(math.MaxInt64)
