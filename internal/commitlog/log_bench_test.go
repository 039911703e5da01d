package commitlog

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

func benchLog(b *testing.B) *Log {
	b.Helper()
	l, _, err := OpenLog(vfs.OS(), b.TempDir(), Config{SegmentBytes: 64 << 20}, OpenOptions{})
	must(b, err)
	b.Cleanup(func() { must(b, l.Close()) })
	return l
}

func benchBatch(b *testing.B, size int) record.Batch {
	b.Helper()
	builder := record.NewBuilder(record.NewCodec(), record.Limits{})
	for builder.Size() < size {
		must(b, builder.Add(nil, bytes.Repeat([]byte{'v'}, min(100, size)), nil, time.Now().UnixMilli()))
	}
	batch, err := builder.Finish(record.CompressionNone, 0)
	must(b, err)
	return batch
}

func BenchmarkAppend(b *testing.B) {
	for _, size := range []int{200, 4 << 10, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			l, batch := benchLog(b), benchBatch(b, size)
			b.SetBytes(int64(batch.FrameSize()))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := l.Append(&batch, 1, record.CreateTime); err != nil {
					b.Fatal(err)
				}
				if l.Size() > 512<<20 { // not to fill the disk
					must(b, l.DeleteBefore(l.End()))
				}
			}
		})
	}
}

// Many producers that each wait until their batch is durable.
func BenchmarkAppendSync(b *testing.B) {
	for _, producers := range []int{1, 16, 64} {
		b.Run(fmt.Sprint(producers), func(b *testing.B) {
			l := benchLog(b)
			b.SetParallelism(producers)
			b.RunParallel(func(pb *testing.PB) {
				batch := benchBatch(b, 1000)
				for pb.Next() {
					if _, err := l.Append(&batch, 1, record.CreateTime); err != nil {
						b.Error(err)
						return
					}
					if err := l.Sync(); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

func BenchmarkRead(b *testing.B) {
	for _, c := range []struct{ batch, buf int }{{4 << 10, 64 << 10}, {64 << 10, 64<<10 + 200}, {64 << 10, 1 << 20}} {
		b.Run(fmt.Sprintf("%d by %d", c.batch, c.buf), func(b *testing.B) {
			l, batch := benchLog(b), benchBatch(b, c.batch)
			for l.Size() < 128<<20 {
				if _, err := l.Append(&batch, 1, record.CreateTime); err != nil {
					b.Fatal(err)
				}
			}
			buf := make([]byte, c.buf)
			records := record.Offset(batch.RecordCount)
			from, bytesRead := record.Offset(0), int64(0)
			b.ReportAllocs()
			for b.Loop() {
				n, err := l.Read(buf, from, l.End())
				if err != nil {
					b.Fatal(err)
				}
				bytesRead += int64(n)
				from += record.Offset(n/batch.FrameSize()) * records
				if n == 0 {
					from = 0
				}
			}
			b.SetBytes(bytesRead / int64(b.N))
		})
	}
}

func BenchmarkReadAtRandom(b *testing.B) {
	l, batch := benchLog(b), benchBatch(b, 1000)
	for l.Size() < 128<<20 {
		if _, err := l.Append(&batch, 1, record.CreateTime); err != nil {
			b.Fatal(err)
		}
	}
	buf := make([]byte, 4096)
	from := record.Offset(0)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := l.Read(buf, from, l.End()); err != nil {
			b.Fatal(err)
		}
		from = (from + 7_654_321) % l.End()
	}
}
