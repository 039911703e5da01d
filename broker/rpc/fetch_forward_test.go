package rpc

import (
	"testing"
	"testing/synctest"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// One broker is enough, whoever leads.
func TestForward_fetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 3, nil, LogOptions{})
		w.topic("t", 1, 2, 3)
		for n := range int32(3) {
			w.brokers[1].text("t", n, "a", "b")
			w.brokers[1].text("t", n, "c")
		}
		for _, format := range []runnelv1.FetchFormat{records, text, batches} {
			got := w.brokers[1].fetchAll(&runnelv1.FetchRequest{
				Options: &runnelv1.FetchOptions{Format: format}, Partitions: []*runnelv1.FetchPartition{{Topic: "t"}},
			})
			if got.err != nil || len(got.errors) > 0 {
				t.Fatal(got.err, got.errors)
			}
			for n := range int32(3) {
				if got.next[n] != 3 || !got.ends[n] {
					t.Errorf("%v: partition %d: next %d, end %v", format, n, got.next[n], got.ends[n])
				}
			}
		}
	})
}
