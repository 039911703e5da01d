package main

import (
	"context"
	"strings"
	"testing"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/client"
)

// A shelf has topics of one partition each. Those that begin with "__" are internal.
type shelf struct {
	runnelv1.UnimplementedAdminServiceServer

	topics []string
}

func (s shelf) ListTopics(_ context.Context, req *runnelv1.ListTopicsRequest) (*runnelv1.ListTopicsResponse, error) {
	resp := &runnelv1.ListTopicsResponse{}
	for _, name := range s.topics {
		if internal := strings.HasPrefix(name, "__"); !internal || req.GetIncludeInternal() {
			resp.Topics = append(resp.Topics, &runnelv1.TopicListing{Name: name, Internal: internal})
		}
	}
	return resp, nil
}

func (shelf) DescribeTopics(_ context.Context, req *runnelv1.DescribeTopicsRequest) (*runnelv1.DescribeTopicsResponse, error) {
	resp := &runnelv1.DescribeTopicsResponse{}
	for _, topic := range req.GetTopics() {
		resp.Topics = append(resp.Topics, &runnelv1.TopicDescription{
			Name: topic.GetName(), PartitionCount: new(int32(1)), Partitions: []*runnelv1.PartitionDescription{{Partition: new(int32(0))}},
		})
	}
	return resp, nil
}

// What users made is listed before what the system keeps for itself.
func TestPartitionList_usersTopicsFirst(t *testing.T) {
	addr := serveAdmin(t, shelf{topics: []string{"__consumer_offsets", "orders", "payments"}})
	r := cli(t, "", "partition", "list", "--internal", "--brokers", addr)
	var names []string
	for line := range strings.Lines(r.out) {
		names = append(names, strings.Fields(line)[0])
	}
	if got := strings.Join(names, " "); r.code != 0 || got != "PARTITION orders/0 payments/0 __consumer_offsets/0" {
		t.Errorf("exit code %d, %s\n%s", r.code, got, r.err)
	}
}

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
