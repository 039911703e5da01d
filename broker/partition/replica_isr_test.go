package partition

import (
	"testing"
	"testing/synctest"
)

// Who is in sync is served first: whoever serves hears of a change, also when
// nothing is written.
func TestISR_changeIsNoted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrio(t, nil)
		if _, err := r.follow(r.nodes[3]); err != nil {
			t.Fatal(err)
		}
		inSync := func() bool {
			p, ok := r.nodes[1].p.ReplicaProgress(3, r.nodes[3].sub)
			return ok && p.InSync
		}
		if !inSync() {
			t.Fatal("not in sync at first")
		}
		before := r.nodes[1].noted[3]
		r.part.Isr = []int32{1, 2}
		r.part.PartitionEpoch++
		r.tell()
		if inSync() || r.nodes[1].noted[3] == before {
			t.Errorf("in sync %v, and told %v", inSync(), r.nodes[1].noted[3] != before)
		}
		before = r.nodes[1].noted[3]
		r.part.PartitionEpoch++
		r.tell()
		if r.nodes[1].noted[3] != before {
			t.Error("told of a change that is none")
		}
	})
}
