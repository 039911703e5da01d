package commitlog

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

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

// A snapshot is a file with the state of all batches below at.
type snapshot struct {
	at record.Offset
	// durable: a power cut leaves it. One that is not is a cache like any.
	durable bool
}

// encodeProducers returns the bytes of a snapshot; state appends the owner's part
// of them.
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
