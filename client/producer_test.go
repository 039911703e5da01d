package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/client"
)

func itoa[N int | int64](n N) string { return strconv.FormatInt(int64(n), 10) }

// A tally collects results by the record's value.
type tally struct {
	// mu guards the fields below
	mu sync.Mutex

	results map[string]client.Result
	order   []string
	twice   []string
}

func newTally() *tally { return &tally{results: map[string]client.Result{}} }

func (y *tally) done(value string) func(client.Result) {
	return func(r client.Result) {
		y.mu.Lock()
		defer y.mu.Unlock()
		if _, ok := y.results[value]; ok {
			y.twice = append(y.twice, value)
		}
		y.results[value] = r
		y.order = append(y.order, value)
	}
}

// of returns the result of one record, the zero value before there is one.
func (y *tally) of(value string) client.Result {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.results[value]
}

func (y *tally) count(o client.Outcome) int {
	y.mu.Lock()
	defer y.mu.Unlock()
	n := 0
	for _, r := range y.results {
		if r.Outcome() == o {
			n++
		}
	}
	return n
}

// check wants so many outcomes of each kind, each told once.
func (y *tally) check(t *testing.T, acked, failed, unknown int) {
	t.Helper()
	if a, f, u := y.count(client.Acknowledged), y.count(client.Failed), y.count(client.Unknown); a != acked || f != failed || u != unknown {
		t.Errorf("%d acknowledged, %d failed, %d unknown; want %d, %d, %d; first errors %v", a, f, u, acked, failed, unknown, y.errs(3))
	}
	if len(y.twice) > 0 {
		t.Errorf("callbacks called twice: %v", y.twice)
	}
}

func (y *tally) errs(n int) (es []error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	for _, v := range y.order {
		if r := y.results[v]; r.Err != nil && len(es) < n {
			es = append(es, r.Err)
		}
	}
	return es
}

func producer(tb testing.TB, c *client.Client, opts ...client.ProducerOption) *client.Producer {
	tb.Helper()
	p, err := c.NewProducer(opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = p.Close(ctx)
	})
	return p
}

// send produces the numbers [from, to) to partition 0 of topic "t".
func send(t *testing.T, p *client.Producer, y *tally, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		v := itoa(i)
		p.Produce(t.Context(), client.Record{Topic: "t", Value: []byte(v)}, y.done(v))
	}
}

func flush(t *testing.T, p *client.Producer) {
	t.Helper()
	if err := p.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// increasing wants the stored values to be numbers that only rise, and exactly
// those that were acknowledged or have an unknown outcome.
func (f *fakeBroker) increasing(t *testing.T, y *tally) {
	t.Helper()
	last := -1
	stored := map[string]int64{}
	for _, r := range f.all(t, "t", 0) {
		n, err := strconv.Atoi(string(r.Value))
		if err != nil {
			t.Fatal(err)
		}
		if n <= last {
			t.Errorf("%d is stored after %d", n, last)
		}
		last = n
		stored[string(r.Value)] = int64(r.Offset)
	}
	for v, r := range y.results {
		offset, there := stored[v]
		switch {
		case r.Outcome() == client.Acknowledged && (!there || offset != r.Offset):
			t.Errorf("%s was acknowledged at offset %d; stored %v at %d", v, r.Offset, there, offset)
		case r.Outcome() == client.Failed && there:
			t.Errorf("%s failed for certain (%v) and is stored at %d", v, r.Err, offset)
		}
	}
}

func TestProducer_allIsStoredInOrder(t *testing.T) {
	for name, opts := range map[string][]client.ProducerOption{
		"as it is":          nil,
		"small batches":     {client.BatchBytes(1 << 10)},
		"one in flight":     {client.BatchBytes(1 << 10), client.MaxInFlight(1)},
		"lingering":         {client.Linger(10 * time.Millisecond)},
		"zstd":              {client.Compress(client.Zstd, 0)},
		"lz4, level 3":      {client.Compress(client.LZ4, 3)},
		"snappy":            {client.Compress(client.Snappy, 0)},
		"gzip":              {client.Compress(client.Gzip, 0)},
		"little memory":     {client.BatchBytes(1 << 10), client.MaxBufferedBytes(4 << 10)},
		"leader's acks":     {client.RequireAcks(client.AcksLeader)},
		"memory and linger": {client.Linger(time.Second), client.MaxBufferedBytes(4 << 10)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t, map[string]int{"t": 1})
				p := producer(t, f.client(t), opts...)
				y := newTally()
				send(t, p, y, 0, 5000)
				flush(t, p)
				y.check(t, 5000, 0, 0)
				f.increasing(t, y)
				if got := len(f.all(t, "t", 0)); got != 5000 {
					t.Errorf("%d records are stored, want 5000", got)
				}
			})
		})
	}
}

func TestProducer_absentAndEmptyDiffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 1})
		p := producer(t, f.client(t))
		at := time.UnixMilli(1_700_000_000_123)
		rs := []client.Record{
			{Topic: "t", Key: []byte("k"), Value: nil},
			{Topic: "t", Key: []byte("k"), Value: []byte{}},
			{Topic: "t", Key: nil, Value: []byte("v")},
			{Topic: "t", Key: []byte{}, Value: []byte("v")},
			{Topic: "t", Value: []byte("v"), Timestamp: at, Headers: []client.Header{{Key: "a", Value: nil}, {Key: "a", Value: []byte{}}, {Key: "b", Value: []byte("x")}}},
		}
		results, err := p.ProduceSync(t.Context(), rs...)
		if err != nil {
			t.Fatal(err)
		}
		if !results[4].Timestamp.Equal(at) {
			t.Errorf("timestamp %v, want %v", results[4].Timestamp, at)
		}
		got := f.all(t, "t", 0)
		for i, want := range rs {
			if (got[i].Key == nil) != (want.Key == nil) || (got[i].Value == nil) != (want.Value == nil) {
				t.Errorf("record %d: key %q, value %q; want %q, %q", i, got[i].Key, got[i].Value, want.Key, want.Value)
			}
		}
		var heads []string
		for h := got[4].Headers(); h.Next(); {
			heads = append(heads, fmt.Sprintf("%s=%s/%v", h.Key(), h.Value(), h.Value() == nil))
		}
		if want := []string{"a=/true", "a=/false", "b=x/false"}; !slices.Equal(heads, want) {
			t.Errorf("headers %v, want %v", heads, want)
		}
		if got[4].TimestampMs != at.UnixMilli() {
			t.Errorf("stored time %d, want %d", got[4].TimestampMs, at.UnixMilli())
		}
	})
}

// PD-01: a full buffer, and a caller that waits for its record, end the linger.
func TestProducer_lingerEndsEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 1})
		p := producer(t, f.client(t), client.Linger(10*time.Second), client.MaxBufferedBytes(1<<10), client.BatchBytes(1<<10))
		y := newTally()
		begun := time.Now()
		for i := range 11 {
			p.Produce(t.Context(), client.Record{Topic: "t", Value: make([]byte, 150)}, y.done(itoa(i)))
		}
		flush(t, p)
		y.check(t, 11, 0, 0)
		if took := time.Since(begun); took >= time.Second {
			t.Errorf("11 records took %v", took)
		}
		if _, err := p.ProduceSync(t.Context(), client.Record{Topic: "t", Value: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took >= time.Second {
			t.Errorf("ProduceSync lingered: %v", took)
		}
		send(t, p, y, 100, 101)
		synctest.Wait()
		if y.count(client.Acknowledged) != 11 {
			t.Error("a lone record did not linger")
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		y.check(t, 12, 0, 0)
	})
}

// A batch that is too large for the broker is cut up, and each part once.
func TestProducer_splitsWhatIsTooLarge(t *testing.T) {
	t.Run("the broker says its limit", func(t *testing.T) { testSplit(t, false) })
	t.Run("the broker does not", func(t *testing.T) { testSplit(t, true) })
}

func testSplit(t *testing.T, mumble bool) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 1})
		f.maxBatch = 100 << 10
		f.mumble = mumble
		p := producer(t, f.client(t), client.BatchBytes(2<<20))
		y := newTally()
		pad := make([]byte, 500)
		for i := range 10000 {
			v := itoa(i)
			p.Produce(t.Context(), client.Record{Topic: "t", Key: pad, Value: []byte(v)}, y.done(v))
		}
		flush(t, p)
		y.check(t, 10000, 0, 0)
		f.increasing(t, y)
		if f.calls > 400 {
			t.Errorf("%d requests for 5 MB in batches of 100 KiB", f.calls)
		}
	})
}

// No limit is exceeded by the few bytes around a record.
func TestProducer_keepsToTheLimitExactly(t *testing.T) {
	for limit := 20_200; limit < 20_420; limit += 8 {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(t, map[string]int{"t": 1})
			f.maxBatch = limit
			p := producer(t, f.client(t), client.Linger(time.Minute)) // so that batches are full
			y := newTally()
			pad := make([]byte, 400)
			fill := func(from, to int) {
				for i := from; i < to; i++ {
					v := itoa(i)
					p.Produce(t.Context(), client.Record{
						Topic: "t", Key: pad, Value: []byte(v), Headers: []client.Header{{Key: "header", Value: pad[:90]}},
						Timestamp: time.UnixMilli(int64(i) << 30),
					}, y.done(v))
					if i == 0 {
						flush(t, p) // what comes before the topic is known does not linger
					}
				}
				flush(t, p)
			}
			fill(0, 200)
			refused := f.tooLarge
			if refused == 0 {
				t.Fatal("the limit was never met")
			}
			fill(200, 400)
			y.check(t, 400, 0, 0)
			if f.tooLarge > refused || refused > 5 {
				t.Errorf("limit %d: %d batches were too large, and %d more once it was known", limit, refused, f.tooLarge-refused)
			}
		})
	}
}

// PD-04: the broker's limit is far below the client's. It is learned, and few
// requests are in vain.
func TestProducer_learnsTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 1})
		f.maxBatch = 1 << 20
		p := producer(t, f.client(t), client.BatchBytes(3<<20), client.Linger(time.Minute)) // so that batches are full
		y := newTally()
		pad := make([]byte, 500)
		for i := range 10000 {
			v := itoa(i)
			p.Produce(t.Context(), client.Record{Topic: "t", Key: pad, Value: []byte(v)}, y.done(v))
			if i == 0 {
				flush(t, p) // what comes before the topic is known does not linger
			}
		}
		flush(t, p)
		y.check(t, 10000, 0, 0)
		f.exactly(t, 10000)
		if f.calls > 40 {
			t.Errorf("%d requests for 5 MB in batches of 1 MiB", f.calls)
		}
		before := f.tooLarge
		if before == 0 {
			t.Error("the limit was never met, so this shows nothing")
		}
		for i := range 10000 {
			p.Produce(t.Context(), client.Record{Topic: "t", Key: pad, Value: []byte(itoa(i))}, nil)
		}
		flush(t, p)
		if again := f.tooLarge - before; again > 0 {
			t.Errorf("%d batches were too large again: the limit was forgotten", again)
		}
	})
}

// PD-06: what can never be taken fails at once, alone, and is not tried again.
func TestProducer_permanentErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 1})
		p := producer(t, f.client(t), client.BatchBytes(2<<20))
		y := newTally()
		begun := time.Now()
		p.Produce(t.Context(), client.Record{Topic: "t", Value: make([]byte, 2<<20)}, y.done("large"))
		p.Produce(t.Context(), client.Record{Topic: "no-such-topic", Value: []byte("x")}, y.done("topic"))
		p.Produce(t.Context(), client.Record{Topic: "", Value: []byte("x")}, y.done("none"))
		p.Produce(t.Context(), client.Record{Topic: "t", Headers: []client.Header{{Key: "\xff"}}}, y.done("header"))
		send(t, p, y, 0, 99)
		// The limit counts the serialized record: 3 bytes are before a value of
		// that size.
		p.Produce(t.Context(), client.Record{Topic: "t", Value: make([]byte, 1<<20-4), Timestamp: time.Now().Add(time.Second)}, y.done("exact"))
		p.Produce(t.Context(), client.Record{Topic: "t", Value: make([]byte, 1<<20-3)}, y.done("over"))
		flush(t, p)
		y.check(t, 100, 5, 0)
		for v, want := range map[string]error{
			"large": client.ErrRecordTooLarge, "topic": client.ErrTopicNotFound, "none": client.ErrInvalidTopicName,
			"header": client.ErrInvalidRecord, "over": client.ErrRecordTooLarge,
		} {
			if err := y.results[v].Err; !errors.Is(err, want) || client.Reason(err) != client.Reason(want) || client.Retriable(err) {
				t.Errorf("%s: %v, want %v", v, err, want)
			}
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// refuse makes the broker refuse the requests whose numbers are in nth.
func refuse(r runnelv1.ErrorReason, c codes.Code, nth ...int) func(int, *runnelv1.ProduceRequest) action {
	return func(n int, _ *runnelv1.ProduceRequest) action {
		if slices.Contains(nth, n) {
			return action{err: item(r, c)}
		}
		return action{}
	}
}

func TestProducer_refusedForNowIsSentAgainInOrder(t *testing.T) {
	for _, nth := range [][]int{{1}, {1, 2, 3}, {2, 3, 4, 5, 6, 7, 8}} {
		t.Run(fmt.Sprint(nth), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t, map[string]int{"t": 1})
				f.onProduce = refuse(runnelv1.ErrorReason_ERROR_REASON_NOT_ENOUGH_REPLICAS, codes.Unavailable, nth...)
				p := producer(t, f.client(t), client.BatchBytes(1<<10))
				y := newTally()
				send(t, p, y, 0, 2000)
				flush(t, p)
				y.check(t, 2000, 0, 0)
				f.increasing(t, y)
			})
		})
	}
}

// Without numbers, when later records were stored already, the refused ones fail for certain:
// sending them again would change the order.
func TestProducer_keepsOrderRatherThanRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 1})
		f.onProduce = func(n int, _ *runnelv1.ProduceRequest) action {
			switch n {
			case 2:
				return action{wait: time.Second} // the next ones are sent meanwhile
			case 3:
				return action{err: item(runnelv1.ErrorReason_ERROR_REASON_MOVING, codes.Unavailable)}
			}
			return action{}
		}
		p := producer(t, f.client(t), client.BatchBytes(1<<10), client.WithoutIdempotence())
		y := newTally()
		// A batch that is larger than all before it goes alone: with the largest
		// one first, all others may follow each other.
		p.Produce(t.Context(), client.Record{Topic: "t", Key: make([]byte, 2<<10), Value: []byte("0")}, y.done("0"))
		flush(t, p)
		send(t, p, y, 1, 2000)
		flush(t, p)
		failed := y.count(client.Failed)
		if failed == 0 {
			t.Error("nothing failed, although a batch was refused and the ones after it stored")
		}
		y.check(t, 2000-failed, failed, 0)
		f.increasing(t, y)
		for _, err := range y.errs(1) {
			if !errors.Is(err, client.ErrOrder) || !errors.Is(err, client.ErrMoving) {
				t.Errorf("%v, want %v and why it was refused", err, client.ErrOrder)
			}
		}
	})
}

// Without numbers a broken stream leaves what is unanswered unknown, and it is
// not sent again.
func TestProducer_brokenStreamLeavesUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 1})
		f.onProduce = func(n int, _ *runnelv1.ProduceRequest) action {
			switch n {
			case 4:
				return action{dropKill: errBroken} // stored, and nobody hears of it
			case 6:
				return action{kill: errBroken}
			}
			return action{}
		}
		p := producer(t, f.client(t), client.BatchBytes(1<<10), client.WithoutIdempotence())
		y := newTally()
		send(t, p, y, 0, 2000)
		flush(t, p)
		unknown := y.count(client.Unknown)
		if unknown == 0 {
			t.Error("no outcome is unknown")
		}
		y.check(t, 2000-unknown, 0, unknown)
		f.increasing(t, y)
		for _, err := range y.errs(1) {
			if client.Retriable(err) {
				t.Errorf("%v is said to be safe to send again", err)
			}
		}
	})
}

// What the broker says it never read is sent again, and all is stored once.
func TestProducer_finalGoawayIsNoLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 1})
		f.onProduce = func(n int, _ *runnelv1.ProduceRequest) action {
			return action{final: n == 4 || n == 9, drain: n == 14}
		}
		p := producer(t, f.client(t), client.BatchBytes(1<<10))
		y := newTally()
		send(t, p, y, 0, 2000)
		flush(t, p)
		y.check(t, 2000, 0, 0)
		f.increasing(t, y)
	})
}

func TestProducer_uncertainAnswersAreUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 1})
		f.onProduce = func(n int, _ *runnelv1.ProduceRequest) action {
			switch n {
			case 1:
				it := item(runnelv1.ErrorReason_ERROR_REASON_COMMIT_UNCERTAIN, codes.DeadlineExceeded)
				it.OutcomeUnknown = true
				return action{err: it}
			case 2:
				return action{err: item(runnelv1.ErrorReason_ERROR_REASON_INTERNAL, codes.Internal)}
			}
			return action{}
		}
		p := producer(t, f.client(t), client.WithoutIdempotence())
		for i, want := range []client.Outcome{client.Unknown, client.Unknown, client.Acknowledged} {
			rs, _ := p.ProduceSync(t.Context(), client.Record{Topic: "t", Value: []byte("x")})
			if rs[0].Outcome() != want {
				t.Errorf("record %d: %v (%v), want %v", i, rs[0].Outcome(), rs[0].Err, want)
			}
		}
	})
}
