package cases

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/client"
)

// Streams that end in the middle, by whoever, however, leave nothing behind: not in
// the client, not in the broker (GR-12, GR-13).
func TestGR12_GR13_nothingIsLeftBehind(t *testing.T) {
	inTown(t, nil, func(w *town) {
		t := w.t
		c := w.client(brokerAddr)
		defer c.Close()
		w.topic(c, "t", 3, nil)
		w.numbered(c, "t", 3, 0, 100)
		conn := w.conn(brokerAddr)
		defer conn.Close()
		api := runnelv1.NewLogServiceClient(conn)
		groups := runnelv1.NewGroupServiceClient(conn)
		text := []*runnelv1.ProduceTextRecord{{Value: new("v")}}
		round := func(i int) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%7)*time.Millisecond+time.Microsecond)
			defer cancel()
			switch i % 7 {
			case 0: // a reader that is left after a record, and closed
				r := w.reader(c, "t")
				for range r.Records(t.Context()) {
					break
				}
				_ = r.Close()
			case 1: // one that waits when it is closed
				r := w.reader(c, "t")
				time.AfterFunc(time.Millisecond, func() { _ = r.Close() })
				for {
					if _, err := r.Poll(t.Context()); err != nil {
						break
					}
				}
			case 2: // a member that is left in the middle
				g, err := c.NewGroup("g", client.Topics("t"))
				if err != nil {
					t.Fatal(err)
				}
				_, _ = groupRead(ctx, g, 1, time.Second)
				_ = g.Close()
			case 3: // a producer that is closed at once
				p, err := c.NewProducer()
				if err != nil {
					t.Fatal(err)
				}
				p.Produce(t.Context(), client.Record{Topic: "t", Value: []byte("v")}, nil)
				_ = p.Close(ctx)
			case 4: // stubs that cancel, or run out of time
				if s, err := api.Fetch(ctx); err == nil {
					_ = s.Send(&runnelv1.FetchRequest{Options: &runnelv1.FetchOptions{Follow: true}, Partitions: []*runnelv1.FetchPartition{{Topic: "t"}}})
					_, _ = s.Recv()
				}
			case 5:
				if s, err := api.Produce(ctx); err == nil {
					_ = s.Send(&runnelv1.ProduceRequest{Topic: "t", TextRecords: text})
					_ = s.Send(&runnelv1.ProduceRequest{Topic: "t", TextRecords: text})
				}
			case 6:
				if s, err := groups.Join(ctx); err == nil {
					_ = s.Send(&runnelv1.JoinRequest{Event: &runnelv1.JoinRequest_Join{Join: &runnelv1.JoinGroup{Group: "h", MemberId: number(i), Topics: []string{"t"}}}})
					_, _ = s.Recv()
				}
			}
		}
		for i := range 70 {
			round(i)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		before, _ := measure()
		for i := range 700 {
			round(i)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if after, _ := measure(); after > before+10 {
			t.Errorf("%d goroutines, %d before", after, before)
		}
		for _, g := range []string{"g", "h"} {
			if d, err := c.NewAdmin().DescribeGroup(t.Context(), g); err == nil && len(d.Members) > 0 {
				t.Errorf("group %s has members left: %+v", g, d.Members)
			}
		}
	})
}

// Readers that wait at the end have every record as soon as it is there, with
// nothing written after it, at a rate of one in two seconds, for minutes
// (GR-18).
func TestGR18_waitingReadersAreWoken(t *testing.T) {
	inTown(t, nil, func(w *town) {
		t := w.t
		c := w.client(brokerAddr)
		defer c.Close()
		w.topic(c, "t", 1, nil)
		late := make(chan time.Duration, 50*300)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 50 {
			r, err := c.NewReader()
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Assign(t.Context(), client.Assignment{Topic: "t", Start: client.AtOffset(0)}); err != nil {
				t.Fatal(err)
			}
			w.wg.Go(func() {
				defer r.Close()
				for rec, err := range r.Records(ctx) {
					if err != nil {
						return
					}
					late <- time.Since(rec.Timestamp)
				}
			})
		}
		p, err := c.NewProducer()
		if err != nil {
			t.Fatal(err)
		}
		for range 300 {
			w.produce(p, "t", "v")
			time.Sleep(2 * time.Second)
			if n := len(late); n != 50 {
				t.Fatalf("%d of 50 readers have the record", n)
			}
			for range 50 {
				if d := <-late; d > 50*time.Millisecond {
					t.Fatalf("a record came after %s", d)
				}
			}
		}
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		cancel()
	})
}
