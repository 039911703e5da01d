package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// A DeadLetter says what becomes of a record that a handler cannot process: after
// so many attempts, it is written to a topic, with headers that say where it was
// and what was wrong, and the group goes on with the next one. Zero values stand
// for the defaults.
type DeadLetter struct {
	// Topic is where such records go. It must exist, and the group must not read it,
	// nor by its pattern.
	Topic string
	// Attempts is how often a record is tried in all; 5 by default.
	Attempts int
	// Backoff is the pause after the first attempt; it doubles with each, up to
	// MaxBackoff, and varies by up to a half. 100 ms and 10 s by default.
	Backoff, MaxBackoff time.Duration
}

// The headers of a record in a dead-letter topic, after those that it had.
const (
	DeadLetterPrefix    = "runnel-dlq-"
	DeadLetterTopic     = DeadLetterPrefix + "topic"     // where it was
	DeadLetterPartition = DeadLetterPrefix + "partition" // in decimal
	DeadLetterOffset    = DeadLetterPrefix + "offset"    // in decimal
	DeadLetterGroup     = DeadLetterPrefix + "group"     // whose member gave up
	DeadLetterError     = DeadLetterPrefix + "error"     // the last one, cut to 4 KiB
	DeadLetterAttempts  = DeadLetterPrefix + "attempts"  // in decimal
	DeadLetterTime      = DeadLetterPrefix + "time"      // when it was given up, RFC 3339
)

const (
	defaultAttempts   = 5
	defaultBackoff    = 100 * time.Millisecond
	defaultMaxBackoff = 10 * time.Second
	maxCause          = 4 << 10
)

// WithDeadLetter makes [Group.Run] try records several times, and then put them
// aside.
func WithDeadLetter(d DeadLetter) GroupOption {
	return func(o *groupOptions) {
		if d.Attempts == 0 {
			d.Attempts = defaultAttempts
		}
		if d.Backoff == 0 {
			d.Backoff = defaultBackoff
		}
		if d.MaxBackoff == 0 {
			d.MaxBackoff = max(defaultMaxBackoff, d.Backoff)
		}
		o.deadLetter = &d
	}
}

func (d *DeadLetter) check(reads func(topic string) bool) error {
	switch {
	case d.Topic == "":
		return errors.New("WithDeadLetter: no topic")
	case reads(d.Topic):
		return fmt.Errorf("WithDeadLetter: the group reads %q itself: records would go round for ever", d.Topic)
	case d.Attempts < 1 || d.Backoff < 0 || d.MaxBackoff < d.Backoff:
		return fmt.Errorf("WithDeadLetter: %d attempts, backoff %v to %v: want 1 or more, and a backoff from 0 to its maximum", d.Attempts, d.Backoff, d.MaxBackoff)
	}
	return nil
}

// backoff returns the pause after an attempt, from 1.
func (d *DeadLetter) backoff(attempt int) time.Duration {
	pause := d.MaxBackoff
	if shift := attempt - 1; shift < 30 && d.Backoff<<shift < d.MaxBackoff {
		pause = d.Backoff << shift
	}
	return pause/2 + rand.N(pause/2+1) //nolint:gosec // to spread, not to hide
}

// Run has handle process the records of this member, one after another, those of a
// partition in order, until ctx ends, whose error it returns. The record is good
// until handle returns. The context that handle gets ends when ctx does, and when
// the record's partition is lost: what it does then is done by another member, too.
//
// An error of handle ends Run, with the record not processed; with
// [WithDeadLetter], the record is tried again, and at last put aside. It then counts
// as processed when the dead-letter topic has acknowledged it. While a record is
// tried again, nothing else of this member is processed. A partition that is taken
// away meanwhile goes with the record not processed.
func (g *Group) Run(ctx context.Context, handle func(context.Context, Record) error) error {
	var aside *Producer
	if d := g.o.deadLetter; d != nil {
		if _, _, err := g.c.partitions(ctx, d.Topic); err != nil {
			return fmt.Errorf("dead-letter topic %q: %w", d.Topic, err)
		}
		var err error
		if aside, err = g.c.NewProducer(); err != nil {
			return fmt.Errorf("dead-letter topic %q: %w", d.Topic, err)
		}
		defer func() { _ = aside.Close(ctx) }()
	}
	for {
		b, err := g.take(ctx, false)
		if err != nil {
			return err
		}
		for {
			if isDone(ctx) {
				g.layDown(b)
				return context.Cause(ctx)
			}
			if !b.Next() || !g.hold(b) {
				break
			}
			ok, err := g.process(ctx, b, aside, handle)
			switch {
			case err != nil:
				g.leaveBefore()
				return err
			case !ok:
				g.leaveBefore()
			}
		}
		g.finish(b)
		if err := b.Err(); err != nil && !errors.Is(err, ErrPartitionLost) {
			return err
		}
	}
}

// process processes the record in hand. It is false when that has no end because
// its partition is taken away.
func (g *Group) process(ctx context.Context, b *Batch, aside *Producer, handle func(context.Context, Record) error) (ok bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p := g.lend(b, cancel)
	if p == nil {
		return false, nil
	}
	d := g.o.deadLetter
	for attempt := 1; ; attempt++ {
		err := handle(ctx, b.rec)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(context.Cause(ctx), ErrPartitionLost):
			return false, nil
		case ctx.Err() != nil, d == nil:
			return false, fmt.Errorf("%s/%d offset %d: %w", p.topic, p.partition, b.rec.Offset, err)
		case attempt < d.Attempts:
			if !waitUnless(ctx, p.revoked, d.backoff(attempt)) {
				return false, notLost(ctx)
			}
			continue
		}
		if err := g.putAside(ctx, aside, &b.rec, err, attempt); err != nil {
			if errors.Is(context.Cause(ctx), ErrPartitionLost) {
				return false, nil
			}
			return false, err
		}
		return true, nil
	}
}

// notLost is the error of ctx, unless that ended because a partition was lost.
func notLost(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), ErrPartitionLost) {
		return nil
	}
	return context.Cause(ctx)
}

// waitUnless waits for d; false when ctx or the ownership ended before.
func waitUnless(ctx context.Context, revoked <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-revoked:
	case <-ctx.Done():
	}
	return false
}

// lend has cancel called when what is in hand is lost.
func (g *Group) lend(b *Batch, cancel context.CancelCauseFunc) *groupPart {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.hand == nil || g.hand.b != b {
		return nil
	}
	g.hand.cancel = cancel
	return g.hand.part
}

// leaveBefore takes note that the record in hand is not processed, and nothing of
// its batch is gone on with: the partition begins with it again, here if it is
// still this member's.
func (g *Group) leaveBefore() {
	g.mu.Lock()
	h := g.hand
	if h == nil {
		g.mu.Unlock()
		return
	}
	at := h.next - 1
	p := h.part
	h.next, h.whole = noOffset, false
	giving := p.giving
	p.moving = !giving
	g.emptyLocked()
	g.mu.Unlock()
	if giving {
		return
	}
	_ = g.r.edit(p.topic, p.partition, func(a *assigned) { g.r.moveLocked(a, at) })
	g.mu.Lock()
	p.moving = false
	g.mu.Unlock()
}

// putAside writes a record to the dead-letter topic.
func (g *Group) putAside(ctx context.Context, aside *Producer, rec *Record, cause error, attempts int) error {
	dead := rec.Clone()
	dead.Topic = g.o.deadLetter.Topic
	text := cause.Error()
	if len(text) > maxCause {
		text = strings.ToValidUTF8(text[:maxCause], "")
	}
	header := func(name, value string) Header { return Header{Key: name, Value: []byte(value)} }
	dead.Headers = append(dead.Headers,
		header(DeadLetterTopic, rec.Topic),
		header(DeadLetterPartition, strconv.FormatInt(int64(rec.Partition), 10)),
		header(DeadLetterOffset, strconv.FormatInt(rec.Offset, 10)),
		header(DeadLetterGroup, g.name),
		header(DeadLetterError, text),
		header(DeadLetterAttempts, strconv.Itoa(attempts)),
		header(DeadLetterTime, time.Now().UTC().Format(time.RFC3339Nano)))
	if _, err := aside.ProduceSync(ctx, dead); err != nil {
		return fmt.Errorf("%s/%d offset %d was tried %d times and cannot be put aside in %q: %w (the last attempt: %w)",
			rec.Topic, rec.Partition, rec.Offset, attempts, g.o.deadLetter.Topic, err, cause)
	}
	return nil
}
