package commitlog

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"sync/atomic"

	"github.com/runnelmq/runnel/internal/vfs"
)

// Defaults of the disk marks.
const (
	defaultReserveBytes = 1 << 30 // but never more than a twentieth of the disk
	defaultBallastBytes = 8 << 20 // but never more than half of what the hard mark keeps
	hardMarkDivisor     = 4       // of the reserve
	markSlackDivisor    = 16      // of a mark: so much above it before it is left again
	ballastChunk        = 1 << 20
)

// DiskState is how full the disk of a data root is.
type DiskState struct {
	// Free and Total are in bytes. Free is what this process may still write.
	Free, Total int64
	// ReserveBytes is the soft mark, in bytes of free space.
	ReserveBytes int64
	// Soft: free space is below the soft mark. Clients' records are to be
	// refused, everything else goes on.
	Soft bool
	// Hard: free space is below the hard mark, or the ballast is spent.
	// Nothing is to be appended; checkpoints, retention, truncation and
	// deletion go on.
	Hard bool
	// Ballast: there is a whole ballast file to fall back on.
	Ballast bool
	// Err says why the free space is not known; the rest is then from the
	// last time it was.
	Err error
}

// A disk watches the file system of a data root, and keeps on it a ballast: a
// file that only takes up room. When the disk is full all the same, the ballast
// is given up, so that checkpoints can be written and files removed.
type disk struct {
	fs      vfs.FS
	dir     string
	failure *Failure
	reserve int64 // as in RootOptions
	ballast int64 // as in RootOptions

	state atomic.Pointer[DiskState]
	turn  turn // serializes what is done to the ballast, and to state
}

func newDisk(fsys vfs.FS, dir string, failure *Failure, reserve, ballast int64) *disk {
	d := &disk{fs: fsys, dir: dir, failure: failure, reserve: reserve, ballast: ballast, turn: newTurn()}
	d.state.Store(&DiskState{})
	return d
}

// marks returns the soft and hard marks and the ballast's size for a disk of
// total bytes.
func (d *disk) marks(total int64) (soft, hard, ballast int64) {
	soft = d.reserve
	if soft == 0 {
		soft = min(defaultReserveBytes, total/20)
	}
	soft = max(soft, 0)
	hard = soft / hardMarkDivisor
	ballast = d.ballast
	if ballast == 0 {
		ballast = defaultBallastBytes
	}
	return soft, hard, min(max(ballast, 0), hard/2)
}

// look measures the free space and judges it.
func (d *disk) look() {
	d.turn.take()
	defer d.turn.give()

	d.lookInTurn()
}

func (d *disk) lookInTurn() {
	was := *d.state.Load()
	free, total, err := d.fs.Free(d.dir)
	if err != nil {
		was.Err = err
		d.state.Store(&was)
		return
	}
	soft, hard, ballast := d.marks(total)
	// Where there is to be a ballast, only a new one ends being below the
	// hard mark.
	isHard := below(free, hard, was.Hard) || (ballast > 0 && was.Hard && !was.Ballast)
	d.state.Store(&DiskState{
		Free: free, Total: total, ReserveBytes: soft,
		Soft:    isHard || below(free, soft, was.Soft),
		Hard:    isHard,
		Ballast: was.Ballast,
	})
}

// below reports whether free space is below a mark. Once it was, it has to
// rise a little above the mark, so that the answer does not flutter.
func below(free, mark int64, was bool) bool {
	if was {
		mark += mark / markSlackDivisor
	}
	return free < mark
}

// keep looks at the disk, and makes the ballast when there is none and there
// is room for it above the soft mark.
func (d *disk) keep() error {
	d.turn.take()
	defer d.turn.give()

	d.lookInTurn()
	st := *d.state.Load()
	soft, _, want := d.marks(st.Total)
	if st.Err != nil || st.Ballast || want == 0 {
		return nil
	}
	path := filepath.Join(d.dir, ballastName)
	info, err := d.fs.Stat(path)
	switch {
	case err == nil && info.IsDir:
		return nil // somebody's, and moved aside by the next start; until then there is no ballast
	case err == nil && info.Size >= want:
		// An earlier start made it.
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case st.Free < soft+want:
		return nil // no room to spare
	default:
		err := d.makeBallast(path, want)
		if vfs.IsTransient(err) {
			return nil // as good as no room; the next look tries again
		}
		if err != nil {
			return d.failure.Set(err)
		}
	}
	st.Ballast = true
	d.state.Store(&st)
	d.lookInTurn()
	return nil
}

// makeBallast writes bytes that no file system can compress away.
func (d *disk) makeBallast(path string, size int64) (err error) {
	f, err := d.fs.OpenOrCreate(path)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil {
			_ = d.fs.Remove(path) // half a ballast only takes up room
		}
	}()

	chunk := make([]byte, min(size, ballastChunk))
	noise := rand.NewChaCha8([32]byte{})
	for at := int64(0); at < size; at += int64(len(chunk)) {
		chunk = chunk[:min(int64(len(chunk)), size-at)]
		_, _ = noise.Read(chunk) // never fails, by its contract
		if _, err := f.WriteAt(chunk, at); err != nil {
			return err
		}
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return d.fs.SyncDir(d.dir)
}

// spend gives the ballast up and reports whether that made room. From then on
// the disk is below its hard mark, until there is a ballast again.
func (d *disk) spend() bool {
	d.turn.take()
	defer d.turn.give()

	st := *d.state.Load()
	path := filepath.Join(d.dir, ballastName)
	info, err := d.fs.Stat(path)
	made := err == nil && info.Size > 0 && d.fs.Remove(path) == nil
	if made {
		// Some file systems hand freed blocks out again only when the
		// removal is on the disk.
		made = d.failure.Check(d.fs.SyncDir(d.dir)) == nil
	}
	st.Soft, st.Hard, st.Ballast = true, true, false
	d.state.Store(&st)
	return made
}

// retry makes a call again when the disk was full and the ballast made room.
func (d *disk) retry(call func() error) error {
	err := call()
	if vfs.IsNoSpace(err) && d.spend() {
		err = call()
	}
	return err
}
