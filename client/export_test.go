package client

import (
	"runtime"
	"weak"
)

// Reserved returns what open batches have room for, in bytes.
func (p *Producer) Reserved() int64 { return p.builders.reserved.Load() }

// Lanes returns the addresses that the producer has a way to, "" for the seeds.
func (p *Producer) Lanes() (to []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for place := range p.lanes {
		to = append(to, string(place))
	}
	return to
}

// Lanes returns the addresses that the reader has a way to, "" for the seeds.
func (r *Reader) Lanes() (to []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for place := range r.lanes {
		to = append(to, string(place))
	}
	return to
}

// Connections returns the advertised addresses that the client has a connection
// for.
func (c *Client) Connections() (to []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for addr := range c.direct {
		to = append(to, addr)
	}
	return to
}

// A Buffer is what a producer or a reader holds at a moment; it says whether that
// is still in memory.
type Buffer func() bool

func bufferOf[T any](p *T) Buffer {
	w := weak.Make(p)
	return func() bool { return w.Value() != nil }
}

// Buffers returns what holds the bytes of records that have no outcome, by where
// they are.
func (p *Producer) Buffers() map[string][]Buffer {
	all := map[string][]Buffer{}
	add := func(where string, bs ...*batch) {
		for _, b := range bs {
			if b == nil {
				continue
			}
			if b.builder != nil {
				all[where] = append(all[where], bufferOf(b.builder))
			}
			if b.encoded != nil {
				all[where] = append(all[where], bufferOf(&b.encoded.ReadOnlyData()[0]))
			}
			if len(b.entries) > 0 {
				all[where] = append(all[where], bufferOf(&b.entries[0]))
			}
		}
	}
	p.topics.Range(func(_, v any) bool {
		t := v.(*topic)
		t.mu.Lock()
		for _, h := range t.held {
			all["held"] = append(all["held"], bufferOf(&h.r.Value[0]))
		}
		t.mu.Unlock()
		for _, pt := range t.all() {
			pt.mu.Lock()
			add("open", pt.open)
			add("queued", pt.queue...)
			add("in flight", pt.inflight...)
			add("refused", pt.refused...)
			pt.mu.Unlock()
		}
		return true
	})
	return all
}

// Buffers returns what holds the bytes of records that were fetched, by where
// they are.
func (r *Reader) Buffers() map[string][]Buffer {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := map[string][]Buffer{}
	add := func(where string, b *Batch) {
		if b == nil {
			return
		}
		all[where] = append(all[where], bufferOf(&(*b.buf)[0]), bufferOf(b))
		for _, set := range b.sets {
			all[where] = append(all[where], bufferOf(&set[0]))
		}
	}
	for _, b := range r.queue {
		add("queued", b)
	}
	add("in hand", r.current)
	return all
}

// Reader returns what the group reads with.
func (g *Group) Reader() *Reader { return g.r }

// Left returns how many of bs are still in memory, once all has been collected
// that can be.
func Left(bs []Buffer) (n int) {
	for range 3 { // what is in a sync.Pool goes with the second
		runtime.GC()
	}
	for _, alive := range bs {
		if alive() {
			n++
		}
	}
	return n
}
