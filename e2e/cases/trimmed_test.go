package cases

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/client"
)

// ST-22: records that were deleted are gone for whoever begins at the earliest,
// in every format, also when what is left begins inside a batch.
func TestST22_earliestIsInsideABatch(t *testing.T) {
	inTown(t, nil, func(w *town) {
		t := w.t
		c := w.client(brokerAddr)
		defer c.Close()
		w.topic(c, "t", 1, nil)
		p, err := c.NewProducer(client.Linger(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		w.produce(p, "t", "a", "b", "c", "d", "e")
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got, err := c.NewAdmin().DeleteRecords(t.Context(), "t", map[int32]int64{0: 3}); err != nil || got[0].LogStart != 3 {
			t.Fatalf("%+v, %v", got, err)
		}
		want := []string{"d", "e"}
		r := w.reader(c, "t")
		defer r.Close()
		if diff := cmp.Diff(want, w.next(r, 2, time.Second)); diff != "" {
			t.Errorf("the client: %s", diff)
		}
		conn := w.conn(brokerAddr)
		defer conn.Close()
		for _, f := range []runnelv1.FetchFormat{runnelv1.FetchFormat_FETCH_FORMAT_RECORDS, runnelv1.FetchFormat_FETCH_FORMAT_TEXT} {
			if diff := cmp.Diff(want, w.stubValues(runnelv1.NewLogServiceClient(conn), "t", f)); diff != "" {
				t.Errorf("%v: %s", f, diff)
			}
		}
	})
}

// stubValues reads what there is from the earliest record on, as a stock client
// does.
func (w *town) stubValues(api runnelv1.LogServiceClient, topic string, format runnelv1.FetchFormat) (values []string) {
	w.t.Helper()
	stream, err := api.Read(w.t.Context(), &runnelv1.ReadRequest{Request: &runnelv1.FetchRequest{
		Options: &runnelv1.FetchOptions{Format: format}, Partitions: []*runnelv1.FetchPartition{{Topic: topic, Partition: new(int32)}},
	}})
	if err != nil {
		w.t.Fatal(err)
	}
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return values
		}
		if err != nil || resp.GetResponse().GetError() != nil {
			w.t.Fatalf("read: %v, %v", resp.GetResponse().GetError(), err)
		}
		for _, r := range resp.GetResponse().GetRecords() {
			values = append(values, string(r.GetValue()))
		}
		for _, r := range resp.GetResponse().GetTextRecords() {
			values = append(values, r.GetValue())
		}
	}
}
