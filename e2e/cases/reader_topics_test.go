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
