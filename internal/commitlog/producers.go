package commitlog

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"math"
	"path/filepath"
	"slices"

	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// Producers is what a log's owner remembers of idempotent producers. It is a
// function of the headers of the log's batches, in their order, and the log
// keeps it so: it shows it each batch that is appended, by whomever, and has it
// begin anew after a truncation, a reset and a restart. Snapshots of it spare
// the reading of all headers, and carry what retention removed.
//
// The log calls Live at any time, and the other methods one at a time. None of
// them may call the log or block.
type Producers interface {
	// Apply takes over the header of the batch that follows all those that were
	// applied.
	Apply(h *record.Header)
	// Reset forgets everything.
	Reset()
	// AppendState appends the state to dst, in the owner's own form.
	AppendState(dst []byte) []byte
	// SetState replaces the state by one that AppendState made. After an error,
	// for one that is not, there is no state.
	SetState(state []byte) error
	// Live says whether a producer is remembered, so that its last batch must
	// outlive compaction.
	Live(id record.ProducerID) bool
}

// Snapshots of the producers' state; see FORMAT.md.
const (
	producersSuffix     = ".producers"
	producersMagic      = "RNLP"
	producersVersion    = 1
	producersHeaderSize = 20

	// producersEvery is after how many appended bytes a snapshot is made within
	// a segment: more than these are not read again after a crash.
	producersEvery = 64 << 20
)

// errBadSnapshot says that a snapshot cannot be believed.
var errBadSnapshot = errors.New("bad checksum, length or state")

// producerFiles is what the log knows of the producers' state and its
// snapshots. Who writes guards it.
type producerFiles struct {
	owner Producers // nil: nobody asks for it
	// snapshots are those on the disk, in order of their offsets.
	snapshots []snapshot
	// stale says that the owner's state is not that of the log, because a cut of
	// it was prepared and failed. Nothing is appended, and no leader epoch begun,
	// before it was made so again.
	stale bool
	// since is how many bytes the newest snapshot does not cover, about.
	since, every int64
}

// A snapshot is a file with the state of all batches below at.
type snapshot struct {
	at record.Offset
	// durable: a power cut leaves it. One that is not is a cache like any.
	durable bool
}

// ProducerLive reports whether the last batch of a producer must be kept when
// its records go: see [Producers]. Without an owner's word it is.
func (l *Log) ProducerLive(id record.ProducerID) bool {
	owner := l.producers.owner
	return id != 0 && (owner == nil || owner.Live(id))
}

// encodeProducers returns the bytes of a snapshot, made of state, which ends a
// buffer with room for the header before it.
func encodeProducers(at record.Offset, state func(dst []byte) []byte) []byte {
	b := make([]byte, 0, 1<<10)
	b = append(b, producersMagic...)
	b = binary.LittleEndian.AppendUint32(b, producersVersion)
	b = binary.LittleEndian.AppendUint64(b, uint64(at))
	b = binary.LittleEndian.AppendUint32(b, 0)
	b = state(b)
	binary.LittleEndian.PutUint32(b[16:], uint32(len(b)-producersHeaderSize)) //nolint:gosec // bounded by what is remembered
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// parseProducers returns the state in a snapshot that is for offset at.
func parseProducers(b []byte, at record.Offset) ([]byte, error) {
	if len(b) < producersHeaderSize+4 || string(b[:4]) != producersMagic {
		return nil, errBadSnapshot
	}
	body := b[:len(b)-4]
	if binary.LittleEndian.Uint32(b[len(body):]) != crc32.Checksum(body, castagnoli) {
		return nil, errBadSnapshot
	}
	if binary.LittleEndian.Uint32(b[4:]) != producersVersion {
		return nil, fmt.Errorf("%w: version %d", errBadSnapshot, binary.LittleEndian.Uint32(b[4:]))
	}
	state := body[producersHeaderSize:]
	if binary.LittleEndian.Uint64(b[8:]) != uint64(at) || int64(binary.LittleEndian.Uint32(b[16:])) != int64(len(state)) {
		return nil, errBadSnapshot
	}
	return state, nil
}

// applyProducers shows the owner a batch that was appended. It REQUIRES the
// writing turn.
func (l *Log) applyProducers(h *record.Header, size int) {
	p := &l.producers
	if p.owner == nil {
		return
	}
	if h.ProducerID != 0 {
		p.owner.Apply(h)
	}
	if p.since += int64(size); p.since >= p.every {
		_ = l.saveProducers(false) // a disk that is worse than full has failed the root
	}
}

// saveProducers writes a snapshot at the log's end, unless there is one. One
// that need not be durable is a cache: a full disk is no error. It REQUIRES the
// writing turn.
func (l *Log) saveProducers(durable bool) error {
	p := &l.producers
	if p.owner == nil || p.stale {
		return nil
	}
	p.since = 0 // also after a failure: not with every batch again
	if err := l.saveProducersAt(snapshot{at: l.End(), durable: durable}); err != nil {
		return err
	}
	return l.thinProducers()
}

// saveProducersAt is saveProducers for the state at a given offset.
func (l *Log) saveProducersAt(s snapshot) error {
	p := &l.producers
	i, found := slices.BinarySearchFunc(p.snapshots, s.at, func(o snapshot, at record.Offset) int { return cmp.Compare(o.at, at) })
	if found && (p.snapshots[i].durable || !s.durable) {
		return nil
	}
	if err := l.writeProducers(s); err != nil {
		if err = l.check(err); errors.Is(err, ErrFailed) {
			return err
		}
		return nil
	}
	if found {
		p.snapshots[i] = s
	} else {
		p.snapshots = slices.Insert(p.snapshots, i, s)
	}
	return nil
}

func (l *Log) writeProducers(s snapshot) (err error) {
	b := encodeProducers(s.at, l.producers.owner.AppendState)
	name := l.path(segmentName(s.at, producersSuffix))
	if s.durable {
		return vfs.WriteFileAtomic(l.fs, name, b)
	}
	temp := name + vfs.TempSuffix
	f, err := emptyFile(l.fs, temp)
	if err != nil {
		return err
	}
	n, err := f.WriteAt(b, 0)
	if err = errors.Join(err, f.Close()); err != nil || n < len(b) {
		return errors.Join(err, l.fs.Remove(temp))
	}
	return l.fs.Rename(temp, name)
}

// thinProducers removes the snapshots inside segments, all but the newest two:
// they spare reading after a crash, and nothing else. Durable ones stand for
// batches that are gone.
func (l *Log) thinProducers() error {
	bases := l.view.Load().segments
	inside := 0
	return l.dropProducers(func(s snapshot) bool {
		_, isBase := slices.BinarySearchFunc(bases, s.at, func(g *segment, at record.Offset) int { return cmp.Compare(g.base, at) })
		if !isBase {
			inside++
		}
		return !isBase && inside > 2 && !s.durable
	})
}

// dropProducers removes the snapshots that gone says, asked from the newest to
// the oldest.
func (l *Log) dropProducers(gone func(snapshot) bool) error {
	p := &l.producers
	for i, s := range slices.Backward(p.snapshots) {
		if !gone(s) {
			continue
		}
		if err := l.fs.Remove(l.path(segmentName(s.at, producersSuffix))); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return l.check(err)
		}
		p.snapshots = slices.Delete(p.snapshots, i, i+1)
	}
	return nil
}

// keepProducers sees to it that what the batches below base said of producers
// outlives them: they are about to go, all or some. It REQUIRES the writing turn, and that all is synced.
func (l *Log) keepProducers(base record.Offset) error {
	p := &l.producers
	if p.owner == nil {
		return nil
	}
	// The oldest that will do: no cut of the log takes it.
	for i := range p.snapshots {
		s := &p.snapshots[i]
		if s.at < base {
			continue
		}
		if !s.durable {
			err := l.syncSnapshot(s.at)
			if errors.Is(err, errBadSnapshot) {
				continue
			}
			if err != nil {
				return l.check(err)
			}
			s.durable = true
		}
		return nil
	}
	return l.saveProducers(true)
}

// syncSnapshot makes a snapshot durable that was not. What a power cut left of
// it is looked at first.
func (l *Log) syncSnapshot(at record.Offset) (err error) {
	name := l.path(segmentName(at, producersSuffix))
	b, err := vfs.ReadFile(l.fs, name)
	if err != nil {
		return fmt.Errorf("%w: %w", errBadSnapshot, err)
	}
	if _, err := parseProducers(b, at); err != nil {
		return err
	}
	f, err := l.fs.Open(name)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	return l.fs.SyncDir(l.dir)
}

// freshProducers makes the state that of the log where it is not. It REQUIRES
// the writing turn.
func (l *Log) freshProducers() error {
	p := &l.producers
	if !p.stale {
		return nil
	}
	if err := l.restoreProducers(l.End()); err != nil {
		return l.check(err)
	}
	p.stale = false
	return nil
}

// prepareProducers makes the state that of the log as it will be when it was
// cut at end, durably, for the cut takes the snapshots above it. It REQUIRES the
// writing turn. After an error the state is that of no log.
func (l *Log) prepareProducers(end record.Offset) error {
	if l.producers.owner == nil {
		return nil
	}
	l.producers.stale = true
	if err := l.restoreProducers(end); err != nil {
		return l.check(err)
	}
	return l.saveProducersAt(snapshot{at: end, durable: true})
}

// restoreProducers makes the state that of the batches below to: of the newest
// snapshot there, and the headers after it. It REQUIRES the writing turn.
func (l *Log) restoreProducers(to record.Offset) error {
	p := &l.producers
	if p.owner == nil {
		return nil
	}
	p.owner.Reset()
	p.since = 0
	from := l.view.Load().segments[0].base
	for _, s := range slices.Backward(slices.Clone(p.snapshots)) {
		if s.at > to {
			continue
		}
		name := segmentName(s.at, producersSuffix)
		err := l.loadProducers(name, s.at)
		if err == nil {
			from = s.at
			break
		}
		if !errors.Is(err, errBadSnapshot) {
			return err
		}
		p.owner.Reset()
		l.event(Event{Kind: EventProducersRebuilt, Path: l.path(name), Position: -1, Detail: err.Error()})
		if err := l.dropProducers(func(o snapshot) bool { return o == s }); err != nil {
			return err
		}
	}
	return l.replayProducers(from, to)
}

// loadProducers makes the state that of a snapshot.
func (l *Log) loadProducers(name string, at record.Offset) error {
	b, err := vfs.ReadFile(l.fs, l.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: it is missing", errBadSnapshot)
	}
	if err != nil {
		return err
	}
	state, err := parseProducers(b, at)
	if err != nil {
		return err
	}
	if err := l.producers.owner.SetState(state); err != nil {
		return fmt.Errorf("%w: %w", errBadSnapshot, err)
	}
	return nil
}

// replayProducers applies the batches from offset from on, which is where one
// begins, or a gap, that end at or below to.
func (l *Log) replayProducers(from, to record.Offset) error {
	v := l.view.Load()
	for i, s := range v.segments {
		next := record.Offset(math.MaxInt64)
		if i+1 < len(v.segments) {
			next = v.segments[i+1].base
		}
		if next <= from || s.base >= to || s.size.Load() == 0 {
			continue
		}
		if err := l.replaySegment(s, from, to, min(next, l.End())); err != nil {
			return fmt.Errorf("read the producers of %s: %w", s.file.path, err)
		}
	}
	return nil
}

// replaySegment applies the batches of s from offset from on that end at or
// below to. next is where the following segment begins.
func (l *Log) replaySegment(s *segment, from, to, next record.Offset) error {
	f, err := s.file.acquire()
	if err != nil {
		return err
	}
	defer s.file.release()

	scan := scanner{file: f, size: s.size.Load()}
	e := s.index.first()
	if from > s.base {
		if e, err = s.find(l, &scan, func(e entry) bool { return e.offset <= from }); err != nil {
			return err
		}
	}
	pos, at := e.pos, max(from, s.base)
	for pos < s.size.Load() {
		fr, v, err := scan.frame(pos)
		if err != nil {
			return err
		}
		if v != record.OK && v != record.CorruptEnvelope {
			return l.replayDamaged(max(at, l.Start()), to, next)
		}
		if at = fr.Header.NextOffset(); at > to {
			break
		}
		l.replay(&fr.Header, from, fr.Size)
		pos += int64(fr.Size)
	}
	l.bytesRead.Add(scan.bytesRead)
	return nil
}

func (l *Log) replay(h *record.Header, from record.Offset, size int) {
	if h.NextOffset() <= from {
		return
	}
	l.producers.since += int64(size)
	if h.ProducerID != 0 {
		l.producers.owner.Apply(h)
	}
}

// replayDamaged applies what can be read of [from, next) and ends at or below
// to, where something cannot be read. It reads all of it, as a reader does that goes around damage.
func (l *Log) replayDamaged(from, to, next record.Offset) error {
	buf := make([]byte, record.MaxFrameSize)
	for from < next {
		n, err := l.read(buf, from, next)
		if c, ok := errors.AsType[*CorruptError](err); ok && c.NextOffset > from {
			from = c.NextOffset
			continue
		}
		if err != nil || n == 0 {
			return err
		}
		for at := 0; at < n; {
			fr, _ := record.ParseFrame(buf[at:n], int64(n-at), record.MaxFrameSize)
			if fr.Header.NextOffset() > to {
				return nil
			}
			l.replay(&fr.Header, from, fr.Size)
			from = max(from, fr.Header.NextOffset())
			at += fr.Size
		}
	}
	return nil
}

// surveyProducers finds the snapshots of a log that ends at end, by the names
// in its directory. Others are leftovers: of a history that was cut, or of
// segments that are gone.
func (r *recovery) surveyProducers(end record.Offset) {
	l := r.l
	first := end
	if len(r.segments) > 0 {
		first = r.segments[0].base
	}
	for _, at := range r.snapshots {
		if at < first || at > end {
			r.leftovers = append(r.leftovers, filepath.Base(segmentName(at, producersSuffix)))
			continue
		}
		l.producers.snapshots = append(l.producers.snapshots, snapshot{at: at})
	}
}
