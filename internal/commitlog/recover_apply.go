package commitlog

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/runnelmq/runnel/internal/vfs"
)

// keepMax is how many cut bytes are kept; a longer tail is kept up to it. More
// than this is not a torn write.
const keepMax = 64 << 20

// apply makes the files say what was found, and the log go on from there. The
// checkpoint is written last: a crash before it finds the same again.
func (r *recovery) apply() error {
	l := r.l
	steps := []func() error{
		r.repairEnvelopes, r.setAside, r.cutTail, r.cleanIndexes, r.removeLeftovers,
		r.syncScanned, r.adopt, r.remakeIndexes, r.keep,
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return l.check(err)
		}
	}
	return nil
}

func (r *recovery) repairEnvelopes() error {
	for _, e := range r.envelopes {
		f, err := e.segment.file.acquire()
		if err != nil {
			return err
		}
		_, err = f.WriteAt(e.bytes, e.pos)
		e.segment.file.release()
		if err != nil {
			return err
		}
	}
	return nil
}

// setAside renames the segments that do not belong to the log, newest first.
// Empty ones and indexes go.
func (r *recovery) setAside() error {
	l := r.l
	for _, s := range slices.Backward(r.aside) {
		s.retire()
		r.leftovers = append(r.leftovers, filepath.Base(s.index.file.path))
		name := filepath.Base(s.file.path)
		if r.fileSize[s] == 0 {
			r.leftovers = append(r.leftovers, name)
			continue
		}
		if err := l.setAside(name, r.fileSize[s]); err != nil {
			return err
		}
	}
	return nil
}

// cutTail cuts the segment that ends early, and keeps the bytes elsewhere.
func (r *recovery) cutTail() error {
	if r.cut == nil {
		return nil
	}
	f, err := r.cut.file.acquire()
	if err != nil {
		return err
	}
	defer r.cut.file.release()

	pos := r.cut.size.Load()
	if err := r.keepTail(f, pos); err != nil && !vfs.IsTransient(err) {
		return err // a full disk must not keep a log from opening
	}
	return f.Truncate(pos)
}

// keepTail copies what is after pos to a file of its own.
func (r *recovery) keepTail(f vfs.File, pos int64) (err error) {
	l := r.l
	tail := make([]byte, min(keepMax, r.fileSize[r.cut]-pos))
	n, err := f.ReadAt(tail, pos)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	name, err := freeName(l.fs, l.dir, filepath.Base(r.cut.file.path)+keptSuffix)
	if err != nil {
		return err
	}
	out, err := l.fs.Create(l.path(name))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if _, err := out.WriteAt(tail[:n], 0); err != nil {
		return err
	}
	return out.Sync()
}

// cleanIndexes takes from the files of scanned segments what the scan has not
// taken over: an entry that was right once must not come back later.
func (r *recovery) cleanIndexes() error {
	for _, s := range r.dirty {
		if slices.Contains(r.aside, s) {
			continue
		}
		err := s.index.shorten(s.index.state.Load().bytes())
		if errors.Is(err, errBadIndex) {
			err = s.remakeIndex(r.l)
		}
		if err != nil {
			return err
		}
		if err := s.index.flush(); err != nil && !vfs.IsTransient(err) {
			return err
		}
	}
	return nil
}

func (r *recovery) removeLeftovers() error {
	for _, name := range r.leftovers {
		if err := r.l.fs.Remove(r.l.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// syncScanned makes durable what the scan has read and the steps before have
// changed. After that the log is durable to its end: the bytes were read with
// the right checksums, and synced after that.
func (r *recovery) syncScanned() error {
	l := r.l
	if r.report.Clean && len(r.leftovers) == 0 || r.blank {
		return nil
	}
	for _, s := range r.dirty {
		if slices.Contains(r.aside, s) {
			continue
		}
		f, err := s.file.acquire()
		if err != nil {
			return err
		}
		err = f.Sync()
		s.file.release()
		if err == nil {
			err = s.index.sync()
		}
		if err != nil {
			return l.failed.Set(err)
		}
	}
	return l.failed.Set(l.fs.SyncDir(l.dir))
}

// adopt gives the log its segments.
func (r *recovery) adopt() error {
	l := r.l
	l.setEnd(r.next)
	l.highWatermark.Store(int64(r.kept.highWatermark))
	segments := r.segments
	if len(segments) == 0 || r.fresh {
		s, err := l.createSegment(r.next)
		if err != nil {
			return err
		}
		if !r.blank {
			if err := l.syncEntries(); err != nil {
				return err
			}
		}
		segments = append(segments, s)
	} else {
		s := segments[len(segments)-1]
		if _, err := s.file.acquire(); err != nil {
			return err
		}
		l.hold(s)
		l.entriesSynced = l.entriesMade // it has its name for long
	}
	l.view.Store(&view{segments: segments, start: r.kept.logStart, damage: r.damage})
	l.durable.Store(int64(r.next))
	l.writer.lastAppendMs = r.kept.lastAppendMs
	for _, s := range segments {
		l.writer.lastAppendMs = max(l.writer.lastAppendMs, s.lastAppend.Load())
	}
	return nil
}

// remakeIndexes makes the indexes of sealed segments anew that are missing or
// have an impossible size. One that is damaged inside shows when it is used.
func (r *recovery) remakeIndexes() error {
	l := r.l
	segments := l.view.Load().segments
	for _, s := range segments[:len(segments)-1] {
		if s.index.state.Load().made || slices.Contains(r.dirty, s) {
			continue
		}
		if err := s.remakeIndex(l); vfs.IsTransient(err) {
			return err
		} else if err != nil {
			continue // the segment can't be read: who wants to finds it
		}
		if err := s.index.flush(); err != nil && !vfs.IsTransient(err) {
			return err
		}
	}
	return nil
}

// keepClean takes over how far compaction had come. Without a checkpoint nobody
// knows which tombstones went.
func (r *recovery) keepClean() error {
	l := r.l
	s, found, err := readCleanState(l.fs, l.dir)
	if err != nil {
		return fmt.Errorf("%s: %w", l.path(cleanerName), err)
	}
	purgedTo, cleanedTo := r.kept.purgedTo, r.kept.cleanedTo
	if !r.found && found {
		purgedTo, cleanedTo = r.next, r.next
	}
	l.purgedTo.Store(min(int64(purgedTo), int64(r.next)))
	l.cleanedTo.Store(min(int64(cleanedTo), int64(r.next)))
	l.clean.Store(&s)
	if s.dirtyFrom > r.next {
		// Before anything is appended where the log lost its end.
		return l.keepClean(cleanState{r.next, s.horizonMs})
	}
	return nil
}

// keep writes the side files.
func (r *recovery) keep() error {
	l := r.l
	list := r.epochs.cut(r.next + 1).trim(r.kept.logStart)
	l.epochs.Store(&list)
	if slices.Equal(list, r.keptEpochs) {
		l.kept.epochs = &list
	}
	if !slices.Equal(r.damage, r.keptDamage) {
		if err := writeDamage(l.fs, l.dir, r.damage); err != nil {
			return err
		}
	}
	if err := r.keepClean(); err != nil {
		return err
	}
	l.kept.checkpoint = r.kept
	l.kept.suspicion = r.report.Suspicion
	// Whoever vouches for the log has not said so yet: it stays, though the log
	// is durable to its end.
	l.kept.loose = r.kept.loose || l.Config().Flush != FlushSync
	l.looseEnd.Store(int64(r.next))
	if !r.inFile {
		c := r.kept
		c.loose = l.kept.loose
		c.recoveryPoint = 0
		c.suspicion = r.report.Suspicion
		if err := createCheckpoint(l.fs, l.dir, &c); err != nil {
			return fmt.Errorf("%s: %w", checkpointName, err)
		}
		l.entriesMade++
		l.kept.checkpoint = c
		l.tentative.Store(true)
	}
	if r.young && r.blank && l.kept.loose == r.kept.loose {
		return nil // nothing relies on it before it is durable
	}
	err := l.checkpointLocked()
	if errors.Is(err, ErrStorageFull) && r.inFile && l.kept.checkpoint.loose == l.kept.loose {
		return nil // the next one catches up; until then there is more to scan
	}
	if err == nil && !r.report.Clean && l.kept.checkpoint == r.kept {
		l.tentative.Store(true) // who wrote it may have been killed before it was synced
	}
	return err
}
