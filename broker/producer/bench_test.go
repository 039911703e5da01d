package producer

import (
	"testing"

	"github.com/runnelmq/runnel/internal/record"
)

// What a batch of a known producer costs.
func BenchmarkTable(b *testing.B) {
	const producers = 10_000
	w := &world{t: New(Config{}), nowMs: 5}
	for id := range record.ProducerID(producers) {
		w.append(header(id+1, 0, 0, 0))
	}
	h := header(1, 0, 1, 0)
	h.AppendTimeMs = 5
	b.ReportAllocs()
	for n := record.ProducerID(0); b.Loop(); n++ {
		h.ProducerID, h.BaseSequence = n%producers+1, record.Sequence(n/producers)+1
		h.BaseOffset++
		if stored, err := w.t.Check(h, 5); stored != nil || err != nil {
			b.Fatal(stored, err)
		}
		w.t.Apply(h)
	}
}
