package rpc

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/internal/rpcserver"
)

// byID finds the topic that another broker asks about.
func (s *ForwardService) byID(id string) (*metadata.Topic, error) {
	parsed, err := metadata.ParseTopicID(id)
	if err != nil {
		return nil, err
	}
	t, ok := s.admin.deps.Store.Load().TopicByID(parsed)
	if !ok || t.Phase == metadata.TopicDeleting {
		return nil, fmt.Errorf("topic %s: %w: try again", parsed, partition.ErrUnknownEpoch)
	}
	return t, nil
}

// ForwardListOffsets implements replicav1.ForwardServiceServer.
func (s *ForwardService) ForwardListOffsets(_ context.Context, req *replicav1.ForwardListOffsetsRequest) (*replicav1.ForwardListOffsetsResponse, error) {
	resp := &runnelv1.ListOffsetsResponse{}
	for _, q := range req.GetRequest().GetQueries() {
		seek, err := seeker(q)
		if err != nil {
			return nil, err
		}
		t, err := s.byID(q.GetTopicId())
		if err != nil {
			resp.Offsets = append(resp.Offsets, &runnelv1.OffsetAnswer{Partition: q.Partition, Error: s.admin.errors.item(err)})
			continue
		}
		a := newAnswer(t, q.GetPartition())
		if err := s.admin.offset(a, t, seek); err != nil {
			a.Error = s.admin.errors.item(err)
		}
		resp.Offsets = append(resp.Offsets, a)
	}
	return &replicav1.ForwardListOffsetsResponse{Response: resp}, nil
}

// ForwardDeleteRecords implements replicav1.ForwardServiceServer.
func (s *ForwardService) ForwardDeleteRecords(ctx context.Context, req *replicav1.ForwardDeleteRecordsRequest) (*replicav1.ForwardDeleteRecordsResponse, error) {
	timeout, err := timeoutOf(req.GetRequest().GetTimeout())
	if err != nil {
		return nil, err
	}
	// A little less than the sender has, so that the answer arrives in time.
	ctx, cancel := context.WithTimeout(ctx, timeout*9/10)
	defer cancel()
	t, err := s.byID(req.GetRequest().GetTopicId())
	resp := &runnelv1.DeleteRecordsResponse{}
	for _, q := range req.GetRequest().GetPartitions() {
		r := &runnelv1.DeleteRecordsResult{Partition: new(q.GetPartition())}
		failed := err
		if failed == nil {
			failed = s.admin.deleteHere(ctx, r, t, q)
		}
		r.Error = s.admin.errors.item(failed)
		resp.Results = append(resp.Results, r)
	}
	return &replicav1.ForwardDeleteRecordsResponse{Response: resp}, nil
}

// ForwardDescribePartitions implements replicav1.ForwardServiceServer.
func (s *ForwardService) ForwardDescribePartitions(
	_ context.Context, req *replicav1.ForwardDescribePartitionsRequest,
) (*replicav1.ForwardDescribePartitionsResponse, error) {
	t, err := s.byID(req.GetTopicId())
	resp := &replicav1.ForwardDescribePartitionsResponse{}
	for _, n := range req.GetPartitions() {
		d := &runnelv1.PartitionDescription{Partition: new(n)}
		failed := err
		if failed == nil {
			failed = s.admin.measure(d, t, n)
		}
		if failed != nil {
			d.Error = s.admin.errors.item(failed)
		}
		resp.Partitions = append(resp.Partitions, d)
	}
	return resp, nil
}

// askOffsets is what another broker is asked for the offsets of some answers.
func askOffsets(ctx context.Context, c replicav1.ForwardServiceClient, asked []offsetAsked, at []int) ([]*runnelv1.ItemError, error) {
	req := &runnelv1.ListOffsetsRequest{}
	for _, i := range at {
		q := asked[i].query
		req.Queries = append(req.Queries, &runnelv1.OffsetQuery{
			Topic: asked[i].topic.Name, TopicId: new(asked[i].topic.ID.String()), Partition: asked[i].answer.Partition,
			Place: q.Place, Isolation: q.GetIsolation(),
		})
	}
	resp, err := c.ForwardListOffsets(ctx, &replicav1.ForwardListOffsetsRequest{Request: req, Principal: rpcserver.Principal(ctx)})
	if err != nil {
		return nil, err
	}
	var items []*runnelv1.ItemError
	for k, a := range resp.GetResponse().GetOffsets() {
		if k < len(at) && a.GetError() == nil {
			own := asked[at[k]].answer
			own.Offset, own.Timestamp, own.LeaderEpoch = a.Offset, a.GetTimestamp(), a.LeaderEpoch
		}
		items = append(items, a.GetError())
	}
	return items, nil
}

// askDeletion is what another broker is asked to delete.
func askDeletion(
	ctx context.Context, c replicav1.ForwardServiceClient, t *metadata.Topic,
	asked []*runnelv1.DeleteRecordsPartition, results []*runnelv1.DeleteRecordsResult, at []int,
) ([]*runnelv1.ItemError, error) {
	req := &runnelv1.DeleteRecordsRequest{Topic: t.Name, TopicId: new(t.ID.String()), Timeout: timeLeft(ctx)}
	for _, i := range at {
		req.Partitions = append(req.Partitions, asked[i])
	}
	resp, err := c.ForwardDeleteRecords(ctx, &replicav1.ForwardDeleteRecordsRequest{Request: req, Principal: rpcserver.Principal(ctx)})
	if err != nil {
		return nil, err
	}
	var items []*runnelv1.ItemError
	for k, r := range resp.GetResponse().GetResults() {
		if k < len(at) {
			results[at[k]].LogStartOffset = r.LogStartOffset
		}
		items = append(items, r.GetError())
	}
	return items, nil
}

// askMeasures is what another broker is asked for what only a leader knows.
func askMeasures(ctx context.Context, c replicav1.ForwardServiceClient, asked []measureAsked, at []int) ([]*runnelv1.ItemError, error) {
	items := make([]*runnelv1.ItemError, 0, len(at))
	for len(at) > 0 {
		t, same := asked[at[0]].topic, 1
		for same < len(at) && asked[at[same]].topic == t {
			same++
		}
		req := &replicav1.ForwardDescribePartitionsRequest{TopicId: t.ID.String()}
		for _, i := range at[:same] {
			req.Partitions = append(req.Partitions, asked[i].description.GetPartition())
		}
		resp, err := c.ForwardDescribePartitions(ctx, req)
		if err != nil {
			return nil, err
		}
		if len(resp.GetPartitions()) != same {
			return nil, nil
		}
		for k, d := range resp.GetPartitions() {
			own := asked[at[k]].description
			own.LogStartOffset, own.HighWatermark, own.LogEndOffset = d.LogStartOffset, d.HighWatermark, d.LogEndOffset
			own.SizeBytes, own.Segments = d.SizeBytes, d.Segments
			items = append(items, d.GetError())
		}
		at = at[same:]
	}
	return items, nil
}

func timeLeft(ctx context.Context) *durationpb.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return nil
	}
	return durationpb.New(max(time.Until(deadline), 0))
}
