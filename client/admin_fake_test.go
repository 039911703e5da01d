package client_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/client"
)

// ListPartitions implements runnelv1.AdminServiceServer: two pages, the second
// of a partition without a leader.
func (f *fakeBroker) ListPartitions(_ context.Context, req *runnelv1.ListPartitionsRequest) (*runnelv1.ListPartitionsResponse, error) {
	if req.GetPageToken() == "" {
		return &runnelv1.ListPartitionsResponse{NextPageToken: "more", Partitions: []*runnelv1.PartitionListing{{
			Topic: req.GetTopic(), TopicId: "id", Partition: new(int32(0)), Leader: new(int32(2)), LeaderEpoch: new(int64(7)),
			Replicas: []int32{2, 1}, Isr: []int32{2}, MinIsr: new(int32(1)),
		}}}, nil
	}
	l := &runnelv1.PartitionListing{Topic: req.GetTopic(), Partition: new(int32(1)), LastKnown: []int32{1}}
	for _, filter := range req.GetFilters() {
		l.Elr = append(l.Elr, int32(filter))
	}
	return &runnelv1.ListPartitionsResponse{Partitions: []*runnelv1.PartitionListing{l}}, nil
}

func TestAdmin_listPartitions(t *testing.T) {
	f := newFake(t, nil)
	got, err := f.client(t).NewAdmin().ListPartitions(t.Context(), "t", client.Offline, client.RecoveryPending)
	if err != nil {
		t.Fatal(err)
	}
	want := []client.PartitionListing{
		{Topic: "t", TopicID: "id", Leader: 2, LeaderEpoch: 7, Replicas: []int32{2, 1}, ISR: []int32{2}, MinISR: 1},
		{
			Topic: "t", Partition: 1, Leader: -1, LastKnown: []int32{1},
			ELR: []int32{int32(runnelv1.PartitionFilter_PARTITION_FILTER_OFFLINE), int32(runnelv1.PartitionFilter_PARTITION_FILTER_RECOVERY_PENDING)},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
