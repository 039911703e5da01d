package cases

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/runnelmq/runnel/client"
)

// A burst is written at once.
type burst struct {
	// mu guards the fields below
	mu sync.Mutex

	acked  int
	failed []error
}

func (b *burst) done(r client.Result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.Err == nil {
		b.acked++
		return
	}
	b.failed = append(b.failed, r.Err)
}

// One record over the limit fails by itself, early, with its size and the limit;
// its neighbours are written. The limit is a record's, not that of what is sent
// together, and it counts the bytes before compression (PD-13).
func TestPD13_aLargeRecordFailsAlone(t *testing.T) {
	const limit = 1 << 20
	small, large := make([]byte, 1<<10), make([]byte, 2<<20)
	// A record of a value alone has a byte of tag and three of length before it.
	exact, over := make([]byte, limit-4), make([]byte, limit-3)
	for name, c := range map[string]struct {
		values        [][]byte
		acked, failed int
		size          string // of what failed
	}{
		"one of a hundred": {append(append(many(small, 50), large), many(small, 49)...), 99, 1, fmt.Sprint(2<<20 + 5)},
		"2000 small ones":  {many(small, 2000), 2000, 0, ""},
		"exactly the most": {many(exact, 3), 3, 0, ""},
		"one byte more":    {[][]byte{small, over, small}, 2, 1, fmt.Sprint(limit + 1)},
	} {
		for _, compression := range []client.Compression{client.NoCompression, client.Zstd, client.Gzip, client.Snappy, client.LZ4} {
			for _, linger := range []time.Duration{0, 5 * time.Millisecond} {
				t.Run(fmt.Sprintf("%s/%v/linger %s", name, compression, linger), func(t *testing.T) {
					inTown(t, nil, func(w *town) {
						t := w.t
						cl := w.client(brokerAddr)
						defer cl.Close()
						w.topic(cl, "t", 1, map[string]string{"max.message.bytes": fmt.Sprint(limit)})
						p, err := cl.NewProducer(client.Compress(compression, 0), client.Linger(linger))
						if err != nil {
							t.Fatal(err)
						}
						start := time.Now()
						b := &burst{}
						for _, v := range c.values {
							p.Produce(t.Context(), client.Record{Topic: "t", Value: v}, b.done)
						}
						if err := p.Close(t.Context()); err != nil {
							t.Fatal(err)
						}
						if b.acked != c.acked || len(b.failed) != c.failed || time.Since(start) > time.Second {
							t.Fatalf("%d were written, and failed after %s: %v", b.acked, time.Since(start), b.failed)
						}
						for _, err := range b.failed {
							e, ok := errors.AsType[*client.Error](err)
							if !ok || !errors.Is(err, client.ErrRecordTooLarge) || client.Retriable(err) || e.Metadata["size"] != c.size || e.Metadata["maxBytes"] != fmt.Sprint(limit) ||
								!strings.Contains(err.Error(), c.size) || !strings.Contains(err.Error(), fmt.Sprint(limit)) {
								t.Errorf("%v, %v", err, e)
							}
						}
						r := w.reader(cl, "t")
						defer r.Close()
						w.next(r, c.acked, time.Minute)
					})
				})
			}
		}
	}
}

func many(v []byte, n int) (out [][]byte) {
	for range n {
		out = append(out, v)
	}
	return out
}
