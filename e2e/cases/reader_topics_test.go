package cases

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/runnelmq/runnel/client"
)

// A reader of a topic that is deleted, and made anew, is told; it is never shown
// another topic's records as if they were those after its own, also when it was cut
// off from its broker meanwhile (AD-03).
func TestAD03_readersAreTold(t *testing.T) {
	for name, a := range map[string]client.Assignment{
		"all partitions":      {Topic: "t", Partition: client.AnyPartition},
		"one, from the first": {Topic: "t", Partition: 0},
		"one, from an offset": {Topic: "t", Partition: 0, Start: client.AtOffset(0)},
		"one, from a time":    {Topic: "t", Partition: 0, Start: client.AtTime(time.Unix(0, 0))},
	} {
		for _, apart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/cut off %t", name, apart), func(t *testing.T) {
				inWhole(t, nil, func(w *town) {
					t := w.t
					c := w.client(brokerAddr)
					defer c.Close()
					far, line := w.apart()
					defer far.Close()
					w.topic(c, "t", 1, nil)
					w.numbered(c, "t", 1, 0, 10)
					r, err := far.NewReader()
					if err != nil {
						t.Fatal(err)
					}
					defer r.Close()
					if err := r.Assign(t.Context(), a); err != nil {
						t.Fatal(err)
					}
					w.next(r, 10, time.Minute)
					if apart {
						line.cut()
					}
					w.deleteTopic(c, "t")
					time.Sleep(time.Second)
					w.topic(c, "t", 1, nil)
					w.numbered(c, "t", 1, 0, 30)
					line.mend()
					got, err := collect(t.Context(), r, 1, time.Minute)
					if len(got) > 0 || !errors.Is(err, client.ErrTopicNotFound) && !errors.Is(err, client.ErrTopicIDMismatch) {
						t.Errorf("read %v, %v", got, err)
					}
				})
			})
		}
	}
}

// A member and a producer that were cut off while their topic was deleted and made
// anew go on with the new one, the member from its first record on (AD-03,
// CG-10).
func TestAD03_CG10_cutOffMeanwhile(t *testing.T) {
	for _, partitions := range []int32{1, 4} {
		t.Run(fmt.Sprint(partitions), func(t *testing.T) {
			inWhole(t, nil, func(w *town) {
				t := w.t
				c := w.client(brokerAddr)
				defer c.Close()
				far, line := w.apart()
				defer far.Close()
				w.topic(c, "t", 2, nil)
				w.numbered(c, "t", 2, 0, 10)
				stop := w.member(far, "g", client.Topics("t"))
				p, err := far.NewProducer(client.PartitionBy(client.Manual))
				if err != nil {
					t.Fatal(err)
				}
				defer p.Close(t.Context())
				if _, err := p.ProduceSync(t.Context(), client.Record{Topic: "t", Value: []byte("old")}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Second)
				line.cut()
				w.deleteTopic(c, "t")
				time.Sleep(time.Second)
				w.topic(c, "t", partitions, nil)
				w.numbered(c, "t", partitions, 0, 30)
				time.Sleep(time.Second)
				line.mend()
				time.Sleep(30 * time.Second)
				if _, err := p.ProduceSync(t.Context(), client.Record{Topic: "t", Value: []byte("new")}); err != nil {
					t.Errorf("the producer: %v", err)
				}
				time.Sleep(5 * time.Second)
				got, errs := stop()
				if again, total := counts(got[min(21, len(got)):]); len(errs) > 0 || len(got) != 21+30*int(partitions)+1 || total != 31 || again != 30*(int(partitions)-1) {
					t.Errorf("the member read %d records, %v", len(got), errs)
				}
				for n := range partitions {
					want := int64(30)
					if n == 0 {
						want++
					}
					if at := w.committed(c, "g")[fmt.Sprint("t/", n)]; at != want {
						t.Errorf("committed of partition %d is %d, want %d", n, at, want)
					}
				}
			})
		})
	}
}
