package commitlog

import (
	"container/list"
	"errors"
	"sync"

	"github.com/runnelmq/runnel/internal/vfs"
)

// errGone says that a segment was removed; its reader looks at the log anew.
var errGone = errors.New("the segment was removed")

// A handle is a file that is opened when it is used, and that may be unlinked
// while it is used.
type handle struct {
	fs   vfs.FS
	path string
	idle *IdleFiles
	// place is where it is among the idle files, guarded by theirs.
	place *list.Element

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
	h.idle.remove(h)
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

// IdleFiles bounds how many files stay open that nobody uses at the moment:
// sealed segments that were read lately, and indexes. Logs may share one.
type IdleFiles struct {
	limit int

	// mu guards the fields below. It is never held while a handle's is taken.
	mu      sync.Mutex
	handles list.List // of *handle, least recently used first
}

// NewIdleFiles returns a bound of limit files.
func NewIdleFiles(limit int) *IdleFiles { return &IdleFiles{limit: limit} }

func (s *IdleFiles) add(h *handle) {
	s.mu.Lock()
	if h.place != nil {
		s.handles.MoveToBack(h.place)
	} else {
		h.place = s.handles.PushBack(h)
	}
	var victim *handle
	if s.handles.Len() > s.limit {
		victim = s.takeLocked(s.handles.Front())
	}
	s.mu.Unlock()

	if victim != nil {
		victim.closeIfIdle()
	}
}

func (s *IdleFiles) takeLocked(e *list.Element) *handle {
	h, _ := s.handles.Remove(e).(*handle)
	h.place = nil
	return h
}

func (s *IdleFiles) remove(h *handle) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if h.place != nil {
		s.takeLocked(h.place)
	}
}

// closeAll closes all of them that are not in use again.
func (s *IdleFiles) closeAll() {
	s.mu.Lock()
	var all []*handle
	for s.handles.Len() > 0 {
		all = append(all, s.takeLocked(s.handles.Front()))
	}
	s.mu.Unlock()

	for _, h := range all {
		h.closeIfIdle()
	}
}
