package rpc

import (
	"context"
	"slices"
	"time"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
)

// apiLevel is the level of the public API this version serves.
const apiLevel = 1

// A MetadataService serves runnel.v1.MetadataService.
type MetadataService struct {
	runnelv1.UnimplementedMetadataServiceServer

	deps   AdminDeps
	errors errorTable
	maxAge time.Duration
}

// NewMetadataService returns the service. maxAge, ± 20 %, is after how long a
// watch is asked to move on; 0 is never.
func NewMetadataService(d AdminDeps, maxAge time.Duration) *MetadataService {
	return &MetadataService{deps: d, errors: newErrorTable(d.Log), maxAge: maxAge}
}

// GetMetadata implements runnelv1.MetadataServiceServer.
func (s *MetadataService) GetMetadata(ctx context.Context, req *runnelv1.GetMetadataRequest) (*runnelv1.GetMetadataResponse, error) {
	last, err := after(req.GetPageToken())
	if err != nil {
		return nil, err
	}
	if _, err := s.deps.Finder.Image(ctx); err != nil {
		return nil, err
	}
	topics, missing, err := s.wanted(ctx, req.GetTopics())
	if err != nil {
		return nil, err
	}
	img := s.deps.Store.Load()
	resp := &runnelv1.GetMetadataResponse{ClusterId: img.ClusterID, ApiLevel: apiLevel, Revision: new(img.Revision)}
	bytes := 0
	if last == "" {
		resp.Brokers = brokers(img)
		for _, b := range resp.GetBrokers() {
			bytes += fieldSize(b)
		}
	}
	for _, t := range from(topics, last) {
		m := topicMetadata(t)
		if item, ok := missing[t.Name]; ok {
			m = &runnelv1.TopicMetadata{Name: t.Name, Error: item}
		}
		if bytes += fieldSize(m); bytes > maxPage && len(resp.GetTopics()) > 0 {
			resp.NextPageToken = pageToken(resp.GetTopics()[len(resp.GetTopics())-1].GetName())
			break
		}
		resp.Topics = append(resp.Topics, m)
	}
	return resp, nil
}

// wanted returns the topics of those names, or all that are not internal, in
// the order of names; those that can't be told about stand there too, and in
// missing.
func (s *MetadataService) wanted(
	ctx context.Context, names []string,
) (topics []*metadata.Topic, missing map[string]*runnelv1.ItemError, err error) {
	if len(names) == 0 {
		for _, t := range s.deps.Store.Load().Topics() {
			if !t.Internal {
				topics = append(topics, t)
			}
		}
		return topics, nil, nil
	}
	if len(names) > maxListPage {
		return nil, nil, invalid("%d topics at a time are too many: want at most %d", len(names), maxListPage)
	}
	missing = map[string]*runnelv1.ItemError{}
	caughtUp := false
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		t, err := s.deps.Store.Load().Resolve(name, "")
		if err != nil && !caughtUp {
			t, err = s.deps.Finder.Find(ctx, name, "")
			caughtUp = err != nil // once is enough for one call
		}
		if err != nil {
			missing[name] = s.errors.item(err)
			t = &metadata.Topic{Name: name}
		}
		topics = append(topics, t)
	}
	return topics, missing, nil
}

func brokers(img *metadata.Image) []*runnelv1.BrokerMetadata {
	var out []*runnelv1.BrokerMetadata
	for _, b := range img.Brokers() {
		out = append(out, &runnelv1.BrokerMetadata{
			BrokerId: new(int32(b.ID)), Address: b.ClientAddress, Rack: b.Rack, Usable: new(b.Phase == metadata.BrokerActive),
		})
	}
	return out
}

func topicMetadata(t *metadata.Topic) *runnelv1.TopicMetadata {
	m := &runnelv1.TopicMetadata{Name: t.Name, TopicId: t.ID.String(), Internal: t.Internal}
	for n := range t.Partitions {
		p := &t.Partitions[n]
		pm := &runnelv1.PartitionMetadata{
			Partition: new(int32(n)), LeaderEpoch: new(int64(p.LeaderEpoch)), Replicas: ids(p.Replicas), Isr: ids(p.ISR), //nolint:gosec // bounded by the image
		}
		if p.Leader != metadata.NoBroker {
			pm.Leader = new(int32(p.Leader))
		}
		m.Partitions = append(m.Partitions, pm)
	}
	return m
}
