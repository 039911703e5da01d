package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/client"
	"github.com/runnelmq/runnel/internal/record"
)

// A fakeBroker speaks the real protocol, keeps records in memory, and fails as
// it is told. What it takes is held to the strict profile for producers.
type fakeBroker struct {
	runnelv1.UnimplementedLogServiceServer
	runnelv1.UnimplementedAdminServiceServer

	validator *record.Validator
	lis       *bufconn.Listener
	srv       *grpc.Server
	readers   sync.WaitGroup // of fetch streams

	// mu guards the fields below
	mu sync.Mutex

	topics map[string]*fakeTopic
	calls  int // produce requests with a batch
	// onProduce decides about the nth request, from 1; nil: all is taken.
	onProduce func(n int, req *runnelv1.ProduceRequest) action
	// onFetch may end a stream after so many responses; nil: never.
	onFetch  func(stream, responses int) error
	fetches  int
	open     int  // fetch streams open now
	down     bool // connections are refused
	silent   int  // the fetch stream of this number sends nothing
	changed  chan struct{}
	maxBatch int
	mumble   bool  // refuses too large batches without saying its limit
	sent     int64 // bytes of responses with records
}

type fakeTopic struct {
	id        string
	parts     []*fakePartition
	maxRecord string
}

type fakePartition struct {
	frames [][]byte
	heads  []record.Header
	start  int64
	next   int64
}

// An action is what to do with a produce request.
type action struct {
	err    *runnelv1.ItemError // answer this
	drop   bool                // store, do not answer
	ignore bool                // neither store nor answer
	kill   error               // end the stream with this, without storing
	final  bool                // say goodbye first: nothing of this was read
	drain  bool                // answer, with a goaway
	wait   time.Duration       // before anything
}

func newFake(t *testing.T, topics map[string]int) *fakeBroker {
	t.Helper()
	f := &fakeBroker{
		validator: record.NewValidator(record.NewCodec(), 2),
		lis:       bufconn.Listen(1 << 20), srv: grpc.NewServer(grpc.MaxRecvMsgSize(5<<20),
			grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true})),
		topics: map[string]*fakeTopic{}, changed: make(chan struct{}),
	}
	for name, n := range topics {
		f.create(name, n)
	}
	runnelv1.RegisterLogServiceServer(f.srv, f)
	runnelv1.RegisterAdminServiceServer(f.srv, f)
	var serving sync.WaitGroup
	serving.Go(func() { _ = f.srv.Serve(f.lis) })
	t.Cleanup(func() {
		f.srv.Stop()
		serving.Wait()
		f.readers.Wait()
	})
	return f
}

func (f *fakeBroker) create(name string, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := &fakeTopic{id: uuid.NewString(), maxRecord: "1048576"}
	for range n {
		t.parts = append(t.parts, &fakePartition{})
	}
	f.topics[name] = t
}

func (f *fakeBroker) client(t *testing.T, opts ...client.Option) *client.Client {
	t.Helper()
	opts = append([]client.Option{client.Dialer(func(ctx context.Context, _ string) (net.Conn, error) {
		f.mu.Lock()
		down := f.down
		f.mu.Unlock()
		if down {
			return nil, errors.New("connection refused")
		}
		return f.lis.DialContext(ctx)
	})}, opts...)
	c, err := client.New([]string{"broker:7420"}, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// locked runs fn while nothing else of f does.
func (f *fakeBroker) locked(fn func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fn()
	close(f.changed)
	f.changed = make(chan struct{})
}

func item(r runnelv1.ErrorReason, c codes.Code, facts ...string) *runnelv1.ItemError {
	it := &runnelv1.ItemError{Reason: r, Code: int32(c), Message: "the fake says so"}
	for i := 0; i+1 < len(facts); i += 2 {
		if it.Metadata == nil {
			it.Metadata = map[string]string{}
		}
		it.Metadata[facts[i]] = facts[i+1]
	}
	return it
}

func (f *fakeBroker) partition(topic, id string, n int32) (*fakeTopic, *fakePartition, *runnelv1.ItemError) {
	t := f.topics[topic]
	switch {
	case t == nil:
		return nil, nil, item(runnelv1.ErrorReason_ERROR_REASON_TOPIC_NOT_FOUND, codes.NotFound)
	case id != "" && id != t.id:
		return nil, nil, item(runnelv1.ErrorReason_ERROR_REASON_TOPIC_ID_MISMATCH, codes.FailedPrecondition)
	case n < 0 || int(n) >= len(t.parts):
		return nil, nil, item(runnelv1.ErrorReason_ERROR_REASON_PARTITION_NOT_FOUND, codes.NotFound)
	}
	return t, t.parts[n], nil
}

func (f *fakeBroker) DescribeTopics(_ context.Context, req *runnelv1.DescribeTopicsRequest) (*runnelv1.DescribeTopicsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	resp := &runnelv1.DescribeTopicsResponse{}
	for _, r := range req.GetTopics() {
		t := f.topics[r.GetName()]
		if t == nil {
			resp.Topics = append(resp.Topics, &runnelv1.TopicDescription{Name: r.GetName(), Error: item(runnelv1.ErrorReason_ERROR_REASON_TOPIC_NOT_FOUND, codes.NotFound)})
			continue
		}
		n := int32(len(t.parts))
		resp.Topics = append(resp.Topics, &runnelv1.TopicDescription{
			Name: r.GetName(), TopicId: t.id, PartitionCount: &n,
			Configs: []*runnelv1.ConfigEntry{{Key: "max.message.bytes", Value: t.maxRecord}},
		})
	}
	return resp, nil
}

func (f *fakeBroker) ListOffsets(_ context.Context, req *runnelv1.ListOffsetsRequest) (*runnelv1.ListOffsetsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	resp := &runnelv1.ListOffsetsResponse{}
	for _, q := range req.GetQueries() {
		a := &runnelv1.OffsetAnswer{Topic: q.GetTopic(), Partition: q.Partition}
		t, p, err := f.partition(q.GetTopic(), q.GetTopicId(), q.GetPartition())
		if err != nil {
			a.Error = err
			resp.Offsets = append(resp.Offsets, a)
			continue
		}
		a.TopicId = t.id
		switch {
		case q.GetTimestamp() != nil:
			for i, h := range p.heads {
				if h.MaxTimestampMs >= q.GetTimestamp().AsTime().UnixMilli() {
					a.Offset = new(int64(p.heads[i].BaseOffset))
					break
				}
			}
		case q.GetPosition() == runnelv1.Position_POSITION_EARLIEST:
			a.Offset = new(p.start)
		default:
			a.Offset = new(p.next)
		}
		resp.Offsets = append(resp.Offsets, a)
	}
	return resp, nil
}

func (f *fakeBroker) Produce(s grpc.BidiStreamingServer[runnelv1.ProduceRequest, runnelv1.ProduceResponse]) error {
	for {
		req, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if req.GetBatch() == nil {
			if err := s.Send(&runnelv1.ProduceResponse{RequestId: req.GetRequestId()}); err != nil {
				return err
			}
			continue
		}
		a := f.decide(req)
		if a.wait > 0 {
			select {
			case <-time.NewTimer(a.wait).C:
			case <-s.Context().Done():
				return s.Context().Err()
			}
		}
		switch {
		case a.final:
			_ = s.Send(&runnelv1.ProduceResponse{Goaway: &runnelv1.Goaway{Final: true}})
			return status.Error(codes.Unavailable, "draining")
		case a.kill != nil:
			return a.kill
		case a.ignore:
			continue
		}
		resp := &runnelv1.ProduceResponse{RequestId: req.GetRequestId(), Error: a.err}
		if a.err == nil {
			resp.BaseOffset, resp.Error = f.store(req)
			resp.Partition = req.Partition
		}
		if a.drain {
			resp.Goaway = &runnelv1.Goaway{}
		}
		if a.drop {
			continue
		}
		if err := s.Send(resp); err != nil {
			return err
		}
	}
}

func (f *fakeBroker) decide(req *runnelv1.ProduceRequest) action {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	if f.onProduce == nil {
		return action{}
	}
	return f.onProduce(f.calls, req)
}

// store appends a batch as a leader would.
func (f *fakeBroker) store(req *runnelv1.ProduceRequest) (*int64, *runnelv1.ItemError) {
	msg, err := proto.Marshal(req.GetBatch())
	if err != nil {
		panic(err)
	}
	buf := append(make([]byte, record.PrefixMax, record.PrefixMax+len(msg)), msg...)
	b, err := f.validator.ParseBatch(buf, record.PrefixMax, len(buf), record.Limits{MaxRecordBytes: 1 << 20})
	if err != nil {
		return nil, &runnelv1.ItemError{Reason: runnelv1.ErrorReason_ERROR_REASON_CORRUPT_BATCH, Code: int32(codes.InvalidArgument), Message: err.Error()}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	_, p, ierr := f.partition(req.GetTopic(), req.GetTopicId(), req.GetPartition())
	if ierr != nil {
		return nil, ierr
	}
	if f.maxBatch > 0 && b.FrameSize() > f.maxBatch {
		if f.mumble {
			return nil, item(runnelv1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE, codes.InvalidArgument)
		}
		return nil, item(runnelv1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE, codes.InvalidArgument, "size", fmt.Sprint(b.FrameSize()), "maxBytes", fmt.Sprint(f.maxBatch))
	}
	base := p.next
	frame := b.Seal(record.Offset(base), 1, time.Now().UnixMilli(), record.CreateTime)
	p.frames = append(p.frames, append([]byte(nil), frame...))
	p.heads = append(p.heads, b.Header)
	p.next = int64(b.NextOffset())
	close(f.changed)
	f.changed = make(chan struct{})
	return &base, nil
}

// all decodes the values of a partition's records.
func (f *fakeBroker) all(t *testing.T, topic string, n int) []record.Record {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []record.Record
	for _, frame := range f.topics[topic].parts[n].frames {
		fr, v := record.CheckFrame(frame, record.MaxFrameSize)
		if v != record.OK {
			t.Fatalf("the fake holds a frame that is %v", v)
		}
		var it record.Iterator
		it.Reset(fr.Header, fr.Payload(frame))
		for it.Next() {
			out = append(out, it.Record())
		}
		if it.Err() != nil {
			t.Fatal(it.Err())
		}
	}
	return out
}
