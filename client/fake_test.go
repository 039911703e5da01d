package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/client"
	"github.com/runnelmq/runnel/internal/record"
)

// A fakeBroker speaks the real protocol, keeps records in memory, and fails as
// it is told. What it takes is held to the strict profile for producers.
type fakeBroker struct {
	runnelv1.UnimplementedAdminServiceServer

	validator *record.Validator
	nodes     []*fakeNode
	readers   sync.WaitGroup // of fetch streams
	group     *fakeGroup     // of which it is the coordinator; nil: none

	// mu guards the fields below
	mu sync.Mutex

	topics map[string]*fakeTopic
	ids    int64               // producer ids given
	noIDs  *runnelv1.ItemError // why none is
	// silentOn is a topic that is not described, and unanswered how often it was asked
	// for.
	silentOn   string
	unanswered int
	calls      int // produce requests with a batch
	// onProduce decides about the nth request, from 1; nil: all is taken.
	onProduce func(n int, req *runnelv1.ProduceRequest) action
	// onFetch may end a stream after so many responses; nil: never.
	onFetch func(stream, responses int) error
	fetches int
	open    int  // fetch streams open now
	down    bool // connections are refused
	// cut is where logs were cut: whoever has read more is told; told is whether
	// anybody was.
	cut      int64
	told     bool
	silent   int           // the fetch stream of this number sends nothing
	late     time.Duration // that every answer of a fetch stream takes
	changed  chan struct{}
	maxBatch int
	tooLarge int   // batches refused for that
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
	leader int // index of the node; used with more than one
	epoch  int64
	known  map[record.ProducerID]*fakeWindow
}

// An action is what to do with a produce request.
type action struct {
	err     *runnelv1.ItemError // answer this
	also    *runnelv1.ItemError // store, and answer this
	drop    bool                // store, do not answer
	ignore  bool                // neither store nor answer
	discard bool                // do not store, and answer as if
	kill    error               // end the stream with this, without storing
	// dropKill ends the stream with this, after storing.
	dropKill error
	final    bool          // say goodbye first: nothing of this was read
	drain    bool          // answer, with a goaway
	wait     time.Duration // before anything
}

// newFake starts a broker that knows nothing of others.
func newFake(tb testing.TB, topics map[string]int) *fakeBroker {
	tb.Helper()
	f := emptyFake()
	f.addNode(tb, "broker:7420", false)
	for name, n := range topics {
		f.create(name, n)
	}
	return f
}

func emptyFake() *fakeBroker {
	return &fakeBroker{
		validator: record.NewValidator(record.NewCodec(), 2),
		topics:    map[string]*fakeTopic{}, changed: make(chan struct{}),
	}
}

func (f *fakeBroker) create(name string, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := &fakeTopic{id: uuid.NewString(), maxRecord: "1048576"}
	for i := range n {
		t.parts = append(t.parts, &fakePartition{leader: i % len(f.nodes), epoch: 1, known: map[record.ProducerID]*fakeWindow{}})
	}
	f.topics[name] = t
}

func (f *fakeBroker) client(tb testing.TB, opts ...client.Option) *client.Client {
	tb.Helper()
	opts = append([]client.Option{client.Dialer(f.dial)}, opts...)
	c, err := client.New([]string{f.nodes[0].addr}, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.Close() })
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

func (f *fakeBroker) DescribeTopics(ctx context.Context, req *runnelv1.DescribeTopicsRequest) (*runnelv1.DescribeTopicsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.silentOn != "" && req.GetTopics()[0].GetName() == f.silentOn {
		f.unanswered++
		f.mu.Unlock()
		<-ctx.Done()
		f.mu.Lock()
		return nil, ctx.Err()
	}
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

// CreateTopics implements runnelv1.AdminServiceServer.
func (f *fakeBroker) CreateTopics(_ context.Context, req *runnelv1.CreateTopicsRequest) (*runnelv1.CreateTopicsResponse, error) {
	resp := &runnelv1.CreateTopicsResponse{}
	for _, t := range req.GetTopics() {
		r := &runnelv1.CreateTopicResult{Name: t.GetName()}
		f.mu.Lock()
		exists := f.topics[t.GetName()] != nil
		f.mu.Unlock()
		if exists {
			r.Error = item(runnelv1.ErrorReason_ERROR_REASON_TOPIC_EXISTS, codes.AlreadyExists)
		} else {
			f.create(t.GetName(), int(t.GetPartitions()))
			r.Created, r.Applied = new(true), new(true)
		}
		resp.Results = append(resp.Results, r)
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

// Produce implements runnelv1.LogServiceServer.
func (d *fakeNode) Produce(s grpc.BidiStreamingServer[runnelv1.ProduceRequest, runnelv1.ProduceResponse]) error {
	f := d.fakeBroker
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
		if err := d.stuck(s.Context()); err != nil {
			return err
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
		if a.discard {
			resp.BaseOffset, resp.Partition = new(int64), req.Partition
		} else if a.err == nil {
			resp.BaseOffset, resp.Duplicate, resp.Error = d.store(req)
			resp.Partition = req.Partition
		}
		if a.also != nil {
			resp = &runnelv1.ProduceResponse{RequestId: req.GetRequestId(), Error: a.also}
		}
		if a.drain {
			resp.Goaway = &runnelv1.Goaway{}
		}
		if a.dropKill != nil {
			return a.dropKill
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
func (d *fakeNode) store(req *runnelv1.ProduceRequest) (*int64, bool, *runnelv1.ItemError) {
	f := d.fakeBroker
	msg, err := proto.Marshal(req.GetBatch())
	if err != nil {
		panic(err)
	}
	buf := append(make([]byte, record.PrefixMax, record.PrefixMax+len(msg)), msg...)
	b, err := f.validator.ParseBatch(buf, record.PrefixMax, len(buf), record.Limits{MaxRecordBytes: 1 << 20})
	if err != nil {
		return nil, false, &runnelv1.ItemError{Reason: runnelv1.ErrorReason_ERROR_REASON_CORRUPT_BATCH, Code: int32(codes.InvalidArgument), Message: err.Error()}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	d.countLocked(req.GetRouting())
	_, p, ierr := f.partition(req.GetTopic(), req.GetTopicId(), req.GetPartition())
	if ierr == nil && req.GetRouting() == runnelv1.Routing_ROUTING_DIRECT {
		ierr = d.leads(p)
	}
	if ierr != nil {
		return nil, false, ierr
	}
	if f.maxBatch > 0 && b.FrameSize() > f.maxBatch {
		f.tooLarge++
		if f.mumble {
			return nil, false, item(runnelv1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE, codes.InvalidArgument)
		}
		return nil, false, item(runnelv1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE, codes.InvalidArgument, "size", fmt.Sprint(b.FrameSize()), "maxBytes", fmt.Sprint(f.maxBatch))
	}
	base := p.next
	if b.ProducerID != 0 {
		first, dup, ierr := p.window(b.ProducerID).check(&b.Header, base)
		if ierr != nil || dup {
			return &first, dup, ierr
		}
	}
	frame := b.Seal(record.Offset(base), record.Epoch(p.epoch), time.Now().UnixMilli(), record.CreateTime)
	p.frames = append(p.frames, append([]byte(nil), frame...))
	p.heads = append(p.heads, b.Header)
	p.next = int64(b.NextOffset())
	close(f.changed)
	f.changed = make(chan struct{})
	return &base, false, nil
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
