package partition

import (
	"testing"
	"time"

	"github.com/runnelmq/runnel/broker/producer"
	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// What idempotence costs an append of 16 KiB: nothing for who has no id, a look
// and a note for who has.
func BenchmarkAppend(b *testing.B) {
	for _, c := range []struct {
		name      string
		owner     bool
		producers int64
	}{
		{"nobody remembers", false, 0}, {"without id", true, 0}, {"one producer", true, 1}, {"10000 producers", true, 10_000},
	} {
		b.Run(c.name, func(b *testing.B) {
			known := newProducers(producer.Config{})
			cfg := commitlog.Config{SegmentBytes: 64 << 20, RetentionBytes: 64 << 20}
			if c.owner {
				cfg.Producers = known
			}
			log, _, err := commitlog.OpenLog(vfs.OS(), b.TempDir(), cfg, commitlog.OpenOptions{})
			if err != nil {
				b.Fatal(err)
			}
			builder := record.NewBuilder(record.NewCodec(), record.Limits{})
			for range 160 {
				if err := builder.Add(nil, make([]byte, 100), nil, 0); err != nil {
					b.Fatal(err)
				}
			}
			batch, err := builder.Finish(record.CompressionNone, 0)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(batch.FrameSize()))
			b.ReportAllocs()
			for n := int64(0); b.Loop(); n++ {
				if c.producers > 0 {
					batch.ProducerID = record.ProducerID(1 + n%c.producers)
					batch.BaseSequence = record.Sequence(n / c.producers * 160)
					if stored, err := known.check(&batch.Header, time.Now().UnixMilli()); stored != nil || err != nil {
						b.Fatal(stored, err)
					}
				}
				if _, err := log.Append(&batch, 1, record.CreateTime); err != nil {
					b.Fatal(err)
				}
				if n%10_000 == 0 {
					if _, err := log.Retain(time.Now().UnixMilli(), log.End()); err != nil {
						b.Fatal(err)
					}
				}
			}
			if err := log.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}
