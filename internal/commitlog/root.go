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
	"time"

	"github.com/google/uuid"

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
	boot    string // of the machine now
	start   Start
	// notes serializes the writing of the root's own small files.
	notes turn

	// mu guards the fields below.
	mu         sync.Mutex
	id         Identity
	found      map[PartitionID]PartitionDir // on the disk at the start, and since
	strays     []Stray                      // entries that are neither topic nor ours
	leftovers  []string                     // removed topics whose files may still be there
	quarantine []Quarantined
	logs       map[PartitionID]*openLog
	closed     bool

	// unverified are the partitions for which this start does not speak, but
	// at best the boot that is named: see readUnverified. unverifiedSaved is
	// what the file has.
	unverified      map[PartitionID]string
	unverifiedSaved map[PartitionID]string
}

// Start says what a root found when it was opened, for the judgement of
// PROTOCOL §3.3 on what its logs hold.
type Start struct {
	// Fresh: the directory is new, and empty.
	Fresh bool
	// Clean: the last process closed the root in order, in the session of
	// BrokerEpoch. It counts only if that was the broker's last epoch.
	Clean       bool
	BrokerEpoch int64
	// SameBoot: the machine has not been restarted since the files were known
	// to be whole, and no disk error was seen: what the last process wrote is
	// there, synced or not.
	SameBoot bool
	// Why says, for people, why it is neither, or not the better of the two.
	Why string
	// Problems are what was found damaged or unreadable, and got over.
	Problems []error
}

// Trusted reports whether anything vouches for what was not synced.
func (s Start) Trusted() bool { return s.Fresh || s.Clean || s.SameBoot }

// openLog is a partition that is open, or being opened, closed or removed.
type openLog struct {
	// turn is held while the log is opened, closed, or worked on in the
	// background; it guards log.
	turn turn
	log  *Log // nil: not open yet, or not any more

	flushDue time.Time // of the flusher alone
}

// OpenRoot opens the data directory dir, and makes it first when it is missing
// or empty. When it returns, the directory is locked and known to be this
// broker's, and the clean marker is durably gone. It opens no log.
func OpenRoot(fsys vfs.FS, dir string, opts RootOptions) (*Root, error) {
	r := &Root{
		dir: dir, opts: opts.withDefaults(), failure: NewFailure(), notes: newTurn(),
		logs: map[PartitionID]*openLog{}, unverified: map[PartitionID]string{},
	}
	r.disk = newDisk(fsys, dir, r.failure, opts.ReserveBytes, opts.BallastBytes)
	r.fs = ballastFS{fsys, r.disk}

	fresh, err := r.acquire()
	if err != nil {
		return nil, err
	}
	if err := r.load(fresh); err != nil {
		return nil, errors.Join(err, r.lock.Close())
	}
	return r, nil
}

// acquire locks the directory, without touching one that is somebody else's,
// and reports whether it is to be made a data root first.
func (r *Root) acquire() (fresh bool, err error) {
	_, err = r.fs.Stat(filepath.Join(r.dir, identityName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("data directory: %w", err)
	}
	if err != nil {
		exists, err := checkFresh(r.fs, r.dir)
		if err != nil {
			return false, err
		}
		if !exists {
			if err := vfs.MkdirAllSynced(r.fs, r.dir); err != nil {
				return false, fmt.Errorf("make the data directory: %w", err)
			}
		}
	}
	lock, err := r.fs.Lock(filepath.Join(r.dir, lockName))
	if errors.Is(err, vfs.ErrLocked) {
		return false, fmt.Errorf("%w: another process holds %s: stop it, or give another directory",
			ErrInUse, filepath.Join(r.dir, lockName))
	}
	if err != nil {
		return false, fmt.Errorf("data directory: %w", err)
	}
	r.lock = lock

	// Another process may have made it a data root before it let go.
	_, err = r.fs.Stat(filepath.Join(r.dir, identityName))
	if errors.Is(err, fs.ErrNotExist) {
		_, err = checkFresh(r.fs, r.dir)
		fresh = true
	}
	if err != nil {
		return false, errors.Join(err, lock.Close())
	}
	return fresh, nil
}

// load reads what the root says of itself, and takes the clean marker away.
func (r *Root) load(fresh bool) error {
	boot, err := r.opts.BootID()
	if err != nil {
		r.start.Problems = append(r.start.Problems, err)
		boot = ""
	}
	r.boot = boot
	if fresh {
		err = r.make()
	} else {
		err = r.adopt()
	}
	if err != nil {
		return err
	}
	r.disk.look()
	return nil
}

// make turns an empty directory into a data root.
func (r *Root) make() error {
	directory, err := uuid.NewRandom()
	if err != nil {
		return fmt.Errorf("make a directory id: %w", err)
	}
	r.id = Identity{
		ClusterID: r.opts.ClusterID, BrokerID: r.opts.BrokerID,
		DirectoryID: directory, BootID: r.boot,
	}
	r.found = map[PartitionID]PartitionDir{}
	r.start.Fresh = true
	return r.writeNote(identityName, r.id.encode())
}

// adopt takes an existing data root over from the process before. The order
// matters: what is known of the last process's end is written down for each
// partition before the files that told it change.
func (r *Root) adopt() error {
	id, err := readIdentity(r.fs, r.dir)
	if err != nil {
		if errors.Is(err, ErrDamaged) {
			err = fmt.Errorf("%w: put the file back from a copy, or give the broker an empty directory and let it catch up", err)
		}
		return err
	}
	if err := id.checkOwner(r.dir, r.opts.ClusterID, r.opts.BrokerID); err != nil {
		return err
	}
	r.id = id
	if err := r.scan(); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	if err := r.judge(); err != nil {
		return err
	}
	if err := r.inherit(); err != nil {
		return err
	}
	err = r.setIdentityInTurn(func(to *Identity) error {
		to.BootID = r.boot
		if to.ClusterID == "" {
			to.ClusterID = r.opts.ClusterID
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := r.removeNote(failedName); err != nil {
		return err
	}
	// From here on this process is the one that has to end in order.
	return r.removeNote(markerName)
}

// judge finds out how the last process ended.
func (r *Root) judge() error {
	s := &r.start
	m, err := readMarker(r.fs, r.dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case errors.Is(err, ErrDamaged):
		s.Problems = append(s.Problems, err)
	case err != nil:
		return err
	case m.directory == r.id.DirectoryID:
		s.Clean, s.BrokerEpoch = true, m.brokerEpoch
	}
	failed, err := readFailed(r.fs, r.dir)
	if err != nil {
		return err
	}
	switch {
	case failed != "":
		s.Clean, s.BrokerEpoch = false, 0
		s.Why = "the disk failed: " + failed
	case r.opts.DistrustPageCache:
		s.Why = "not shut down in order, and trust.page.cache is off"
	case r.boot == "" || r.id.BootID == "":
		s.Why = "not shut down in order, and the machine does not say whether it was restarted"
	case r.boot != r.id.BootID:
		s.Why = "not shut down in order, and the machine was restarted since"
	default:
		s.SameBoot = true
		s.Why = "not shut down in order"
	}
	if s.Clean {
		s.Why = ""
	}
	return nil
}

// inherit enters in the list of unverified partitions all those for which no
// clean marker speaks, with the boot that does, if one does. A partition
// leaves the list when it was opened.
func (r *Root) inherit() error {
	old, err := readUnverified(r.fs, r.dir)
	if errors.Is(err, ErrDamaged) {
		// Without the list nothing is vouched for.
		r.start.Problems = append(r.start.Problems, err)
		r.start.Clean, r.start.SameBoot, r.start.BrokerEpoch = false, false, 0
		r.start.Why = err.Error()
	} else if err != nil {
		return err
	}
	boot := ""
	if r.start.SameBoot {
		boot = r.boot
	}
	for id := range r.found {
		was, listed := old[id]
		switch {
		case listed && (r.start.Clean || r.start.SameBoot):
			r.unverified[id] = was
		case !r.start.Clean:
			r.unverified[id] = boot
		}
	}
	r.unverifiedSaved = old
	return r.saveUnverifiedInTurn()
}

// saveUnverifiedInTurn writes the list of unverified partitions if it changed.
func (r *Root) saveUnverifiedInTurn() error {
	r.mu.Lock()
	now := maps.Clone(r.unverified)
	saved := r.unverifiedSaved
	r.mu.Unlock()

	if saved != nil && maps.Equal(now, saved) {
		return nil
	}
	var err error
	if len(now) == 0 {
		err = r.removeNote(unverifiedName)
	} else {
		err = r.writeNote(unverifiedName, encodeUnverified(now))
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()

	r.unverifiedSaved = now
	return nil
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

	return r.setIdentityInTurn(change)
}

func (r *Root) setIdentityInTurn(change func(*Identity) error) error {
	was := r.ID()
	id := was
	if err := change(&id); err != nil || id == was {
		return err
	}
	if err := r.usable(); err != nil {
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

// StartOf says what speaks for what a partition held unsynced when the last
// process to write it ended: this start, or, when it was not opened since one
// before, what is left of that one.
func (r *Root) StartOf(id PartitionID) Start {
	s := r.start
	r.mu.Lock()
	boot, listed := r.unverified[id]
	r.mu.Unlock()

	if !listed || (!s.Clean && s.SameBoot && boot == r.boot) {
		return s
	}
	s.Clean, s.BrokerEpoch = false, 0
	s.SameBoot = s.SameBoot && boot != "" && boot == r.boot
	if s.Why == "" {
		s.Why = "not opened since a start that was not a clean one"
	}
	return s
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
