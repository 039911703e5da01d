package rpc

import (
	"context"
	"math"
	"time"

	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/coordinator"
	"github.com/runnelmq/runnel/broker/group"
	"github.com/runnelmq/runnel/broker/router"
	"github.com/runnelmq/runnel/internal/record"
)

// measuresPerCall is how many places one call asks another broker about.
const measuresPerCall = 5000

// Measure asks the leaders of places what they know of them; a
// coordinator.Measurer.
func (s *GroupService) Measure(ctx context.Context, places []coordinator.Place) []coordinator.Measure {
	out := make([]coordinator.Measure, len(places))
	q := router.Question{
		Method: "measure",
		Here: func(_ context.Context, i int) (err error) {
			out[i], err = s.measureHere(places[i])
			return err
		},
		There: func(ctx context.Context, c replicav1.ForwardServiceClient, at []int) ([]*runnelv1.ItemError, error) {
			return askPlaces(ctx, c, places, out, at)
		},
	}
	for _, p := range places {
		q.Parts = append(q.Parts, router.Part{Topic: p.Part.Topic, Number: p.Part.Number})
	}
	for i, err := range s.deps.Router.Ask(ctx, q) {
		out[i].Err = err
	}
	return out
}

// measureHere measures in a partition that this broker leads.
func (s *GroupService) measureHere(place coordinator.Place) (coordinator.Measure, error) {
	m := coordinator.Measure{AppendMs: -1, NowMs: time.Now().UnixMilli()}
	p, err := s.deps.Admin.deps.Set.Get(place.Part.Topic, place.Part.Number)
	if err != nil {
		return m, err
	}
	st, err := p.End() // an end that a newer leader could contradict is none
	if err != nil {
		return m, err
	}
	m.LogStart, m.HighWatermark = int64(st.LogStart), int64(st.HighWatermark)
	if place.Offset >= m.HighWatermark {
		return m, nil
	}
	got, err := p.Place(record.Offset(place.Offset))
	if err != nil {
		return m, err
	}
	if m.BytesAfter = got.BytesAfter; got.Found {
		m.AppendMs = got.AppendTimeMs
	}
	return m, nil
}

// ForwardMeasure implements replicav1.ForwardServiceServer.
func (s *ForwardService) ForwardMeasure(_ context.Context, req *replicav1.ForwardMeasureRequest) (*replicav1.ForwardMeasureResponse, error) {
	if s.groups == nil {
		return nil, errUnsupported
	}
	resp := &replicav1.ForwardMeasureResponse{}
	for _, p := range req.GetPlaces() {
		id, err := topicID(p.GetTopicId())
		if err != nil {
			return nil, err
		}
		place := coordinator.Place{Part: group.Part{Topic: id, Number: p.GetPartition()}, Offset: math.MaxInt64}
		if p.Offset != nil {
			place.Offset = p.GetOffset()
		}
		m, err := s.groups.measureHere(place)
		out := &replicav1.PlaceMeasure{
			LogStartOffset: m.LogStart, HighWatermark: m.HighWatermark, BytesAfter: m.BytesAfter, NowMs: m.NowMs, Error: s.groups.errors.item(err),
		}
		if m.AppendMs >= 0 {
			out.AppendTimeMs = new(m.AppendMs)
		}
		resp.Measures = append(resp.Measures, out)
	}
	return resp, nil
}

// askPlaces asks another broker about some places.
func askPlaces(
	ctx context.Context, c replicav1.ForwardServiceClient, places []coordinator.Place, out []coordinator.Measure, at []int,
) ([]*runnelv1.ItemError, error) {
	items := make([]*runnelv1.ItemError, 0, len(at))
	for len(at) > 0 {
		some := at[:min(len(at), measuresPerCall)]
		at = at[len(some):]
		req := &replicav1.ForwardMeasureRequest{}
		for _, i := range some {
			p := &replicav1.MeasurePlace{TopicId: places[i].Part.Topic.String(), Partition: places[i].Part.Number}
			if places[i].Offset != math.MaxInt64 {
				p.Offset = new(places[i].Offset)
			}
			req.Places = append(req.Places, p)
		}
		resp, err := c.ForwardMeasure(ctx, req)
		if err != nil || len(resp.GetMeasures()) != len(some) {
			return nil, err
		}
		for k, i := range some {
			m := resp.GetMeasures()[k]
			out[i] = coordinator.Measure{
				LogStart: m.GetLogStartOffset(), HighWatermark: m.GetHighWatermark(), AppendMs: -1, BytesAfter: m.GetBytesAfter(), NowMs: m.GetNowMs(),
			}
			if m.AppendTimeMs != nil {
				out[i].AppendMs = m.GetAppendTimeMs()
			}
			items = append(items, m.GetError())
		}
	}
	return items, nil
}
