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

const (
	// watchIdle is after how long without a change a watch shows that it lives.
	watchIdle = 15 * time.Second
	// watchGather is how long changes are gathered before they are told, so
	// that a burst of them is one message.
	watchGather = 5 * time.Millisecond
	// watchRoutine is how long that is of changes that no client goes by: who
	// holds copies, and who is in sync. A broker that comes back changes the
	// latter of one partition after the other.
	watchRoutine = time.Second
)

// A watch is one WatchMetadata stream.
type watch struct {
	stream grpc.ServerStreamingServer[runnelv1.WatchMetadataResponse]
	names  map[string]bool // empty: all but internal ones

	told        *metadata.Image
	idle, later *time.Ticker
	waiting     bool // later runs: something is different that can wait
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
	w.told, w.idle, w.later = img, time.NewTicker(watchIdle), time.NewTicker(watchRoutine)
	w.later.Stop()
	defer w.idle.Stop()
	defer w.later.Stop()
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
		case <-w.idle.C:
			if err := w.send(w.told, &runnelv1.WatchMetadataResponse{}); err != nil {
				return err
			}
		case <-changed:
			gather(stream.Context())
			changed = s.deps.Store.Changed()
			if err := w.news(s.deps.Store.Load()); err != nil {
				return err
			}
		case <-w.later.C:
			if err := w.tell(s.deps.Store.Load()); err != nil {
				return err
			}
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

// news sends what is different in next, at once or later.
func (w *watch) news(next *metadata.Image) error {
	if !w.routine(w.told, next) {
		return w.tell(next)
	}
	if !w.waiting {
		w.waiting = true
		w.later.Reset(watchRoutine)
	}
	return nil
}

func (w *watch) tell(next *metadata.Image) error {
	if err := w.changes(w.told, next); err != nil {
		return err
	}
	w.later.Stop()
	w.told, w.waiting = next, false
	w.idle.Reset(watchIdle)
	return nil
}

// routine says whether clients can do without what is different in next for a
// while: nothing of where to send a request changed.
func (w *watch) routine(old, next *metadata.Image) bool {
	d := next.Since(old)
	if d.Brokers || slices.ContainsFunc(d.Gone, w.concerns) {
		return false
	}
	return !slices.ContainsFunc(d.Changed, func(t *metadata.Topic) bool {
		was, known := old.TopicByID(t.ID)
		return w.concerns(t) && (!known || !slices.EqualFunc(t.Partitions, was.Partitions, samePlace) || t.Phase != was.Phase)
	})
}

func samePlace(a, b metadata.Partition) bool {
	return a.Leader == b.Leader && a.LeaderEpoch == b.LeaderEpoch
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
