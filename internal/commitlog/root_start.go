package commitlog

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"syscall"

	"github.com/google/uuid"

	"github.com/runnelmq/runnel/internal/vfs"
)

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
	// Copied: the directory is a copy of the one that the last process used,
	// and may lack what came after the copy was made.
	Copied bool
	// Why says, for people, why it is neither, or not the better of the two.
	Why string
	// Problems are what was found damaged or unreadable, and got over.
	Problems []error
}

// Trusted reports whether anything vouches for what was not synced.
func (s Start) Trusted() bool { return s.Fresh || s.Clean || s.SameBoot }

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
				return false, fmt.Errorf("make the data directory: %w: the user that runs this must be able to write there", err)
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
	info, err := r.fs.Stat(filepath.Join(r.dir, lockName))
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	r.lockID = info.ID
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
		DirectoryID: directory, BootID: r.boot, LockID: r.lockID,
	}
	r.found = map[PartitionID]PartitionDir{}
	r.unverifiedSaved = map[PartitionID]string{}
	r.start.Fresh = true
	r.settled = true
	// Somebody else may have made the directory just now, and not durably.
	// Where the parent is not ours to sync, nothing can be done about it.
	err = r.fs.SyncDir(filepath.Dir(r.dir))
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS), errors.Is(err, syscall.EINVAL):
		r.start.Problems = append(r.start.Problems, err)
	case err != nil:
		return fmt.Errorf("data directory: %w", err)
	}
	if err := r.writeNote(identityName, r.id.encode()); err != nil {
		return err
	}
	return r.makeList()
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
	if err := r.loadList(); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	err = r.settleInTurn()
	if err == nil && r.list == nil {
		err = r.makeList()
	}
	if vfs.IsNoSpace(err) {
		// The evidence stays as it is, and serves the next start as well.
		r.start.Problems = append(r.start.Problems, err)
	} else if err != nil {
		return err
	}
	// From here on this process is the one that has to end in order.
	return r.removeNote(markerName)
}

// settleInTurn writes down what is known of the last process's end for each
// partition, and only then changes the files that told it. It is made again
// until it succeeds: on a full disk the root starts all the same.
func (r *Root) settleInTurn() error {
	if r.settled {
		return nil
	}
	if err := r.saveUnverifiedInTurn(); err != nil {
		return err
	}
	if r.listDoubted {
		if err := r.removeNote(listName); err != nil {
			return err
		}
	}
	err := r.setIdentityInTurn(func(to *Identity) error {
		to.BootID, to.LockID = r.boot, r.lockID
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
	r.settled = true
	return nil
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
	s.Copied = r.lockID != "" && r.id.LockID != "" && r.lockID != r.id.LockID
	switch {
	case failed != "":
		s.Clean, s.BrokerEpoch = false, 0
		r.hadFailed = true
		s.Why = "the disk failed: " + failed
	case s.Copied:
		s.Why = "not shut down in order before the directory was copied"
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
	return nil
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
