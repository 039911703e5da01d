package commitlog

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// A readError is the disk's refusal to give bytes of a segment back.
type readError struct {
	pos int64
	err error
}

// Error implements error.
func (e *readError) Error() string { return fmt.Sprintf("read at byte %d: %v", e.pos, e.err) }

// Unwrap returns what the disk said.
func (e *readError) Unwrap() error { return e.err }

// unread is a segment that can't be opened, though it is there or should be.
type unread struct {
	segment *segment
	offsets Range
	err     error
}

// unopened says what it means that the file of segment i can't be opened:
// somebody else removed it or keeps it, or the disk is damaged there. All of the
// segment can't be read then, until it can be opened again.
func (l *Log) unopened(err error, v *view, i int) error {
	if errors.Is(err, errGone) || vfs.IsTransient(err) {
		return err
	}
	what := "it can't be opened"
	if errors.Is(err, fs.ErrNotExist) {
		what = "the file is missing"
	}
	next := l.End()
	if i+1 < len(v.segments) {
		next = v.segments[i+1].base
	}
	base := max(v.segments[i].base, v.start)
	return &CorruptError{Path: v.segments[i].file.path, Offset: base, NextOffset: max(next, base), What: what, Err: err, segment: v.segments[i]}
}

// unreadable is the error for a place of segment i that the disk does not give
// back, at or after which offset should be; any other error is returned as it is.
func (l *Log) unreadable(err error, v *view, i int, offset record.Offset) error {
	r, ok := errors.AsType[*readError](err)
	if !ok {
		return err
	}
	c := l.corruptError(v, i, r.pos, offset, "the disk does not give it back")
	c.Err = r.err
	return c
}

// Unopened returns why a segment can't be opened, nil when all of them could be
// when they were last tried. Their offsets are among those of [Log.Damage].
func (l *Log) Unopened() error {
	l.mu.Lock()
	defer l.mu.Unlock()

	if len(l.closedOff) == 0 {
		return nil
	}
	return l.closedOff[0].err
}

// Reopen tries to open the segments again that could not be opened, so that one
// whose file was given back does not count as damaged any more.
func (l *Log) Reopen() {
	l.mu.Lock()
	tries := slices.Clone(l.closedOff)
	l.mu.Unlock()

	segments := l.view.Load().segments
	for _, u := range tries {
		_, err := u.segment.file.acquire()
		if err == nil {
			u.segment.file.release()
		}
		if err != nil && slices.Contains(segments, u.segment) {
			continue
		}
		l.mu.Lock()
		l.closedOff = slices.DeleteFunc(l.closedOff, func(o unread) bool { return o.segment == u.segment })
		l.mu.Unlock()
	}
}

// unlearned is the error of a segment i whose times can't be made known.
func (l *Log) unlearned(err error, v *view, i int) error {
	if errors.As(err, new(*readError)) {
		return l.unreadable(err, v, i, max(v.segments[i].base, v.start))
	}
	return l.unopened(err, v, i)
}
