package commitlog

import (
	"errors"
	"fmt"
	"sync"

	"github.com/runnelmq/runnel/internal/vfs"
)

// ErrFailed is the mark of a data root whose disk failed: nothing more is
// written to it or answered from it, and the process must end. The next start
// judges what is left.
var ErrFailed = errors.New("the data root's disk failed")

// Failure is the latch that all logs of a data root share: the first disk
// error sets it, and nothing unsets it. The zero value is not usable; see
// [NewFailure].
//
// Which call for which error: [Failure.Set] for a failed sync, whatever the
// error, because what the sync covered may be lost; [Failure.Check] for a
// write, truncation, rename, creation or removal, where a full disk or a lack
// of file descriptors only means that this call did nothing, or not all.
type Failure struct {
	done chan struct{}

	// mu guards the fields below.
	mu  sync.Mutex
	err error
}

// NewFailure returns a latch that is not set.
func NewFailure() *Failure { return &Failure{done: make(chan struct{})} }

// Set fails the root with err, unless err is nil or the root failed before,
// and returns err marked with [ErrFailed].
func (f *Failure) Set(err error) error {
	if err == nil {
		return nil
	}
	if !errors.Is(err, ErrFailed) {
		err = fmt.Errorf("%w: %w", ErrFailed, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()

	if f.err == nil {
		f.err = err
		close(f.done)
	}
	return err
}

// Check fails the root with err, unless err is nil or only says that the disk
// is full or that file descriptors ran out ([vfs.IsTransient]). It returns err,
// marked with [ErrFailed] when it failed the root.
func (f *Failure) Check(err error) error {
	if err == nil || vfs.IsTransient(err) {
		return err
	}
	return f.Set(err)
}

// Err returns what the root failed of, marked with [ErrFailed]; nil while it
// has not.
func (f *Failure) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()

	return f.err
}

// Done is closed when the root fails.
func (f *Failure) Done() <-chan struct{} { return f.done }
