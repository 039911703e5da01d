package commitlog

import (
	"errors"
	"fmt"

	"github.com/runnelmq/runnel/internal/record"
)

// divergedSuffix ends the names of tails that another replica's history
// replaced. Nothing reads them, and nothing but the deletion of the partition
// removes them.
const divergedSuffix = ".diverged"

// saveBuffer is how much of a tail is copied at a time.
const saveBuffer = 1 << 20

// SaveTail copies the batches that hold offsets from from on to a new file of
// the log's directory, durably, and returns its path; "" when there are none.
// What is damaged is left out. The log does not change: it is for what a cut is
// about to take.
func (l *Log) SaveTail(from record.Offset) (string, error) {
	l.writing.take()
	defer l.writing.give()

	if err := l.usable(); err != nil {
		return "", err
	}
	from = max(from, l.Start())
	if from >= l.End() {
		return "", nil
	}
	name, err := freeName(l.fs, l.dir, fmt.Sprintf("%020d%s", from, divergedSuffix))
	if err != nil {
		return "", err
	}
	path := l.path(name)
	if err := l.saveTo(path, from); err != nil {
		_ = l.fs.Remove(path) // half a copy is worth nothing; if it can't go it is in nobody's way
		return "", fmt.Errorf("keep %s from %d in %s: %w", l.dir, from, path, l.check(err))
	}
	return path, l.check(l.fs.SyncDir(l.dir))
}

func (l *Log) saveTo(path string, from record.Offset) error {
	f, err := l.fs.Create(path)
	if err != nil {
		return err
	}
	buf := make([]byte, saveBuffer)
	var pos int64
	for from < l.End() {
		n, err := l.Read(buf, from, l.End())
		if need, ok := errors.AsType[*ShortBufferError](err); ok {
			buf = make([]byte, need.Need)
			continue
		}
		if c, ok := errors.AsType[*CorruptError](err); ok {
			from = c.NextOffset
			continue
		}
		if err == nil && n == 0 {
			break
		}
		if err == nil {
			_, err = f.WriteAt(buf[:n], pos)
		}
		if err != nil {
			return errors.Join(err, f.Close())
		}
		pos += int64(n)
		for at := 0; at < n; {
			fr, _ := record.ParseFrame(buf[at:n], int64(n-at), record.MaxFrameSize)
			from = max(from, fr.Header.NextOffset())
			at += fr.Size
		}
	}
	return errors.Join(f.Sync(), f.Close())
}
