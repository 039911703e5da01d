package commitlog

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// swapSuffix ends the name of a whole, durable segment that compaction made of
// those from the first offset in its name up to the second.
const swapSuffix = ".log.swap"

func swapName(base, end record.Offset) string {
	return fmt.Sprintf("%020d-%020d%s", base, end, swapSuffix)
}

func parseSwapName(name string) (base, end record.Offset, ok bool) {
	both, ok := strings.CutSuffix(name, swapSuffix)
	if !ok {
		return 0, 0, false
	}
	from, to, _ := strings.Cut(both, "-")
	base, ok1 := parseSegmentName(from, "")
	end, ok2 := parseSegmentName(to, "")
	return base, end, ok1 && ok2 && base < end
}

// swapIn puts what compaction made of a group in the group's place. Until its
// name says that it is whole, a crash leaves the group; from then on, its
// replacement.
func (l *Log) swapIn(g *group) error {
	l.writing.take()
	defer l.writing.give()

	if err := l.usable(); err != nil {
		return err
	}
	v := l.view.Load()
	at := slices.Index(v.segments, g.segments[0])
	if l.cuts.Load() != g.c.cuts || at < 0 || at+len(g.segments) >= len(v.segments) ||
		!slices.Equal(v.segments[at:at+len(g.segments)], g.segments) {
		return errAbandoned
	}
	// The segments may be among those to be synced still, and a sync must not
	// find them gone.
	if err := l.syncOnce(); err != nil {
		return err
	}
	if err := l.keepProducers(g.end); err != nil {
		return err
	}
	if f := g.c.opts.swapping; f != nil {
		f(g, g.out)
	}
	l.syncing.take()
	defer l.syncing.give()
	l.checkpointing.take()
	defer l.checkpointing.give()

	if err := l.raiseClean(g); err != nil {
		return err
	}
	swap := l.path(swapName(g.out.base, g.end))
	if err := l.check(l.fs.Rename(g.path, swap)); err != nil {
		return err
	}
	g.out.file.adopt(g.file)
	defer g.out.file.release()
	g.file = nil
	if err := l.failed.Set(l.fs.SyncDir(l.dir)); err != nil {
		return err
	}
	next := *v
	next.segments = slices.Concat(v.segments[:at], []*segment{g.out}, v.segments[at+len(g.segments):])
	g.out.known.Store(true)
	l.view.Store(&next)
	for _, s := range g.segments {
		s.retire()
	}
	if err := finishSwap(l.fs, l.dir, swap, g.out.file.path, g.segments); err != nil {
		return l.failed.Set(err)
	}
	if err := l.dropProducers(func(s snapshot) bool { return s.at > g.out.base && s.at < g.end }); err != nil {
		return err
	}
	// A cache: what cannot be written now is when there is room.
	if err := g.out.index.flush(); err != nil && !vfs.IsTransient(err) {
		return l.failed.Set(err)
	}
	return l.failed.Set(g.out.index.sync())
}

// raiseClean makes it durable what the swap of g takes away, before it does. It
// REQUIRES the checkpointing turn.
func (l *Log) raiseClean(g *group) error {
	l.purgedTo.Store(max(l.purgedTo.Load(), int64(g.purgedTo)))
	l.cleanedTo.Store(max(l.cleanedTo.Load(), int64(g.cleanedTo)))
	return l.checkpointLocked()
}

// finishSwap removes what a swap replaces and gives it its name. First the
// indexes and the other segments go, durably: else a power cut could leave the
// new segment with the old index, or with segments that it overlaps.
func finishSwap(fsys vfs.FS, dir, swap, to string, replaced []*segment) error {
	for i, s := range slices.Backward(replaced) {
		paths := []string{s.index.file.path, s.file.path}
		if i == 0 {
			paths = paths[:1]
		}
		for _, path := range paths {
			if err := fsys.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	if err := fsys.SyncDir(dir); err != nil {
		return err
	}
	if err := fsys.Rename(swap, to); err != nil {
		return err
	}
	return fsys.SyncDir(dir)
}

// finishSwaps finishes what a crash has cut off, and reports whether there was
// something.
func (r *recovery) finishSwaps(entries []vfs.DirEntry) (bool, error) {
	l := r.l
	found := false
	for _, e := range entries {
		base, end, ok := parseSwapName(e.Name)
		if !ok || e.IsDir {
			continue
		}
		found = true
		replaced := []*segment{newSegment(l.fs, l.dir, base, 1, l.idle)}
		for _, other := range entries {
			at, isLog := parseSegmentName(other.Name, logSuffix)
			if !isLog {
				at, isLog = parseSegmentName(other.Name, indexSuffix)
			}
			if isLog && at > base && at < end {
				replaced = append(replaced, newSegment(l.fs, l.dir, at, 1, l.idle))
			}
		}
		if err := finishSwap(l.fs, l.dir, l.path(e.Name), replaced[0].file.path, replaced); err != nil {
			return false, err
		}
	}
	return found, nil
}
