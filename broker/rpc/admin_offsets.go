package rpc

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/broker/router"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/refusal"
)

// local returns partition n of t, which this broker must lead.
func (s *AdminService) local(t *metadata.Topic, n int32) (*partition.Partition, error) {
	if _, err := t.Find(n); err != nil {
		return nil, err
	}
	p, err := s.deps.Set.Get(t.ID, n)
	if err != nil {
		return nil, err
	}
	return p, p.State().Err
}

// DeleteRecords implements runnelv1.AdminServiceServer.
func (s *AdminService) DeleteRecords(ctx context.Context, req *runnelv1.DeleteRecordsRequest) (*runnelv1.DeleteRecordsResponse, error) {
	if len(req.GetPartitions()) == 0 {
		return nil, invalid("name at least one partition to delete records of")
	}
	t, err := s.deps.Finder.Find(ctx, req.GetTopic(), req.GetTopicId())
	if err != nil {
		return nil, err
	}
	if t.Internal {
		return nil, refusal.New(errTopicSystem, nil, "topic %q is internal: the system alone changes it", t.Name)
	}
	timeout, err := timeoutOf(req.GetTimeout())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	resp := &runnelv1.DeleteRecordsResponse{}
	question := router.Question{
		Method: "delete_records", Changes: true,
		Here: func(ctx context.Context, i int) error {
			return s.deleteHere(ctx, resp.GetResults()[i], t, req.GetPartitions()[i])
		},
		There: func(ctx context.Context, c replicav1.ForwardServiceClient, at []int) ([]*runnelv1.ItemError, error) {
			return askDeletion(ctx, c, t, req.GetPartitions(), resp.GetResults(), at)
		},
	}
	for _, q := range req.GetPartitions() {
		resp.Results = append(resp.Results, &runnelv1.DeleteRecordsResult{Partition: new(q.GetPartition())})
		question.Parts = append(question.Parts, router.Part{Topic: t.ID, Number: q.GetPartition()})
	}
	for i, err := range s.ask(ctx, question) {
		resp.GetResults()[i].Error = s.errors.item(err)
	}
	return resp, nil
}

// ask asks the leaders, or this broker alone where nobody takes questions on.
func (s *AdminService) ask(ctx context.Context, q router.Question) []error {
	if s.deps.Router != nil {
		return s.deps.Router.Ask(ctx, q)
	}
	errs := make([]error, len(q.Parts))
	for i := range q.Parts {
		errs[i] = q.Here(ctx, i)
	}
	return errs
}

// deleteHere deletes records of a partition that this broker leads.
func (s *AdminService) deleteHere(ctx context.Context, r *runnelv1.DeleteRecordsResult, t *metadata.Topic, q *runnelv1.DeleteRecordsPartition) error {
	start, err := s.deleteRecords(ctx, t, q)
	if err == nil {
		r.LogStartOffset = new(int64(start))
	}
	return err
}

func (s *AdminService) deleteRecords(ctx context.Context, t *metadata.Topic, q *runnelv1.DeleteRecordsPartition) (record.Offset, error) {
	p, err := s.local(t, q.GetPartition())
	if err != nil {
		return 0, err
	}
	if q.GetBeforeOffset() < int64(partition.ToHighWatermark) {
		return 0, invalid("before_offset %d: want an offset from 0, or -1 for the high watermark", q.GetBeforeOffset())
	}
	return p.DeleteRecords(ctx, record.Offset(q.GetBeforeOffset()))
}

// maxOffsetAnswers bounds one answer to ListOffsets, at some 300 bytes each.
const maxOffsetAnswers = 10000

// ListOffsets implements runnelv1.AdminServiceServer.
func (s *AdminService) ListOffsets(ctx context.Context, req *runnelv1.ListOffsetsRequest) (*runnelv1.ListOffsetsResponse, error) {
	if len(req.GetQueries()) == 0 {
		return nil, invalid("ask at least one query")
	}
	ctx, cancel := patience(ctx)
	defer cancel()
	if _, err := s.deps.Finder.Image(ctx); err != nil {
		return nil, err
	}
	resp := &runnelv1.ListOffsetsResponse{}
	var asked []offsetAsked
	question := router.Question{
		Method: "list_offsets",
		Here: func(_ context.Context, i int) error {
			return s.offset(asked[i].answer, asked[i].topic, asked[i].seek)
		},
		There: func(ctx context.Context, c replicav1.ForwardServiceClient, at []int) ([]*runnelv1.ItemError, error) {
			return askOffsets(ctx, c, asked, at)
		},
	}
	for _, q := range req.GetQueries() {
		seek, err := seeker(q)
		if err != nil {
			return nil, err
		}
		t, err := s.deps.Finder.Find(ctx, q.GetTopic(), q.GetTopicId())
		if err != nil {
			resp.Offsets = append(resp.Offsets, &runnelv1.OffsetAnswer{Topic: q.GetTopic(), Partition: q.Partition, Error: s.errors.item(err)})
			continue
		}
		first, end := int32(0), int32(len(t.Partitions)) //nolint:gosec // bounded by the image
		if q.Partition != nil {
			first, end = q.GetPartition(), q.GetPartition()+1
		}
		if len(resp.GetOffsets())+int(end-first) > maxOffsetAnswers {
			return nil, invalid("the answer would have more than %d offsets: ask for fewer partitions at a time", maxOffsetAnswers)
		}
		for n := first; n < end; n++ {
			a := newAnswer(t, n)
			resp.Offsets = append(resp.Offsets, a)
			asked = append(asked, offsetAsked{query: q, topic: t, seek: seek, answer: a})
			question.Parts = append(question.Parts, router.Part{Topic: t.ID, Number: n})
		}
	}
	for i, err := range s.ask(ctx, question) {
		asked[i].answer.Error = s.errors.item(err)
	}
	return resp, nil
}

// askTimeout is how long a question waits for leaders that are not there.
const askTimeout = 2 * time.Second

// patience bounds a question by askTimeout, and so that what is known by then
// still reaches a caller that waits for less.
func patience(ctx context.Context) (context.Context, context.CancelFunc) {
	limit := askTimeout
	if until, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(until)*9/10)
	}
	return context.WithTimeout(ctx, limit)
}

// An offsetAsked is one place that is looked for.
type offsetAsked struct {
	query  *runnelv1.OffsetQuery
	topic  *metadata.Topic
	seek   seek
	answer *runnelv1.OffsetAnswer
}

func newAnswer(t *metadata.Topic, n int32) *runnelv1.OffsetAnswer {
	return &runnelv1.OffsetAnswer{Topic: t.Name, TopicId: t.ID.String(), Partition: new(n)}
}

// A seek finds one place in a partition.
type seek func(p *partition.Partition) (off record.Offset, tsMs *int64, found bool, epoch record.Epoch, err error)

func seeker(q *runnelv1.OffsetQuery) (seek, error) {
	switch q.GetIsolation() {
	case runnelv1.Isolation_ISOLATION_UNSPECIFIED, runnelv1.Isolation_ISOLATION_READ_COMMITTED, runnelv1.Isolation_ISOLATION_READ_UNCOMMITTED:
	default:
		return nil, invalid("isolation %d is unknown", q.GetIsolation())
	}
	if at := q.GetTimestamp(); at != nil {
		ms, err := millis(at)
		if err != nil {
			return nil, err
		}
		return byTime(ms), nil
	}
	position := q.GetPosition()
	if q.GetPlace() == nil {
		position = runnelv1.Position_POSITION_LATEST
	}
	switch position {
	case runnelv1.Position_POSITION_UNSPECIFIED, runnelv1.Position_POSITION_EARLIEST:
		return earliest, nil
	case runnelv1.Position_POSITION_LATEST:
		return latest(q.GetIsolation()), nil
	}
	return nil, invalid("position %d is unknown", position)
}

// millis returns the first whole millisecond that is not before at.
func millis(at *timestamppb.Timestamp) (int64, error) {
	if err := at.CheckValid(); err != nil {
		return 0, invalid("timestamp: %v", err)
	}
	return at.AsTime().Add(time.Millisecond - time.Nanosecond).UnixMilli(), nil
}

func earliest(p *partition.Partition) (off record.Offset, tsMs *int64, found bool, epoch record.Epoch, err error) {
	st := p.State()
	return st.LogStart, nil, true, st.Epoch, st.Err
}

func latest(isolation runnelv1.Isolation) seek {
	return func(p *partition.Partition) (record.Offset, *int64, bool, record.Epoch, error) {
		st, err := p.End()
		if isolation == runnelv1.Isolation_ISOLATION_READ_UNCOMMITTED {
			return st.HighWatermark, nil, true, st.Epoch, err
		}
		return st.LastStable, nil, true, st.Epoch, err
	}
}

func byTime(ms int64) seek {
	return func(p *partition.Partition) (record.Offset, *int64, bool, record.Epoch, error) {
		epoch := p.State().Epoch
		off, ts, found, err := p.OffsetForTime(ms)
		return off, &ts, found, epoch, err
	}
}

// offset answers a, of a partition that this broker leads.
func (s *AdminService) offset(a *runnelv1.OffsetAnswer, t *metadata.Topic, find seek) error {
	p, err := s.local(t, a.GetPartition())
	if err != nil {
		return err
	}
	off, ts, found, epoch, err := find(p)
	if err != nil {
		return err
	}
	a.LeaderEpoch = new(int64(epoch))
	if found {
		a.Offset = new(int64(off))
		if ts != nil {
			a.Timestamp = timestamppb.New(time.UnixMilli(*ts))
		}
	}
	return nil
}
