package main

import (
	"strings"
	"testing"

	"github.com/runnelmq/runnel/client"
)

// People are told what a number that stands for no limit means, and what to type
// for it; programs get the number.
func TestPrintTopic_unlimited(t *testing.T) {
	d := client.TopicDescription{Name: "t", Configs: []client.ConfigEntry{
		{Key: "max.compaction.lag.ms", Value: "9223372036854775807", Source: "default"},
		{Key: "retention.bytes", Value: "-1", Source: "topic"},
		{Key: "segment.bytes", Value: "1073741824", Source: "default"},
	}}
	var out strings.Builder
	a := &app{terminal: terminal{out: &out}}
	if err := a.printTopic(d); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"max.compaction.lag.ms unlimited (9223372036854775807) default",
		"retention.bytes unlimited (-1) topic",
		"segment.bytes 1073741824 default",
	} {
		if !strings.Contains(strings.Join(strings.Fields(out.String()), " "), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if got := describeView(d).Configs; got[0].Value != "9223372036854775807" || got[1].Value != "-1" {
		t.Errorf("JSON: %+v", got)
	}
}
