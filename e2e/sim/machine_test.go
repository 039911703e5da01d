package sim

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/runnelmq/runnel/controller/store"
	"github.com/runnelmq/runnel/internal/vfs"
)

// errDead is what a process gets of its disk, or of the metadata store, after
// it was killed: it goes on running here, and nothing it does has an effect.
var errDead = errors.New("sim: this process was killed")

// errIO is what a broken disk says.
var errIO = &os.PathError{Op: "sync", Path: "a log", Err: syscall.EIO}

// A disk is a file system as one process has it: after its death nothing
// reaches it any more.
type disk struct {
	mem *vfs.Mem
	// slow is how long a sync takes.
	slow time.Duration
	// died is closed with the process.
	died chan struct{}

	// mu makes a process's death one moment. It is held over calls of mem,
	// which never wait.
	mu   sync.RWMutex
	dead bool

	trouble trouble
}

var _ vfs.FS = (*disk)(nil)

// A trouble is what is wrong with a disk at present.
type trouble struct {
	// mu guards the fields below
	mu sync.Mutex

	hangs  int           // how many reasons there are for it to hang
	goOn   chan struct{} // closed when there are none any more
	err    error         // of whatever changes a log file; nil: none
	failed time.Time     // when that was first told; zero: not yet
}

// hang makes all that changes files wait until the returned function is called.
func (d *disk) hang() (goOn func()) {
	d.trouble.mu.Lock()
	defer d.trouble.mu.Unlock()
	if d.trouble.hangs == 0 {
		d.trouble.goOn = make(chan struct{})
	}
	d.trouble.hangs++
	return sync.OnceFunc(func() {
		d.trouble.mu.Lock()
		defer d.trouble.mu.Unlock()
		if d.trouble.hangs--; d.trouble.hangs == 0 {
			close(d.trouble.goOn)
		}
	})
}

// fail makes all that changes log files fail from now on; nil: no more.
func (d *disk) fail(err error) {
	d.trouble.mu.Lock()
	defer d.trouble.mu.Unlock()
	d.trouble.err = err
}

// failing says whether the disk is to fail, whether that was met or not.
func (d *disk) failing() bool {
	d.trouble.mu.Lock()
	defer d.trouble.mu.Unlock()
	return d.trouble.err != nil || !d.trouble.failed.IsZero()
}

// failedAt returns when the disk first failed a call, zero when it has not.
func (d *disk) failedAt() time.Time {
	d.trouble.mu.Lock()
	defer d.trouble.mu.Unlock()
	return d.trouble.failed
}

// change is what a call that changes a file meets first.
func (d *disk) change(name string) error {
	d.trouble.mu.Lock()
	hangs, goOn := d.trouble.hangs > 0, d.trouble.goOn
	d.trouble.mu.Unlock()
	if hangs {
		select {
		case <-goOn:
		case <-d.died:
		}
	}
	d.trouble.mu.Lock()
	defer d.trouble.mu.Unlock()
	if d.trouble.err == nil || !strings.HasSuffix(name, ".log") {
		return nil
	}
	if d.trouble.failed.IsZero() {
		d.trouble.failed = time.Now()
	}
	return d.trouble.err
}

// kill ends the process. What it wrote is there for the next one.
func (d *disk) kill() *vfs.Mem {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dieLocked()
	d.mem.Kill()
	return d.mem
}

// powerCut ends the machine, and returns what its disk holds afterwards: keep
// of a hundred writes that were not synced.
func (d *disk) powerCut(rng *rand.Rand, keep int) *vfs.Mem {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dieLocked()
	after := d.mem.CrashClone(rng, vfs.CrashOptions{KeepUnsyncedPercent: keep, TornSectors: keep > 0 && rng.IntN(2) == 0})
	d.mem.Kill()
	return after
}

func (d *disk) dieLocked() {
	if !d.dead {
		d.dead = true
		close(d.died)
	}
}

func alive[T any](d *disk, fn func(*vfs.Mem) (T, error)) (T, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.dead {
		var zero T
		return zero, errDead
	}
	return fn(d.mem)
}

func aliveErr(d *disk, fn func(*vfs.Mem) error) error {
	_, err := alive(d, func(m *vfs.Mem) (struct{}, error) { return struct{}{}, fn(m) })
	return err
}

// A file takes its time to sync, and shares the trouble of its disk.
type file struct {
	vfs.File

	disk *disk
}

// Sync implements vfs.File.
func (f file) Sync() error {
	time.Sleep(f.disk.slow)
	if err := f.disk.change(f.Name()); err != nil {
		return err
	}
	return f.File.Sync()
}

// WriteAt implements vfs.File.
func (f file) WriteAt(b []byte, off int64) (int, error) {
	if err := f.disk.change(f.Name()); err != nil {
		return 0, err
	}
	return f.File.WriteAt(b, off)
}

// Truncate implements vfs.File.
func (f file) Truncate(size int64) error {
	if err := f.disk.change(f.Name()); err != nil {
		return err
	}
	return f.File.Truncate(size)
}

func (d *disk) file(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return f, err
	}
	return file{f, d}, nil
}

func (d *disk) Open(name string) (vfs.File, error) {
	return d.file(alive(d, func(m *vfs.Mem) (vfs.File, error) { return m.Open(name) }))
}

func (d *disk) Create(name string) (vfs.File, error) {
	return d.file(alive(d, func(m *vfs.Mem) (vfs.File, error) { return m.Create(name) }))
}

func (d *disk) OpenOrCreate(name string) (vfs.File, error) {
	return d.file(alive(d, func(m *vfs.Mem) (vfs.File, error) { return m.OpenOrCreate(name) }))
}

func (d *disk) Remove(name string) error {
	return aliveErr(d, func(m *vfs.Mem) error { return m.Remove(name) })
}

func (d *disk) RemoveAll(name string) error {
	return aliveErr(d, func(m *vfs.Mem) error { return m.RemoveAll(name) })
}

func (d *disk) Rename(oldName, newName string) error {
	return aliveErr(d, func(m *vfs.Mem) error { return m.Rename(oldName, newName) })
}

func (d *disk) MkdirAll(name string) error {
	return aliveErr(d, func(m *vfs.Mem) error { return m.MkdirAll(name) })
}

func (d *disk) ReadDir(name string) ([]vfs.DirEntry, error) {
	return alive(d, func(m *vfs.Mem) ([]vfs.DirEntry, error) { return m.ReadDir(name) })
}

func (d *disk) Stat(name string) (vfs.Info, error) {
	return alive(d, func(m *vfs.Mem) (vfs.Info, error) { return m.Stat(name) })
}

func (d *disk) SyncDir(name string) error {
	return aliveErr(d, func(m *vfs.Mem) error { return m.SyncDir(name) })
}

func (d *disk) Lock(name string) (io.Closer, error) {
	return alive(d, func(m *vfs.Mem) (io.Closer, error) { return m.Lock(name) })
}

func (d *disk) Free(name string) (free, total int64, err error) {
	err = aliveErr(d, func(m *vfs.Mem) error { free, total, err = m.Free(name); return err })
	return free, total, err
}

// A link to the metadata store, of one controller.
type storeLink struct {
	kv   store.KV
	ctx  context.Context // done when the process is dead
	kill context.CancelFunc
	// hold says whether the way to the store is cut, and what is closed when
	// that may have changed.
	hold func() (bool, <-chan struct{})
	// slow is how long the way takes, there and back each.
	slow time.Duration
}

func newStoreLink(kv store.KV, n *network, host string, slow time.Duration) *storeLink {
	ctx, cancel := context.WithCancel(context.Background())
	return &storeLink{kv: kv, ctx: ctx, kill: cancel, slow: slow, hold: func() (bool, <-chan struct{}) {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.cuts[link{host, storeHost}] > 0, n.changed
	}}
}

// pass waits while the store can't be reached.
func (s *storeLink) pass(ctx context.Context) error {
	for {
		held, changed := s.hold()
		switch {
		case s.ctx.Err() != nil:
			return errDead
		case ctx.Err() != nil:
			return ctx.Err()
		case !held:
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
		case <-s.ctx.Done():
		}
	}
}

// through calls fn when the store can be reached.
func through[T any](ctx context.Context, s *storeLink, fn func() (T, error)) (T, error) {
	if err := s.pass(ctx); err != nil {
		var zero T
		return zero, err
	}
	time.Sleep(s.slow)
	v, err := fn()
	time.Sleep(s.slow)
	return v, err
}

func (s *storeLink) Range(ctx context.Context, from, to string, limit int, rev int64) (store.Page, error) {
	return through(ctx, s, func() (store.Page, error) { return s.kv.Range(ctx, from, to, limit, rev) })
}

func (s *storeLink) Read(ctx context.Context, keys []string) (store.Page, error) {
	return through(ctx, s, func() (store.Page, error) { return s.kv.Read(ctx, keys) })
}

func (s *storeLink) Txn(ctx context.Context, cmps []store.Compare, writes []store.Write) (store.TxnResult, error) {
	return through(ctx, s, func() (store.TxnResult, error) { return s.kv.Txn(ctx, cmps, writes) })
}

func (s *storeLink) Watch(ctx context.Context, prefix string, from int64, fn func([]store.Event) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	_, err := through(ctx, s, func() (struct{}, error) {
		return struct{}{}, s.kv.Watch(ctx, prefix, from, func(events []store.Event) error {
			if err := s.pass(ctx); err != nil {
				return err
			}
			return fn(events)
		})
	})
	return err
}

func (s *storeLink) Grant(ctx context.Context, ttl time.Duration) (store.LeaseID, error) {
	return through(ctx, s, func() (store.LeaseID, error) { return s.kv.Grant(ctx, ttl) })
}

func (s *storeLink) KeepAlive(ctx context.Context, id store.LeaseID) error {
	_, err := through(ctx, s, func() (struct{}, error) { return struct{}{}, s.kv.KeepAlive(ctx, id) })
	return err
}

func (s *storeLink) Revoke(ctx context.Context, id store.LeaseID) error {
	_, err := through(ctx, s, func() (struct{}, error) { return struct{}{}, s.kv.Revoke(ctx, id) })
	return err
}
