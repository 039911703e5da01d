package client

import (
	"context"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// A PartitionFilter picks partitions that something is wrong with.
type PartitionFilter uint8

// The filters.
const (
	// Offline: there is no leader.
	Offline PartitionFilter = iota + 1
	// UnderMinISR: fewer replicas are in sync than a write with acks ALL needs.
	UnderMinISR
	// UnderReplicated: some replica is not in sync.
	UnderReplicated
	// NotPreferred: the leader is not the first of the replicas.
	NotPreferred
	// RecoveryPending: no replica is known to be complete, and all that may be
	// the best are waited for.
	RecoveryPending
)

// proto is the number of the API, which the values above follow.
func (f PartitionFilter) proto() runnelv1.PartitionFilter { return runnelv1.PartitionFilter(f) }

// A PartitionListing is one partition as the cluster's metadata has it.
type PartitionListing struct {
	Topic     string
	TopicID   string
	Partition int32
	// Leader is a broker id, -1 when there is none at present.
	Leader      int32
	LeaderEpoch int64
	// Broker ids: Replicas hold a copy, ISR are in sync, ELR may also be elected,
	// and LastKnown were in sync and may have lost records.
	Replicas, ISR, ELR, LastKnown []int32
	MinISR                        int32
}

// ListPartitions returns the partitions of a topic, or with "" of all, that any
// of the filters picks, or all without one.
func (a *Admin) ListPartitions(ctx context.Context, topic string, filters ...PartitionFilter) ([]PartitionListing, error) {
	req := &runnelv1.ListPartitionsRequest{Topic: topic}
	for _, f := range filters {
		req.Filters = append(req.Filters, f.proto())
	}
	var all []PartitionListing
	for {
		resp, err := a.api.ListPartitions(ctx, req)
		if err != nil {
			return nil, callError("list partitions", err)
		}
		for _, p := range resp.GetPartitions() {
			l := PartitionListing{
				Topic: p.GetTopic(), TopicID: p.GetTopicId(), Partition: p.GetPartition(), Leader: -1, LeaderEpoch: p.GetLeaderEpoch(),
				Replicas: p.GetReplicas(), ISR: p.GetIsr(), ELR: p.GetElr(), LastKnown: p.GetLastKnown(), MinISR: p.GetMinIsr(),
			}
			take(&l.Leader, p.Leader)
			all = append(all, l)
		}
		if req.PageToken = resp.GetNextPageToken(); req.GetPageToken() == "" {
			return all, nil
		}
	}
}
