package rpc

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata/metadatatest"
	"github.com/runnelmq/runnel/internal/rpcerr"
)

func TestListPartitions(t *testing.T) {
	withCounter(t, func(c *counter) {
		t := c.t
		id := uuid.New()
		objects := metadatatest.TopicObjects(id, "b", 6, 2, 2)
		for _, o := range objects {
			p := o.GetPartition()
			if p == nil {
				continue
			}
			p.Replicas, p.Isr, p.MinIsr = []int32{2, 3}, []int32{2, 3}, 2
			switch p.GetPartition() {
			case 1:
				p.Leader = -1
			case 2:
				p.Isr, p.Elr = []int32{2}, []int32{3}
			case 3:
				p.Isr, p.MinIsr = []int32{2}, 1
			case 4:
				p.Leader = 3
			case 5:
				p.Leader, p.Isr, p.LastKnown = -1, nil, []int32{2, 3}
			}
		}
		c.publish(objects...)
		c.publish(metadatatest.TopicObjects(uuid.New(), "a", 2, 2, 2)...)
		list := func(req *runnelv1.ListPartitionsRequest) (found []string) {
			t.Helper()
			for {
				resp, err := c.ListPartitions(t.Context(), req)
				if err != nil {
					t.Fatal(err)
				}
				for _, p := range resp.GetPartitions() {
					found = append(found, fmt.Sprintf("%s/%d", p.GetTopic(), p.GetPartition()))
				}
				if req.PageToken = resp.GetNextPageToken(); req.GetPageToken() == "" {
					return found
				}
				if len(resp.GetPartitions()) != int(req.GetPageSize()) {
					t.Errorf("a page of %d", len(resp.GetPartitions()))
				}
			}
		}
		const (
			offline  = runnelv1.PartitionFilter_PARTITION_FILTER_OFFLINE
			under    = runnelv1.PartitionFilter_PARTITION_FILTER_UNDER_MIN_ISR
			fewer    = runnelv1.PartitionFilter_PARTITION_FILTER_UNDER_REPLICATED
			moved    = runnelv1.PartitionFilter_PARTITION_FILTER_NOT_PREFERRED
			awaiting = runnelv1.PartitionFilter_PARTITION_FILTER_RECOVERY_PENDING
		)
		all := []string{"a/0", "a/1", "b/0", "b/1", "b/2", "b/3", "b/4", "b/5"}
		for _, tt := range []struct {
			topic   string
			filters []runnelv1.PartitionFilter
			want    []string
		}{
			{"", nil, all},
			{"b", nil, all[2:]},
			{"", []runnelv1.PartitionFilter{offline}, []string{"b/1", "b/5"}},
			{"", []runnelv1.PartitionFilter{under}, []string{"b/1", "b/2", "b/5"}},
			{"", []runnelv1.PartitionFilter{fewer}, []string{"b/2", "b/3", "b/5"}},
			{"b", []runnelv1.PartitionFilter{moved}, []string{"b/1", "b/4", "b/5"}},
			{"", []runnelv1.PartitionFilter{awaiting}, []string{"b/5"}},
			{"", []runnelv1.PartitionFilter{awaiting, moved}, []string{"b/1", "b/4", "b/5"}},
			{"a", []runnelv1.PartitionFilter{offline}, nil},
		} {
			for size := int32(1); size < 4; size++ {
				if got := list(&runnelv1.ListPartitionsRequest{Topic: tt.topic, Filters: tt.filters, PageSize: new(size)}); !slices.Equal(got, tt.want) {
					t.Errorf("topic %q, filters %v, pages of %d: %v, want %v", tt.topic, tt.filters, size, got, tt.want)
				}
			}
		}
		resp, err := c.ListPartitions(t.Context(), &runnelv1.ListPartitionsRequest{Filters: []runnelv1.PartitionFilter{awaiting}})
		if err != nil {
			t.Fatal(err)
		}
		p := resp.GetPartitions()[0]
		if p.Leader != nil || p.GetTopicId() != id.String() || !slices.Equal(p.GetLastKnown(), []int32{2, 3}) || p.GetMinIsr() != 2 {
			t.Errorf("%v", p)
		}
		for what, req := range map[string]*runnelv1.ListPartitionsRequest{
			"page size": {PageSize: new(int32(0))}, "token": {PageToken: "x"}, "no filter": {Filters: []runnelv1.PartitionFilter{0}},
			"an unknown filter": {Filters: []runnelv1.PartitionFilter{99}},
		} {
			if _, err := c.ListPartitions(t.Context(), req); rpcerr.Reason(err) != runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST {
				t.Errorf("%s: %v", what, err)
			}
		}
		if _, err := c.ListPartitions(t.Context(), &runnelv1.ListPartitionsRequest{Topic: "nope"}); rpcerr.Reason(err) != runnelv1.ErrorReason_ERROR_REASON_TOPIC_NOT_FOUND {
			t.Errorf("no topic: %v", err)
		}
	})
}

// Without a controller nothing is recovered or fenced, and the error says so.
func TestLevers_need_a_controller(t *testing.T) {
	withCounter(t, func(c *counter) {
		t := c.t
		_, err1 := c.RecoverPartition(t.Context(), &runnelv1.RecoverPartitionRequest{Topic: "t", Partition: new(int32(0))})
		_, err2 := c.FenceBroker(t.Context(), &runnelv1.FenceBrokerRequest{BrokerId: new(int32(1))})
		for _, err := range []error{err1, err2} {
			if rpcerr.Reason(err) != runnelv1.ErrorReason_ERROR_REASON_CONTROLLER_UNAVAILABLE {
				t.Errorf("%v", err)
			}
		}
	})
}
