package commitlog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"

	"github.com/runnelmq/runnel/internal/vfs"
)

// A LostError says which partition's directory cannot be used, and why. It
// matches [ErrLost].
type LostError struct {
	// ID names the partition.
	ID PartitionID
	// Path is its directory.
	Path string
	// Err is what is wrong; fs.ErrNotExist when there is none.
	Err error
}

// Error implements error.
func (e *LostError) Error() string { return fmt.Sprintf("%s: %s: %v", ErrLost, e.Path, e.Err) }

// Is makes the error match [ErrLost].
func (e *LostError) Is(target error) bool { return target == ErrLost }

// Unwrap returns what is wrong.
func (e *LostError) Unwrap() error { return e.Err }

func (r *Root) topicDir(topic uuid.UUID) string { return filepath.Join(r.dir, topic.String()) }

func (r *Root) partitionDir(id PartitionID) string {
	return filepath.Join(r.dir, filepath.FromSlash(id.String()))
}

// OpenPartition opens a partition's log. Where there is no directory it makes
// one if create says so, which is right only for a replica that has nothing to
// lose, or if it knows that there never was one: a process that was killed may
// have left it to be made. Else, and when the directory cannot be read or is another topic's, the
// error is a [LostError]. A full disk, a lack of file descriptors and files that
// this user may not read (fs.ErrPermission) are no loss: the call may be made
// again.
//
// The root flushes and checkpoints the log until [Root.ClosePartition],
// [Root.RemoveTopic] or [Root.Close], and the log is to be closed by these
// only.
func (r *Root) OpenPartition(topic uuid.UUID, name string, number int32, cfg Config, create bool) (*Log, Recovery, error) {
	if number < 0 {
		return nil, Recovery{}, fmt.Errorf("open partition %s/%d: the number is negative", topic, number)
	}
	id := PartitionID{topic, number}
	o, err := r.reserve(id)
	if err != nil {
		return nil, Recovery{}, fmt.Errorf("open partition %s: %w", id, err)
	}
	defer o.turn.give()

	log, rec, err := r.openReserved(id, name, cfg, create)
	if err != nil {
		r.unreserve(id)
		return nil, rec, fmt.Errorf("open partition %s: %w", id, err)
	}
	o.log.Store(log)
	return log, rec, nil
}

// reserve enters a partition as open, with its turn taken.
func (r *Root) reserve(id PartitionID) (*openLog, error) {
	if err := r.usable(); err != nil {
		return nil, err
	}
	o := &openLog{turn: newTurn()}
	o.turn.take()
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.closed {
		return nil, ErrClosed
	}
	if r.logs[id] != nil {
		return nil, ErrOpen
	}
	r.logs[id] = o
	return o, nil
}

func (r *Root) unreserve(id PartitionID) {
	r.mu.Lock()
	defer r.mu.Unlock()

	delete(r.logs, id)
}

func (r *Root) openReserved(id PartitionID, name string, cfg Config, create bool) (*Log, Recovery, error) {
	dir := r.partitionDir(id)
	lost := func(err error) error { return &LostError{ID: id, Path: dir, Err: err} }

	if err := r.makeMissing([]PartitionSpec{{ID: id, Topic: name, Config: cfg, Create: create}}); err != nil {
		return nil, Recovery{}, err
	}
	if err := r.prepareTopic(id, name); err != nil {
		if errors.Is(err, ErrForeign) {
			err = lost(err)
		}
		return nil, Recovery{}, err
	}
	log, rec, err := r.openLog(id, dir, cfg)
	r.noteStrange(rec.Strange)
	if err != nil {
		if !isNoLoss(err) {
			err = lost(err)
		}
		return nil, rec, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()

	r.found[id] = PartitionDir{ID: id, Topic: name, Path: dir}
	delete(r.unverified, id)
	delete(r.making, id)
	return log, rec, nil
}

// isNoLoss reports whether err says nothing against a partition's files: what
// is in the way can be taken away, and the files are whole then.
func isNoLoss(err error) bool {
	return vfs.IsTransient(err) || errors.Is(err, ErrStorageFull) || errors.Is(err, ErrTooManyFiles) ||
		errors.Is(err, ErrFailed) || errors.Is(err, fs.ErrPermission)
}

// openLog opens a log, and makes it suspect, durably, when nothing speaks for
// what it held unsynced.
func (r *Root) openLog(id PartitionID, dir string, cfg Config) (*Log, Recovery, error) {
	start := r.StartOf(id)
	r.mu.Lock()
	made := r.making[id]
	r.mu.Unlock()
	state := r.list.state(id)
	opts := OpenOptions{Clean: start.Clean, Young: state.isNew(), Loose: state == newLoose, Failed: r.failure, Now: r.opts.Now, Idle: r.idle}
	if r.opts.OnEvent != nil {
		opts.OnEvent = func(e Event) { r.opts.OnEvent(id, e) }
	}
	log, rec, err := OpenLog(r.fs, dir, cfg, opts)
	if err != nil {
		return nil, rec, err
	}
	if !made && rec.Suspicion == NotSuspect {
		if rec.Suspicion = suspicion(start, cfg, &rec); rec.Suspicion != NotSuspect {
			err = log.SetSuspicion(rec.Suspicion)
		}
	}
	if err == nil && rec.Loose && cfg.Flush == FlushSync {
		// Now that this is judged, and all is durable, only that counts.
		if err = log.Checkpoint(); vfs.IsTransient(err) || errors.Is(err, ErrStorageFull) {
			err = nil // the next one says so
		}
	}
	if err != nil {
		return nil, rec, errors.Join(err, log.Close())
	}
	return log, rec, nil
}

// suspicion says why a log that holds all that was durable may yet miss what was
// acknowledged.
func suspicion(start Start, cfg Config, rec *Recovery) Suspicion {
	// Within one boot the page cache keeps all that was written, so that there is
	// one explanation only for a tail that is not as it was written.
	if cut := rec.TornBytes > 0; cut && (start.Clean || start.SameBoot && rec.Spoiled) {
		return SuspectTail
	}
	if start.Trusted() || !start.Copied && (rec.Tight || cfg.Flush == FlushSync && !rec.Loose) {
		return NotSuspect
	}
	return SuspectOther
}

// A PartitionSpec is what [Root.OpenPartition] needs to open one.
type PartitionSpec struct {
	// ID names the partition.
	ID PartitionID
	// Topic is the topic's name.
	Topic string
	// Config is how the log is kept.
	Config Config
	// Create makes a missing directory.
	Create bool
}

// Opened is what became of a [PartitionSpec].
type Opened struct {
	// ID names the partition.
	ID PartitionID
	// Log is nil when Err is not.
	Log *Log
	// Recovery is what was found.
	Recovery Recovery
	// Err is as for [Root.OpenPartition].
	Err error
}

// OpenPartitions makes and opens many partitions, several at once, and returns what
// became of each, in the order of specs. progress, when not nil, is called
// after each, never twice at the same time. When ctx ends, those not begun get
// its error.
func (r *Root) OpenPartitions(ctx context.Context, specs []PartitionSpec, progress func(done, total int)) []Opened {
	results := make([]Opened, len(specs))
	if ctx.Err() == nil {
		_ = r.MakePartitions(specs) // what goes wrong is met again when they are opened
	}
	one := newTurn()
	done := 0
	r.each(len(specs), func(i int) {
		s := specs[i]
		res := Opened{ID: s.ID, Err: ctx.Err()}
		if res.Err == nil {
			res.Log, res.Recovery, res.Err = r.OpenPartition(s.ID.Topic, s.Topic, s.ID.Number, s.Config, s.Create)
		}
		results[i] = res
		one.take()
		defer one.give()

		done++
		if progress != nil {
			progress(done, len(specs))
		}
	})
	return results
}

// each calls fn for 0 to n-1, as many at once as the root works in parallel,
// and returns when all are done.
func (r *Root) each(n int, fn func(i int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(n, r.opts.Parallel) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				fn(int(i))
			}
		})
	}
	wg.Wait()
}

// ClosePartition syncs, checkpoints and closes a partition's log. It is no
// error when it is not open.
func (r *Root) ClosePartition(id PartitionID) error {
	r.mu.Lock()
	o := r.logs[id]
	r.mu.Unlock()

	if o == nil {
		return nil
	}
	o.turn.take()
	defer o.turn.give()

	log := o.log.Load()
	if log == nil {
		return nil // somebody else closed it, or it failed to open
	}
	err := log.Close()
	o.log.Store(nil)
	if err != nil {
		// A clean marker does not speak for it.
		r.mu.Lock()
		r.unverified[id] = r.boot
		r.mu.Unlock()
	}
	r.unreserve(id)
	if err != nil {
		return fmt.Errorf("close partition %s: %w", id, err)
	}
	return nil
}

// SetAside renames the directory of a partition that is lost, so that a new
// one can be made. Nothing of it is deleted. No directory is no error.
func (r *Root) SetAside(id PartitionID) (path string, err error) {
	o, err := r.reserve(id)
	if err != nil {
		return "", fmt.Errorf("set partition %s aside: %w", id, err)
	}
	defer o.turn.give()
	defer r.unreserve(id)

	dir := r.partitionDir(id)
	path = fmt.Sprintf("%s%s%d", dir, setAsideSuffix, r.opts.Now().UnixMilli())
	err = r.fs.Rename(dir, path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err == nil {
		err = r.fs.SyncDir(r.topicDir(id.Topic))
	}
	if err != nil {
		return "", fmt.Errorf("set partition %s aside: %w", id, r.failure.Check(err))
	}
	bytes := r.bytesBelow(path)
	r.mu.Lock()
	defer r.mu.Unlock()

	delete(r.found, id)
	delete(r.unverified, id)
	r.strays = append(r.strays, Stray{path, true})
	r.quarantine = append(slices.Clone(r.quarantine), Quarantined{Path: path, Bytes: bytes})
	return path, nil
}
