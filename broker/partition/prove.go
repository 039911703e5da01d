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

// soundFor is for how long a log counts as good that was read through: disks lose
// what they had, and a leader may lead for months.
const soundFor = 10 * time.Minute

// errReplaced ends the reading of a log by a leader that is none any more.
var errReplaced = errors.New("it does not lead in that epoch any more")

// proveLocked has the log of a leader read through for a follower that would throw
// its own damaged copy away.
func (p *Partition) proveLocked() {
	if p.core.role != leading || p.core.proven(time.Now()) || p.proving || p.damagedHere() {
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
	err := p.readThrough(ctx, epoch, end)
	if err == nil {
		err = p.Damage() // that somebody else has met
	}
	p.mu.Lock()
	p.proving = false
	if err == nil && p.core.role == leading && p.core.epoch == epoch {
		p.core.sound = time.Now()
	}
	p.mu.Unlock()
	log := p.host.log.With().Str("topic", p.Topic().Name).Int32("partition", p.number).Dur("took", time.Since(start)).Logger()
	switch {
	case ctx.Err() != nil, errors.Is(err, errReplaced), errors.Is(err, ErrDeleted):
	case errors.Is(err, ErrLogCorrupt):
		log.Error().Err(err).Msg("a follower's copy is damaged, and so is the leader's: neither is thrown away")
	case err != nil:
		log.Warn().Err(err).Msg("a log could not be read through for a follower whose copy is damaged: it is tried again")
	default:
		log.Info().Msg("all records of a leader were read, and are good: a follower's damaged copy may begin anew from them")
	}
}

// readThrough reads and verifies every record up to end, resting as long as it
// works. What is damaged is noted in the log. It ends with errReplaced when the
// epoch, or the partition, does: a log may take hours, and others wait.
func (p *Partition) readThrough(ctx context.Context, epoch record.Epoch, end record.Offset) error {
	buf := make([]byte, proofChunk)
	for at := p.log.Start(); at < end; {
		if st := p.State(); st.Err != nil || st.Epoch != epoch {
			return errReplaced
		}
		begun := time.Now()
		n, err := p.log.Read(buf, at, end)
		short, isShort := errors.AsType[*commitlog.ShortBufferError](err)
		switch {
		case isShort:
			buf = make([]byte, short.Need)
			continue
		case errors.Is(err, commitlog.ErrOutOfRange) && at < p.log.Start():
			at = p.log.Start() // retention went on meanwhile
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
