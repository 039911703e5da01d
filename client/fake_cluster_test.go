package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/memnet"
	"github.com/runnelmq/runnel/internal/record"
)

// A fakeNode is one broker of a fake cluster. All of them share what is stored.
type fakeNode struct {
	*fakeBroker
	runnelv1.UnimplementedLogServiceServer
	runnelv1.UnimplementedMetadataServiceServer
	runnelv1.UnimplementedProducerServiceServer

	id   int
	addr string
	lis  net.Listener
	srv  *grpc.Server
	// down makes connections to it be refused, blackhole, hang; cluster is the id
	// that it gives. direct and proxied count produce requests and partitions to
	// fetch. The fakeBroker's mu guards them.
	down, blackhole bool
	frozen          bool // it answers nothing
	outside         bool // no controller has let it in
	apart           bool // from the controllers: it changes nothing
	cluster         string
	direct, proxied int
	// asked counts questions about the cluster. Later ones than mostQuestions are
	// not answered.
	asked atomic.Int64
	// fetched counts partitions that were to be fetched here directly.
	fetched atomic.Int64
}

const mostQuestions = 10_000

func (d *fakeNode) countLocked(r runnelv1.Routing) {
	if r == runnelv1.Routing_ROUTING_DIRECT {
		d.direct++
	} else {
		d.proxied++
	}
}

// newFakeCluster starts brokers that know of each other. Partition i of a topic
// is led by broker i modulo their number.
func newFakeCluster(t *testing.T, nodes int, topics map[string]int) *fakeBroker {
	t.Helper()
	f := emptyFake()
	for i := range nodes {
		f.addNode(t, fmt.Sprintf("broker-%d:7420", i), true)
	}
	for name, n := range topics {
		f.create(name, n)
	}
	return f
}

func (f *fakeBroker) addNode(tb testing.TB, addr string, knows bool) {
	tb.Helper()
	tb.Cleanup(f.startNode(addr, memnet.Listen(addr, 1<<20), knows))
}

// startNode serves a node at lis, and returns what ends it. With knows it can
// tell of the cluster.
func (f *fakeBroker) startNode(addr string, lis net.Listener, knows bool, opts ...grpc.ServerOption) (stop func()) {
	d := &fakeNode{fakeBroker: f, id: len(f.nodes), addr: addr, cluster: "fake", lis: lis}
	unless := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		if err := d.stuck(ctx); err != nil {
			return nil, err
		}
		switch info.FullMethod {
		case runnelv1.AdminService_DescribeCluster_FullMethodName:
			return d.describeCluster(), nil
		case runnelv1.AdminService_CreateTopics_FullMethodName:
			if err := d.unmade(ctx); err != nil {
				return nil, err
			}
		}
		return handle(ctx, req)
	}
	d.srv = grpc.NewServer(append(opts, grpc.ChainUnaryInterceptor(unless), grpc.MaxRecvMsgSize(5<<20), grpc.WaitForHandlers(true),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}))...)
	runnelv1.RegisterLogServiceServer(d.srv, d)
	runnelv1.RegisterAdminServiceServer(d.srv, f)
	runnelv1.RegisterProducerServiceServer(d.srv, d)
	if f.group != nil {
		runnelv1.RegisterGroupServiceServer(d.srv, fakeGroupNode{f.group, d})
	}
	if knows {
		runnelv1.RegisterMetadataServiceServer(d.srv, d)
	}
	f.nodes = append(f.nodes, d)
	var serving sync.WaitGroup
	serving.Go(func() { _ = d.srv.Serve(d.lis) })
	return func() {
		d.srv.Stop()
		serving.Wait()
		f.readers.Wait()
		if f.group != nil {
			f.group.readers.Wait()
		}
	}
}

// describeCluster names a controller, unless the node is apart.
func (d *fakeNode) describeCluster() *runnelv1.DescribeClusterResponse {
	d.mu.Lock()
	defer d.mu.Unlock()
	resp := &runnelv1.DescribeClusterResponse{ClusterId: d.cluster, Controller: "controller:7422"}
	if d.apart {
		resp.Controller = ""
	}
	return resp
}

// unmade is what a change gets at a node that is apart, after a while.
func (d *fakeNode) unmade(ctx context.Context) error {
	d.mu.Lock()
	apart := d.apart
	d.mu.Unlock()
	if !apart {
		return nil
	}
	timer := time.NewTimer(10 * time.Second)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return failure(item(runnelv1.ErrorReason_ERROR_REASON_CONTROLLER_UNAVAILABLE, codes.Unavailable, "changed", "no"))
}

func (f *fakeBroker) dial(ctx context.Context, addr string) (net.Conn, error) {
	f.mu.Lock()
	var lis net.Listener
	hang := false
	for _, d := range f.nodes {
		if d.addr == addr && !d.down && !f.down {
			lis, hang = d.lis, d.blackhole
		}
	}
	f.mu.Unlock()
	if hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if lis == nil {
		return nil, errors.New("connection refused")
	}
	return lis.(*memnet.Listener).DialContext(ctx)
}

// lead makes a node the leader of a partition. The caller holds mu, or uses
// locked.
func (p *fakePartition) lead(node int) {
	p.leader = node
	p.epoch++
}

// leads says who does, when it is not d.
func (d *fakeNode) leads(p *fakePartition) *runnelv1.ItemError {
	if p.leader == d.id {
		return nil
	}
	if p.leader < 0 {
		return item(runnelv1.ErrorReason_ERROR_REASON_NO_LEADER, codes.Unavailable)
	}
	return item(runnelv1.ErrorReason_ERROR_REASON_NOT_LEADER, codes.FailedPrecondition,
		"leader", itoa(p.leader), "leaderEpoch", itoa(p.epoch), "address", d.nodes[p.leader].addr)
}

// InitProducer implements runnelv1.ProducerServiceServer.
func (d *fakeNode) InitProducer(context.Context, *runnelv1.InitProducerRequest) (*runnelv1.InitProducerResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.noIDs != nil {
		return nil, failure(d.noIDs)
	}
	d.ids++
	return &runnelv1.InitProducerResponse{ProducerId: d.ids}, nil
}

// failure is an item error as the status of a call.
func failure(it *runnelv1.ItemError) error {
	st := status.New(codes.Code(it.GetCode()), it.GetMessage()) //nolint:gosec // a small number
	if it.GetReason() != 0 {
		reason := strings.TrimPrefix(it.GetReason().String(), "ERROR_REASON_")
		st, _ = st.WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: "runnel", Metadata: it.GetMetadata()})
	}
	return st.Err()
}

// stuck does not return while the node is frozen, but with ctx, and returns what one
// says that was not let into the cluster.
func (d *fakeNode) stuck(ctx context.Context) error {
	for {
		d.mu.Lock()
		changed, frozen, outside := d.changed, d.frozen, d.outside
		d.mu.Unlock()
		if outside {
			return failure(item(runnelv1.ErrorReason_ERROR_REASON_STALE_METADATA, codes.Unavailable))
		}
		if !frozen {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// GetMetadata implements runnelv1.MetadataServiceServer.
func (d *fakeNode) GetMetadata(ctx context.Context, req *runnelv1.GetMetadataRequest) (*runnelv1.GetMetadataResponse, error) {
	if err := d.stuck(ctx); err != nil {
		return nil, err
	}
	if d.asked.Add(1) > mostQuestions {
		<-ctx.Done() // or a client that asks without end would never let time pass
		return nil, ctx.Err()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return &runnelv1.GetMetadataResponse{ClusterId: d.cluster, Brokers: d.members(), Topics: d.metadata(req.GetTopics())}, nil
}

func (f *fakeBroker) members() (bs []*runnelv1.BrokerMetadata) {
	for _, d := range f.nodes {
		bs = append(bs, &runnelv1.BrokerMetadata{BrokerId: new(int32(d.id)), Address: d.addr, Usable: new(true)})
	}
	return bs
}

func (f *fakeBroker) metadata(names []string) (ms []*runnelv1.TopicMetadata) {
	for _, name := range names {
		t := f.topics[name]
		if t == nil {
			ms = append(ms, &runnelv1.TopicMetadata{Name: name, Error: item(runnelv1.ErrorReason_ERROR_REASON_TOPIC_NOT_FOUND, codes.NotFound)})
			continue
		}
		m := &runnelv1.TopicMetadata{Name: name, TopicId: t.id}
		for n, p := range t.parts {
			pm := &runnelv1.PartitionMetadata{Partition: new(int32(n)), LeaderEpoch: new(p.epoch)}
			if p.leader >= 0 {
				pm.Leader = new(int32(p.leader))
			}
			m.Partitions = append(m.Partitions, pm)
		}
		ms = append(ms, m)
	}
	return ms
}

// WatchMetadata implements runnelv1.MetadataServiceServer.
func (d *fakeNode) WatchMetadata(req *runnelv1.WatchMetadataRequest, s grpc.ServerStreamingServer[runnelv1.WatchMetadataResponse]) error {
	for {
		if err := d.stuck(s.Context()); err != nil {
			return err
		}
		d.mu.Lock()
		changed := d.changed
		m := &runnelv1.WatchMetadataResponse{ClusterId: d.cluster, Brokers: d.members(), Topics: d.metadata(req.GetTopics()), SnapshotComplete: true}
		d.mu.Unlock()
		if err := s.Send(m); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
}

// A fakeWindow is what a leader remembers of one producer: plainly, the last
// five batches.
type fakeWindow struct {
	epoch record.ProducerEpoch
	next  int64
	last  []fakeStored
}

type fakeStored struct {
	seq, count, offset int64
}

func (p *fakePartition) window(id record.ProducerID) *fakeWindow {
	if p.known[id] == nil {
		p.known[id] = &fakeWindow{epoch: -1}
	}
	return p.known[id]
}

// check returns the offset at which a batch is stored, or was before.
func (w *fakeWindow) check(h *record.Header, offset int64) (at int64, duplicate bool, err *runnelv1.ItemError) {
	seq, count := int64(h.BaseSequence), int64(h.RecordCount)
	lost := item(runnelv1.ErrorReason_ERROR_REASON_PRODUCER_STATE_LOST, codes.FailedPrecondition)
	lost.OutcomeUnknown = true
	switch {
	case h.ProducerEpoch < w.epoch:
		return 0, false, item(runnelv1.ErrorReason_ERROR_REASON_FENCED_PRODUCER, codes.FailedPrecondition)
	case h.ProducerEpoch > w.epoch && seq != 0 && w.epoch >= 0:
		return 0, false, item(runnelv1.ErrorReason_ERROR_REASON_OUT_OF_ORDER_SEQUENCE, codes.FailedPrecondition)
	case h.ProducerEpoch > w.epoch && seq != 0:
		return 0, false, lost
	case h.ProducerEpoch > w.epoch:
		*w = fakeWindow{epoch: h.ProducerEpoch}
	}
	for _, s := range w.last {
		if s.seq == seq && s.count == count {
			return s.offset, true, nil
		}
	}
	switch {
	case seq < w.next:
		return 0, false, lost
	case seq > w.next:
		return 0, false, item(runnelv1.ErrorReason_ERROR_REASON_OUT_OF_ORDER_SEQUENCE, codes.FailedPrecondition)
	}
	w.last = append(w.last, fakeStored{seq, count, offset})
	if len(w.last) > 5 {
		w.last = w.last[1:]
	}
	w.next = seq + count
	return offset, false, nil
}
