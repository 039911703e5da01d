package rpc

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/internal/record"
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
		return nil, &factError{kind: errTopicSystem, text: fmt.Sprintf("topic %q is internal: the system alone changes it", t.Name)}
	}
	resp := &runnelv1.DeleteRecordsResponse{}
	for _, q := range req.GetPartitions() {
		r := &runnelv1.DeleteRecordsResult{Partition: new(q.GetPartition())}
		start, err := s.deleteRecords(ctx, t, q)
		if err != nil {
			r.Error = s.errors.item(err)
		} else {
			r.LogStartOffset = new(int64(start))
		}
		resp.Results = append(resp.Results, r)
	}
	return resp, nil
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
	resp := &runnelv1.ListOffsetsResponse{}
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
			resp.Offsets = append(resp.Offsets, s.offset(t, n, seek))
		}
	}
	return resp, nil
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

func (s *AdminService) offset(t *metadata.Topic, n int32, find seek) *runnelv1.OffsetAnswer {
	a := &runnelv1.OffsetAnswer{Topic: t.Name, TopicId: t.ID.String(), Partition: new(n)}
	p, err := s.local(t, n)
	if err != nil {
		a.Error = s.errors.item(err)
		return a
	}
	off, ts, found, epoch, err := find(p)
	if err != nil {
		a.Error = s.errors.item(err)
		return a
	}
	a.LeaderEpoch = new(int64(epoch))
	if found {
		a.Offset = new(int64(off))
		if ts != nil {
			a.Timestamp = timestamppb.New(time.UnixMilli(*ts))
		}
	}
	return a
}
