package commitlog

import (
	"errors"
	"io"
	"io/fs"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// indexTailMax is how many entries wait in memory before they are written.
const indexTailMax = 512

// An index finds batches of one segment by offset and by time. Its older
// entries are on the disk and read when they are needed; the latest wait in
// memory. Which batches have an entry is a function of the segment's bytes and
// the interval alone: the first one that begins at least an interval after
// the batch of the entry before. The first batch has none; it is at 0.
//
// The file is a cache: it is believed only as far as its checksums go, and
// made anew otherwise. It is only ever appended to after a truncation was
// synced, so that no stale entry with a right checksum can come back.
type index struct {
	base record.Offset
	file *handle
	// turn is held while the file is changed.
	turn turn

	// state is what readers search. It is replaced under mu.
	state atomic.Pointer[indexState]

	// mu guards changes of state, and the fields below.
	mu sync.Mutex
	// last is where the batch of the latest entry begins, 0 without one.
	last int64
}

// indexState is immutable. A tail only grows beyond the length that a state
// has, so states share their array.
type indexState struct {
	// interval is that of the file once there is one.
	interval int
	// disk counts the entries in the file, tail has those after them.
	disk int
	tail []entry
	// made says that the file is there and has its header.
	made bool
}

func newIndex(fsys vfs.FS, path string, base record.Offset, interval int, idle *IdleFiles) *index {
	x := &index{base: base, file: &handle{fs: fsys, path: path, idle: idle}, turn: newTurn()}
	x.state.Store(&indexState{interval: interval})
	return x
}

// first is where the search begins when no entry helps.
func (x *index) first() entry { return entry{offset: x.base, maxTimestamp: noTimestamp} }

// note offers the batch at pos an entry; maxTimestamp is that of the batches
// before it. Only the log's writer calls it. It reports whether the tail is
// long enough to be written.
func (x *index) note(offset record.Offset, pos, maxTimestamp int64) (full bool) {
	s := x.state.Load()
	if pos-x.last < int64(s.interval) {
		return false
	}
	x.mu.Lock()
	defer x.mu.Unlock()

	s = x.state.Load()
	x.last = pos
	next := *s
	next.tail = append(next.tail, entry{offset, pos, maxTimestamp}) // the states share the array
	x.state.Store(&next)
	return len(next.tail) >= indexTailMax
}

// flush writes the tail, and the header of a new file.
func (x *index) flush() error {
	if s := x.state.Load(); s.made && len(s.tail) == 0 {
		return nil
	}
	x.turn.take()
	defer x.turn.give()

	f, err := x.file.create()
	if x.clear(err) {
		f, err = x.file.create()
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil // the entries stay in memory
	}
	if err != nil {
		return err
	}
	defer x.file.release()

	s := x.state.Load()
	var b []byte
	if !s.made {
		if err := f.Truncate(0); err != nil {
			return err
		}
		b = encodeIndexHeader(x.base, s.interval)
	}
	for _, e := range s.tail {
		b = appendIndexEntry(b, x.base, e)
	}
	if _, err := f.WriteAt(b, s.bytes()); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()

	now := x.state.Load()
	if now.made != s.made || now.disk != s.disk {
		return nil // a reader made the index anew meanwhile
	}
	x.state.Store(&indexState{
		interval: s.interval, disk: s.disk + len(s.tail), tail: now.tail[len(s.tail):], made: true,
	})
	return nil
}

// sync makes the file durable. A file that cannot be opened is left to be made
// anew when it is needed.
func (x *index) sync() error {
	if !x.state.Load().made {
		return nil
	}
	f, err := x.file.acquire()
	if err != nil {
		return nil // it is a cache
	}
	defer x.file.release()
	return f.Sync()
}

// search returns the last entry for which before is true, or the first place
// of the segment. before must be true up to some entry and false after it.
// errBadIndex means that the index must be made anew.
func (x *index) search(before func(entry) bool) (entry, error) {
	s := x.state.Load()
	if len(s.tail) > 0 && before(s.tail[0]) {
		i := sort.Search(len(s.tail), func(i int) bool { return !before(s.tail[i]) })
		return s.tail[i-1], nil
	}
	last, n, err := x.searchFile(s.disk, before)
	if n == 0 {
		last = x.first()
	}
	return last, err
}

// after returns the first entry that begins after pos.
func (x *index) after(pos int64) (e entry, ok bool, err error) {
	s := x.state.Load()
	_, n, err := x.searchFile(s.disk, func(e entry) bool { return e.pos <= pos })
	if err != nil {
		return entry{}, false, err
	}
	if n < s.disk {
		f, err := x.file.acquire()
		if err != nil {
			return entry{}, false, badUnless(err)
		}
		defer x.file.release()

		e, err = readEntry(f, x.base, n)
		return e, err == nil, err
	}
	for _, e := range s.tail {
		if e.pos > pos {
			return e, true, nil
		}
	}
	return entry{}, false, nil
}

// searchBlock is how many entries are read at once when the search has come
// down to that many.
const searchBlock = 128

// searchFile counts the entries in the file, of n, for which before is true,
// and returns the last of them.
func (x *index) searchFile(n int, before func(entry) bool) (last entry, count int, err error) {
	if n == 0 {
		return entry{}, 0, nil
	}
	f, err := x.file.acquire()
	if err != nil {
		return entry{}, 0, badUnless(err)
	}
	defer x.file.release()

	var block []byte // the entries from blockAt on
	blockAt := 0
	lo, hi := 0, n
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if hi-lo <= searchBlock && block == nil {
			block, blockAt = make([]byte, (hi-lo)*indexEntrySize), lo
			got, err := f.ReadAt(block, int64(indexHeaderSize+lo*indexEntrySize))
			if err != nil && !errors.Is(err, io.EOF) {
				return entry{}, 0, badUnless(err)
			}
			block = block[:got]
		}
		var e entry
		if block == nil {
			e, err = readEntry(f, x.base, mid)
		} else {
			e, err = parseIndexEntry(block[min(len(block), (mid-blockAt)*indexEntrySize):], x.base)
		}
		if err != nil {
			return entry{}, 0, err
		}
		if before(e) {
			last, lo = e, mid+1
		} else {
			hi = mid
		}
	}
	return last, lo, nil
}

// readHeader checks the header of a file that was taken over unseen, and
// takes over the interval it was made with.
func (x *index) readHeader() error {
	s := x.state.Load()
	if !s.made {
		return nil
	}
	f, err := x.file.acquire()
	if err != nil {
		return badUnless(err)
	}
	defer x.file.release()

	var b [indexHeaderSize]byte
	n, err := f.ReadAt(b[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return badUnless(err)
	}
	interval, err := parseIndexHeader(b[:n], x.base)
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()

	if x.state.Load() == s {
		next := *s
		next.interval = interval
		x.state.Store(&next)
	}
	return nil
}

func readEntry(f io.ReaderAt, base record.Offset, i int) (entry, error) {
	var b [indexEntrySize]byte
	n, err := f.ReadAt(b[:], int64(indexHeaderSize+i*indexEntrySize))
	if err != nil && !errors.Is(err, io.EOF) {
		return entry{}, badUnless(err)
	}
	return parseIndexEntry(b[:n], base)
}

// badUnless is errBadIndex for an index that cannot be read, whatever the reason:
// it is a cache. It is err where that will pass, or the segment has gone.
func badUnless(err error) error {
	if vfs.IsTransient(err) || errors.Is(err, errGone) {
		return err
	}
	return errBadIndex
}

// clear removes the file if err says that it may not be used. It reports whether
// the file is gone.
func (x *index) clear(err error) bool {
	return errors.Is(err, fs.ErrPermission) && x.file.fs.Remove(x.file.path) == nil
}

// load takes over n entries of the file as they are, the first of them if
// there are more.
func (x *index) load(interval, n int, last int64) {
	x.mu.Lock()
	defer x.mu.Unlock()

	x.last = last
	x.state.Store(&indexState{interval: interval, disk: n, made: true})
}

// replace takes over entries that were made from the segment up to upTo;
// those that the writer has noted after that stay. The file is written by the
// next flush, from its start.
func (x *index) replace(interval int, entries []entry, upTo int64) {
	x.mu.Lock()
	defer x.mu.Unlock()

	for _, e := range x.state.Load().tail {
		if e.pos >= upTo {
			entries = append(entries, e)
		}
	}
	x.last = 0
	if n := len(entries); n > 0 {
		x.last = entries[n-1].pos
	}
	x.state.Store(&indexState{interval: interval, tail: entries})
}

// cut drops the entries of batches that begin at pos or after it, and what the
// file has of them, durably. Only the log's writer calls it, while it
// truncates.
func (x *index) cut(pos int64) error {
	x.turn.take()
	defer x.turn.give()

	s := x.state.Load()
	n := sort.Search(len(s.tail), func(i int) bool { return s.tail[i].pos >= pos })
	next := indexState{interval: s.interval, disk: s.disk, tail: s.tail[:n:n], made: s.made}
	last := int64(0)
	if n > 0 {
		last = s.tail[n-1].pos
	}
	if n == 0 && s.disk > 0 {
		e, count, err := x.searchFile(s.disk, func(e entry) bool { return e.pos < pos })
		if err != nil {
			return err
		}
		next.disk, last = count, e.pos
	}
	x.mu.Lock()
	x.last = last
	x.state.Store(&next)
	x.mu.Unlock()
	return x.shorten(next.bytes())
}

// shorten cuts the file to size bytes, durably, if it is longer. errBadIndex means
// that it is gone and must be made anew.
func (x *index) shorten(size int64) error {
	f, err := x.file.acquire()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if x.clear(err) {
		if size > 0 {
			err = errBadIndex
		} else {
			err = nil
		}
		return err
	}
	if err != nil {
		return err
	}
	defer x.file.release()

	if have, err := f.Size(); err != nil || have <= size {
		return err
	}
	if err := f.Truncate(size); err != nil {
		return err
	}
	return f.Sync()
}

// bytes is the size of the file that s describes.
func (s *indexState) bytes() int64 {
	if !s.made {
		return 0
	}
	return int64(indexHeaderSize + s.disk*indexEntrySize)
}
