package cases

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runnelmq/runnel/client"
)

// What was buffered has an outcome, once each, within the time that was given, when
// the broker is gone or the topic is; and Close ends (PD-07).
func TestPD07_everythingHasAnOutcome(t *testing.T) {
	for name, spoil := range map[string]func(w *town, c *client.Client){
		"the broker is gone": func(w *town, _ *client.Client) { w.stop() },
		"the topic is gone":  func(w *town, c *client.Client) { w.deleteTopic(c, "t") },
	} {
		for _, end := range []string{"flush", "close", "close without a limit"} {
			t.Run(name+"/"+end, func(t *testing.T) {
				inWhole(t, nil, func(w *town) {
					t := w.t
					c := w.client(brokerAddr)
					defer c.Close()
					admin := w.client(brokerAddr)
					defer admin.Close()
					w.topic(c, "t", 2, nil)
					p, err := c.NewProducer(client.Linger(time.Minute), client.DeliveryTimeout(5*time.Second+time.Minute))
					if err != nil {
						t.Fatal(err)
					}
					w.produceAll(t, p, "warm", 1)
					if err := p.Flush(t.Context()); err != nil {
						t.Fatal(err)
					}
					o := w.produceAll(t, p, "v", 100)
					spoil(w, admin)
					begun := time.Now()
					ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
					defer cancel()
					limit := 3500 * time.Millisecond
					switch end {
					case "flush":
						_ = p.Flush(ctx)
						defer func() {
							if err := p.Close(ctx); err != nil {
								t.Logf("close: %v", err)
							}
						}()
					case "close":
						_ = p.Close(ctx)
					default:
						_ = p.Close(t.Context())
						limit = 66 * time.Second
					}
					if took := time.Since(begun); took > limit {
						t.Errorf("it took %s", took)
					}
					if end == "flush" {
						time.Sleep(2 * time.Minute)
					}
					synctest.Wait()
					o.mu.Lock()
					defer o.mu.Unlock()
					if o.failed != 100 || o.acked > 0 || len(o.times) != 100 {
						t.Errorf("%d failed, %d were acknowledged", o.failed, o.acked)
					}
					for v, n := range o.times {
						if n != 1 {
							t.Errorf("%s had %d outcomes", v, n)
						}
					}
					if name == "the broker is gone" {
						w.start()
					}
				})
			})
		}
	}
}

// outcomes are what became of records.
type outcomes struct {
	// mu guards the fields below
	mu sync.Mutex

	acked, failed int
	times         map[string]int
	errs          []error
}

func (w *town) produceAll(t *testing.T, p *client.Producer, prefix string, n int) *outcomes {
	t.Helper()
	o := &outcomes{times: map[string]int{}}
	for i := range n {
		v := fmt.Sprint(prefix, i)
		p.Produce(t.Context(), client.Record{Topic: "t", Key: []byte(v), Value: []byte(v)}, func(r client.Result) {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.times[v]++
			if r.Err != nil {
				o.failed++
				o.errs = append(o.errs, r.Err)
				return
			}
			o.acked++
		})
	}
	return o
}

// A limit far above the topic's costs a few refused batches, and no record (PD-04).
func TestPD04_aLimitFarAboveTheTopics(t *testing.T) {
	inTown(t, nil, func(w *town) {
		t := w.t
		var mu sync.Mutex
		batches := 0
		c := w.client(brokerAddr, client.WithHooks(client.Hooks{Produced: func(b client.BatchInfo) {
			mu.Lock()
			defer mu.Unlock()
			batches += 1 + b.Retries
		}}))
		defer c.Close()
		w.topic(c, "t", 1, map[string]string{"max.message.bytes": "1048576"})
		p, err := c.NewProducer(client.BatchBytes(3670016), client.Linger(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		pad := string(make([]byte, 490))
		var want []string
		var rs []client.Record
		for i := range 10000 {
			want = append(want, number(i))
			rs = append(rs, client.Record{Topic: "t", Value: []byte(number(i) + pad)})
		}
		if _, err := p.ProduceSync(t.Context(), rs...); err != nil {
			t.Fatal(err)
		}
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		r := w.reader(c, "t")
		defer r.Close()
		for i, v := range w.next(r, len(want), time.Minute) {
			if v[:6] != want[i] {
				t.Fatalf("record %d is %s", i, v[:6])
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if batches > 40 {
			t.Errorf("%d batches for 5 MB", batches)
		}
	})
}
