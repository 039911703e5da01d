package main

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/runnelmq/runnel/client"
)

func TestGroupMistakes(t *testing.T) {
	for want, args := range map[string]string{
		"GROUP is missing":          "group describe",
		"--topic and --to":          "group seek g --topic t",
		"such as +10 or -10":        "group seek g --topic t --to +ten",
		"or +N or -N":               "group seek g --topic t --to middle",
		"the first is 0":            "group seek g --topic t --to 1 --partition -1",
		"no command":                "group dance",
		"leave out --group":         "consume t --group g --partition 1",
		"group seek g --topic t":    "consume t --group g --from 17",
		"want 1s to 5m":             "consume t --group g --session-timeout 1ms",
		"the name of a group":       "consume t --group=",
		"the records are there":     "group dlq redrive t --to t",
		"TOPIC is missing":          "group dlq list",
		"--partition -2: the first": "group seek g --topic t --to 1 --partition -2",
	} {
		r := cli(t, "", strings.Fields(args)...)
		if r.code != exitUsage || !strings.Contains(r.err, want) {
			t.Errorf("%s: %+v; want %q", args, r, want)
		}
	}
}

func TestSeekFlags(t *testing.T) {
	for to, want := range map[string]int64{"+10": 10, "-3": -3, "0": 0, "17": 0} {
		f := seekFlags{topic: "t", to: to}
		r, err := f.reset()
		if err != nil || r.Shift != want {
			t.Errorf("%s: %+v, %v", to, r, err)
		}
	}
}

func TestWithin(t *testing.T) {
	for s, want := range map[float64]string{-1: "-", 0: "0.0s", 1.26: "1.3s", 90: "1m30s", 1e12: "over 100 years", math.Inf(1): "never"} {
		if got := within(s); got != want {
			t.Errorf("%v: %q, want %q", s, got, want)
		}
	}
}

// "Never" is null, and what is not known is not there.
func TestGroupDetail_loss(t *testing.T) {
	b, err := json.Marshal(groupDetail(client.GroupDescription{LagRecords: -1, LagSeconds: 3, TimeToDataLossSecs: math.Inf(1), Partitions: []client.GroupPartition{
		{Topic: "t", Committed: -1, LogStart: -1, HighWatermark: -1, LagRecords: -1, LagSeconds: -1, TimeToDataLossSecs: -1},
	}}))
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if v, ok := got["time_to_data_loss_seconds"]; !ok || v != nil {
		t.Errorf("%s: want null for never", b)
	}
	want := []any{map[string]any{"topic": "t", "partition": 0.0}}
	if d := cmp.Diff(want, got["partitions"]); d != "" {
		t.Error(d)
	}
}

// What is committed beyond the end is not told as a lag of 0.
func TestPrintGroup_beyondTheEnd(t *testing.T) {
	var out strings.Builder
	a := &app{terminal: terminal{out: &out}}
	err := a.printGroup(client.GroupDescription{Group: "g", LagRecords: -1, LagSeconds: -1, TimeToDataLossSecs: -1, BeyondEnd: 1, Partitions: []client.GroupPartition{
		{Topic: "t", Committed: 12, LogStart: 0, HighWatermark: 10, LagRecords: -1, LagSeconds: -1, TimeToDataLossSecs: -1, BeyondEnd: 2},
	}})
	if err != nil || !strings.Contains(out.String(), "past the end in 1 partition: ") {
		t.Errorf("%v: %s", err, out.String())
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if got := strings.Join(strings.Fields(lines[len(lines)-1]), " "); got != "t 0 12 10 past the end - - -" {
		t.Errorf("%q", got)
	}
}

// A letter that was put aside twice tells of the last time.
func TestLetter(t *testing.T) {
	h := func(k, v string) client.Header { return client.Header{Key: k, Value: []byte(v)} }
	got := letter(&client.Record{Partition: 2, Offset: 7, Headers: []client.Header{
		h("own", "x"), h(client.DeadLetterError, "first"), h(client.DeadLetterTopic, "a"), h(client.DeadLetterError, "second"), h(client.DeadLetterTopic, "b"),
		h(client.DeadLetterPartition, "1"), h(client.DeadLetterOffset, "9"), h(client.DeadLetterAttempts, "5"), h(client.DeadLetterGroup, "g"),
	}})
	want := letterView{Partition: 2, Offset: 7, Group: "g", SourceTopic: "b", SourcePartition: "1", SourceOffset: "9", Attempts: "5", Error: "second"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
