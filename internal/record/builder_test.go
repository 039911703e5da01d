package record

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// What the builder makes, the broker takes, and it is the batch the builder said.
func TestBuilder_brokerTakesIt(t *testing.T) {
	for c := CompressionNone; c < compressions; c++ {
		batch := built(t, c, func(b *Builder) error {
			for range 5 {
				if err := addPresence(b); err != nil {
					return err
				}
			}
			return nil
		})
		batch.ProducerID, batch.ProducerEpoch, batch.BaseSequence = 5, 0, 0
		appended := batch.AppendMessage([]byte("before"))
		inPlace := batch.Message()
		if string(appended[:6]) != "before" || !bytes.Equal(appended[6:], inPlace) {
			t.Errorf("%s: AppendMessage and Message differ", c)
		}
		got, err := parse(inPlace, Limits{})
		if err != nil {
			t.Fatalf("%s: %v", c, err)
		}
		if got.Header != batch.Header || got.MinTimestampMs != batch.MinTimestampMs || !bytes.Equal(got.Payload(), batch.Payload()) {
			t.Errorf("%s:\n got %+v\nwant %+v", c, got.Header, batch.Header)
		}
		checkSealed(t, got)
	}
}

// The message is what generated code would write.
func TestBuilder_messageIsCanonical(t *testing.T) {
	for _, s := range samples(t) {
		if s.batch.Control || s.batch.RecordCount == 0 {
			continue
		}
		msg := s.batch.AppendMessage(nil)
		var m runnelv1.RecordBatch
		if err := proto.Unmarshal(msg, &m); err != nil {
			t.Fatal(err)
		}
		if again := marshal(t, &m); !bytes.Equal(again, msg) {
			t.Errorf("%s:\n got %x\nwant %x", s.name, msg, again)
		}
	}
}

func TestBuilder_refuses(t *testing.T) {
	lim := Limits{MaxRecordBytes: 100, MaxBatchBytes: 300, MaxRecords: 3, RequireKeys: true}
	k := []byte("k")
	tests := []struct {
		name    string
		key     []byte
		value   []byte
		headers []HeaderKV
		time    int64
		kind    error
		text    string
	}{
		{"no key", nil, k, nil, 0, ErrInvalidRecord, "it has no key"},
		{"an empty header key", k, nil, []HeaderKV{{Key: "a"}, {Key: ""}}, 0, ErrInvalidRecord, "header 1"},
		{"a header key that is not UTF-8", k, nil, []HeaderKV{{Key: "\xff"}}, 0, ErrInvalidRecord, "header 0"},
		{"a time too far away", k, nil, nil, math.MinInt64, ErrInvalidRecord, "too far from"},
		{"a record over the limit", k, make([]byte, 96), nil, 0, ErrTooLarge, "it takes 103 bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := NewBuilder(NewCodec(), lim)
			if err := b.Add(k, nil, nil, 1); err != nil {
				t.Fatal(err)
			}
			size := b.Size()
			err := b.Add(tt.key, tt.value, tt.headers, tt.time)
			if !errors.Is(err, tt.kind) || !strings.Contains(err.Error(), tt.text) || !strings.Contains(err.Error(), "record 1") {
				t.Errorf("got %v", err)
			}
			if b.Count() != 1 || b.Size() != size {
				t.Error("something was added")
			}
			// The neighbours of a refused record are not harmed.
			if err := b.Add(k, k, nil, 1); err != nil {
				t.Error(err)
			}
			batch, err := b.Finish(CompressionNone, 0)
			if err != nil || batch.RecordCount != 2 {
				t.Errorf("%d records, %v", batch.RecordCount, err)
			}
		})
	}
}

func TestBuilder_full(t *testing.T) {
	k := []byte("k")
	t.Run("records", func(t *testing.T) {
		b := NewBuilder(NewCodec(), Limits{MaxRecords: 2})
		for range 2 {
			if err := b.Add(k, nil, nil, 1); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.Add(k, nil, nil, 1); !errors.Is(err, ErrBatchFull) {
			t.Errorf("got %v", err)
		}
		b.Reset()
		if err := b.Add(k, nil, nil, 1); err != nil {
			t.Errorf("after Reset: %v", err)
		}
	})
	t.Run("exactly the limit", func(t *testing.T) {
		two := NewBuilder(NewCodec(), Limits{})
		for range 2 {
			if err := two.Add(k, k, nil, 1); err != nil {
				t.Fatal(err)
			}
		}
		for limit, want := range map[int]error{two.Size(): nil, two.Size() - 1: ErrBatchFull} {
			b := NewBuilder(NewCodec(), Limits{MaxBatchBytes: limit})
			if err := b.Add(k, k, nil, 1); err != nil {
				t.Fatal(err)
			}
			if err := b.Add(k, k, nil, 1); !errors.Is(err, want) {
				t.Errorf("limit %d: got %v, want %v", limit, err, want)
			}
		}
	})
	t.Run("bytes", func(t *testing.T) {
		b := NewBuilder(NewCodec(), Limits{MaxBatchBytes: 1000, MaxRecordBytes: 2000})
		if err := b.Add(k, make([]byte, 1500), nil, 1); !errors.Is(err, ErrTooLarge) {
			t.Errorf("a record that fits into no batch: %v", err)
		}
		n := 0
		for ; ; n++ {
			if err := b.Add(k, make([]byte, 90), nil, 1); err != nil {
				if !errors.Is(err, ErrBatchFull) {
					t.Fatal(err)
				}
				break
			}
			if b.Size() > 1000 {
				t.Fatalf("grew to %d bytes", b.Size())
			}
		}
		batch, err := b.Finish(CompressionNone, 0)
		if err != nil || int(batch.RecordCount) != n || batch.FrameSize() != b.Size() {
			t.Errorf("%d records of %d, %d bytes of %d, %v", batch.RecordCount, n, batch.FrameSize(), b.Size(), err)
		}
	})
}

func TestBuilder_finish(t *testing.T) {
	b := NewBuilder(NewCodec(), Limits{})
	if _, err := b.Finish(CompressionNone, 0); !errors.Is(err, ErrInvalidRecord) {
		t.Errorf("without records: %v", err)
	}
	if err := b.Add(nil, []byte("tiny"), nil, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Finish(9, 0); !errors.Is(err, ErrUnsupportedCompression) {
		t.Errorf("compression 9: %v", err)
	}
	if _, err := b.Finish(CompressionSnappy, 3); !errors.Is(err, ErrUnsupportedCompression) {
		t.Errorf("snappy, level 3: %v", err)
	}
	batch, err := b.Finish(CompressionZstd, 0)
	if err != nil || batch.Compression != CompressionNone {
		t.Errorf("what does not get smaller is %s, %v", batch.Compression, err)
	}
	if _, err := parse(batch.Message(), Limits{}); err != nil {
		t.Error(err)
	}
}

// A reused builder forgets everything.
func TestBuilder_reset(t *testing.T) {
	fresh, used := NewBuilder(NewCodec(), Limits{}), NewBuilder(NewCodec(), Limits{})
	for i := range 50 {
		if err := used.Add([]byte("other"), bytes.Repeat([]byte("x"), i), nil, int64(1000-i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := used.Finish(CompressionLZ4, 0); err != nil {
		t.Fatal(err)
	}
	used.Reset()
	var frames [2][]byte
	for i, b := range []*Builder{fresh, used} {
		if err := addPresence(b); err != nil {
			t.Fatal(err)
		}
		batch, err := b.Finish(CompressionNone, 0)
		if err != nil {
			t.Fatal(err)
		}
		frames[i] = batch.Seal(1, 2, 3, CreateTime)
	}
	if !bytes.Equal(frames[0], frames[1]) {
		t.Errorf("fresh %x\nreused %x", frames[0], frames[1])
	}
}

func TestSeal_impossibleBatchPanics(t *testing.T) {
	good := func() Batch {
		return built(t, CompressionNone, func(b *Builder) error { return b.Add(nil, []byte("v"), nil, 1) })
	}
	for name, seal := range map[string]func(){
		"negative offset":   func() { b := good(); b.Seal(-1, 0, 0, CreateTime) },
		"negative epoch":    func() { b := good(); b.Seal(0, -1, 0, CreateTime) },
		"no timestamp type": func() { b := good(); b.Seal(0, 0, 0, 0) },
		"no compression":    func() { b := good(); b.Compression = 0; b.Seal(0, 0, 0, CreateTime) },
		"no records":        func() { b := good(); b.RecordCount = 0; b.Seal(0, 0, 0, CreateTime) },
		"the zero batch":    func() { var b Batch; b.Seal(0, 0, 0, CreateTime) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			seal()
		}()
	}
}
