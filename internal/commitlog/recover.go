package commitlog

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// Recovery is what the opening of a log found.
type Recovery struct {
	// Clean says that the checkpoint was trusted, and bore out.
	Clean bool
	// LogStart, RecoveryPoint and HighWatermark are as they were
	// checkpointed, End is where the log ends now.
	LogStart, RecoveryPoint, HighWatermark, End record.Offset
	// BytesRead is how much was read of segments and indexes.
	BytesRead int64
	// TornBytes were cut off at or above the recovery point. Whether the log
	// can be trusted all the same is for its owner: it can when the machine
	// has not rebooted since, or when the topic counts only what was synced.
	TornBytes int64
	// Spoiled: they are more than the beginning of one batch, which is all that
	// a process leaves of an append in which it was killed.
	Spoiled bool
	// Damage are the offsets below the end that cannot be read.
	Damage []Range
	// Suspicion is why the log may miss what was acknowledged, whoever
	// vouches for it; NotSuspect when it does not.
	Suspicion Suspicion
	// Loose: what was not durable may have been counted before this start. Tight:
	// the checkpoint says that it was not, or what stands for it in a young log.
	Loose, Tight bool
	// Events are what an operator should hear of.
	Events []Event
	// Strange are the directories in the partition's, where only files belong.
	// They are left alone, but for being moved out of the way of a file.
	Strange []string
}

// unknownMark stands for a durable mark that was lost.
const unknownMark = record.Offset(math.MaxInt64)

// A recovery finds out, without changing anything, what is left of a log, and
// then makes the files say so.
type recovery struct {
	l      *Log
	report Recovery
	kept   checkpoint
	found  bool // kept is what the checkpoint file says
	young  bool // that there is no checkpoint means nothing
	// loose is what it would say of what counts.
	loose  bool
	blank  bool // the directory is empty: the log is made
	inFile bool // the checkpoint file can be written in place

	segments []*segment
	// fileSize is that of each segment's file.
	fileSize map[*segment]int64
	// leftovers are files to remove.
	leftovers []string
	// snapshots are the offsets of those of the producers, in order.
	snapshots []record.Offset

	// mark is the durable mark: what is bad at or above it is cut, below it
	// is damage. unknownMark when there is no checkpoint.
	mark   record.Offset
	epochs epochList
	damage []Range
	// keptEpochs and keptDamage are as the files have them.
	keptEpochs epochList
	keptDamage []Range

	// The scan goes on at next, after a batch of epoch.
	next  record.Offset
	epoch record.Epoch
	// dirty are segments that were scanned.
	dirty []*segment
	// envelopes are the frames to repair.
	envelopes []envelope
	// aside are segments that do not belong to the log.
	aside []*segment
	// cut is the segment that ends early, at its size, nil for none.
	cut *segment
	// fresh says that the log goes on in a new segment.
	fresh bool
}

type envelope struct {
	segment *segment
	pos     int64
	bytes   []byte
}

// open recovers the log.
func (l *Log) open(opts OpenOptions) (Recovery, error) {
	if err := vfs.MkdirAllSynced(l.fs, l.dir); err != nil {
		return Recovery{}, l.check(err)
	}
	r := &recovery{l: l, young: opts.Young, loose: opts.Loose, fileSize: map[*segment]int64{}}
	l.events = func(e Event) { r.report.Events = append(r.report.Events, e) }
	if err := r.clearWay(); err != nil {
		return Recovery{}, err
	}
	if err := r.survey(); err != nil {
		return Recovery{}, err
	}
	if err := r.loadEpochs(); err != nil {
		return Recovery{}, err
	}
	if err := r.loadDamage(); err != nil {
		return Recovery{}, err
	}
	sound := false
	if opts.Clean && r.found {
		var err error
		if sound, err = r.trust(); err != nil {
			return Recovery{}, err
		}
	}
	if !sound {
		if err := r.scan(); err != nil {
			return Recovery{}, err
		}
	}
	r.judge()
	r.report.Clean = sound
	r.surveyProducers(r.next)
	if err := r.apply(); err != nil {
		return Recovery{}, err
	}
	if err := l.restoreProducers(l.End()); err != nil {
		return Recovery{}, err
	}
	r.report.BytesRead = l.bytesRead.Load()
	return r.report, nil
}

// survey lists the directory and reads the checkpoint.
func (r *recovery) survey() (err error) {
	l := r.l
	if r.kept, r.found, err = readCheckpoint(l.fs, l.dir); err != nil {
		return err
	}
	r.inFile = r.found
	entries, err := l.fs.ReadDir(l.dir)
	if err != nil {
		return err
	}
	if finished, err := r.finishSwaps(entries); err != nil {
		return err
	} else if finished {
		if entries, err = l.fs.ReadDir(l.dir); err != nil {
			return err
		}
	}
	r.blank = len(entries) == 0
	indexes := map[record.Offset]int64{}
	for _, e := range entries {
		if base, ok := parseSegmentName(e.Name, indexSuffix); ok {
			indexes[base] = e.Size
		}
		if at, ok := parseSegmentName(e.Name, producersSuffix); ok && !e.IsDir {
			r.snapshots = append(r.snapshots, at)
		}
		if strings.HasSuffix(e.Name, vfs.TempSuffix) {
			r.leftovers = append(r.leftovers, e.Name)
		}
		base, ok := parseSegmentName(e.Name, logSuffix)
		if !ok || e.IsDir {
			continue
		}
		s := newSegment(l.fs, l.dir, base, l.config.Load().IndexIntervalBytes, l.idle)
		s.size.Store(e.Size)
		r.fileSize[s] = e.Size
		r.segments = append(r.segments, s)
	}
	// Empty files are what a crash in a roll leaves; only the last may be the
	// active segment.
	slices.SortFunc(r.segments, func(a, b *segment) int { return cmp.Compare(a.base, b.base) })
	for i := len(r.segments) - 2; i >= 0; i-- {
		if r.fileSize[r.segments[i]] == 0 {
			r.leftovers = append(r.leftovers, filepath.Base(r.segments[i].file.path))
			r.segments = slices.Delete(r.segments, i, i+1)
		}
	}
	r.loadIndexes(indexes)
	r.begin()
	return nil
}

// begin decides where the log starts and up to where it was durable.
func (r *recovery) begin() {
	if !r.found {
		r.kept.loose = r.loose
	}
	data := slices.ContainsFunc(r.segments, func(s *segment) bool { return s.size.Load() > 0 })
	switch {
	case r.found:
		r.mark = r.kept.recoveryPoint
	case data && !r.young:
		r.mark = unknownMark
		r.kept.logStart = r.segments[0].base
		r.kept.suspicion = SuspectNoCheckpoint
		r.event(EventCheckpointLost, checkpointName, 0, "all of the log is read")
	case len(r.segments) > 0:
		// A crash in the making of the log: nothing was ever in it, or a young
		// one's batches, of which no checkpoint says anything.
		r.kept.logStart = r.segments[0].base
		r.mark = r.kept.logStart
	}
	// Segments wholly below the log start are what a crash in retention
	// leaves.
	for len(r.segments) > 1 && r.segments[1].base <= r.kept.logStart {
		s := r.segments[0]
		r.segments = r.segments[1:]
		r.leftovers = append(r.leftovers, filepath.Base(s.index.file.path), filepath.Base(s.file.path))
	}
	r.report.LogStart, r.report.HighWatermark = r.kept.logStart, r.kept.highWatermark
	r.report.RecoveryPoint = r.kept.recoveryPoint
	r.report.Suspicion, r.report.Loose, r.report.Tight = r.kept.suspicion, r.kept.loose, (r.found || r.young) && !r.kept.loose
}

// loadIndexes takes over the indexes whose size may be right. Of a sealed
// segment no more is looked at before it is used.
func (r *recovery) loadIndexes(sizes map[record.Offset]int64) {
	for _, s := range r.segments {
		size, ok := sizes[s.base]
		delete(sizes, s.base)
		if !ok || size < indexHeaderSize || size%indexEntrySize != 0 {
			continue
		}
		n := int(size-indexHeaderSize) / indexEntrySize
		interval, last := s.index.state.Load().interval, int64(0)
		s.index.load(interval, n, last)
	}
	for base := range sizes {
		r.leftovers = append(r.leftovers, segmentName(base, indexSuffix))
	}
}

func (r *recovery) loadEpochs() error {
	pairs, found, err := readPairs(r.l.fs, r.l.dir, epochsName, epochsMagic)
	if err == nil {
		r.epochs, err = parseEpochs(pairs)
		r.keptEpochs = r.epochs
	}
	switch {
	case errors.Is(err, errBadPairs), err == nil && !found && r.found && r.kept.recoveryPoint > 0:
		r.epochs, err = r.epochsOfBatches()
		if err == nil {
			r.event(EventEpochsRebuilt, epochsName, 0, fmt.Sprintf("%d entries", len(r.epochs)))
		}
		return err
	case err != nil:
		return fmt.Errorf("%s: %w", r.l.path(epochsName), err)
	}
	return nil
}

// epochsOfBatches reads all headers.
func (r *recovery) epochsOfBatches() (epochList, error) {
	var list epochList
	for _, s := range r.segments {
		err := r.walk(s, 0, func(_ int64, f *record.Frame) bool {
			if f.Header.LeaderEpoch > list.last() {
				list = list.begin(f.Header.LeaderEpoch, f.Header.BaseOffset)
			}
			return true
		})
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// walk calls fn for the sound frames of s from pos on, until it returns false.
func (r *recovery) walk(s *segment, pos int64, fn func(pos int64, f *record.Frame) bool) error {
	f, err := s.file.acquire()
	if err != nil {
		return err
	}
	defer s.file.release()

	scan := scanner{file: f, size: r.fileSize[s]}
	defer func() { r.l.bytesRead.Add(scan.bytesRead) }()
	for {
		fr, v, err := scan.frame(pos)
		if err != nil {
			return err
		}
		if v == record.UnknownFormat {
			return fmt.Errorf("%s at byte %d: %w", s.file.path, pos, ErrUnknownFormat)
		}
		if (v != record.OK && v != record.CorruptEnvelope) || !fn(pos, &fr) {
			return nil
		}
		pos += int64(fr.Size)
	}
}

func (r *recovery) loadDamage() error {
	pairs, _, err := readPairs(r.l.fs, r.l.dir, damageName, damageMagic)
	if err == nil {
		r.damage, err = parseDamage(pairs)
		r.keptDamage = r.damage
	}
	if errors.Is(err, errBadPairs) {
		// What it said is found again by reading all.
		r.event(EventDamage, damageName, 0, "the list of damage is damaged itself: all of the log is read")
		r.found, r.mark, r.kept.suspicion = false, unknownMark, SuspectDamage
		r.keptDamage = []Range{{-1, -1}} // so that the file is written again
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", r.l.path(damageName), err)
	}
	r.damage = clampRanges(r.damage, r.kept.logStart, maxOffset)
	return nil
}

// judge decides where the log ends, and whether that can be all there was.
func (r *recovery) judge() {
	end := max(r.next, r.kept.logStart)
	r.next = end
	r.damage = clampRanges(r.damage, r.kept.logStart, end)
	r.report.End = end
	r.report.Damage = r.damage
	switch {
	case r.kept.suspicion != NotSuspect:
		r.report.Suspicion = r.kept.suspicion
	case len(r.damage) > 0:
		r.report.Suspicion = SuspectDamage
	case r.found && end < r.kept.recoveryPoint:
		r.report.Suspicion = SuspectBelowRecoveryPoint
	case end < r.kept.highWatermark:
		r.report.Suspicion = SuspectBelowHighWatermark
	}
}

func (r *recovery) event(kind EventKind, name string, pos int64, detail string) {
	r.report.Events = append(r.report.Events, Event{Kind: kind, Path: r.l.path(name), Position: pos, Detail: detail})
}

// freeName returns name, or the first of name.1, name.2… that is not taken.
func freeName(fsys vfs.FS, dir, name string) (string, error) {
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return "", err
	}
	taken := map[string]bool{}
	for _, e := range entries {
		taken[e.Name] = true
	}
	free := name
	for i := 1; taken[free]; i++ {
		free = fmt.Sprintf("%s.%d", name, i)
	}
	return free, nil
}

// isKept reports whether a file holds bytes that were cut or set aside.
func isKept(name string) bool { return strings.Contains(name, keptSuffix) }
