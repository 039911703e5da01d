package cases

import (
	"testing"
	"time"

	"github.com/runnelmq/runnel/client"
)

// A log that has lost records which a group had read, to a power cut or an election
// that could not keep them, ends before what the group has committed. That is no lag
// of 0: it is told, until the group is moved.
func TestCommittedBeyondTheEnd(t *testing.T) {
	inWhole(t, nil, func(w *town) {
		t := w.t
		c := w.client(brokerAddr)
		defer c.Close()
		admin := c.NewAdmin()
		w.topic(c, "t", 1, map[string]string{"flush": "async", "flush.interval.ms": "3600000"})
		w.numbered(c, "t", 1, 0, 5)
		time.Sleep(10 * time.Second) // the first flush of a log comes at once
		w.numbered(c, "t", 1, 5, 10)
		if got, errs := w.processed(c, "g", 10); len(got) != 10 || len(errs) > 0 {
			t.Fatal(got, errs)
		}
		w.cutPower()
		_, end := w.ends(c, "t")
		if end >= 10 {
			t.Fatalf("the log goes up to %d: it has lost nothing", end)
		}
		w.numbered(c, "t", 1, int(end), int(end)+1)
		end++
		d, err := admin.DescribeGroup(t.Context(), "g")
		if err != nil || len(d.Partitions) != 1 {
			t.Fatalf("%+v, %v", d, err)
		}
		p := d.Partitions[0]
		if p.BeyondEnd != 10-end || p.HighWatermark != end || p.LagRecords != -1 || p.LagSeconds != -1 || p.TimeToDataLossSecs != -1 {
			t.Errorf("%+v: want %d records beyond the end, and no lag", p, 10-end)
		}
		if d.BeyondEnd != 1 || d.LagRecords != -1 {
			t.Errorf("%+v: want one partition beyond the end, and no lag", d)
		}
		move := []client.OffsetReset{{Topic: "t", Partition: client.AnyPartition, To: client.Latest()}}
		if rs, applied, err := admin.ResetOffsets(t.Context(), "g", move); err != nil || !applied {
			t.Fatalf("%+v, %v", rs, err)
		}
		d, err = admin.DescribeGroup(t.Context(), "g")
		if err != nil || d.BeyondEnd != 0 || d.LagRecords != 0 || d.Partitions[0].BeyondEnd != 0 {
			t.Errorf("%+v, %v: want no lag at the end", d, err)
		}
	})
}
