package commitlog

import (
	"context"
	"errors"
	"fmt"

	"github.com/runnelmq/runnel/internal/record"
)

// errAbandoned ends a pass under which the log was cut or closed.
var errAbandoned = errors.New("the log changed under its compaction")

// defaultMapBytes is [CleanOptions.MapBytes] when that is 0.
const defaultMapBytes = 16 << 20

// CleanOptions say how a pass of compaction goes.
type CleanOptions struct {
	// NowMs is the time, in Unix milliseconds.
	NowMs int64
	// Limit is the offset at and above which nothing is touched: what is not
	// committed, or belongs to an open transaction.
	Limit record.Offset
	// MapBytes is what the map of keys may take. A pass with more keys than
	// that ends early, and the next one goes on. Default 16 MiB.
	MapBytes int64
	// Live says whether a producer's last batch must stay, as an empty one,
	// though its records go. nil is [Log.ProducerLive].
	Live func(record.ProducerID) bool
	// Pace is called with the bytes that were just read or written, and may
	// wait; its error ends the pass. nil does not wait.
	Pace func(ctx context.Context, bytes int) error
	// Codec serves compressed batches; nil makes one.
	Codec *record.Codec

	// swapping is called with a group that is about to be replaced, and what
	// replaces it; for tests.
	swapping func(g *group, by *segment)
}

// Cleaned is what a pass has done.
type Cleaned struct {
	// To is the offset up to which no key has two records now; More says that
	// the map was full, and that another pass has more to do.
	To   record.Offset
	More bool
	// BytesRead and BytesWritten count segments, not indexes.
	BytesRead, BytesWritten int64
	// Superseded, Tombstones and Keyless count the records that went: those
	// with a newer one of their key, tombstones after their time, and records
	// without a key, of a time before the topic was compacted.
	Superseded, Tombstones, Keyless int64
	// SegmentsBefore and SegmentsAfter count those that were replaced, and
	// those that replaced them.
	SegmentsBefore, SegmentsAfter int
}

// Clean compacts what may be compacted: of each key the last record stays, at
// its offset, and a tombstone until [Config.DeleteRetention] after the first
// pass that met it. It may run while the log is written, read, cut and deleted
// from; one pass runs at a time.
//
// A pass that fails leaves a log that says what it said. Errors: ErrCorrupt for
// damage, which stops the pass before it and is not copied; ErrStorageFull and
// ErrTooManyFiles, after which it may be made again; ErrClosed, ErrFailed, and
// that of ctx or of [CleanOptions.Pace].
func (l *Log) Clean(ctx context.Context, opts CleanOptions) (Cleaned, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	select {
	case l.cleaning <- struct{}{}:
		defer l.cleaning.give()
	case <-ctx.Done():
		return Cleaned{}, ctx.Err()
	}
	l.mu.Lock()
	if l.closing {
		l.mu.Unlock()
		return Cleaned{}, ErrClosed
	}
	l.stopClean = cancel
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()

		l.stopClean = nil
	}()
	if err := l.usable(); err != nil {
		return Cleaned{}, err
	}
	c := newCleaning(ctx, l, opts)
	err := c.run()
	l.bytesRead.Add(c.done.BytesRead)
	if errors.Is(err, errAbandoned) || errors.Is(err, errGone) {
		err = nil // the next pass looks at what there is then
	}
	if err != nil {
		if stop := l.usable(); stop != nil {
			err = stop
		}
		return c.done, fmt.Errorf("compact %s: %w", l.dir, l.found(err))
	}
	return c.done, nil
}

// stopCleaning ends the pass under way, waits for it, and lets no other begin.
func (l *Log) stopCleaning() {
	l.mu.Lock()
	l.closing = true
	stop := l.stopClean
	l.mu.Unlock()
	if stop != nil {
		stop()
	}
	l.cleaning.take()
	l.cleaning.give()
}

// A cleaning is one pass.
type cleaning struct {
	ctx  context.Context //nolint:containedctx // of one call, which the pass does not outlive
	l    *Log
	opts CleanOptions
	cfg  *Config
	view *view
	cuts uint64
	from cleanState

	// n is how many segments may be touched, and end where they end.
	n   int
	end record.Offset
	// purge says that the clock can be trusted with the end of tombstones.
	purge bool
	keys  *keyMap
	// mapped is the offset below which the map knows all keys' last records.
	mapped record.Offset
	// tails are the base offsets of the last batches of producers.
	tails    map[record.ProducerID]record.Offset
	rewriter *record.Rewriter
	// epoch is that of the batch before the next one to be looked at.
	epoch record.Epoch
	// horizon is when the first tombstone that stays may go; 0 without any.
	horizon int64
	done    Cleaned
}

func newCleaning(ctx context.Context, l *Log, opts CleanOptions) *cleaning {
	if opts.MapBytes <= 0 {
		opts.MapBytes = defaultMapBytes
	}
	if opts.Codec == nil {
		opts.Codec = record.NewCodec()
	}
	if opts.Live == nil {
		opts.Live = l.ProducerLive
	}
	return &cleaning{
		ctx: ctx, l: l, opts: opts, cfg: l.config.Load(), view: l.view.Load(), cuts: l.cuts.Load(), from: *l.clean.Load(),
		tails: map[record.ProducerID]record.Offset{}, rewriter: record.NewRewriter(opts.Codec), epoch: NoEpoch,
	}
}

func (c *cleaning) run() error {
	l := c.l
	var err error
	if c.n, c.end, err = l.cleanable(c.view, c.opts.NowMs, c.opts.Limit); err != nil {
		return err
	}
	c.done.To = c.from.dirtyFrom
	c.purge = l.cleanClocks.judge(c.opts.NowMs, l.now()) == nil
	start := c.view.segments[0].base
	dirty := max(c.from.dirtyFrom, start)
	due := c.from.horizonMs != 0 && c.from.horizonMs <= c.opts.NowMs
	if c.n == 0 || c.end < dirty || (c.end == dirty && !due) {
		return nil
	}
	if bad := clampRanges(l.Damage(), start, c.end); len(bad) > 0 {
		return &CorruptError{
			Path: c.view.segments[c.view.find(bad[0].From)].file.path, Position: -1,
			Offset: bad[0].From, NextOffset: bad[0].To, What: "damage is not compacted",
		}
	}
	if err := c.buildMap(dirty); err != nil {
		return err
	}
	// In the order of offsets: a tombstone goes only when all that it deletes
	// has gone, durably.
	for i := 0; i < c.n && c.view.segments[i].base < c.mapped; {
		g := c.newGroup(i)
		if err := c.clean(g); err != nil {
			return err
		}
		i += len(g.segments)
	}
	return c.finish()
}

// finish writes down how far the pass has come.
func (c *cleaning) finish() error {
	l := c.l
	l.writing.take()
	defer l.writing.give()
	if err := l.usable(); err != nil {
		return err
	}
	if l.cuts.Load() != c.cuts {
		return errAbandoned
	}
	l.checkpointing.take()
	defer l.checkpointing.give()

	if err := l.keepClean(cleanState{c.mapped, c.horizon}); err != nil {
		return err
	}
	c.done.To, c.done.More = c.mapped, c.mapped < c.end
	return nil
}

// buildMap learns the last offset of each key from offset dirty on, and the
// last batch of each producer.
func (c *cleaning) buildMap(dirty record.Offset) error {
	c.keys = newKeyMap(c.opts.MapBytes, c.end-dirty)
	c.mapped = c.end
	var records record.Iterator
	for i := 0; i < c.n && c.view.segments[i].base < c.mapped; i++ {
		payloads := c.view.segments[i+1].base > dirty
		err := c.frames(i, payloads, func(_ int64, f *record.Frame, bytes []byte) (bool, error) {
			h := &f.Header
			if h.BaseOffset >= c.mapped {
				return false, nil
			}
			if h.ProducerID != 0 {
				c.tails[h.ProducerID] = h.BaseOffset
			}
			if h.NextOffset() <= dirty || !compactable(h) {
				return true, nil
			}
			records.Reset(*h, f.Payload(bytes))
			for records.Next() {
				r := records.Record()
				if r.Offset >= dirty && r.Key != nil && !c.keys.put(r.Key, r.Offset) {
					c.mapped = r.Offset
					return false, nil
				}
			}
			return true, records.Err()
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// compactable says whether a batch's records count for what compaction does:
// those of transactions neither supersede others nor go.
func compactable(h *record.Header) bool { return !h.Control && !h.Transactional }

// frames calls fn for each frame of segment i, until it says false. With
// payloads these are verified, and bytes holds the whole frame.
func (c *cleaning) frames(i int, payloads bool, fn func(pos int64, f *record.Frame, bytes []byte) (bool, error)) error {
	s := c.view.segments[i]
	f, err := s.file.acquire()
	if err != nil {
		return c.l.unopened(err, c.view, i)
	}
	defer s.file.release()

	next := s.base
	scan := scanner{file: f, size: s.size.Load(), payloads: payloads}
	for pos := int64(0); ; {
		before := scan.bytesRead
		fr, v, err := scan.frame(pos)
		if err != nil {
			return c.l.unreadable(err, c.view, i, next)
		}
		if read := scan.bytesRead - before; read > 0 {
			c.done.BytesRead += read
			if err := c.pace(int(read)); err != nil {
				return err
			}
		}
		if v == record.End {
			return nil
		}
		if v == record.CorruptPayload {
			return corruptBatch(s, pos, &fr, v.String())
		}
		if v != record.OK && v != record.CorruptEnvelope {
			return c.l.corrupt(c.view, i, pos, next, v)
		}
		next = fr.Header.NextOffset()
		var bytes []byte
		if payloads {
			if bytes, err = scan.window(pos, fr.Size); err != nil {
				return err
			}
			bytes = bytes[:fr.Size]
		}
		more, err := fn(pos, &fr, bytes)
		if errors.Is(err, record.ErrCorruptBatch) {
			err = corruptBatch(s, pos, &fr, err.Error())
		}
		if err != nil || !more {
			return err
		}
		pos += int64(fr.Size)
	}
}

// corruptBatch is the error for a batch whose header is sound.
func corruptBatch(s *segment, pos int64, f *record.Frame, what string) error {
	return &CorruptError{Path: s.file.path, Position: pos, Offset: f.Header.BaseOffset, NextOffset: f.Header.NextOffset(), What: what}
}

// pace waits for the right to have read or written so many bytes, and looks
// whether the pass has become pointless.
func (c *cleaning) pace(bytes int) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	if c.l.cuts.Load() != c.cuts {
		return errAbandoned
	}
	if c.opts.Pace == nil {
		return nil
	}
	return c.opts.Pace(c.ctx, bytes)
}
