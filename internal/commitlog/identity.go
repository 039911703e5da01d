package commitlog

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/google/uuid"

	"github.com/runnelmq/runnel/internal/vfs"
)

// Names of what lies at the top of a data root, beside the topics.
const (
	lockName       = "lock"
	identityName   = "runnel.id"
	markerName     = "runnel.clean"
	failedName     = "runnel.failed"
	unverifiedName = "runnel.unverified"
	ballastName    = "runnel.ballast"
)

// ErrForeign is the mark of a data directory that is another cluster's,
// another broker's, or no data root at all.
var ErrForeign = errors.New("the data directory belongs to something else")

// Identity says whose a data root is. It is kept in the file runnel.id.
type Identity struct {
	// ClusterID names the cluster; "" until the broker first learnt it.
	ClusterID string
	// BrokerID is the broker's number.
	BrokerID int32
	// DirectoryID is made with the directory and never changes: an emptied
	// directory gets another one.
	DirectoryID uuid.UUID
	// BootID is the run of the machine in which the root was last opened. ""
	// when the machine does not tell.
	BootID string
	// HighestControllerEpoch is that of the newest controller the broker
	// ever heard of; it obeys no older one.
	HighestControllerEpoch int64
	// BrokerEpoch is that of the last process that was registered while it had
	// the root; 0 before the first. A copy of an earlier time has a lower one
	// than the cluster remembers.
	BrokerEpoch int64
	// LockID is the file system's name for the root's lock file, which is never
	// replaced: a copy of the root has another one. "" when it does not say.
	LockID string
}

func readIdentity(fsys vfs.FS, dir string) (Identity, error) {
	path := filepath.Join(dir, identityName)
	n, err := readNote(fsys, path, identityName,
		"cluster_id", "broker_id", "directory_id", "boot_id", "controller_epoch", "broker_epoch", "lock_id")
	if err != nil {
		return Identity{}, err
	}
	r := noteReader{path: path, note: n}
	id := Identity{
		ClusterID:              r.string(0),
		BrokerID:               int32(r.int(1, 32)), //nolint:gosec // parsed as 32 bits
		BootID:                 r.string(3),
		HighestControllerEpoch: r.int(4, 64),
		BrokerEpoch:            r.int(5, 64),
		LockID:                 r.string(6),
	}
	if id.DirectoryID, err = uuid.Parse(r.string(2)); err != nil {
		r.fail(n.pairs[2], "a UUID")
	}
	return id, r.err
}

func (id Identity) encode() []byte {
	n := note{kind: identityName}
	n.addString("cluster_id", id.ClusterID)
	n.addInt("broker_id", int64(id.BrokerID))
	n.addString("directory_id", id.DirectoryID.String())
	n.addString("boot_id", id.BootID)
	n.addInt("controller_epoch", id.HighestControllerEpoch)
	n.addInt("broker_epoch", id.BrokerEpoch)
	n.addString("lock_id", id.LockID)
	return n.encode()
}

// checkOwner refuses a directory of another cluster or broker.
func (id Identity) checkOwner(dir, cluster string, broker int32) error {
	if id.ClusterID != "" && cluster != "" && id.ClusterID != cluster {
		return fmt.Errorf("%w: %s is of cluster %q, and this broker is of cluster %q: give the right data directory, or the controllers of its cluster",
			ErrForeign, dir, id.ClusterID, cluster)
	}
	if id.BrokerID != broker {
		return fmt.Errorf("%w: %s is of broker %d, and this is broker %d: give the right data directory or the right broker id",
			ErrForeign, dir, id.BrokerID, broker)
	}
	return nil
}

// checkFresh refuses to make a data root of a directory that holds anything:
// it may be somebody else's, or the place where the broker's file system
// should be mounted. It reports whether dir exists.
func checkFresh(fsys vfs.FS, dir string) (exists bool, err error) {
	entries, err := fsys.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("data directory: %w", err)
	}
	// What a start that was cut off, or a fresh file system, leaves behind.
	ours := []string{lockName, identityName + vfs.TempSuffix, "lost+found"}
	for _, e := range entries {
		if !slices.Contains(ours, e.Name) {
			return true, fmt.Errorf("%w: %s has no file %s but is not empty (it holds %q): is the expected file system mounted? Give an empty directory or the broker's own",
				ErrForeign, dir, identityName, e.Name)
		}
	}
	return true, nil
}
