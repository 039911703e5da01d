package commitlog

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/runnelmq/runnel/internal/record"
)

// Errors of a [Log]. See also [ErrFailed].
var (
	// ErrClosed is returned by a log that was closed.
	ErrClosed = errors.New("the log is closed")
	// ErrCorrupt is the mark of damaged bytes: they are not served. The error
	// is a [CorruptError].
	ErrCorrupt = errors.New("the log is damaged")
	// ErrOutOfRange is the mark of an offset that the log does not have. The
	// error is a [RangeError].
	ErrOutOfRange = errors.New("offset out of range")
	// ErrShortBuffer is the mark of a buffer that the first frame does not
	// fit into. The error is a [ShortBufferError].
	ErrShortBuffer = errors.New("buffer too short for a frame")
	// ErrUnknownFormat is returned for bytes of a later layout: the partition
	// is refused and nothing of it changed. Use the version that wrote it, or
	// a later one.
	ErrUnknownFormat = errors.New("written in a format this version does not know")
	// ErrStorageFull is returned when the disk has no room: nothing was
	// stored, and the call may be made again when there is room.
	ErrStorageFull = errors.New("no space left on the disk")
	// ErrTooManyFiles is returned when file descriptors ran out: nothing was
	// done, and the call may be made again.
	ErrTooManyFiles = errors.New("out of file descriptors")
	// ErrStaleEpoch is returned for a leader epoch below the log's last one.
	ErrStaleEpoch = errors.New("stale leader epoch")
	// ErrBadFrames is returned by [Log.AppendFrames] for bytes that are not
	// sound frames in their place; nothing of them was stored.
	ErrBadFrames = errors.New("bad frames")
	// ErrTooLarge is returned for a batch over [Config.MaxBatchBytes].
	ErrTooLarge = errors.New("batch too large for the log")
	// ErrClockJumped is returned by [Log.Retain] when the wall clock moved by
	// more than an hour against the monotonic one: this pass removed nothing,
	// the next one judges by the new time.
	ErrClockJumped = errors.New("the wall clock jumped")
)

// A CorruptError says where a log is damaged.
type CorruptError struct {
	// Path and Position are where the damage begins.
	Path     string
	Position int64
	// Offset is the first offset that cannot be read, NextOffset the first
	// one after it that can, or the log's end.
	Offset, NextOffset record.Offset
	// What is wrong, for people.
	What string
	// Err is what the system said when the bytes could not even be read, nil when
	// they were, and are bad.
	Err error
	// segment is the one that could not be opened, nil when it could.
	segment *segment
}

// Error says what, where, and where to go on.
func (e *CorruptError) Error() string {
	what := e.What
	if e.Err != nil {
		what += ": " + e.Err.Error()
	}
	return fmt.Sprintf("%s: %s at byte %d: offsets %d to %d cannot be read (%s)",
		ErrCorrupt, e.Path, e.Position, e.Offset, e.NextOffset-1, what)
}

// Unwrap returns what the system said.
func (e *CorruptError) Unwrap() error { return e.Err }

// Is makes errors.Is(err, ErrCorrupt) true.
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }

// Metadata returns the facts for the caller of the API, by lowerCamelCase name.
func (e *CorruptError) Metadata() map[string]string {
	return map[string]string{
		"offset":     strconv.FormatInt(int64(e.Offset), 10),
		"nextOffset": strconv.FormatInt(int64(e.NextOffset), 10),
	}
}

// A RangeError says which offsets there are.
type RangeError struct {
	// Offset is the one that was asked for.
	Offset record.Offset
	// LogStart is the first offset of the log, End the next to be written.
	LogStart, End record.Offset
}

// Error names the offset and the range.
func (e *RangeError) Error() string {
	return fmt.Sprintf("%s: %d is not in %d to %d", ErrOutOfRange, e.Offset, e.LogStart, e.End)
}

// Is makes errors.Is(err, ErrOutOfRange) true.
func (e *RangeError) Is(target error) bool { return target == ErrOutOfRange }

// Metadata returns the facts for the caller of the API, by lowerCamelCase name.
func (e *RangeError) Metadata() map[string]string {
	return map[string]string{
		"logStart": strconv.FormatInt(int64(e.LogStart), 10),
		"logEnd":   strconv.FormatInt(int64(e.End), 10),
	}
}

// A ShortBufferError says how large a buffer must be.
type ShortBufferError struct {
	// Need is the size of the first frame, in bytes.
	Need int
}

// Error says what is needed.
func (e *ShortBufferError) Error() string {
	return fmt.Sprintf("%s: it has %d bytes", ErrShortBuffer, e.Need)
}

// Is makes errors.Is(err, ErrShortBuffer) true.
func (e *ShortBufferError) Is(target error) bool { return target == ErrShortBuffer }
