package cases

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker"
	"github.com/runnelmq/runnel/client"
	"github.com/runnelmq/runnel/internal/config"
)

// Streams that grow old every few seconds, and a broker that is restarted in an
// orderly way, are nothing a program has to know of: no write fails, nothing is
// read twice or left out, and no connections pile up (GR-21).
func TestGR21_agingStreamsAreInvisible(t *testing.T) {
	young := func(c *broker.Config) {
		c.Streams.MaxAge, c.Streams.GoawayGrace = config.Duration(5*time.Second), config.Duration(2*time.Second)
	}
	inTown(t, young, func(w *town) {
		t := w.t
		c := w.client(brokerAddr)
		defer c.Close()
		w.topic(c, "t", 1, map[string]string{"max.message.bytes": "3670016"})
		p, err := c.NewProducer()
		if err != nil {
			t.Fatal(err)
		}
		r := w.reader(c, "t")
		defer r.Close()

		const rounds, pause = 3000, 20 * time.Millisecond // a minute
		const every = 100                                 // of which one is as large as records get
		var failed atomic.Int64
		var got []string
		var reading sync.WaitGroup
		defer reading.Wait()
		reading.Go(func() {
			var err error
			if got, err = collect(t.Context(), r, rounds, 3*time.Minute); err != nil {
				t.Errorf("read %d records: %v", len(got), err)
			}
		})
		w.topic(c, "u", 1, nil)
		one := &runnelv1.AppendRequest{Request: &runnelv1.ProduceRequest{Topic: "u", TextRecords: []*runnelv1.ProduceTextRecord{{Value: new("v")}}}}
		stub := w.conn(brokerAddr)
		defer stub.Close()
		var sent []string
		for i := range rounds {
			v := number(i)
			if i%every == 0 {
				v += string(make([]byte, 3<<20))
			}
			sent = append(sent, number(i))
			p.Produce(t.Context(), client.Record{Topic: "t", Value: []byte(v)}, func(res client.Result) {
				if res.Err != nil {
					failed.Add(1)
					t.Errorf("record %d: %v", i, res.Err)
				}
			})
			if i%50 == 0 { // unary calls go on meanwhile
				if resp, err := runnelv1.NewLogServiceClient(stub).Append(t.Context(), one); err != nil || resp.GetResponse().GetError() != nil {
					t.Errorf("a unary call: %v, %v", resp, err)
				}
			}
			if i == rounds/2 {
				w.stop()
				w.start()
			}
			time.Sleep(pause)
		}
		if err := p.Close(t.Context()); err != nil || failed.Load() > 0 {
			t.Fatalf("%d writes failed, %v", failed.Load(), err)
		}
		reading.Wait()
		for i, v := range got {
			got[i] = v[:6]
		}
		if !slices.Equal(got, sent) {
			t.Errorf("%d records were read, not those %d that were written", len(got), len(sent))
		}
		if n := w.net.atOnce(brokerAddr); n > 2 { // one of them the stub's
			t.Errorf("%d connections were open at the same time", n)
		}
	})
}
