package cases

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runnelmq/runnel/client"
)

// Two hundred subscriptions on one connection, whose program does not read while
// records keep coming, cost what they were allowed and no more, for as long as it
// lasts; and then everything arrives (GR-10).
func TestGR10_stalledReadersAreBounded(t *testing.T) {
	const (
		readers  = 200
		prefetch = 128 << 10
		response = 64 << 10 // one may go over the prefetch
		budget   = readers * (prefetch + response)
		records  = 120
		size     = 16 << 10
	)
	inTown(t, nil, func(w *town) {
		t := w.t
		c := w.client(brokerAddr)
		defer c.Close()
		w.topic(c, "t", 1, nil)
		p, err := c.NewProducer()
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close(t.Context())
		var rs []*client.Reader
		for range readers {
			r := w.reader(c, "t", client.Prefetch(prefetch))
			defer r.Close()
			rs = append(rs, r)
		}
		before := w.net.received.Load()
		value := string(make([]byte, size))
		var goroutines int
		var heap uint64
		for i := range records { // a record a second: two minutes
			w.produce(p, "t", value)
			time.Sleep(time.Second)
			if i == records/4 { // all are stalled by now
				goroutines, heap = measure()
			}
		}
		if got := w.net.received.Load() - before; got < budget/4 || got > budget*11/10 {
			t.Errorf("%d bytes came, want up to %d: what was allowed, in the frames of HTTP/2", got, budget)
		}
		// The log in memory grows; nothing else may.
		stored := uint64(records * size * 3 / 4)
		if n, h := measure(); n > goroutines+10 || h > heap+2*stored+8<<20 {
			t.Errorf("%d goroutines and %d bytes of heap after two minutes, were %d and %d", n, h, goroutines, heap)
		}
		for i, r := range rs {
			for n, v := range w.next(r, records, time.Minute) {
				if len(v) != size {
					t.Fatalf("reader %d: record %d has %d bytes", i, n, len(v))
				}
			}
		}
	})
}

// measure returns how many goroutines there are, and the bytes of the heap after
// a collection.
func measure() (goroutines int, heap uint64) {
	synctest.Wait()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return runtime.NumGoroutine(), m.HeapAlloc
}
