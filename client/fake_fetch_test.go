package client_test

import (
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/lifecycle"
)

// A fakeSession is one Fetch stream of a fakeBroker.
type fakeSession struct {
	f      *fakeBroker
	d      *fakeNode
	number int
	wake   chan struct{}

	// mu guards the fields below
	mu sync.Mutex

	subs      []*fakeSub
	limited   bool
	credit    int64
	most      int
	responses int
	ended     bool
	direct    bool
}

type fakeSub struct {
	cut   bool // it says what it has read
	topic string
	n     int32
	next  int64 // -1: EARLIEST
	stop  int64
	tag   uint64
}

// Fetch implements runnelv1.LogServiceServer.
func (d *fakeNode) Fetch(s grpc.BidiStreamingServer[runnelv1.FetchRequest, runnelv1.FetchResponse]) error {
	f := d.fakeBroker
	f.mu.Lock()
	f.fetches++
	f.open++
	x := &fakeSession{f: f, d: d, number: f.fetches, wake: make(chan struct{}, 1)}
	f.mu.Unlock()
	defer f.locked(func() { f.open-- })
	f.readers.Go(func() { // it ends when the stream does, which is after this
		for {
			req, err := s.Recv()
			if err != nil {
				x.mu.Lock()
				x.ended = x.ended || errors.Is(err, io.EOF)
				x.mu.Unlock()
				return
			}
			x.edit(req)
		}
	})
	for {
		f.mu.Lock()
		changed, silent := f.changed, f.silent == x.number || d.frozen
		f.mu.Unlock()
		for !silent {
			resp, err := x.next()
			if err != nil {
				return err
			}
			if resp == nil {
				break
			}
			var late time.Duration
			f.locked(func() { late = f.late })
			lifecycle.Wait(s.Context(), late)
			if err := s.Send(resp); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-x.wake:
		case <-s.Context().Done():
			return s.Context().Err()
		case <-time.NewTimer(5 * time.Second).C:
			if !silent {
				if err := s.Send(&runnelv1.FetchResponse{}); err != nil {
					return err
				}
			}
		}
	}
}

func (x *fakeSession) edit(req *runnelv1.FetchRequest) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if o := req.GetOptions(); o != nil {
		x.limited, x.credit = o.InitialCreditBytes != nil, o.GetInitialCreditBytes()
		x.most, x.direct = int(o.GetMaxResponseBytes()), o.GetRouting() == runnelv1.Routing_ROUTING_DIRECT
	}
	x.credit += req.GetCreditBytes()
	for _, r := range req.GetRemove() {
		x.subs = slices.DeleteFunc(x.subs, func(s *fakeSub) bool { return s.topic == r.GetTopic() && s.n == r.GetPartition() })
	}
	for _, p := range req.GetPartitions() {
		sub := &fakeSub{topic: p.GetTopic(), n: p.GetPartition(), next: -1, stop: -1, tag: p.GetTag()}
		if _, ok := p.GetStart().(*runnelv1.FetchPartition_Offset); ok {
			sub.next = p.GetOffset()
		}
		sub.cut = p.LastEpoch != nil && sub.next >= 0
		if p.StopOffset != nil {
			sub.stop = p.GetStopOffset()
		}
		x.subs = slices.DeleteFunc(x.subs, func(s *fakeSub) bool { return s.topic == sub.topic && s.n == sub.n })
		x.subs = append(x.subs, sub)
		x.count()
	}
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

func (x *fakeSession) count() {
	if x.direct {
		x.d.fetched.Add(1)
	}
}

// next returns the next response, nil when there is none now.
func (x *fakeSession) next() (*runnelv1.FetchResponse, error) {
	x.f.mu.Lock()
	defer x.f.mu.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.f.onFetch != nil {
		if err := x.f.onFetch(x.number, x.responses); err != nil {
			return nil, err
		}
	}
	for i, sub := range x.subs {
		resp := x.serve(sub)
		if resp == nil {
			continue
		}
		x.responses++
		x.subs = append(slices.Delete(x.subs, i, i+1), sub) // its turn is over
		if resp.GetEnd() || resp.GetError() != nil {
			x.subs = x.subs[:len(x.subs)-1]
		}
		if len(resp.GetBatches()) > 0 && x.limited {
			x.credit -= int64(proto.Size(resp))
			x.f.sent += int64(proto.Size(resp))
		}
		return resp, nil
	}
	return nil, nil
}

func (x *fakeSession) serve(sub *fakeSub) *runnelv1.FetchResponse {
	resp := &runnelv1.FetchResponse{Topic: sub.topic, Partition: &sub.n, Tag: sub.tag}
	t, p, ierr := x.f.partition(sub.topic, "", sub.n)
	if ierr == nil && x.direct {
		ierr = x.d.leads(p)
	}
	if ierr != nil {
		resp.Error = ierr
		return resp
	}
	resp.TopicId, resp.HighWatermark, resp.LogStartOffset = t.id, new(p.next), new(p.start)
	if sub.next < 0 {
		sub.next = p.start
	}
	if x.f.cut > 0 && sub.cut && sub.next >= x.f.cut {
		x.f.told = true
		resp.Error = item(runnelv1.ErrorReason_ERROR_REASON_LOG_TRUNCATED, codes.DataLoss, "divergingEpoch", "1", "endOffset", itoa(x.f.cut))
		return resp
	}
	if sub.next < p.start || sub.next > p.next {
		resp.Error = item(runnelv1.ErrorReason_ERROR_REASON_OFFSET_OUT_OF_RANGE, codes.OutOfRange,
			"logStartOffset", itoa(p.start), "highWatermark", itoa(p.next))
		return resp
	}
	if x.limited && x.credit <= 0 {
		return nil
	}
	size := 0
	for i, h := range p.heads {
		if int64(h.NextOffset()) <= sub.next || sub.stop >= 0 && int64(h.BaseOffset) >= sub.stop {
			continue
		}
		if size > 0 && size+len(p.frames[i]) > x.most {
			break
		}
		seg := &runnelv1.Segment{}
		if err := proto.Unmarshal(p.frames[i], seg); err != nil {
			panic(err)
		}
		resp.Batches = append(resp.Batches, seg.GetBatches()...)
		size += len(p.frames[i])
		sub.next = int64(h.NextOffset())
	}
	if sub.stop < 0 || p.next >= sub.stop {
		// A gap at the end, as markers leave it, is passed without a record.
		if n := len(p.heads); n == 0 || sub.next >= int64(p.heads[n-1].NextOffset()) {
			sub.next = max(sub.next, p.next)
		}
	}
	resp.NextOffset = &sub.next
	resp.NextOffset = new(sub.next)
	resp.End = sub.stop >= 0 && sub.next >= sub.stop
	if len(resp.Batches) == 0 && !resp.End {
		return nil
	}
	return resp
}

var errBroken = status.Error(codes.Unavailable, "the connection broke")
