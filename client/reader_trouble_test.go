package client_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/runnelmq/runnel/client"
	"github.com/runnelmq/runnel/internal/record"
)

func TestReader_outOfRange(t *testing.T) {
	for _, c := range []struct {
		name string
		opts []client.ReaderOption
		from int64
		want []int64 // first offset read; none: an error
	}{
		{"fails below", nil, 5, nil},
		{"fails above", nil, 500, nil},
		{"earliest", []client.ReaderOption{client.OnOutOfRange(client.ResetEarliest)}, 500, []int64{50}},
		{"latest", []client.ReaderOption{client.OnOutOfRange(client.ResetLatest)}, 5, []int64{100}},
		{"nearest below", []client.ReaderOption{client.OnOutOfRange(client.ResetNearest)}, 5, []int64{50}},
		{"nearest above", []client.ReaderOption{client.OnOutOfRange(client.ResetNearest)}, 500, []int64{100}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t, map[string]int{"t": 1, "other": 1})
				f.fill(t, "t", 0, 100, 10, record.CompressionNone)
				f.fill(t, "other", 0, 10, 10, record.CompressionNone)
				f.locked(func() {
					p := f.topics["t"].parts[0]
					p.start, p.frames, p.heads = 50, p.frames[5:], p.heads[5:]
				})
				cl := f.client(t)
				r := newReader(t, cl, c.opts...)
				assign(t, r, client.Assignment{Topic: "t", Start: client.AtOffset(c.from)}, client.Assignment{Topic: "other"})
				time.AfterFunc(time.Second, func() { f.fill(t, "t", 0, 1, 1, record.CompressionNone) })
				var first []int64
				var failed error
				others := 0
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				for rec, err := range r.Records(ctx) {
					switch {
					case errors.Is(err, context.DeadlineExceeded):
					case err != nil:
						failed = err
					case rec.Topic == "other":
						others++
					case first == nil:
						first = []int64{rec.Offset}
					}
				}
				if !slices.Equal(first, c.want) || others != 10 {
					t.Errorf("first offset %v, want %v; %d records of the other topic", first, c.want, others)
				}
				var pe *client.PartitionError
				if (failed != nil) != (c.want == nil) || failed != nil && (!errors.Is(failed, client.ErrOffsetOutOfRange) || !errors.As(failed, &pe) || pe.Topic != "t") {
					t.Errorf("error %v", failed)
				}
			})
		})
	}
}

// The log was cut below what had been read, as the epoch of the last record says:
// the policy decides, and a reader that fails says so.
func TestReader_truncated(t *testing.T) {
	for _, c := range []struct {
		name string
		opts []client.ReaderOption
		read int64 // records read before the log is cut to 60 and filled to 110 again
		want int64 // where reading goes on; -1: with an error
	}{
		{"fail", nil, 100, -1},
		{"earliest", []client.ReaderOption{client.OnOutOfRange(client.ResetEarliest)}, 100, 0},
		{"latest", []client.ReaderOption{client.OnOutOfRange(client.ResetLatest)}, 100, 60},
		{"nearest", []client.ReaderOption{client.OnOutOfRange(client.ResetNearest)}, 100, 60},
		{"nearest, cut where it is", []client.ReaderOption{client.OnOutOfRange(client.ResetNearest)}, 60, 60},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t, map[string]int{"t": 1})
				f.fill(t, "t", 0, int(c.read), 10, record.CompressionNone)
				r := newReader(t, f.client(t), c.opts...)
				assign(t, r, client.Assignment{Topic: "t"})
				read(t, r, int(c.read))
				synctest.Wait()
				f.locked(func() {
					p := f.topics["t"].parts[0]
					p.frames, p.heads, p.next = p.frames[:6], p.heads[:6], 60
					f.cut = 60
					f.onFetch = func(stream, _ int) error {
						if stream == 1 {
							return errBroken
						}
						return nil
					}
				})
				f.fill(t, "t", 0, 50, 10, record.CompressionNone)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				for rec, err := range r.Records(ctx) {
					switch {
					case c.want < 0 && !errors.Is(err, client.ErrLogTruncated), c.want >= 0 && (err != nil || rec.Offset != c.want):
						t.Errorf("offset %d, %v; want %d", rec.Offset, err, c.want)
					}
					break
				}
				f.locked(func() {
					if !f.told {
						t.Error("nobody was told that the log was cut")
					}
				})
			})
		})
	}
}

// A broker that falls silent is noticed within half a minute, and left.
func TestReader_silentBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 1})
		r := newReader(t, f.client(t))
		f.silent = 1
		assign(t, r, client.Assignment{Topic: "t"})
		time.AfterFunc(time.Second, func() { f.fill(t, "t", 0, 1, 1, record.CompressionNone) })
		begun := time.Now()
		b, err := r.Poll(t.Context())
		if err != nil || !b.Next() {
			t.Fatal(err)
		}
		if took := time.Since(begun); took > 40*time.Second {
			t.Errorf("noticed after %v", took)
		}
	})
}

func TestReader_errorsOfTheWholeStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 1})
		f.onFetch = func(int, int) error { return status.Error(codes.Unauthenticated, "who are you") }
		r := newReader(t, f.client(t))
		assign(t, r, client.Assignment{Topic: "t"})
		if _, err := r.Poll(t.Context()); err == nil || client.Retriable(err) {
			t.Errorf("poll: %v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 1})
		r := newReader(t, f.client(t), client.RetryTimeout(5*time.Second))
		assign(t, r, client.Assignment{Topic: "t"})
		synctest.Wait()
		f.locked(func() { f.down = true })
		f.nodes[0].srv.Stop()
		begun := time.Now()
		if _, err := r.Poll(t.Context()); !errors.Is(err, client.ErrUnreachable) {
			t.Errorf("poll: %v", err)
		}
		if took := time.Since(begun); took < 4*time.Second || took > 7*time.Second {
			t.Errorf("gave up after %v, want 5s", took)
		}
	})
}

// Bytes that are not what was stored are an error, and nothing behind them is
// read as if nothing were missing.
func TestReader_damage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 1})
		f.fill(t, "t", 0, 20000, 1000, record.CompressionNone) // many responses
		f.locked(func() {
			frame := f.topics["t"].parts[0].frames[3]
			frame[bytes.LastIndex(frame, []byte("value "))] ^= 1
		})
		r := newReader(t, f.client(t), client.Prefetch(256<<10))
		assign(t, r, client.Assignment{Topic: "t", AtEnd: true})
		var got []client.Record
		var failed error
		for rec, err := range r.Records(t.Context()) {
			if err != nil {
				failed = err
				synctest.Wait() // all that fits is fetched
				continue
			}
			got = append(got, rec.Clone())
		}
		wantRun(t, got, 0, 0, 3000)
		if !errors.Is(failed, client.ErrCorruptData) || !errors.Is(failed, client.ErrLogCorrupt) {
			t.Errorf("error %v", failed)
		}
		want := map[string]string{"topic": "t", "partition": "0", "offset": "3000", "nextOffset": "4000"}
		if e, ok := errors.AsType[*client.Error](failed); !ok || !maps.Equal(e.Metadata, want) || client.Retriable(failed) {
			t.Errorf("%v, facts %v, want %v", failed, e, want)
		}
		if pos, _ := r.Position("t", 0); pos != 3000 {
			t.Errorf("position %d, want 3000", pos)
		}
		// Nothing keeps the program from going on behind it.
		if err := r.Seek(t.Context(), "t", 0, client.AtOffset(4000)); err != nil {
			t.Error(err)
		}
	})
}

// What is damaged is asked for again before anybody hears of it: a broker looks
// into what it has then, and leaves it to one with a sound copy.
func TestReader_damageHeals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 1})
		f.fill(t, "t", 0, 20000, 1000, record.CompressionNone)
		frames := f.topics["t"].parts[0].frames
		sound := slices.Clone(frames)
		for _, n := range []int{3, 9} {
			bad := bytes.Clone(frames[n])
			bad[bytes.LastIndex(bad, []byte("value "))] ^= 1
			f.locked(func() { frames[n] = bad })
		}
		r := newReader(t, f.client(t))
		assign(t, r, client.Assignment{Topic: "t", AtEnd: true})
		synctest.Wait() // all is fetched
		f.locked(func() { copy(frames, sound) })
		var got []client.Record
		next := int64(0)
		for {
			b, err := r.Poll(t.Context())
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			for rec := range b.All() {
				got, next = append(got, rec.Clone()), rec.Offset+1
			}
			if err := b.Err(); err != nil {
				t.Fatal(err)
			}
			if b.NextOffset() != next { // who keeps it must not skip anything
				t.Errorf("to go on at %d after a batch that ends at %d", b.NextOffset(), next)
			}
		}
		wantRun(t, got, 0, 0, 20000)
	})
}

// What is asked for again because it was damaged may be asked of a leader that lacks
// what was read before it: that is told, and not passed over.
func TestReader_damageThenCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 1})
		f.fill(t, "t", 0, 20000, 1000, record.CompressionNone)
		frames := f.topics["t"].parts[0].frames
		bad := bytes.Clone(frames[3])
		bad[bytes.LastIndex(bad, []byte("value "))] ^= 1
		f.locked(func() { frames[3] = bad })
		r := newReader(t, f.client(t))
		assign(t, r, client.Assignment{Topic: "t", AtEnd: true})
		synctest.Wait() // all is fetched
		f.locked(func() { f.cut = 60 })
		read := int64(0)
		for {
			b, err := r.Poll(t.Context())
			if err != nil {
				if !errors.Is(err, client.ErrLogTruncated) {
					t.Errorf("after %d records: %v", read, err)
				}
				return
			}
			for range b.All() {
				read++
			}
		}
	})
}

// Answers from before a seek are told from those after.
func TestReader_seeksWhileMuchIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(1, 1))
		f := newFake(t, map[string]int{"t": 1})
		f.fill(t, "t", 0, 50000, 100, record.CompressionNone)
		r := newReader(t, f.client(t), client.Prefetch(64<<10))
		assign(t, r, client.Assignment{Topic: "t"})
		next, read := int64(0), 0
		for rec, err := range r.Records(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if rec.Offset != next {
				t.Fatalf("read offset %d, want %d", rec.Offset, next)
			}
			next++
			if read++; read == 100000 {
				break
			}
			if rng.IntN(500) == 0 || next == 50000 {
				next = rng.Int64N(50000)
				if err := r.Seek(t.Context(), "t", 0, client.AtOffset(next)); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}
