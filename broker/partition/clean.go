package partition

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/record"
)

// CleanerConfig tunes the compaction of topics with cleanup.policy=compact. Zero
// fields have defaults.
type CleanerConfig struct {
	// Threads is how many partitions are compacted at a time. Default 1.
	Threads int
	// DedupeBufferBytes is what the maps of keys may take, together. Default
	// 64 MiB.
	DedupeBufferBytes int64
	// BytesPerSecond bounds what is read and written, together. 0: no bound.
	BytesPerSecond int64
	// Backoff is how long cleaners wait when nothing is to be compacted, and
	// after a partition could not be. Default 15 s.
	Backoff time.Duration
}

func (c CleanerConfig) withDefaults() CleanerConfig {
	if c.Threads <= 0 {
		c.Threads = 1
	}
	if c.DedupeBufferBytes <= 0 {
		c.DedupeBufferBytes = 64 << 20
	}
	if c.Backoff <= 0 {
		c.Backoff = 15 * time.Second
	}
	return c
}

// A cleaner compacts the partitions of a set, the dirtiest first.
type cleaner struct {
	cfg   CleanerConfig
	set   *Set
	codec *record.Codec
	pace  pacer

	// mu guards the fields below
	mu sync.Mutex

	busy map[*Partition]bool
	// later are partitions that could not be compacted, and when to try again.
	later map[*Partition]time.Time
}

func newCleaner(cfg CleanerConfig, s *Set) *cleaner {
	cfg = cfg.withDefaults()
	return &cleaner{
		cfg: cfg, set: s, codec: record.NewCodec(), pace: pacer{rate: cfg.BytesPerSecond},
		busy: map[*Partition]bool{}, later: map[*Partition]time.Time{},
	}
}

// work compacts until ctx is done.
func (c *cleaner) work(ctx context.Context) {
	for ctx.Err() == nil {
		p := c.take(time.Now())
		if p == nil {
			timer := time.NewTimer(c.cfg.Backoff)
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
			timer.Stop()
			continue
		}
		c.give(p, p.clean(ctx, c))
	}
}

// take returns the dirtiest partition that is due, nil when none is or the disk
// is all but full. The caller gives it back.
func (c *cleaner) take(now time.Time) *Partition {
	if c.set.host.disk().Hard {
		return nil // what a pass writes comes before what it frees
	}
	type candidate struct {
		p     *Partition
		ratio float64
	}
	var due []candidate
	for _, p := range c.free(now) {
		if d := p.dirt(now); d.Due { // without the mutex: it may have to read
			due = append(due, candidate{p, d.Ratio()})
		}
	}
	slices.SortStableFunc(due, func(a, b candidate) int { return cmp.Compare(b.ratio, a.ratio) })
	c.mu.Lock()
	defer c.mu.Unlock()

	for _, d := range due {
		if c.freeLocked(d.p) {
			c.busy[d.p] = true
			return d.p
		}
	}
	return nil
}

// free returns the partitions that may be looked at now.
func (c *cleaner) free(now time.Time) []*Partition {
	all := c.set.All()
	c.mu.Lock()
	defer c.mu.Unlock()

	for p, at := range c.later {
		if !now.Before(at) {
			delete(c.later, p)
		}
	}
	return slices.DeleteFunc(all, func(p *Partition) bool { return !c.freeLocked(p) })
}

func (c *cleaner) freeLocked(p *Partition) bool {
	_, later := c.later[p]
	return !later && !c.busy[p]
}

// give takes a partition back, with what became of it.
func (c *cleaner) give(p *Partition, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	delete(c.busy, p)
	if err != nil {
		c.later[p] = time.Now().Add(c.cfg.Backoff)
	}
}

// running returns how many partitions are being compacted.
func (c *cleaner) running() int {
	c.mu.Lock()
	defer c.mu.Unlock()

	return len(c.busy)
}

// dirt says how much there is to compact: nothing where that cannot be done.
func (p *Partition) dirt(now time.Time) commitlog.Dirt {
	if !p.log.Config().Compact || p.isStopped() || p.Suspicion() != "" || p.damagedHere() {
		return commitlog.Dirt{}
	}
	d, err := p.log.Dirt(now.UnixMilli(), p.State().LastStable)
	if err != nil {
		return commitlog.Dirt{}
	}
	return d
}

// uncleanable says whether damage keeps the partition from being compacted.
func (p *Partition) uncleanable() bool { return p.log.Config().Compact && p.damagedHere() }

// clean makes one pass. It waits for no writer, and no writer for more of it
// than the swap of files.
func (p *Partition) clean(ctx context.Context, c *cleaner) error {
	start := time.Now()
	done, err := p.log.Clean(ctx, commitlog.CleanOptions{
		NowMs: start.UnixMilli(), Limit: p.State().LastStable, Codec: c.codec,
		Pace: func(ctx context.Context, bytes int) error {
			if p.host.disk().Hard {
				return fmt.Errorf("%w: the disk is below its hard mark", commitlog.ErrStorageFull)
			}
			return c.pace.wait(ctx, bytes)
		},
		MapBytes: c.cfg.DedupeBufferBytes / int64(c.cfg.Threads),
	})
	p.host.metrics.clean.add(&done)
	log := p.host.log.With().Str("topic", p.Topic().Name).Int32("partition", p.number).Logger()
	switch {
	case err == nil:
		p.host.metrics.clean.passes.Inc()
		log.Debug().Int64("superseded", done.Superseded).Int64("tombstones", done.Tombstones).Int64("keyless", done.Keyless).
			Int64("read", done.BytesRead).Int64("written", done.BytesWritten).Dur("took", time.Since(start)).Msg("compacted")
		return nil
	case ctx.Err() != nil, errors.Is(err, commitlog.ErrClosed):
		return err
	}
	p.host.metrics.clean.failures.Inc()
	if errors.Is(err, commitlog.ErrCorrupt) {
		p.host.metrics.corrupt.Inc()
	}
	if errors.Is(err, commitlog.ErrFailed) {
		p.stop(fmt.Errorf("%s: %w: %w", p, ErrStorageFailed, err))
		p.deliver()
	}
	log.Error().Err(err).Msg("a partition could not be compacted")
	return err
}

// A pacer lets so many bytes a second through.
type pacer struct {
	rate int64 // 0: no bound

	// mu guards the fields below
	mu sync.Mutex

	free time.Time // when all that was let through is paid for
}

// pauseMin is what is not worth a timer.
const pauseMin = 10 * time.Millisecond

func (p *pacer) wait(ctx context.Context, bytes int) error {
	if p.rate <= 0 {
		return ctx.Err()
	}
	now := time.Now()
	p.mu.Lock()
	if p.free.Before(now) {
		p.free = now
	}
	pause := p.free.Sub(now)
	p.free = p.free.Add(time.Duration(float64(bytes) / float64(p.rate) * float64(time.Second)))
	p.mu.Unlock()
	if pause < pauseMin {
		return ctx.Err()
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
