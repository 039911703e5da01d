package commitlog

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/runnelmq/runnel/internal/vfs"
)

// Errors of a [Root]. See also [ErrFailed], [ErrForeign] and [ErrDamaged].
var (
	// ErrInUse is the mark of a data directory that another process, or
	// another Root of this one, has open.
	ErrInUse = errors.New("the data directory is in use")
	// ErrLost is the mark of a partition whose directory is missing,
	// unreadable or foreign. See [LostError].
	ErrLost = errors.New("the partition's directory is lost")
	// ErrOpen is the mark of a partition that is open already.
	ErrOpen = errors.New("the partition is open already")
	// ErrOldController is the mark of a controller epoch lower than one the
	// broker has heard of.
	ErrOldController = errors.New("an older controller")
)

// Defaults of RootOptions.
const (
	defaultCheckpointInterval = 5 * time.Second
	defaultDiskInterval       = 250 * time.Millisecond
	rootIdleFiles             = 256 // open files that nobody uses at the moment, of all logs together
)

// RootOptions say how a data root is opened and kept. A zero value of each
// field but BrokerID stands for its default.
type RootOptions struct {
	// ClusterID is the cluster the broker belongs to; "" when it has yet to
	// learn it, see [Root.SetCluster].
	ClusterID string
	// BrokerID is the broker's number. A directory of another is refused.
	BrokerID int32
	// BootID tells this run of the machine from others; nil asks the machine.
	// "" means unknown: then a crash of the process is taken for one of the
	// machine.
	BootID func() (string, error)
	// DistrustPageCache takes every crash for one of the machine
	// (trust.page.cache=false): for volumes that may have been detached.
	DistrustPageCache bool
	// ReserveBytes is the soft disk mark (disk.reserve.bytes); the hard mark
	// is a quarter of it. Default 1 GiB or a twentieth of the disk, whichever
	// is less; negative for no marks.
	ReserveBytes int64
	// BallastBytes is how much room is kept for checkpoints, retention and
	// truncation on a full disk, at most half of the hard mark. Default
	// 8 MiB; negative for none.
	BallastBytes int64
	// CheckpointInterval is how often all logs are checkpointed. Default 5 s.
	CheckpointInterval time.Duration
	// DiskInterval is how often the free space is measured. Default 250 ms.
	DiskInterval time.Duration
	// Parallel is how many logs are opened, flushed or closed at once.
	// Default 4 a CPU: they wait more than they compute.
	Parallel int
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// OnEvent, when not nil, hears of what logs healed or found after they
	// were opened. It must not call the root or a log.
	OnEvent func(PartitionID, Event)
	// OnWarning, when not nil, hears of what went wrong in the background and
	// is tried again: a checkpoint or a removal. It must not call the root.
	OnWarning func(error)
}

func (o RootOptions) withDefaults() RootOptions {
	if o.BootID == nil {
		o.BootID = machineBootID
	}
	if o.CheckpointInterval <= 0 {
		o.CheckpointInterval = defaultCheckpointInterval
	}
	if o.DiskInterval <= 0 {
		o.DiskInterval = defaultDiskInterval
	}
	if o.Parallel <= 0 {
		o.Parallel = 4 * runtime.GOMAXPROCS(0)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.OnWarning == nil {
		o.OnWarning = func(error) {}
	}
	return o
}

// Root is one data directory of one broker, locked while it is open. All
// methods are safe for concurrent use.
type Root struct {
	fs      vfs.FS // falls back on the ballast
	dir     string
	opts    RootOptions
	lock    io.Closer
	failure *Failure
	disk    *disk
	idle    *IdleFiles // of all logs: what stays open must not grow with their number
	// waiting are those who wait for the disk in the background: see aside.
	waiting chan struct{}
	boot    string // of the machine now
	lockID  string // of the lock file: see Identity.LockID
	start   Start
	// notes is held by who writes the root's own small files, and guards
	// settled: see settleInTurn.
	notes   turn
	settled bool
	list    *partitionList // nil when there is none that counts
	// hadFailed: the last process left word that the disk failed.
	hadFailed bool
	// young are the partitions that are still new, as a list says that does not count
	// because the disk failed: a checkpoint of them was never durable.
	young map[string]listState
	// listDoubted: there is one that does not, and has to go. It is notes'.
	listDoubted bool

	// mu guards the fields below.
	mu         sync.Mutex
	id         Identity
	found      map[PartitionID]PartitionDir // on the disk at the start, and since
	strays     []Stray                      // entries that are neither topic nor ours
	leftovers  []string                     // removed topics whose files may still be there
	quarantine []Quarantined
	logs       map[PartitionID]*openLog
	// making are those whose directory this process made, and that it has not
	// handed out yet: there is nothing in them that could be lost.
	making map[PartitionID]bool
	closed bool

	// unverified are the partitions for which this start does not speak, but
	// at best the boot that is named: see readUnverified. unverifiedSaved is
	// what the file has.
	unverified      map[PartitionID]string
	unverifiedSaved map[PartitionID]string
}

// openLog is a partition that is open, or being opened, closed or removed.
type openLog struct {
	// turn is held while the log is opened, closed, or worked on in the
	// background.
	turn turn
	// log changes under turn only. nil: not open yet, or not any more.
	log atomic.Pointer[Log]

	flushed int64 // the round in which it was last; of the flusher alone
}

// OpenRoot opens the data directory dir, and makes it first when it is missing
// or empty. When it returns, the directory is locked and known to be this
// broker's, and the clean marker is durably gone. It opens no log.
func OpenRoot(fsys vfs.FS, dir string, opts RootOptions) (*Root, error) {
	r := &Root{
		dir: dir, opts: opts.withDefaults(), failure: NewFailure(), notes: newTurn(), idle: NewIdleFiles(rootIdleFiles),
		waiting: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)),
		logs:    map[PartitionID]*openLog{}, making: map[PartitionID]bool{}, unverified: map[PartitionID]string{},
	}
	r.disk = newDisk(fsys, dir, r.failure, opts.ReserveBytes, opts.BallastBytes)
	r.fs = ballastFS{fsys, r.disk}

	fresh, err := r.acquire()
	if err != nil {
		return nil, err
	}
	if err := r.load(fresh); err != nil {
		if r.failure.Err() != nil && !fresh {
			r.noteFailure()
		}
		return nil, errors.Join(err, r.lock.Close())
	}
	return r, nil
}

// writeNote replaces one of the root's own files. The caller has the turn of
// notes, or the root to itself.
func (r *Root) writeNote(name string, data []byte) error {
	if err := vfs.WriteFileAtomic(r.fs, filepath.Join(r.dir, name), data); err != nil {
		return fmt.Errorf("write %s: %w", name, r.failure.Check(err))
	}
	return nil
}

// removeNote removes one of the root's own files, durably; none is as good.
func (r *Root) removeNote(name string) error {
	err := r.fs.Remove(filepath.Join(r.dir, name))
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		// Also when it was gone already: the one who removed it may have
		// crashed before this.
		err = r.fs.SyncDir(r.dir)
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", name, r.failure.Check(err))
	}
	return nil
}

// ID returns whose the root is.
func (r *Root) ID() Identity {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.id
}

// Dir returns the directory.
func (r *Root) Dir() string { return r.dir }

// Start returns what the root found when it was opened.
func (r *Root) Start() Start { return r.start }

// Disk returns how full the disk was when it was last measured.
func (r *Root) Disk() DiskState { return *r.disk.state.Load() }

// Failure returns the latch of the root.
func (r *Root) Failure() *Failure { return r.failure }

// Failed is closed when the root's disk has failed: the process must end.
func (r *Root) Failed() <-chan struct{} { return r.failure.Done() }

// SetCluster remembers the cluster the broker belongs to, durably. A root that
// is another cluster's refuses with [ErrForeign].
func (r *Root) SetCluster(id string) error {
	if id == "" {
		return errors.New("set the cluster of a data root: the cluster id is empty")
	}
	return r.setIdentity(func(to *Identity) error {
		if err := to.checkOwner(r.dir, id, to.BrokerID); err != nil {
			return err
		}
		to.ClusterID = id
		return nil
	})
}

// SetBrokerEpoch remembers, durably, under which epoch the process that has the
// root is registered.
func (r *Root) SetBrokerEpoch(epoch int64) error {
	return r.setIdentity(func(to *Identity) error {
		to.BrokerEpoch = epoch
		return nil
	})
}

// SetControllerEpoch remembers the epoch of the controller the broker obeys,
// durably, and refuses one that is lower than an earlier one with
// [ErrOldController].
func (r *Root) SetControllerEpoch(epoch int64) error {
	return r.setIdentity(func(to *Identity) error {
		if epoch < to.HighestControllerEpoch {
			return fmt.Errorf("%w: epoch %d, after %d", ErrOldController, epoch, to.HighestControllerEpoch)
		}
		to.HighestControllerEpoch = epoch
		return nil
	})
}

func (r *Root) setIdentity(change func(*Identity) error) error {
	r.notes.take()
	defer r.notes.give()

	if err := r.usable(); err != nil {
		return err
	}
	return r.setIdentityInTurn(change)
}

func (r *Root) setIdentityInTurn(change func(*Identity) error) error {
	was := r.ID()
	id := was
	if err := change(&id); err != nil || id == was {
		return err
	}
	if err := r.writeNote(identityName, id.encode()); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()

	r.id = id
	return nil
}

// usable returns an error when the root failed or was closed.
func (r *Root) usable() error {
	if err := r.failure.Err(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.closed {
		return ErrClosed
	}
	return nil
}

// snapshot returns the partitions that are open.
func (r *Root) snapshot() map[PartitionID]*openLog {
	r.mu.Lock()
	defer r.mu.Unlock()

	return maps.Clone(r.logs)
}

// Partitions returns the partitions that are on the disk, sorted.
func (r *Root) Partitions() []PartitionDir {
	r.mu.Lock()
	defer r.mu.Unlock()

	return slices.SortedFunc(maps.Values(r.found), func(a, b PartitionDir) int { return comparePartitions(a.ID, b.ID) })
}
