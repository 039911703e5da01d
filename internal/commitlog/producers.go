package commitlog

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/runnelmq/runnel/internal/record"
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

// ProducerLive reports whether the last batch of a producer must be kept when
// its records go: see [Producers]. Without an owner's word it is.
func (l *Log) ProducerLive(id record.ProducerID) bool {
	owner := l.producers.owner
	return id != 0 && (owner == nil || owner.Live(id))
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
		bad := errors.As(err, new(*readError))
		if err != nil && !bad {
			return err
		}
		if bad || (v != record.OK && v != record.CorruptEnvelope) {
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
