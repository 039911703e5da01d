package partition

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/lifecycle"
	"github.com/runnelmq/runnel/internal/record"
)

// proofChunk is how much of a log is read at a time to find out whether it is
// good.
const proofChunk = 1 << 20

// proveLocked has the log of a leader read through, once in its epoch, for a
// follower that would throw its own damaged copy away.
func (p *Partition) proveLocked() {
	if p.core.role != leading || p.core.sound || p.proving || p.damagedHere() {
		return
	}
	p.proving = true
	p.host.prove(p)
}

// prove reads the log through and notes in the core whether all of it is good.
func (p *Partition) prove(ctx context.Context) {
	p.mu.Lock()
	epoch, end := p.core.epoch, p.core.own.written
	p.mu.Unlock()
	start := time.Now()
	err := p.readThrough(ctx, end)
	p.mu.Lock()
	p.proving = false
	if err == nil && p.core.role == leading && p.core.epoch == epoch && !p.damagedHere() {
		p.core.sound = true
	}
	p.mu.Unlock()
	log := p.host.log.With().Str("topic", p.Topic().Name).Int32("partition", p.number).Dur("took", time.Since(start)).Logger()
	switch {
	case ctx.Err() != nil, errors.Is(err, ErrDeleted):
	case err != nil && !errors.Is(err, ErrLogCorrupt):
		log.Warn().Err(err).Msg("a log could not be read through for a follower whose copy is damaged: it is tried again")
	case err != nil:
		log.Error().Err(err).Msg("a follower's copy is damaged, and so is the leader's: neither is thrown away")
	default:
		log.Info().Msg("all records of a leader were read, and are good: a follower's damaged copy may begin anew from them")
	}
}

// readThrough reads and verifies every record up to end, resting as long as it
// works. What is damaged is noted in the log.
func (p *Partition) readThrough(ctx context.Context, end record.Offset) error {
	buf := make([]byte, proofChunk)
	for at := p.State().LogStart; at < end; {
		begun := time.Now()
		n, err := p.log.Read(buf, at, end)
		short, isShort := errors.AsType[*commitlog.ShortBufferError](err)
		switch {
		case isShort:
			buf = make([]byte, short.Need)
			continue
		case errors.Is(err, commitlog.ErrOutOfRange):
			if at >= p.State().LogStart {
				return p.readFailed(at, err)
			}
			at = p.State().LogStart // retention went on meanwhile
			continue
		case err != nil:
			return p.readFailed(at, err)
		case n == 0:
			return nil
		}
		next, err := p.verify(buf[:n], at)
		if err != nil {
			return err
		}
		at = next
		if !lifecycle.Wait(ctx, time.Since(begun)) {
			return context.Cause(ctx)
		}
	}
	return nil
}

// verify checks the records of stored batches, of which the first holds from, and
// returns where the next begins.
func (p *Partition) verify(batches []byte, from record.Offset) (next record.Offset, err error) {
	for len(batches) > 0 {
		f, verdict := record.ParseFrame(batches, int64(len(batches)), record.MaxFrameSize)
		if verdict != record.OK {
			return from, fmt.Errorf("%s at offset %d: %w: %s", p, from, ErrLogCorrupt, verdict)
		}
		next = f.Header.NextOffset()
		if err := record.VerifyPayload(f.Header, f.Payload(batches)); err != nil {
			p.host.metrics.corrupt.Inc()
			p.log.NoteDamage(max(from, f.Header.BaseOffset), next, err.Error())
			return from, fmt.Errorf("%s: %w: %w", p, ErrLogCorrupt, err)
		}
		from, batches = max(from, next), batches[f.Size:]
	}
	return from, nil
}
