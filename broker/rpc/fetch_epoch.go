package rpc

import (
	"errors"
	"fmt"

	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/record"
)

// checkLastEpoch says whether the log still holds what a reader had read: the
// record before next must be of epoch last. What retention has removed counts
// as held.
func (f *fetcher) checkLastEpoch(part *partition.Partition, next record.Offset, last record.Epoch) error {
	st := part.State()
	switch {
	case next <= st.LogStart:
		return nil
	case next > st.HighWatermark && !st.Settled:
		return fmt.Errorf("%s: %w: try again", part, partition.ErrOffsetNotAvailable)
	case next > st.HighWatermark:
		return truncatedError(part, st.Epoch, st.HighWatermark)
	}
	epoch, err := f.epochAt(part, next-1)
	if err != nil || epoch == last {
		return err
	}
	// Epochs never fall along a log, so where those above last begin is found
	// by halving. All records below lo are of last or before it, and the one
	// at hi, if it is below next, is not.
	lo, hi := st.LogStart, next
	for lo < hi {
		mid := lo + (hi-lo)/2
		if epoch, err = f.epochAt(part, mid); err != nil {
			return err
		}
		if epoch <= last {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	epoch = last
	if lo > st.LogStart {
		if epoch, err = f.epochAt(part, lo-1); err != nil {
			return err
		}
	}
	return truncatedError(part, epoch, lo)
}

// epochAt returns the leader epoch in which the record at off was appended.
func (f *fetcher) epochAt(part *partition.Partition, off record.Offset) (record.Epoch, error) {
	pool := f.svc.opts.Pool
	for size := 4 << 10; ; {
		b := pool.Get(size)
		n, err := part.Read(*b, off, off+1)
		if short, ok := errors.AsType[*commitlog.ShortBufferError](err); ok && short.Need > size {
			pool.Put(b)
			size = short.Need
			continue
		}
		frame, verdict := record.ParseFrame((*b)[:n], int64(n), record.MaxFrameSize)
		pool.Put(b)
		switch {
		case err != nil:
			return 0, err
		case verdict != record.OK:
			return 0, fmt.Errorf("read the epoch of offset %d of %s: %w: %s", off, part, partition.ErrLogCorrupt, verdict)
		}
		return frame.Header.LeaderEpoch, nil
	}
}
