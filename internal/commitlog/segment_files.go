package commitlog

import (
	"errors"
	"sync"

	"github.com/runnelmq/runnel/internal/vfs"
)

// idleFiles is how many files that nobody uses a log keeps open: sealed
// segments and indexes that were read lately.
const idleFiles = 4

// errGone says that a segment was removed; its reader looks at the log anew.
var errGone = errors.New("the segment was removed")

// A handle is a file that is opened when it is used, and that may be unlinked
// while it is used.
type handle struct {
	fs   vfs.FS
	path string
	idle *idleSet

	// mu guards the fields below.
	mu    sync.Mutex
	file  vfs.File // nil: closed
	users int
	gone  bool // no new users
}

// acquire opens the file unless it is open. The caller must release it.
func (h *handle) acquire() (vfs.File, error) { return h.open(h.fs.Open) }

// create is acquire for a file that there may not be yet.
func (h *handle) create() (vfs.File, error) { return h.open(h.fs.OpenOrCreate) }

func (h *handle) open(open func(string) (vfs.File, error)) (vfs.File, error) {
	h.mu.Lock()
	if h.gone {
		h.mu.Unlock()
		return nil, errGone
	}
	if h.file != nil {
		h.users++
		defer h.mu.Unlock()
		return h.file, nil
	}
	h.mu.Unlock()

	// Not under the lock: opening may take long. Of two that open the file at
	// once the second one closes its own.
	f, err := open(h.path)
	if vfs.IsTooManyFiles(err) {
		h.idle.closeAll()
		f, err = open(h.path)
	}
	h.mu.Lock()
	if h.gone {
		err = errGone
	}
	if err != nil {
		h.mu.Unlock()
		if f != nil {
			_ = f.Close() // nothing was written through it
		}
		return nil, err
	}
	other := h.file
	if other == nil {
		h.file = f
	}
	h.users++
	f, mine := h.file, f
	h.mu.Unlock()
	if other != nil {
		_ = mine.Close() // nothing was written through it
	}
	return f, nil
}

// adopt makes f, which was opened by another name, the handle's file, in use by
// the caller.
func (h *handle) adopt(f vfs.File) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.file, h.users = f, 1
}

// release gives up what acquire returned.
func (h *handle) release() {
	h.mu.Lock()
	h.users--
	var drop vfs.File
	if h.users == 0 && h.gone {
		drop, h.file = h.file, nil
	}
	idle := h.users == 0 && !h.gone
	h.mu.Unlock()

	closeUnused(drop)
	if idle {
		h.idle.add(h)
	}
}

// retire refuses new users. The file is closed when the last one leaves.
func (h *handle) retire() {
	h.mu.Lock()
	h.gone = true
	var drop vfs.File
	if h.users == 0 {
		drop, h.file = h.file, nil
	}
	h.mu.Unlock()
	closeUnused(drop)
}

// closeIfIdle closes the file unless it is used.
func (h *handle) closeIfIdle() {
	h.mu.Lock()
	var drop vfs.File
	if h.users == 0 {
		drop, h.file = h.file, nil
	}
	h.mu.Unlock()
	closeUnused(drop)
}

// closeUnused closes a file that is durable already or need not be: an error
// of it says nothing.
func closeUnused(f vfs.File) {
	if f != nil {
		_ = f.Close()
	}
}

// An idleSet bounds how many files stay open without a user.
type idleSet struct {
	// mu guards the fields below. It is never held while a handle's is taken.
	mu      sync.Mutex
	handles []*handle // least recently used first
}

func (s *idleSet) add(h *handle) {
	s.mu.Lock()
	for i, other := range s.handles {
		if other == h {
			s.handles = append(s.handles[:i], s.handles[i+1:]...)
			break
		}
	}
	s.handles = append(s.handles, h)
	var victim *handle
	if len(s.handles) > idleFiles {
		victim = s.handles[0]
		s.handles = append(s.handles[:0], s.handles[1:]...)
	}
	s.mu.Unlock()

	if victim != nil {
		victim.closeIfIdle()
	}
}

func (s *idleSet) closeAll() {
	s.mu.Lock()
	all := s.handles
	s.handles = nil
	s.mu.Unlock()

	for _, h := range all {
		h.closeIfIdle()
	}
}
