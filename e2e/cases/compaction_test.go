package cases

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker"
	"github.com/runnelmq/runnel/client"
)

// compacts makes topics compacted as soon as may be: two seconds after a record
// was written its segment is closed, and the next look compacts it.
func compacts() map[string]string {
	return map[string]string{
		"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "max.compaction.lag.ms": "2000",
		"delete.retention.ms": "3600000", "segment.bytes": "65536", "max.message.bytes": "1000",
	}
}

// soonClean makes the broker look often.
func soonClean(c *broker.Config) { c.Storage.Cleaner.Backoff = c.Storage.MaintenanceInterval / 10 }

func (w *town) put(p *client.Producer, topic string, rs ...client.Record) {
	w.t.Helper()
	for i := range rs {
		rs[i].Topic = topic
	}
	if _, err := p.ProduceSync(w.t.Context(), rs...); err != nil {
		w.t.Fatal(err)
	}
}

// readFrom reads up to the end by the client, and describes the records.
func (w *town) readFrom(c *client.Client, topic string, from int64) []string {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	r, err := c.NewReader()
	if err != nil {
		w.t.Fatal(err)
	}
	defer r.Close()
	if err := r.Assign(ctx, client.Assignment{Topic: topic, Start: client.AtOffset(from), AtEnd: true}); err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for {
		b, err := r.Poll(ctx)
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			w.t.Fatalf("read from %d: %v, after %v", from, err, out)
		}
		for rec := range b.All() {
			out = append(out, describe(rec.Offset, rec.Key, rec.Value))
		}
		if b.Err() != nil {
			w.t.Fatal(b.Err())
		}
	}
}

func describe(offset int64, key, value []byte) string {
	show := func(b []byte) string {
		if b == nil {
			return "-"
		}
		return fmt.Sprintf("%q", b)
	}
	return fmt.Sprintf("%d %s=%s", offset, show(key), show(value))
}

// stubRead reads up to the end as a stock client does. It fails when more than
// a few answers bring nothing.
func (w *town) stubRead(api runnelv1.LogServiceClient, topic string, from int64, opts *runnelv1.FetchOptions) (records []string) {
	w.t.Helper()
	stream, err := api.Read(w.t.Context(), &runnelv1.ReadRequest{Request: &runnelv1.FetchRequest{
		Options: opts, Partitions: []*runnelv1.FetchPartition{{
			Topic: topic, Partition: new(int32), Start: &runnelv1.FetchPartition_Offset{Offset: from},
		}},
	}})
	if err != nil {
		w.t.Fatal(err)
	}
	for empty := 0; ; {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return records
		}
		if err != nil || resp.GetResponse().GetError() != nil {
			w.t.Fatalf("read at %d: %v, %v", from, resp.GetResponse().GetError(), err)
		}
		more := w.records(resp.GetResponse(), from)
		if records = append(records, more...); len(more) == 0 {
			if empty++; empty > 2 {
				w.t.Fatalf("%d answers at %d bring nothing", empty, from)
			}
		}
	}
}

// records describes what an answer brings.
func (w *town) records(r *runnelv1.FetchResponse, from int64) (records []string) {
	w.t.Helper()
	for _, rec := range r.GetRecords() {
		records = append(records, describe(rec.GetOffset(), rec.GetKey(), rec.GetValue()))
	}
	for _, rec := range r.GetTextRecords() {
		var value []byte
		if rec.Value != nil {
			value = []byte(rec.GetValue())
		}
		records = append(records, describe(rec.GetOffset(), []byte(rec.GetKey()), value))
	}
	for _, b := range r.GetBatches() {
		if len(b.GetRecords().GetRecords()) == 0 {
			w.t.Errorf("an empty batch at %d was sent", b.GetBaseOffset())
		}
		for i, rec := range b.GetRecords().GetRecords() {
			offset := b.GetBaseOffset() + int64(i)
			if rec.OffsetDelta != nil {
				offset = b.GetBaseOffset() + int64(rec.GetOffsetDelta())
			}
			if offset >= from {
				records = append(records, describe(offset, rec.GetKey(), rec.GetValue()))
			}
		}
	}
	return records
}

// A reader that begins in a hole that compaction left, across segments, gets the
// next record there is, at once, whatever it reads with (ST-15, ST-16).
func TestST15_readsOverHoles(t *testing.T) {
	inTown(t, soonClean, func(w *town) {
		t := w.t
		c := w.client(brokerAddr)
		defer c.Close()
		w.topic(c, "t", 1, compacts())
		p, err := c.NewProducer()
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close(t.Context())
		for i := range 100 {
			w.put(p, "t", client.Record{Key: []byte(number(i)), Value: []byte("first")})
		}
		pad := strings.Repeat("x", 500)
		for i := 0; i < 4900; i += 100 { // offsets 100 to 4999, over many segments
			if i == 2000 { // a leader epoch begins, the first batch of which stays, without its records
				w.stop()
				w.start()
			}
			rs := make([]client.Record, 100)
			for j := range rs {
				rs[j] = client.Record{Key: []byte("again"), Value: []byte(pad)}
			}
			w.put(p, "t", rs...)
		}
		w.put(p, "t", client.Record{Key: []byte("again"), Value: []byte("last")}, client.Record{Key: []byte("other"), Value: []byte("end")})
		time.Sleep(time.Minute)
		stub := w.conn(brokerAddr)
		defer stub.Close()
		api := runnelv1.NewLogServiceClient(stub)
		for _, from := range []int64{99, 100, 101, 2500, 4999, 5000, 5001} {
			want := []string{`5000 "again"="last"`, `5001 "other"="end"`}
			switch from {
			case 99:
				want = append([]string{`99 "000099"="first"`}, want...)
			case 5001:
				want = want[1:]
			}
			if got := w.readFrom(c, "t", from); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("from %d the client reads %v, want %v", from, got, want)
			}
			for format := range runnelv1.FetchFormat_name {
				if got := w.stubRead(api, "t", from, &runnelv1.FetchOptions{Format: runnelv1.FetchFormat(format)}); fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("from %d Read as %s answers %v, want %v", from, runnelv1.FetchFormat(format), got, want)
				}
			}
		}
		lag, err := c.NewAdmin().ListOffsets(t.Context(), "t", client.Latest())
		if err != nil || len(lag) != 1 || lag[0].Offset != 5002 {
			t.Errorf("the end is %+v, %v, want 5002: a reader at the end has no lag", lag, err)
		}
	})
}

// Who asks for so many records gets so many, also from the middle of a batch
// with holes.
func TestST15_countsOverHoles(t *testing.T) {
	inTown(t, soonClean, func(w *town) {
		t := w.t
		c := w.client(brokerAddr)
		defer c.Close()
		w.topic(c, "t", 1, compacts())
		p, err := c.NewProducer()
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close(t.Context())
		var first, second []client.Record
		for i := range 10 {
			first = append(first, client.Record{Key: []byte(number(i)), Value: []byte("1")})
		}
		for i := 2; i < 9; i++ {
			second = append(second, client.Record{Key: []byte(number(i)), Value: []byte("2")})
		}
		w.put(p, "t", first...)
		w.put(p, "t", second...)
		time.Sleep(time.Minute)
		stub := w.conn(brokerAddr)
		defer stub.Close()
		api := runnelv1.NewLogServiceClient(stub)
		all := []string{`0 "000000"="1"`, `1 "000001"="1"`, `9 "000009"="1"`, `10 "000002"="2"`, `11 "000003"="2"`}
		for format := range runnelv1.FetchFormat_name {
			for from := range int64(3) {
				for n := range int64(3) {
					opts := &runnelv1.FetchOptions{Format: runnelv1.FetchFormat(format), MaxRecords: new(n + 1)}
					want := all[min(from, 2):][:n+1]
					got := w.stubRead(api, "t", from, opts)
					if len(got) > int(n) && opts.GetFormat() == runnelv1.FetchFormat_FETCH_FORMAT_BATCHES {
						got = got[:n+1] // whole batches
					}
					if fmt.Sprint(got) != fmt.Sprint(want) {
						t.Errorf("%d records from %d as %s: %v, want %v", n+1, from, opts.GetFormat(), got, want)
					}
				}
			}
		}
	})
}

// No value is not an empty one, on the way and under compaction; a record
// without a key is refused, and nothing of it stored (ST-19). A tombstone stays
// for its time, goes then, and what it deleted never comes back (ST-21).
func TestST19_ST21_absentAndEmpty(t *testing.T) {
	inTown(t, soonClean, func(w *town) {
		t := w.t
		c := w.client(brokerAddr)
		defer c.Close()
		w.topic(c, "t", 1, compacts())
		p, err := c.NewProducer()
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close(t.Context())
		w.put(p, "t", client.Record{Key: []byte("k1"), Value: []byte("v")}, client.Record{Key: []byte("k2"), Value: []byte{}}, client.Record{Key: []byte{}, Value: []byte("v")})
		w.put(p, "t", client.Record{Key: []byte("k1")})
		if _, err := p.ProduceSync(t.Context(), client.Record{Topic: "t", Value: []byte("keyless")}); !errors.Is(err, client.ErrInvalidRecord) {
			t.Errorf("a record without a key: %v, want ErrInvalidRecord", err)
		}
		before := []string{`0 "k1"="v"`, `1 "k2"=""`, `2 ""="v"`, `3 "k1"=-`}
		if got := w.readFrom(c, "t", 0); fmt.Sprint(got) != fmt.Sprint(before) {
			t.Errorf("written was %v, want %v", got, before)
		}
		time.Sleep(30 * time.Minute)
		if got := w.readFrom(c, "t", 0); fmt.Sprint(got) != fmt.Sprint(before[1:]) {
			t.Errorf("after half the time there is %v, want %v", got, before[1:])
		}
		w.stop()
		w.start()
		time.Sleep(time.Hour)
		if got := w.readFrom(c, "t", 0); fmt.Sprint(got) != fmt.Sprint(before[1:3]) {
			t.Errorf("in the end there is %v, want %v", got, before[1:3])
		}
	})
}
