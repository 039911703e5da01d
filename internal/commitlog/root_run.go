package commitlog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// How often the flusher looks whether a log is due, at most and at least.
const (
	minFlushTick = 50 * time.Millisecond
	maxFlushTick = time.Second
)

// Run flushes each log every [Config.FlushInterval], checkpoints all, watches
// the disk, keeps the ballast, and finishes removals that were cut off, until
// ctx ends or the disk fails. It returns nil for the first and what the disk
// failed of, marked with [ErrFailed], for the second. It closes nothing.
func (r *Root) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	var wg sync.WaitGroup
	wg.Go(func() { r.flushLoop(ctx) })
	wg.Go(func() { r.every(ctx, r.opts.CheckpointInterval, r.checkpointAll) })
	wg.Go(func() { r.every(ctx, r.opts.DiskInterval, r.watchDisk) })
	wg.Go(func() { r.watchDisk(ctx); r.sweepLeftovers(ctx) })

	select {
	case <-ctx.Done():
	case <-r.failure.Done():
	}
	cancel()
	wg.Wait()
	if err := r.failure.Err(); err != nil {
		r.noteFailure()
		return err
	}
	return nil
}

// every calls fn each interval until ctx ends.
func (r *Root) every(ctx context.Context, interval time.Duration, fn func(context.Context)) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			fn(ctx)
		}
	}
}

func (r *Root) watchDisk(context.Context) {
	if err := r.disk.keep(); err != nil {
		r.opts.OnWarning(fmt.Errorf("keep the ballast: %w", err))
	}
}

func (r *Root) sweepLeftovers(ctx context.Context) {
	r.mu.Lock()
	leftovers := r.leftovers
	r.leftovers = nil
	r.mu.Unlock()

	for _, path := range leftovers {
		if ctx.Err() != nil {
			return
		}
		if err := r.sweep(path); err != nil {
			r.opts.OnWarning(fmt.Errorf("free the room of a removed topic: %w", err))
		}
	}
}

// flushLoop syncs each log once in its interval.
func (r *Root) flushLoop(ctx context.Context) {
	begin := time.Now()
	timer := time.NewTimer(minFlushTick)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			timer.Reset(r.flushDue(ctx, begin))
		}
	}
}

// flushDue syncs what is due and returns how long nothing will be. A log that
// somebody else is busy with comes the next time. begin is when intervals began
// to count.
func (r *Root) flushDue(ctx context.Context, begin time.Time) time.Duration {
	now := time.Now()
	next := now.Add(maxFlushTick)
	due := map[PartitionID]*openLog{}
	r.mu.Lock()
	for id, o := range r.logs {
		log := o.log.Load()
		if log == nil {
			continue
		}
		round, until := flushRound(now.Sub(begin), log.Config().FlushInterval)
		if at := now.Add(until); at.Before(next) {
			next = at
		}
		if round == o.flushed {
			continue
		}
		if log.Durable() >= log.End() {
			o.flushed = round
			continue
		}
		due[id] = o
	}
	r.mu.Unlock()
	for _, o := range due {
		if log := o.log.Load(); log != nil && ctx.Err() == nil {
			log.writeBack()
		}
	}
	var seen atomic.Int64
	r.eachOpen(ctx, due, maxFlushTick, tryTake, func(o *openLog, log *Log) error {
		seen.Add(1)
		o.flushed, _ = flushRound(now.Sub(begin), log.Config().FlushInterval)
		return log.Sync()
	})
	if tick := now.Add(minFlushTick); next.Before(tick) || int(seen.Load()) < len(due) {
		next = tick
	}
	return max(0, time.Until(next))
}

// flushRound counts the times that a log of an interval was due, up to a moment,
// and tells how long it is to the next. All logs of one interval are due at the
// same time: each commit of a file system's journal holds up who appends, and
// one can carry all of them.
func flushRound(at, interval time.Duration) (round int64, until time.Duration) {
	return int64(at/interval) + 1, interval - at%interval
}

func (r *Root) checkpointAll(ctx context.Context) {
	r.eachOpen(ctx, r.snapshot(), r.opts.CheckpointInterval, mustTake, func(_ *openLog, log *Log) error { return log.Checkpoint() })
	r.notes.take()
	defer r.notes.give()

	if r.usable() != nil {
		return
	}
	if err := errors.Join(r.settleInTurn(), r.saveUnverifiedInTurn(), r.nameGrown()); err != nil {
		r.opts.OnWarning(err)
	}
}

// nameGrown says of the partitions that are new no longer, because a checkpoint of
// theirs is durable, that they are not: from then on the lack of one is a loss.
func (r *Root) nameGrown() error {
	var texts []string
	for id, o := range r.snapshot() {
		if log := o.log.Load(); log != nil && r.list.state(id).isNew() && log.Grown() {
			texts = append(texts, id.String())
		}
	}
	return r.list.name(texts...)
}

// aside calls fn, which waits for the disk, when not too many others do that in
// the background. The runtime takes a processor from what waits in the system
// only after a while, up to 10 ms: were there as many of them as processors,
// everything else would stand still. Who has stood in line for as long as it
// has patience goes on beside the others.
func (r *Root) aside(patience time.Duration, fn func() error) error {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case r.waiting <- struct{}{}:
		defer func() { <-r.waiting }()
	case <-timer.C:
	}
	return fn()
}

// Opened writes down which partitions were opened by now, unless that is known:
// the next start does not depend any more on how the process before this one
// ended, as far as they are concerned. Each checkpoint does the same; whoever is
// about to vouch for what the partitions hold does it before. It returns
// ErrFailed when the disk has failed; any other error will be got over.
func (r *Root) Opened() error {
	r.notes.take()
	defer r.notes.give()

	if err := r.usable(); err != nil {
		return err
	}
	return errors.Join(r.settleInTurn(), r.saveUnverifiedInTurn(), r.list.opened())
}

func mustTake(t turn) bool {
	t.take()
	return true
}

func tryTake(t turn) bool {
	select {
	case t <- struct{}{}:
		return true
	default:
		return false
	}
}

// maxPatience is how long a log waits at most for others in the background.
const maxPatience = 250 * time.Millisecond

// eachOpen calls fn for each log that is open, in its turn, as take gets it, and
// passes on what goes wrong. It waits for none that is being opened. As few are
// worked on at once as suffice to be done with all within a time.
func (r *Root) eachOpen(ctx context.Context, logs map[PartitionID]*openLog, within time.Duration, take func(turn) bool, fn func(*openLog, *Log) error) {
	ids := slices.Collect(maps.Keys(logs))
	// At that pace as many pass in this time as stand in line.
	patience := min(maxPatience, within*time.Duration(r.opts.Parallel)/time.Duration(max(1, len(ids))))
	r.each(len(ids), func(i int) {
		o := logs[ids[i]]
		if ctx.Err() != nil || o.log.Load() == nil || !take(o.turn) {
			return
		}
		defer o.turn.give()

		log := o.log.Load()
		if log == nil {
			return
		}
		if err := r.aside(patience, func() error { return fn(o, log) }); err != nil && !errors.Is(err, ErrFailed) {
			r.opts.OnWarning(fmt.Errorf("partition %s: %w", ids[i], err))
		}
	})
}

// Close closes all logs and lets the directory go. When everything is synced
// it leaves the clean marker, with the broker epoch of the session that ends;
// brokerEpoch 0 means that there was none, and the epoch of this start's marker
// stands. The error says why the next start will not be a clean one.
//
// Run must have returned, and nobody may use a log any more.
func (r *Root) Close(brokerEpoch int64) error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return ErrClosed
	}
	r.closed = true
	r.mu.Unlock()

	err := r.closeLogs()
	r.notes.take()
	defer r.notes.give()

	if err == nil {
		err = r.failure.Err()
	}
	if err == nil {
		err = r.markInTurn(brokerEpoch)
	}
	if r.failure.Err() != nil {
		r.noteFailure()
	}
	return errors.Join(err, r.lock.Close())
}

func (r *Root) closeLogs() error {
	ids := slices.Collect(maps.Keys(r.snapshot()))
	errs := make([]error, len(ids))
	r.each(len(ids), func(i int) { errs[i] = r.ClosePartition(ids[i]) })
	return errors.Join(errs...)
}

// markInTurn writes the clean marker.
func (r *Root) markInTurn(brokerEpoch int64) error {
	if brokerEpoch <= 0 {
		brokerEpoch = r.start.BrokerEpoch
	}
	if err := errors.Join(r.settleInTurn(), r.saveUnverifiedInTurn()); err != nil {
		return err
	}
	return r.writeNote(markerName, marker{directory: r.ID().DirectoryID, brokerEpoch: brokerEpoch}.encode())
}
