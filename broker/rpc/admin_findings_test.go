package rpc

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
)

// topicOf makes a topic whose partitions each lack a replica.
func topicOf(name string, partitions int) *metadata.Topic {
	t := &metadata.Topic{Name: name, RF: 3}
	for range partitions {
		t.Partitions = append(t.Partitions, metadata.Partition{Leader: 1, Replicas: []metadata.BrokerID{1, 2, 3}, ISR: []metadata.BrokerID{1, 2}, MinISR: 2})
	}
	return t
}

func told(f *findings) []string {
	var lines []string
	for _, h := range f.answer().GetFindings() {
		lines = append(lines, fmt.Sprintf("%s: %s", h.GetSubject(), h.GetMessage()))
	}
	return lines
}

// What users made comes first, and the partitions of an internal topic are one
// line, however many there are.
func TestFindings_usersTopicsFirst(t *testing.T) {
	f := newFindings()
	for _, topic := range []*metadata.Topic{topicOf("__consumer_offsets", 60), topicOf("orders", 2)} {
		checkTopic(f, topic)
	}
	want := []string{
		"orders/0: 2 of 3 replicas are in sync",
		"orders/1: 2 of 3 replicas are in sync",
		"__consumer_offsets: 60 partitions (0-59), such as 0: 2 of 3 replicas are in sync; " +
			"see them with: runnel partition list --topic __consumer_offsets --under-replicated",
	}
	if d := cmp.Diff(want, told(f)); d != "" {
		t.Error(d)
	}

	// So also where another broker tells of an internal topic before.
	f = newFindings()
	f.put(&runnelv1.HealthFinding{Severity: warning, Kind: "suspect_replica", Subject: "__consumer_offsets", Message: "3 partitions"})
	f.add(warning, "under_replicated", "orders/0", "1 of 2")
	if d := cmp.Diff([]string{"orders/0: 1 of 2", "__consumer_offsets: 3 partitions"}, told(f)); d != "" {
		t.Error(d)
	}

	// What is worse is first nevertheless, and one partition is told as any other.
	f = newFindings()
	f.add(critical, "corrupt_partition", "__consumer_offsets/7", "the copy of broker 1: bad")
	f.add(warning, "under_replicated", "orders/0", "1 of 2")
	want = []string{"__consumer_offsets/7: the copy of broker 1: bad", "orders/0: 1 of 2"}
	if d := cmp.Diff(want, told(f)); d != "" {
		t.Error(d)
	}
}

// Internal topics take no room from users' topics, nor these from them.
func TestFindings_bounded(t *testing.T) {
	f := newFindings()
	checkTopic(f, topicOf("__consumer_offsets", 60))
	checkTopic(f, topicOf("orders", 60))
	got := told(f)
	if len(got) != findingsPerKind+2 || got[findingsPerKind] != ": and 10 more of this kind" || got[0] != "orders/0: 2 of 3 replicas are in sync" {
		t.Errorf("%d lines: %q", len(got), got)
	}
}

func TestSpans(t *testing.T) {
	var odd []int32
	for n := range int32(50) {
		odd = append(odd, 2*n+1)
	}
	for want, numbers := range map[string][]int32{
		"3":         {3},
		"0-1":       {0, 1},
		"0-2,5,7-8": {0, 1, 2, 5, 7, 8},
		"1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31,33,35,37,39,…": odd,
	} {
		if got := spans(numbers); got != want {
			t.Errorf("%v: %q, want %q", numbers, got, want)
		}
	}
}
