package commitlog

import (
	"errors"
	"fmt"

	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// cleanedSuffix ends the name of a segment that is being written by compaction.
// It is a leftover after a crash.
const cleanedSuffix = ".log.cleaned" + vfs.TempSuffix

// cleanBuffer is how much of a new segment is written at once.
const cleanBuffer = 256 << 10

// A group is a run of segments that become one.
type group struct {
	c *cleaning
	// at is the index of the first segment, end the offset after the last.
	at       int
	segments []*segment
	end      record.Offset

	// out is what replaces them; its file is nil for as long as it would be a
	// copy of the only segment.
	out  *segment
	file vfs.File
	path string
	buf  []byte
	size int64
	// changed: something is not as it was.
	changed bool
	// purgedTo and cleanedTo are what this group raises the log's to.
	purgedTo, cleanedTo record.Offset
}

func (c *cleaning) newGroup(at int) *group {
	base := c.view.segments[at].base
	return &group{
		c: c, at: at, path: c.l.path(segmentName(base, cleanedSuffix)),
		out: newSegment(c.l.fs, c.l.dir, base, c.cfg.IndexIntervalBytes, c.l.idle),
	}
}

// clean rewrites segments from g.at on into one, as many as it has room for, and
// puts the result in their place if it is another.
func (c *cleaning) clean(g *group) (err error) {
	defer func() {
		if err != nil || !g.changed {
			err = errors.Join(err, g.discard())
		}
	}()
	for i, more := g.at, true; more; i++ {
		s := c.view.segments[i]
		g.segments, g.end = append(g.segments, s), c.view.segments[i+1].base
		if i > g.at {
			if err := g.change(); err != nil {
				return err
			}
		}
		more = false
		size := s.size.Load()
		err := c.frames(i, true, func(pos int64, f *record.Frame, bytes []byte) (bool, error) {
			last := pos+int64(f.Size) == size
			if last {
				more = c.joins(g, i+1, int64(f.Size))
			}
			return true, c.frame(g, f, bytes, last && !more)
		})
		if err != nil {
			return err
		}
	}
	if !g.changed {
		return nil
	}
	if err := g.flush(); err != nil {
		return err
	}
	if err := g.file.Sync(); err != nil {
		return c.l.failed.Set(err)
	}
	if err := c.l.swapIn(g); err != nil {
		return err
	}
	c.done.SegmentsBefore += len(g.segments)
	c.done.SegmentsAfter++
	return nil
}

// joins says whether segment i goes into the group too, when the group gets so
// many more bytes before it, at most.
func (c *cleaning) joins(g *group, i int, bytes int64) bool {
	return i < c.n && c.view.segments[i].base < c.mapped && g.size+bytes+c.view.segments[i].size.Load() <= c.cfg.SegmentBytes
}

// frame decides what becomes of one batch. Last is the last one of the group: it
// stays, because where it ends the next segment begins.
func (c *cleaning) frame(g *group, f *record.Frame, bytes []byte, last bool) error {
	h := &f.Header
	first := h.LeaderEpoch != c.epoch // of its epoch: it stays, so that the epochs can be made anew from the batches
	c.epoch = h.LeaderEpoch
	if h.BaseOffset >= c.mapped || !compactable(h) {
		return g.copyFrame(f, bytes)
	}
	whole := h.NextOffset() <= c.mapped
	gone := c.purge && h.DeleteHorizonMs != 0 && h.DeleteHorizonMs <= c.opts.NowMs
	tombstones := false
	kept, err := c.rewriter.Filter(*h, f.Payload(bytes), func(r *record.Record) bool {
		switch newest, ok := c.keys.last(r.Key); {
		case r.Offset >= c.mapped:
		case r.Key == nil:
			c.done.Keyless++
			return false
		case ok && r.Offset < newest:
			c.done.Superseded++
			return false
		case r.Value == nil && gone:
			c.done.Tombstones++
			g.purgedTo = r.Offset + 1
			return false
		case r.Value == nil:
			tombstones = true
		}
		return true
	})
	if err != nil {
		return err
	}
	horizon := h.DeleteHorizonMs
	if tombstones && whole && horizon == 0 {
		// From now, not from when the pass began: what it deletes has gone only now.
		horizon = max(c.opts.NowMs, c.l.now().UnixMilli()) + c.cfg.DeleteRetention.Milliseconds()
	}
	if tombstones && horizon != 0 && (c.horizon == 0 || horizon < c.horizon) {
		c.horizon = horizon
	}
	stays := kept > 0 || last || first || c.isTail(h)
	if stays && kept == int(h.RecordCount) && horizon == h.DeleteHorizonMs {
		return g.copyFrame(f, bytes)
	}
	g.cleanedTo = h.NextOffset()
	if !stays {
		return g.change()
	}
	return g.rewrite(horizon)
}

// isTail says whether a batch is the last one of a producer who may go on.
func (c *cleaning) isTail(h *record.Header) bool {
	return h.ProducerID != 0 && c.tails[h.ProducerID] == h.BaseOffset && c.opts.Live(h.ProducerID)
}

// copyFrame takes a frame over as it is.
func (g *group) copyFrame(f *record.Frame, bytes []byte) error {
	at := g.size
	g.out.note(&f.Header, at, f.Size)
	g.size += int64(f.Size)
	if g.file == nil {
		return nil
	}
	n := len(g.buf)
	g.buf = append(g.buf, bytes...)
	copy(g.buf[n:], f.AppendEnvelope(nil)) // should it be damaged
	return g.drain()
}

// rewrite takes over what the rewriter has left of a batch.
func (g *group) rewrite(horizonMs int64) error {
	if err := g.change(); err != nil {
		return err
	}
	n := len(g.buf)
	buf, err := g.c.rewriter.AppendFrames(g.buf, horizonMs)
	if err != nil {
		return err
	}
	g.buf = buf
	for frames := buf[n:]; len(frames) > 0; {
		f, v := record.ParseFrame(frames, int64(len(frames)), record.MaxFrameSize)
		if v != record.OK {
			return fmt.Errorf("a batch of %s that was rewritten is %s", g.out.file.path, v)
		}
		g.out.note(&f.Header, g.size, f.Size)
		g.size += int64(f.Size)
		frames = frames[f.Size:]
	}
	return g.drain()
}

// change makes the file if what comes next is not what was there.
func (g *group) change() error {
	if g.file != nil {
		return nil
	}
	g.changed = true
	if err := g.create(); err != nil {
		return err
	}
	// What was the same so far.
	from, err := g.segments[0].file.acquire()
	if err != nil {
		return err
	}
	defer g.segments[0].file.release()

	for at := int64(0); at < g.size; {
		b := g.buf[:min(cleanBuffer, g.size-at)]
		if _, err := from.ReadAt(b, at); err != nil {
			return err
		}
		if err := g.write(b, at); err != nil {
			return err
		}
		at += int64(len(b))
	}
	g.buf = g.buf[:0]
	return nil
}

func (g *group) create() error {
	f, err := emptyFile(g.c.l.fs, g.path)
	if err != nil {
		return g.c.l.check(err)
	}
	g.file, g.buf = f, make([]byte, 0, cleanBuffer+64<<10)
	return nil
}

// drain writes the buffer when it is long enough.
func (g *group) drain() error {
	if len(g.buf) < cleanBuffer {
		return nil
	}
	return g.flush()
}

func (g *group) flush() error {
	if err := g.write(g.buf, g.size-int64(len(g.buf))); err != nil {
		return err
	}
	g.buf = g.buf[:0]
	return nil
}

func (g *group) write(b []byte, at int64) error {
	n, err := g.file.WriteAt(b, at)
	if err == nil && n < len(b) {
		err = ErrStorageFull
	}
	if err != nil {
		return g.c.l.check(err)
	}
	g.c.done.BytesWritten += int64(n)
	return g.c.pace(n)
}

// discard removes what was written and did not come into its place.
func (g *group) discard() error {
	g.out.retire()
	if g.file == nil {
		return nil
	}
	err := g.file.Close()
	g.file = nil
	if g.c.l.failed.Err() != nil {
		return err
	}
	err = errors.Join(err, g.c.l.fs.Remove(g.path))
	return g.c.l.check(err)
}
