package rpc

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
)

// apiLevel is the level of the public API this version serves.
const apiLevel = 1

const (
	// watchIdle is after how long without a change a watch shows that it lives.
	watchIdle = 15 * time.Second
	// watchGather is how long changes are gathered before they are told, so
	// that a burst of them is one message.
	watchGather = 5 * time.Millisecond
)

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

// A watch is one WatchMetadata stream.
type watch struct {
	stream grpc.ServerStreamingServer[runnelv1.WatchMetadataResponse]
	names  map[string]bool // empty: all but internal ones
}

func (w *watch) concerns(t *metadata.Topic) bool {
	if len(w.names) == 0 {
		return !t.Internal
	}
	return w.names[t.Name]
}

// WatchMetadata implements runnelv1.MetadataServiceServer.
func (s *MetadataService) WatchMetadata(
	req *runnelv1.WatchMetadataRequest, stream grpc.ServerStreamingServer[runnelv1.WatchMetadataResponse],
) error {
	if _, err := s.deps.Finder.Image(stream.Context()); err != nil {
		return err
	}
	topics, missing, err := s.wanted(stream.Context(), req.GetTopics())
	if err != nil {
		return err
	}
	w := &watch{stream: stream, names: map[string]bool{}}
	for _, name := range req.GetTopics() {
		w.names[name] = true
	}
	changed := s.deps.Store.Changed()
	img := s.deps.Store.Load()
	if err := w.snapshot(img, s.picture(img, topics, missing, len(w.names) == 0)); err != nil {
		return err
	}
	idle := time.NewTicker(watchIdle)
	defer idle.Stop()
	age, stop := s.age()
	defer stop()
	for {
		select {
		case <-stream.Context().Done():
			return context.Cause(stream.Context())
		case <-s.deps.Drain:
			return w.farewell(runnelv1.GoawayReason_GOAWAY_REASON_DRAINING)
		case <-age:
			return w.farewell(runnelv1.GoawayReason_GOAWAY_REASON_MAX_AGE)
		case <-idle.C:
			if err := w.send(img, &runnelv1.WatchMetadataResponse{}); err != nil {
				return err
			}
		case <-changed:
			gather(stream.Context())
			changed = s.deps.Store.Changed()
			next := s.deps.Store.Load()
			if err := w.changes(img, next); err != nil {
				return err
			}
			img = next
			idle.Reset(watchIdle)
		}
	}
}

// age returns a channel that fires when the stream is old.
func (s *MetadataService) age() (<-chan time.Time, func()) {
	if s.maxAge <= 0 {
		return nil, func() {}
	}
	t := time.NewTimer(s.maxAge*4/5 + rand.N(s.maxAge*2/5+1)) //nolint:gosec // spreading is no secret
	return t.C, func() { t.Stop() }
}

func gather(ctx context.Context) {
	t := time.NewTimer(watchGather)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// farewell ends the stream as planned. The client can't half-close a stream of
// one request, so there is no grace to wait for.
func (w *watch) farewell(reason runnelv1.GoawayReason) error {
	err := w.stream.Send(&runnelv1.WatchMetadataResponse{Goaway: &runnelv1.Goaway{
		Reason: reason, ReconnectAfter: durationpb.New(0), Grace: durationpb.New(0), Final: true,
	}})
	if err != nil {
		return err
	}
	return errStreamEnded
}

func (w *watch) send(img *metadata.Image, m *runnelv1.WatchMetadataResponse) error {
	m.ClusterId, m.ApiLevel, m.Revision = img.ClusterID, apiLevel, new(img.Revision)
	m.SnapshotComplete = true
	return w.stream.Send(m)
}

// pieces sends what m and more topics say in messages below a page.
func (w *watch) pieces(img *metadata.Image, m *runnelv1.WatchMetadataResponse, topics []*runnelv1.TopicMetadata, first bool) error {
	bytes := proto.Size(m)
	for _, t := range topics {
		size := fieldSize(t)
		if bytes+size > maxPage && len(m.GetTopics()) > 0 {
			m.ClusterId, m.ApiLevel, m.Revision, m.SnapshotComplete = img.ClusterID, apiLevel, new(img.Revision), !first
			if err := w.stream.Send(m); err != nil {
				return err
			}
			m, bytes = &runnelv1.WatchMetadataResponse{}, 0
		}
		m.Topics = append(m.Topics, t)
		bytes += size
	}
	return w.send(img, m)
}

func (w *watch) snapshot(img *metadata.Image, topics []*runnelv1.TopicMetadata) error {
	return w.pieces(img, &runnelv1.WatchMetadataResponse{Brokers: brokers(img)}, topics, true)
}

// picture is what img says of the topics a watch begins with: from there on the
// watch goes by the differences to img, so nothing may be of another image.
func (s *MetadataService) picture(
	img *metadata.Image, topics []*metadata.Topic, missing map[string]*runnelv1.ItemError, all bool,
) []*runnelv1.TopicMetadata {
	var out []*runnelv1.TopicMetadata
	if all {
		for _, t := range img.Topics() {
			if !t.Internal {
				out = append(out, topicMetadata(t))
			}
		}
		return out
	}
	for _, t := range topics {
		now, err := img.Resolve(t.Name, "")
		switch {
		case err == nil:
			out = append(out, topicMetadata(now))
		case missing[t.Name] != nil:
			out = append(out, &runnelv1.TopicMetadata{Name: t.Name, Error: missing[t.Name]})
		default: // it went while we looked
			out = append(out, &runnelv1.TopicMetadata{Name: t.Name, Error: s.errors.item(err)})
		}
	}
	return out
}

// changes sends what is different in next, if any of it concerns the watch.
func (w *watch) changes(old, next *metadata.Image) error {
	d := next.Since(old)
	m := &runnelv1.WatchMetadataResponse{}
	if d.Brokers {
		m.Brokers = brokers(next)
	}
	var changed []*runnelv1.TopicMetadata
	for _, t := range d.Changed {
		was, known := old.TopicByID(t.ID)
		wasActive := known && was.Phase == metadata.TopicActive
		switch {
		case !w.concerns(t):
		case t.Phase == metadata.TopicActive:
			changed = append(changed, topicMetadata(t))
		case wasActive:
			m.DeletedTopicIds = append(m.DeletedTopicIds, t.ID.String())
		}
	}
	for _, t := range d.Gone {
		if w.concerns(t) && t.Phase == metadata.TopicActive {
			m.DeletedTopicIds = append(m.DeletedTopicIds, t.ID.String())
		}
	}
	if len(m.GetBrokers())+len(m.GetDeletedTopicIds())+len(changed) == 0 {
		return nil
	}
	return w.pieces(next, m, changed, false)
}
