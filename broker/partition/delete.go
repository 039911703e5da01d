package partition

import (
	"context"
	"errors"
	"fmt"

	"github.com/runnelmq/runnel/internal/record"
)

// ToHighWatermark asks DeleteRecords for all that is committed.
const ToHighWatermark record.Offset = -1

// DeleteRecords makes before, or the high watermark for ToHighWatermark, the
// log start, and returns the log start there is then: it never falls. It returns
// when every replica that may be elected begins there. When that does not happen before ctx
// ends or the leadership does, it is ErrCommitUncertain: here it is done.
func (p *Partition) DeleteRecords(ctx context.Context, before record.Offset) (logStart record.Offset, err error) {
	p.writing <- struct{}{}
	logStart, err = p.deleteToken(before)
	<-p.writing
	p.deliver()
	if err != nil {
		return 0, err
	}
	w := &deleteWaiter{start: logStart, done: make(chan error, 1)}
	p.mu.Lock()
	p.deletes = append(p.deletes, w)
	p.deletedLocked(p.state.Load())
	p.mu.Unlock()
	select {
	case err = <-w.done:
	case <-ctx.Done():
		err = fmt.Errorf("%s: %w: not every replica that may lead has removed the records: %w", p, ErrCommitUncertain, opaque{context.Cause(ctx)})
		p.mu.Lock()
		for i, o := range p.deletes {
			if o == w {
				p.deletes = append(p.deletes[:i], p.deletes[i+1:]...)
				break
			}
		}
		p.mu.Unlock()
	}
	if err != nil {
		return 0, err
	}
	return p.State().LogStart, nil
}

// A deleteWaiter waits until the ISR begins at start.
type deleteWaiter struct {
	start record.Offset
	done  chan error // capacity 1
}

// deletedLocked answers those who wait for a deletion.
func (p *Partition) deletedLocked(st *State) {
	keep := p.deletes[:0]
	for _, w := range p.deletes {
		switch {
		case !st.Leader:
			why := p.stopped
			if why == nil {
				why = errLeadershipLost
			}
			w.done <- fmt.Errorf("%s: %w: %w", p, ErrCommitUncertain, opaque{why})
		case p.core.deletedBelow(w.start):
			w.done <- nil
		default:
			keep = append(keep, w)
		}
	}
	clear(p.deletes[len(keep):])
	p.deletes = keep
}

// errLeadershipLost is told of, and is no kind of error.
var errLeadershipLost = errors.New("the leadership was lost before all replicas had it")

// deleteToken needs the writing token.
func (p *Partition) deleteToken(before record.Offset) (record.Offset, error) {
	st, err := p.End()
	if err != nil {
		return 0, err
	}
	if before == ToHighWatermark {
		before = st.HighWatermark
	}
	if before < 0 || before > st.HighWatermark {
		return 0, outOfRange(&st, before)
	}
	if before > st.LogStart {
		if err := p.log.DeleteBefore(before); err != nil {
			return 0, p.changeFailed("delete records of", err)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()

	p.core.cut(p.log.Start())
	p.publishLocked()
	return p.core.logStart, nil
}
