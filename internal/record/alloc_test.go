package record

import (
	"bytes"
	"testing"
)

// The hot paths allocate nothing, whatever the number of records.
func TestAllocs(t *testing.T) {
	batch := built(t, CompressionNone, func(b *Builder) error {
		for range 200 {
			if err := addPresence(b); err != nil {
				return err
			}
		}
		return nil
	})
	msg := batch.AppendMessage(make([]byte, PrefixMax))
	v := NewValidator(NewCodec(), 1)
	scan := func() Batch {
		b, err := v.ParseBatch(msg, PrefixMax, len(msg), Limits{})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	parsed := scan()
	frame := bytes.Clone(parsed.Seal(1, 2, 3, CreateTime))
	f, _ := CheckFrame(frame, MaxFrameSize)
	msg = batch.AppendMessage(make([]byte, PrefixMax))
	var it Iterator
	builder := NewBuilder(NewCodec(), Limits{})
	headers := []HeaderKV{{Key: "a", Value: []byte("b")}}
	var records, kvs int
	for name, run := range map[string]func(){
		"scan":        func() { scan() },
		"seal":        func() { parsed.Seal(1, 2, 3, CreateTime) },
		"parse frame": func() { ParseFrame(frame[:PrefixMax], int64(len(frame)), MaxFrameSize) },
		"check frame": func() { CheckFrame(frame, MaxFrameSize) },
		"iterate": func() {
			it.Reset(f.Header, f.Payload(frame))
			for it.Next() {
				r := it.Record()
				records++
				for h := r.Headers(); h.Next(); {
					kvs += len(h.Key())
				}
			}
			if it.Err() != nil {
				t.Fatal(it.Err())
			}
		},
		"build": func() {
			builder.Reset()
			for i := range 100 {
				if err := builder.Add(headers[0].Value, frame[:1000], headers, int64(i)); err != nil {
					t.Fatal(err)
				}
			}
			b, err := builder.Finish(CompressionNone, 0)
			if err != nil {
				t.Fatal(err)
			}
			b.Message()
		},
	} {
		if got := testing.AllocsPerRun(20, run); got != 0 {
			t.Errorf("%s: %v allocations", name, got)
		}
	}
	if records == 0 || kvs == 0 {
		t.Error("nothing was iterated")
	}
}

// Compressed batches may allocate a little, and not by the record.
func TestAllocs_compressedDoNotGrowWithTheRecords(t *testing.T) {
	for c := CompressionGzip; c < compressions; c++ {
		batch := built(t, c, func(b *Builder) error {
			for range 5000 {
				if err := b.Add(nil, []byte("some value"), nil, 1); err != nil {
					return err
				}
			}
			return nil
		})
		msg := batch.AppendMessage(make([]byte, PrefixMax))
		v := NewValidator(NewCodec(), 1)
		if got := testing.AllocsPerRun(10, func() {
			if _, err := v.ParseBatch(msg, PrefixMax, len(msg), Limits{}); err != nil {
				t.Fatal(err)
			}
		}); got > 100 {
			t.Errorf("%s: %v allocations for 5000 records", c, got)
		}
	}
}
