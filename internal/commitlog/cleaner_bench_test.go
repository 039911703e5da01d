package commitlog

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// A pass over 64 MiB of records of 200 bytes, half of which go, by compression
// and by what was compacted before. MB/s are of the segments that are read.
func BenchmarkClean(b *testing.B) {
	for _, c := range []record.Compression{record.CompressionNone, record.CompressionLZ4, record.CompressionZstd} {
		b.Run(c.String(), func(b *testing.B) {
			var size, read int64
			for b.Loop() {
				b.StopTimer()
				l := dirtyLog(b, c, 64<<20)
				size = l.Size()
				b.StartTimer()
				done, err := l.Clean(context.Background(), CleanOptions{NowMs: l.now().UnixMilli(), Limit: l.End()})
				must(b, err)
				b.StopTimer()
				read += done.BytesRead
				if done.More || done.Superseded == 0 {
					b.Fatalf("%+v", done)
				}
				must(b, l.Close())
				b.StartTimer()
			}
			b.SetBytes(size)
			b.ReportMetric(float64(read)/float64(b.N)/float64(size), "reads/byte")
		})
	}
}

// BenchmarkKeyMap is the cost of one record in the map.
func BenchmarkKeyMap(b *testing.B) {
	m := newKeyMap(64<<20, 1<<20)
	key := make([]byte, 0, 32)
	i := 0
	for b.Loop() {
		key = fmt.Appendf(key[:0], "key-%016d", i&(1<<20-1))
		m.put(key, record.Offset(i))
		i++
	}
}

// dirtyLog makes a log of about size bytes before compression, in which each key
// is written about twice.
func dirtyLog(b *testing.B, c record.Compression, size int) *Log {
	b.Helper()
	l, _, err := OpenLog(vfs.OS(), b.TempDir(), Config{SegmentBytes: 16 << 20, Compact: true}, OpenOptions{})
	must(b, err)
	rng := rand.New(rand.NewPCG(1, 2))
	builder := record.NewBuilder(record.NewCodec(), record.Limits{})
	value := make([]byte, 0, 200)
	keys := size / 200 / 2
	for written := 0; written < size; {
		builder.Reset()
		for builder.Size() < 64<<10 {
			value = value[:0]
			for len(value) < 190 {
				value = fmt.Appendf(value, `{"id":%d,`, rng.Uint32())
			}
			must(b, builder.Add(fmt.Appendf(nil, "key-%d", rng.IntN(keys)), value, nil, 1))
		}
		written += builder.Size()
		batch, err := builder.Finish(c, 0)
		must(b, err)
		_, err = l.Append(&batch, 1, record.CreateTime)
		must(b, err)
	}
	must(b, l.Roll())
	must(b, l.Sync())
	return l
}
