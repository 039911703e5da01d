package record

import (
	"bytes"
	"fmt"
	"testing"
)

// benchBatch returns a batch of about 1 MiB, of records with a value of the given size, as a producer would send it, with
// PrefixMax bytes before it.
func benchBatch(tb testing.TB, size int, compression Compression) (buf []byte, start int) {
	tb.Helper()
	b := NewBuilder(NewCodec(), Limits{})
	value := bytes.Repeat([]byte("runnel "), size/7+1)[:size]
	for i := 0; b.Size() < 1<<20; i++ {
		copy(value, fmt.Sprintf("%08d", i))
		if err := b.Add(nil, value, nil, 1_700_000_000_000+int64(i/10)); err != nil {
			tb.Fatal(err)
		}
	}
	batch, err := b.Finish(compression, 0)
	if err != nil {
		tb.Fatal(err)
	}
	return batch.AppendMessage(make([]byte, PrefixMax)), PrefixMax
}

func BenchmarkParseBatch(b *testing.B) {
	for c := CompressionNone; c < compressions; c++ {
		for _, size := range []int{10, 100, 1024, 10240} {
			b.Run(fmt.Sprintf("%s/%dB", c, size), func(b *testing.B) {
				buf, start := benchBatch(b, size, c)
				v := NewValidator(NewCodec(), 1)
				batch, err := v.ParseBatch(buf, start, len(buf), Limits{})
				if err != nil {
					b.Fatal(err)
				}
				raw, _ := benchBatch(b, size, CompressionNone)
				b.SetBytes(int64(len(raw)))
				b.ReportAllocs()
				for b.Loop() {
					if batch, err = v.ParseBatch(buf, start, len(buf), Limits{}); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(batch.RecordCount), "ns/record")
			})
		}
	}
}

func BenchmarkParseBatchAndSeal(b *testing.B) {
	buf, start := benchBatch(b, 100, CompressionNone)
	v := NewValidator(NewCodec(), 1)
	b.SetBytes(int64(len(buf) - start))
	b.ReportAllocs()
	msg := bytes.Clone(buf[:PrefixMax+messageMax])
	for b.Loop() {
		copy(buf, msg)
		batch, err := v.ParseBatch(buf, start, len(buf), Limits{})
		if err != nil {
			b.Fatal(err)
		}
		batch.Seal(7, 1, 2, CreateTime)
	}
}

func BenchmarkIterate(b *testing.B) {
	for _, size := range []int{100, 1024} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			buf, start := benchBatch(b, size, CompressionNone)
			batch, err := NewValidator(NewCodec(), 1).ParseBatch(buf, start, len(buf), Limits{})
			if err != nil {
				b.Fatal(err)
			}
			var it Iterator
			b.SetBytes(int64(len(buf) - start))
			b.ReportAllocs()
			for b.Loop() {
				it.Reset(batch.Header, batch.Payload())
				for it.Next() {
				}
				if it.Err() != nil {
					b.Fatal(it.Err())
				}
			}
		})
	}
}

func BenchmarkParseFrame(b *testing.B) {
	buf, start := benchBatch(b, 100, CompressionNone)
	batch, err := NewValidator(NewCodec(), 1).ParseBatch(buf, start, len(buf), Limits{})
	if err != nil {
		b.Fatal(err)
	}
	frame := batch.Seal(7, 1, 2, CreateTime)
	b.ReportAllocs()
	for b.Loop() {
		if _, v := ParseFrame(frame[:PrefixMax], int64(len(frame)), MaxFrameSize); v != OK {
			b.Fatal(v)
		}
	}
}

func BenchmarkBuild(b *testing.B) {
	for _, size := range []int{100, 1024} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			builder := NewBuilder(NewCodec(), Limits{})
			value := bytes.Repeat([]byte{'x'}, size)
			const records = 500
			b.SetBytes(int64(records * size))
			b.ReportAllocs()
			for b.Loop() {
				builder.Reset()
				for i := range records {
					if err := builder.Add(nil, value, nil, int64(i)); err != nil {
						b.Fatal(err)
					}
				}
				batch, err := builder.Finish(CompressionNone, 0)
				if err != nil {
					b.Fatal(err)
				}
				batch.Message()
			}
		})
	}
}

func BenchmarkCompress(b *testing.B) {
	raw, start := benchBatch(b, 100, CompressionNone)
	for c := CompressionGzip; c < compressions; c++ {
		b.Run(c.String(), func(b *testing.B) {
			codec := NewCodec()
			var dst []byte
			var err error
			b.SetBytes(int64(len(raw) - start))
			b.ReportAllocs()
			for b.Loop() {
				if dst, err = codec.Compress(dst[:0], c, 0, raw[start:]); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(raw)-start)/float64(len(dst)), "ratio")
		})
	}
}
