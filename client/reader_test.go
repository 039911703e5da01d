package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/client"
	"github.com/runnelmq/runnel/internal/record"
)

// fill stores the numbers [0, n) in partition p of a topic, in batches of per.
func (f *fakeBroker) fill(tb testing.TB, topic string, p int32, n, per int, c record.Compression) {
	tb.Helper()
	b := record.NewBuilder(record.NewCodec(), record.Limits{})
	for i := 0; i < n; {
		b.Reset()
		for j := 0; j < per && i < n; j++ {
			if err := b.Add([]byte(itoa(i)), []byte("value "+itoa(i)), []record.HeaderKV{{Key: "n", Value: []byte(itoa(i))}}, int64(1000+i)); err != nil {
				tb.Fatal(err)
			}
			i++
		}
		batch, err := b.Finish(c, 0)
		if err != nil {
			tb.Fatal(err)
		}
		msg := &runnelv1.RecordBatch{}
		if err := proto.Unmarshal(batch.AppendMessage(nil), msg); err != nil {
			tb.Fatal(err)
		}
		if _, _, ierr := f.nodes[0].store(&runnelv1.ProduceRequest{Topic: topic, Partition: &p, Batch: msg}); ierr != nil {
			tb.Fatal(ierr)
		}
	}
}

func newReader(tb testing.TB, c *client.Client, opts ...client.ReaderOption) *client.Reader {
	tb.Helper()
	r, err := c.NewReader(opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = r.Close() })
	return r
}

func assign(tb testing.TB, r *client.Reader, as ...client.Assignment) {
	tb.Helper()
	if err := r.Assign(tb.Context(), as...); err != nil {
		tb.Fatal(err)
	}
}

// wantRun wants exactly the records [from, to) of partition p, in order.
func wantRun(t *testing.T, got []client.Record, p int32, from, to int) {
	t.Helper()
	next := from
	for _, r := range got {
		if r.Partition != p {
			continue
		}
		if r.Offset != int64(next) || string(r.Key) != itoa(next) || string(r.Value) != "value "+itoa(next) ||
			len(r.Headers) != 1 || r.Headers[0].Key != "n" || string(r.Headers[0].Value) != itoa(next) || r.Timestamp.UnixMilli() != int64(1000+next) {
			t.Fatalf("partition %d: read %d %q=%q %v at %v, want number %d", p, r.Offset, r.Key, r.Value, r.Headers, r.Timestamp, next)
		}
		next++
	}
	if next != to {
		t.Errorf("partition %d: read %d to %d, want up to %d", p, from, next, to)
	}
}

func readToEnd(t *testing.T, r *client.Reader) []client.Record {
	t.Helper()
	var got []client.Record
	for rec, err := range r.Records(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, rec.Clone())
	}
	return got
}

func TestReader_readsAllOnce(t *testing.T) {
	for _, c := range []record.Compression{record.CompressionNone, record.CompressionZstd, record.CompressionLZ4, record.CompressionSnappy, record.CompressionGzip} {
		t.Run(c.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t, map[string]int{"t": 3})
				for p := range int32(3) {
					f.fill(t, "t", p, 2000*int(p), 300, c)
				}
				r := newReader(t, f.client(t), client.Prefetch(64<<10))
				assign(t, r, client.Assignment{Topic: "t", Partition: client.AnyPartition, AtEnd: true})
				got := readToEnd(t, r)
				for p := range int32(3) {
					wantRun(t, got, p, 0, 2000*int(p))
				}
				if pos, _ := r.Position("t", 2); pos != 4000 {
					t.Errorf("position %d, want 4000", pos)
				}
				if _, err := r.Poll(t.Context()); !errors.Is(err, io.EOF) {
					t.Errorf("after the end: %v", err)
				}
			})
		})
	}
}

func TestReader_starts(t *testing.T) {
	for name, c := range map[string]struct {
		a        client.Assignment
		from, to int
	}{
		"earliest":              {client.Assignment{AtEnd: true}, 0, 100},
		"an offset in a batch":  {client.Assignment{Start: client.AtOffset(57), AtEnd: true}, 57, 100},
		"the end":               {client.Assignment{Start: client.Latest(), AtEnd: true}, 100, 100},
		"the end by offset":     {client.Assignment{Start: client.AtOffset(100), AtEnd: true}, 100, 100},
		"before the end":        {client.Assignment{Start: client.BeforeEnd(13), AtEnd: true}, 87, 100},
		"longer than the log":   {client.Assignment{Start: client.BeforeEnd(1000), AtEnd: true}, 0, 100},
		"a time":                {client.Assignment{Start: client.AtTime(time.UnixMilli(1055)), AtEnd: true}, 50, 100},
		"a time to come":        {client.Assignment{Start: client.AtTime(time.UnixMilli(9999)), AtEnd: true}, 100, 100},
		"a stop within a batch": {client.Assignment{Start: client.AtOffset(5), Stop: 33}, 5, 33},
		"a stop before the end": {client.Assignment{Stop: 33, AtEnd: true}, 0, 33},
		"a stop after the end":  {client.Assignment{Stop: 3300, AtEnd: true}, 0, 100},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t, map[string]int{"t": 1})
				f.fill(t, "t", 0, 100, 10, record.CompressionNone)
				r := newReader(t, f.client(t))
				c.a.Topic = "t"
				assign(t, r, c.a)
				wantRun(t, readToEnd(t, r), 0, c.from, c.to)
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 1})
		r := newReader(t, f.client(t))
		for _, a := range []client.Assignment{{Topic: "gone"}, {Topic: "t", Partition: 1, Start: client.Latest()}, {Topic: "t", Start: client.AtOffset(-1)}, {Topic: "t", Stop: -1}, {Topic: "t", Start: client.BeforeEnd(-1)}} {
			a.AtEnd = true
			if err := r.Assign(t.Context(), a); err == nil {
				t.Errorf("%+v was taken", a)
			}
		}
	})
}

// Following sees what is stored after Assign, and nothing before.
// An offset that is not there yet is not the end of a log that was read.
func TestReader_beyondTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 2})
		f.fill(t, "t", 0, 100, 10, record.CompressionNone)
		r := newReader(t, f.client(t))
		err := r.Assign(t.Context(), client.Assignment{Topic: "t", Partition: 0, Start: client.AtOffset(101), AtEnd: true})
		pe, ok := errors.AsType[*client.PartitionError](err)
		if !ok || pe.Partition != 0 || !errors.Is(err, client.ErrOffsetOutOfRange) || !strings.Contains(err.Error(), "101 is beyond the end, which is at 100") {
			t.Errorf("%v; want OFFSET_OUT_OF_RANGE", err)
		}
	})
}

func TestReader_followsFromLatest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 1})
		f.fill(t, "t", 0, 100, 10, record.CompressionNone)
		c := f.client(t)
		r := newReader(t, c)
		assign(t, r, client.Assignment{Topic: "t", Start: client.Latest()})
		p := producer(t, c)
		for i := range 5 {
			if _, err := p.ProduceSync(t.Context(), client.Record{Topic: "t", Value: []byte(itoa(i))}); err != nil {
				t.Fatal(err)
			}
			b, err := r.Poll(t.Context())
			if err != nil || !b.Next() || b.Record().Offset != int64(100+i) {
				t.Fatalf("poll %d: %v, %+v", i, err, b)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := r.Poll(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("an empty poll: %v", err)
		}
	})
}

// Whatever breaks, and whenever, each record is read once and in order.
func TestReader_resumesWithoutLossOrRepetition(t *testing.T) {
	broke := 0
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, 1))
				f := newFake(t, map[string]int{"t": 2})
				f.fill(t, "t", 0, 3000, 1+rng.IntN(200), record.CompressionNone)
				f.fill(t, "t", 1, 3000, 1+rng.IntN(200), record.CompressionZstd)
				breaks := 0
				f.onFetch = func(_, responses int) error {
					if breaks < 30 && responses > 0 && rng.IntN(3) == 0 {
						breaks++
						return errBroken
					}
					return nil
				}
				r := newReader(t, f.client(t), client.Prefetch(64<<10))
				assign(t, r, client.Assignment{Topic: "t", Partition: client.AnyPartition, AtEnd: true})
				got := readToEnd(t, r)
				wantRun(t, got, 0, 0, 3000)
				wantRun(t, got, 1, 0, 3000)
				f.locked(func() { broke += breaks })
			})
		})
	}
	if broke < 20 {
		t.Errorf("only %d streams broke", broke)
	}
}

// The end is seen without a record there: transaction markers take offsets.
func TestReader_endsBehindAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 1})
		f.fill(t, "t", 0, 1, 1, record.CompressionNone)
		f.locked(func() { f.topics["t"].parts[0].next = 2 })
		r := newReader(t, f.client(t))
		assign(t, r, client.Assignment{Topic: "t", AtEnd: true})
		begun := time.Now()
		wantRun(t, readToEnd(t, r), 0, 0, 1)
		if pos, _ := r.Position("t", 0); pos != 2 || time.Since(begun) > 2*time.Second {
			t.Errorf("position %d after %v, want 2", pos, time.Since(begun))
		}
	})
}

// What was underway when a partition was taken away is not taken for an answer to
// what is asked for when it is assigned anew: records would be skipped.
func TestReader_removedAndAssignedAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 2})
		f.fill(t, "t", 0, 100, 10, record.CompressionNone)
		r := newReader(t, f.client(t))
		from := client.Assignment{Topic: "t", Partition: 0, Start: client.AtOffset(0)}
		assign(t, r, from, client.Assignment{Topic: "t", Partition: 1}) // the stream stays
		if b, err := r.Poll(t.Context()); err != nil || b.NextOffset() != 100 {
			t.Fatalf("%v, %v", b, err)
		}
		f.locked(func() { f.late = time.Second })
		f.fill(t, "t", 0, 100, 10, record.CompressionNone)
		synctest.Wait() // their answer is underway
		if err := r.Remove("t", 0); err != nil {
			t.Fatal(err)
		}
		assign(t, r, from)
		b, err := r.Poll(t.Context())
		if err != nil || !b.Next() || b.Record().Offset != 0 {
			t.Errorf("begins with offset %d, want 0: %v", b.Record().Offset, err)
		}
	})
}

func TestReader_seekPauseResumeRemove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 2})
		f.fill(t, "t", 0, 1000, 10, record.CompressionNone)
		f.fill(t, "t", 1, 1000, 10, record.CompressionNone)
		r := newReader(t, f.client(t))
		assign(t, r, client.Assignment{Topic: "t", Partition: client.AnyPartition})
		var got []client.Record
		do := map[int]func() error{
			100: func() error { return r.Pause("t", 0) },
			300: func() error { return r.Seek(t.Context(), "t", 1, client.AtOffset(42)) },
			500: func() error { return r.Resume("t", 0) },
			700: func() error { return r.Remove("t", 1) },
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		paused, removed := false, false
		for rec, err := range r.Records(ctx) {
			if err != nil {
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Fatal(err)
				}
				break
			}
			if paused && rec.Partition == 0 || removed && rec.Partition == 1 {
				t.Fatalf("read %d of partition %d, which is paused or removed", rec.Offset, rec.Partition)
			}
			got = append(got, rec.Clone())
			if f := do[len(got)]; f != nil {
				if err := f(); err != nil {
					t.Fatal(err)
				}
			}
			paused = len(got) >= 100 && len(got) < 500
			removed = len(got) >= 700
		}
		wantRun(t, got, 0, 0, 1000)
		var ones []int64
		for _, r := range got {
			if r.Partition == 1 {
				ones = append(ones, r.Offset)
			}
		}
		jumps := 0
		for i := 1; i < len(ones); i++ {
			if ones[i] != ones[i-1]+1 {
				jumps++
				if ones[i] != 42 {
					t.Errorf("partition 1 jumped from %d to %d", ones[i-1], ones[i])
				}
			}
		}
		if jumps != 1 {
			t.Errorf("partition 1 jumped %d times, want once", jumps)
		}
		if err := r.Seek(t.Context(), "t", 1, client.Earliest()); err == nil {
			t.Error("a removed partition could be moved")
		}
	})
}

// A loop that is left goes on where it was, whoever reads on.
func TestReader_leavingALoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 1})
		f.fill(t, "t", 0, 500, 100, record.CompressionNone)
		r := newReader(t, f.client(t))
		assign(t, r, client.Assignment{Topic: "t", AtEnd: true})
		var got []client.Record
		for len(got) < 250 {
			for rec, err := range r.Records(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, rec.Clone())
				if pos, _ := r.Position("t", 0); pos != int64(len(got)) {
					t.Fatalf("position %d after %d records", pos, len(got))
				}
				break
			}
		}
		b, err := r.Poll(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for rec := range b.All() {
			got = append(got, rec.Clone())
		}
		got = append(got, readToEnd(t, r)...)
		wantRun(t, got, 0, 0, 500)
	})
}

// Every way out ends the stream (GR-13).
func TestReader_leavesNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 1})
		f.fill(t, "t", 0, 500, 100, record.CompressionNone)
		c := f.client(t)
		for i := range 300 {
			r, err := c.NewReader()
			if err != nil {
				t.Fatal(err)
			}
			assign(t, r, client.Assignment{Topic: "t"})
			switch i % 3 {
			case 0: // break after one
				for range r.Records(t.Context()) {
					break
				}
			case 1: // closed while a poll waits
				closed := make(chan error, 1)
				time.AfterFunc(time.Millisecond, func() { closed <- r.Close() })
				for {
					if _, err := r.Poll(t.Context()); err != nil {
						if !errors.Is(err, client.ErrClosed) {
							t.Fatalf("poll: %v", err)
						}
						break
					}
				}
				<-closed
			case 2: // the context ends
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				for range r.Records(ctx) {
				}
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		f.locked(func() {
			if f.open != 0 {
				t.Errorf("%d streams are open", f.open)
			}
		})
	})
}

// What is in flight and unread stays within the credit, plus one response.
func TestReader_prefetchIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 1})
		f.fill(t, "t", 0, 200000, 1000, record.CompressionNone)
		r := newReader(t, f.client(t), client.Prefetch(256<<10))
		assign(t, r, client.Assignment{Topic: "t", AtEnd: true})
		time.Sleep(time.Minute)
		synctest.Wait()
		f.mu.Lock()
		sent := f.sent
		f.mu.Unlock()
		if sent < 256<<10 || sent > 256<<10+64<<10+64<<10 {
			t.Errorf("%d bytes were sent to a reader that reads nothing: want 256 KiB, and one response", sent)
		}
		wantRun(t, readToEnd(t, r), 0, 0, 200000)
	})
}
