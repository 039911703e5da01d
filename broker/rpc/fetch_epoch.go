package rpc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/record"
)

// sureWait is how long a reader who got further than this leader waits until it
// is certain that nobody else leads.
const sureWait = 500 * time.Millisecond

// sure fails unless this broker leads the partition at the time of the question.
// A leader that was replaced may believe in itself for a while, and has never
// heard of what the next one has served: it must not say that this is not there.
func (f *fetcher) sure(part *partition.Partition) error {
	if f.svc.opts.CatchUp != nil {
		wait, cancel := context.WithTimeout(f.ss.Context(), sureWait)
		defer cancel()
		if f.svc.opts.CatchUp(wait) != nil {
			return fmt.Errorf("%s: %w: no controller answers whether another broker has what is beyond the end here; try again",
				part, partition.ErrUnconfirmed)
		}
	}
	return part.State().Err
}

// checkOffset says why reading can't begin at an offset.
func (f *fetcher) checkOffset(part *partition.Partition, off record.Offset) error {
	err := part.CheckOffset(off)
	if off < part.State().LogStart || !errors.Is(err, partition.ErrOffsetOutOfRange) {
		return err
	}
	if err := f.sure(part); err != nil {
		return err
	}
	return part.CheckOffset(off)
}

// checkLastEpoch says whether the log still holds what a reader had read: the
// record before next must be of epoch last. What retention has removed counts
// as held.
func (f *fetcher) checkLastEpoch(part *partition.Partition, next record.Offset, last record.Epoch) error {
	st := part.State()
	ahead := next > st.LogStart && last > st.Epoch // of all that this broker knows
	if !ahead {
		if err := f.compare(part, next, last); !errors.Is(err, errLogTruncated) {
			return err
		}
	}
	if err := f.sure(part); err != nil {
		return err
	}
	err := f.compare(part, next, last)
	if now := part.State(); err != nil && now.Err != nil {
		return now.Err // replaced meanwhile: the log may be another's by now
	}
	return err
}

// compare compares what a reader had read with the log as it is here.
func (f *fetcher) compare(part *partition.Partition, next record.Offset, last record.Epoch) error {
	st := part.State()
	switch {
	case next <= st.LogStart:
		return nil
	case next > st.HighWatermark && !st.Settled:
		return fmt.Errorf("%s: %w: try again", part, partition.ErrOffsetNotAvailable)
	case next > st.HighWatermark:
		return truncatedError(part, st.Epoch, st.HighWatermark)
	}
	if at := part.EpochAt(next - 1); at == last || at == commitlog.NoEpoch {
		return nil
	}
	epoch, end := part.EpochEnd(last)
	if epoch == last {
		// Compaction may have left nothing of the later epochs before next.
		if empty, err := f.empty(part, end, next); empty || err != nil {
			return err
		}
	}
	return truncatedError(part, epoch, min(end, next))
}

// empty reports whether compaction has left no records from one offset up to
// another.
func (f *fetcher) empty(part *partition.Partition, from, to record.Offset) (bool, error) {
	for from < to {
		h, ok, err := f.headerAt(part, from, to)
		if err != nil || !ok {
			return true, err
		}
		if h.RecordCount > 0 {
			return false, nil
		}
		from = h.LastOffset() + 1
	}
	return true, nil
}

// headerAt returns the header of the first batch that holds offsets of
// [from, to); false when there is none.
func (f *fetcher) headerAt(part *partition.Partition, from, to record.Offset) (h record.Header, ok bool, err error) {
	pool := f.svc.opts.Pool
	for size := 4 << 10; ; {
		b := pool.Get(size)
		n, err := part.Read(*b, from, to)
		if short, ok := errors.AsType[*commitlog.ShortBufferError](err); ok && short.Need > size {
			pool.Put(b)
			size = short.Need
			continue
		}
		frame, verdict := record.ParseFrame((*b)[:n], int64(n), record.MaxFrameSize)
		pool.Put(b)
		switch {
		case err != nil || n == 0:
			return h, false, err
		case verdict != record.OK:
			return h, false, fmt.Errorf("read the header at offset %d of %s: %w: %s", from, part, partition.ErrLogCorrupt, verdict)
		}
		return frame.Header, true, nil
	}
}
