package coordinator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/runnelmq/runnel/broker/group"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/record"
)

// store appends changes, as few batches as they fit in. After an error the
// groups in memory are not what is stored: the shard must begin anew.
func (s *shard) store(changes []group.Change) error {
	if len(changes) == 0 {
		return nil
	}
	limit := s.part.Topic().Config.MaxMessageBytes
	if s.builder == nil || s.buildSize != limit {
		s.buildSize = limit
		s.builder = record.NewBuilder(nil, record.Limits{MaxBatchBytes: s.buildSize, MaxRecordBytes: s.buildSize, RequireKeys: true})
	}
	s.builder.Reset()
	began := s.appended
	nowMs := s.now.UnixMilli()
	for i := range changes {
		key, value, err := encode(&changes[i])
		if err == nil {
			err = s.builder.Add(key, value, nil, nowMs)
		}
		if errors.Is(err, record.ErrBatchFull) {
			if err = s.flush(); err == nil {
				err = s.builder.Add(key, value, nil, nowMs)
			}
		}
		if err != nil {
			return s.failStore(began, err)
		}
	}
	if err := s.flush(); err != nil {
		return s.failStore(began, err)
	}
	s.c.metrics.stored.Add(float64(len(changes)))
	return nil
}

// flush appends what was built.
func (s *shard) flush() error {
	batch, err := s.builder.Finish(record.CompressionNone, 0)
	if err != nil {
		return err
	}
	got, err := s.part.Append(&batch, &s.epoch)
	if err != nil {
		return err
	}
	s.appended = got.Last + 1
	s.builder.Reset()
	return nil
}

// failStore lets the answers of the turn fail. Nothing of it was stored, unless
// batches before the failing one were.
func (s *shard) failStore(began record.Offset, err error) error {
	told := err
	if s.appended > began && !errors.Is(err, partition.ErrCommitUncertain) {
		told = fmt.Errorf("%w: a part of it was stored: %w", partition.ErrCommitUncertain, err)
	}
	s.failTurn(told)
	return fmt.Errorf("store changes of groups: %w", err)
}

// loadChunk is how many bytes of the log are read at a time.
const loadChunk = 1 << 20

// A groupLog is a partition as far as groups are read from it.
type groupLog interface {
	State() partition.State
	Read(dst []byte, from, end record.Offset) (int, error)
	PurgedTo() record.Offset
}

// readAll reads the groups of all records below end. When compaction took
// tombstones away meanwhile, all is read again: records that they delete may have
// been read before those went, and would live on.
func (s *shard) readAll(ctx context.Context, log groupLog, end record.Offset) error {
	for again := true; again && ctx.Err() == nil; {
		s.groups = map[string]*group.Group{}
		purged := log.PurgedTo()
		if err := s.read(ctx, log, end); err != nil {
			return err
		}
		again = log.PurgedTo() != purged
	}
	return nil
}

func (s *shard) read(ctx context.Context, log groupLog, end record.Offset) error {
	buf := make([]byte, loadChunk)
	it := record.NewIterator(record.NewCodec())
	for at := log.State().LogStart; at < end && ctx.Err() == nil; {
		n, err := log.Read(buf, at, end)
		if short, ok := errors.AsType[*commitlog.ShortBufferError](err); ok {
			buf = make([]byte, short.Need)
			continue
		}
		switch {
		case errors.Is(err, partition.ErrOffsetOutOfRange):
			at = log.State().LogStart // retention went on meanwhile
			continue
		case errors.Is(err, partition.ErrLogCorrupt):
			return unreadable("%s", err)
		case err != nil:
			return err
		case n == 0:
			return unreadable("the log of %s ends at offset %d, before its high watermark %d", s.part, at, end)
		}
		next, err := s.restore(buf[:n], it)
		if err != nil {
			return err
		}
		at = max(at, next)
	}
	return nil
}

// load reads the groups of the partition.
func (s *shard) load(ctx context.Context) error {
	end := s.part.State().HighWatermark
	if err := s.readAll(ctx, s.part, end); err != nil {
		return err
	}
	s.appended = end
	s.now = time.Now()
	s.view = s.c.view.Load()
	s.topics = group.NewResolver(s.view)
	for id, g := range s.groups {
		if g.Blank() {
			delete(s.groups, id)
			continue
		}
		g.Restored(s.now, s.part.Overlap(), s.topics)
		g.Retain(s.now, s.keeper(nil, s.view), &s.fx)
		s.touched = append(s.touched, g)
	}
	return nil
}

// restore takes batches in, and returns the offset after them.
func (s *shard) restore(frames []byte, it *record.Iterator) (next record.Offset, err error) {
	for len(frames) > 0 {
		f, verdict := record.ParseFrame(frames, int64(len(frames)), record.MaxFrameSize)
		if verdict != record.OK {
			return 0, unreadable("%s: a batch is damaged: %s", s.part, verdict)
		}
		payload := f.Payload(frames)
		if err := record.VerifyPayload(f.Header, payload); err != nil {
			return 0, unreadable("%s: the batch at offset %d is damaged: %v", s.part, f.Header.BaseOffset, err)
		}
		for it.Reset(f.Header, payload); it.Next(); {
			r := it.Record()
			c, err := decode(r.Key, r.Value)
			if err != nil {
				return 0, fmt.Errorf("%s: offset %d: %w", s.part, r.Offset, err)
			}
			g := s.groups[c.Group]
			if g == nil {
				g = group.New(c.Group, s.c.limits())
				s.groups[c.Group] = g
			}
			g.Restore(&c)
		}
		if err := it.Err(); err != nil {
			return 0, unreadable("%s: the batch at offset %d can't be decoded: %v", s.part, f.Header.BaseOffset, err)
		}
		next = f.Header.NextOffset()
		frames = frames[f.Size:]
	}
	return next, nil
}
