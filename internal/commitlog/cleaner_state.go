package commitlog

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

const (
	cleanerName  = "cleaner"
	cleanerMagic = "RNLK"
)

// A cleanState is how far compaction has come, as the side file has it.
type cleanState struct {
	// dirtyFrom: below it no key has two records, and whatever a tombstone
	// there deletes is gone.
	dirtyFrom record.Offset
	// horizonMs is when the first tombstone below dirtyFrom may go, in Unix
	// milliseconds; 0 when there is none.
	horizonMs int64
}

// parseCleanState reads the pairs of the side file.
func parseCleanState(pairs [][2]int64) (cleanState, error) {
	if len(pairs) != 1 || pairs[0][0] < 0 || pairs[0][1] < 0 {
		return cleanState{}, errBadPairs
	}
	return cleanState{record.Offset(pairs[0][0]), pairs[0][1]}, nil
}

// readCleanState returns the state that was kept. Without one that can be read
// all of the log is dirty, which only costs a longer pass.
func readCleanState(fsys vfs.FS, dir string) (s cleanState, found bool, err error) {
	pairs, found, err := readPairs(fsys, dir, cleanerName, cleanerMagic)
	if err == nil && found {
		s, err = parseCleanState(pairs)
	}
	if errors.Is(err, errBadPairs) {
		return cleanState{}, true, nil
	}
	return s, found, err
}

// keepClean writes down how far compaction has come. It REQUIRES the
// checkpointing turn.
func (l *Log) keepClean(s cleanState) error {
	if s == *l.clean.Load() {
		return nil
	}
	pairs := encodePairs(cleanerMagic, [][2]int64{{int64(s.dirtyFrom), s.horizonMs}})
	if err := l.check(vfs.WriteFileAtomic(l.fs, filepath.Join(l.dir, cleanerName), pairs)); err != nil {
		return err
	}
	l.clean.Store(&s)
	return nil
}

// lowerDirty is for a log that is about to end at end: what comes after it will
// be new. It REQUIRES the checkpointing turn.
func (l *Log) lowerDirty(end record.Offset) error {
	s := *l.clean.Load()
	if s.dirtyFrom <= end {
		return nil
	}
	s.dirtyFrom = end
	return l.keepClean(s)
}

// PurgedTo returns the offset at and above which no tombstone was ever removed
// by compaction. Who has records of this log's history, but not all below this
// offset, may have missed that a key was deleted.
func (l *Log) PurgedTo() record.Offset { return record.Offset(l.purgedTo.Load()) }

// CleanedTo returns the offset at and above which batches are as they were
// appended.
func (l *Log) CleanedTo() record.Offset { return record.Offset(l.cleanedTo.Load()) }

// Dirt is how much of a log compaction has not seen.
type Dirt struct {
	// Bytes is the size of the segments that may be compacted and hold records
	// that were not, Total that of all that may be compacted.
	Bytes, Total int64
	// Due says that a pass is due: by the ratio of the two, by the age of what
	// is dirty, or because tombstones may go.
	Due bool
}

// Ratio is Bytes by Total, 0 for nothing.
func (d Dirt) Ratio() float64 {
	if d.Total == 0 {
		return 0
	}
	return float64(d.Bytes) / float64(d.Total)
}

// Dirt says how much there is to compact at nowMs, in Unix milliseconds, below
// limit.
func (l *Log) Dirt(nowMs int64, limit record.Offset) (Dirt, error) {
	if err := l.usable(); err != nil {
		return Dirt{}, err
	}
	cfg, state, v := l.config.Load(), l.clean.Load(), l.view.Load()
	n, to, err := l.cleanable(v, nowMs, limit)
	if err != nil || to < state.dirtyFrom {
		return Dirt{}, err
	}
	var d Dirt
	oldest := int64(0)
	for i, s := range v.segments[:n] {
		size := s.size.Load()
		d.Total += size
		if v.segments[i+1].base > state.dirtyFrom {
			if d.Bytes == 0 {
				oldest = s.firstAppend.Load()
			}
			d.Bytes += size
		}
	}
	tooOld := cfg.MaxCompactionLag > 0 && isOld(oldest, nowMs, cfg.MaxCompactionLag)
	d.Due = (d.Bytes > 0 && (d.Ratio() >= cfg.MinDirtyRatio || tooOld)) || (state.horizonMs != 0 && state.horizonMs <= nowMs)
	return d, nil
}

// cleanable returns how many segments may be compacted, and where they end: not
// the active one, nor what is above limit, not durable, or younger than
// [Config.MinCompactionLag].
func (l *Log) cleanable(v *view, nowMs int64, limit record.Offset) (n int, to record.Offset, err error) {
	limit = min(limit, l.Durable())
	lag := l.config.Load().MinCompactionLag
	to = v.segments[0].base
	for n+1 < len(v.segments) && v.segments[n+1].base <= limit {
		s := v.segments[n]
		if s.size.Load() > 0 {
			if err := s.learn(l); err != nil {
				return 0, 0, err
			}
			if lag > 0 && !isOld(s.lastAppend.Load(), nowMs, lag) {
				break
			}
		}
		n++
		to = v.segments[n].base
	}
	return n, to, nil
}

// clocks are one moment by the wall clock, in Unix milliseconds, and by the
// monotonic one.
type clocks struct {
	wall int64
	mono time.Time
}

// judge compares both clocks with those of the last call: ErrClockJumped when
// they ran apart.
func (c *clocks) judge(nowMs int64, mono time.Time) error {
	ran := mono.Sub(c.mono)
	jump := time.Duration(nowMs-c.wall)*time.Millisecond - ran
	c.wall, c.mono = nowMs, mono
	if jump.Abs() > clockJump {
		return fmt.Errorf("%w by %s: this pass was skipped", ErrClockJumped, jump.Round(time.Second))
	}
	return nil
}
