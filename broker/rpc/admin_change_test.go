package rpc

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/metadata/metadatatest"
	"github.com/runnelmq/runnel/internal/memnet"
	"github.com/runnelmq/runnel/internal/rpcerr"
	"github.com/runnelmq/runnel/internal/rpcserver"
)

// A clerk is a controller that answers changes as the test says.
type clerk struct {
	*metadatatest.Controller

	calls atomic.Int32
	alter func(ctx context.Context, call int32) error
	// create says what becomes of each topic of a call.
	create func(call int32, name string) *runnelv1.ItemError
	asked  [][]string // names, by call of CreateTopics
}

func (c *clerk) AlterTopicConfigs(ctx context.Context, _ *controllerv1.AlterTopicConfigsRequest) (*controllerv1.AlterTopicConfigsResponse, error) {
	if err := c.alter(ctx, c.calls.Add(1)); err != nil {
		return nil, err
	}
	return &controllerv1.AlterTopicConfigsResponse{Response: &runnelv1.AlterTopicConfigsResponse{TopicId: "done"}}, nil
}

func (c *clerk) CreateTopics(_ context.Context, req *controllerv1.CreateTopicsRequest) (*controllerv1.CreateTopicsResponse, error) {
	call := c.calls.Add(1)
	resp := &runnelv1.CreateTopicsResponse{}
	var names []string
	for _, t := range req.GetRequest().GetTopics() {
		names = append(names, t.GetName())
		resp.Results = append(resp.Results, &runnelv1.CreateTopicResult{Name: t.GetName(), Error: c.create(call, t.GetName())})
	}
	c.asked = append(c.asked, names)
	return &controllerv1.CreateTopicsResponse{Response: resp}, nil
}

// An office is broker 1's session with one controller, and its admin service.
type office struct {
	*AdminService

	t     *testing.T
	clerk *clerk
	deaf  atomic.Bool // nobody listens at the controller's address
	// hangUp breaks every connection to the controller.
	hangUp func()
}

func withOffice(t *testing.T, c *clerk, f func(o *office)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c.Controller = metadatatest.New()
		o := &office{clerk: c, t: t}
		lis := memnet.Listen("controller:7422", 1<<20)
		srv := grpc.NewServer(grpc.WaitForHandlers(true))
		controllerv1.RegisterControllerServiceServer(srv, c)
		var mu sync.Mutex
		var conns []net.Conn
		dial := func(ctx context.Context, _ string) (net.Conn, error) {
			if o.deaf.Load() {
				return nil, errors.New("connection refused")
			}
			conn, err := lis.DialContext(ctx)
			mu.Lock()
			defer mu.Unlock()
			conns = append(conns, conn)
			return conn, err
		}
		o.hangUp = func() {
			mu.Lock()
			defer mu.Unlock()
			for _, conn := range conns {
				_ = conn.Close()
			}
			conns = nil
		}
		store := metadata.NewStore(1)
		session := metadata.NewSession(metadata.SessionConfig{
			Broker: &controllerv1.BrokerRecord{BrokerId: 1, Incarnation: "i"}, Controllers: []string{"controller:1"},
			Dial: func(addr string) (*grpc.ClientConn, error) {
				return rpcserver.Dial(addr, rpcserver.DialOptions{Dial: dial})
			},
			Identity: &testIdentity{}, Condition: func() metadata.Condition { return metadata.Condition{} }, Log: zerolog.Nop(),
		}, store)
		o.AdminService = NewAdminService(AdminDeps{Store: store, Session: session, Finder: metadata.Finder{Store: store}, Log: zerolog.Nop()})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = srv.Serve(lis) })
		wg.Go(func() { _ = session.Run(ctx) })
		defer func() {
			cancel()
			wg.Wait()
			c.Wait()
		}()
		defer srv.Stop()
		synctest.Wait()
		f(o)
	})
}

// A testIdentity belongs to any cluster.
type testIdentity struct{}

func (*testIdentity) ClusterID() string                   { return "" }
func (*testIdentity) HighestControllerEpoch() int64       { return 0 }
func (*testIdentity) DataEpoch() int64                    { return 0 }
func (*testIdentity) Remember(string, int64, int64) error { return nil }

// notController is how a controller refuses that is not the active one.
func notController(t *testing.T) error {
	t.Helper()
	st, err := status.New(codes.FailedPrecondition, "not active").WithDetails(&errdetails.ErrorInfo{Reason: "NOT_CONTROLLER", Domain: rpcerr.Domain})
	if err != nil {
		t.Fatal(err)
	}
	return st.Err()
}

// A change that nobody was asked for, or that was refused only because another
// controller takes over, waits for that one.
func TestChange_waitsForAController(t *testing.T) {
	c := &clerk{alter: func(_ context.Context, call int32) error {
		if call < 4 {
			return notController(t)
		}
		return nil
	}}
	withOffice(t, c, func(o *office) {
		t := o.t
		resp, err := o.AlterTopicConfigs(t.Context(), &runnelv1.AlterTopicConfigsRequest{Topic: "t"})
		if err != nil || resp.GetTopicId() != "done" || c.calls.Load() != 4 {
			t.Errorf("after a takeover: %v, %v, %d calls", resp, err, c.calls.Load())
		}

		o.deaf.Store(true)
		o.hangUp()
		synctest.Wait()
		var later sync.WaitGroup
		defer later.Wait()
		later.Go(func() {
			time.Sleep(3 * time.Second)
			o.deaf.Store(false)
		})
		start := time.Now()
		resp, err = o.AlterTopicConfigs(t.Context(), &runnelv1.AlterTopicConfigsRequest{Topic: "t"})
		if took := time.Since(start); err != nil || resp.GetTopicId() != "done" || took < 3*time.Second || took > 6*time.Second {
			t.Errorf("with a controller that came after 3 s: %v, %v after %s", resp, err, took)
		}
	})
}

// When no controller comes in time, the error is that nothing was changed.
func TestChange_saysThatNothingWasChanged(t *testing.T) {
	c := &clerk{alter: func(context.Context, int32) error { return notController(t) }}
	withOffice(t, c, func(o *office) {
		t := o.t
		for name, prepare := range map[string]func(){
			"a standby":        func() {},
			"nobody listening": func() { o.deaf.Store(true); o.hangUp(); synctest.Wait() },
		} {
			prepare()
			start := time.Now()
			_, err := o.AlterTopicConfigs(t.Context(), &runnelv1.AlterTopicConfigsRequest{Topic: "t", Timeout: durationpb.New(2 * time.Second)})
			st, _ := rpcerr.Status(Rules(), err)
			if rpcerr.Reason(st.Err()) != runnelv1.ErrorReason_ERROR_REASON_CONTROLLER_UNAVAILABLE || rpcerr.Info(st.Err()).GetMetadata()["changed"] != "no" {
				t.Errorf("%s: %v", name, st)
			}
			if took := time.Since(start); took != 2*time.Second {
				t.Errorf("%s: failed after %s", name, took)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := o.AlterTopicConfigs(ctx, &runnelv1.AlterTopicConfigsRequest{Topic: "t"}); !errors.Is(err, context.Canceled) {
			t.Errorf("a caller that left: %v", err)
		}
	})
}

// What may have been done is not asked for again, and is not called undone.
func TestChange_isNotRepeatedWhenItMayHaveBeenMade(t *testing.T) {
	began := make(chan struct{}, 1)
	c := &clerk{alter: func(ctx context.Context, _ int32) error {
		began <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}}
	withOffice(t, c, func(o *office) {
		t := o.t
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() {
			<-began
			o.hangUp()
		})
		_, err := o.AlterTopicConfigs(t.Context(), &runnelv1.AlterTopicConfigsRequest{Topic: "t"})
		st, _ := rpcerr.Status(Rules(), err)
		if rpcerr.Reason(st.Err()) != runnelv1.ErrorReason_ERROR_REASON_CONTROLLER_UNAVAILABLE || rpcerr.Info(st.Err()).GetMetadata()["changed"] != "" {
			t.Error(st)
		}
		if n := c.calls.Load(); n != 1 {
			t.Errorf("asked %d times", n)
		}
	})
}

// Of several topics, those are asked for again that were refused because
// another controller takes over; what the others came to is kept.
func TestChangeEach_repeatsWhatWasRefused(t *testing.T) {
	refused := &runnelv1.ItemError{Reason: runnelv1.ErrorReason_ERROR_REASON_NOT_CONTROLLER, Code: int32(codes.FailedPrecondition)}
	exists := &runnelv1.ItemError{Reason: runnelv1.ErrorReason_ERROR_REASON_TOPIC_EXISTS, Code: int32(codes.AlreadyExists)}
	lasting := false
	c := &clerk{create: func(call int32, name string) *runnelv1.ItemError {
		switch {
		case name == "there":
			return exists
		case name == "b" && (call == 1 || lasting), name == "c" && call <= 2:
			return refused
		}
		return nil
	}}
	req := &runnelv1.CreateTopicsRequest{Topics: []*runnelv1.NewTopic{{Name: "a"}, {Name: "b"}, {Name: "there"}, {Name: "c"}}, Timeout: durationpb.New(time.Second)}
	withOffice(t, c, func(o *office) {
		t := o.t
		resp, err := o.CreateTopics(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []runnelv1.ErrorReason{2: exists.GetReason(), 3: 0} {
			if r := resp.GetResults()[i]; r.GetError().GetReason() != want || r.GetName() != req.GetTopics()[i].GetName() {
				t.Errorf("topic %d: %v", i, r)
			}
		}
		if want := [][]string{{"a", "b", "there", "c"}, {"b", "c"}, {"c"}}; !slices.EqualFunc(c.asked, want, slices.Equal) {
			t.Errorf("asked for %v, want %v", c.asked, want)
		}
		lasting = true
		resp, err = o.CreateTopics(t.Context(), req)
		if err != nil || resp.GetResults()[0].GetError() != nil || resp.GetResults()[3].GetError() != nil {
			t.Fatal(resp, err)
		}
		if e := resp.GetResults()[1].GetError(); e.GetReason() != runnelv1.ErrorReason_ERROR_REASON_CONTROLLER_UNAVAILABLE || e.GetMetadata()["changed"] != "no" || e.GetOutcomeUnknown() {
			t.Errorf("the one that nobody took: %v", e)
		}
	})
}

// Soon after a controller was lost, a description waits for the next one; long
// after, it says at once that there is none.
func TestDescribeCluster_namesTheNextController(t *testing.T) {
	withOffice(t, &clerk{}, func(o *office) {
		t := o.t
		named := func() (string, time.Duration) {
			start := time.Now()
			resp, err := o.DescribeCluster(t.Context(), &runnelv1.DescribeClusterRequest{})
			if err != nil {
				t.Fatal(err)
			}
			return resp.GetController(), time.Since(start)
		}
		if got, took := named(); got != "controller:1" || took > 0 {
			t.Errorf("named %q after %s", got, took)
		}
		o.hangUp() // and comes back at once
		synctest.Wait()
		if got, took := named(); got != "controller:1" || took == 0 {
			t.Errorf("after a failover: named %q after %s", got, took)
		}
		o.deaf.Store(true)
		o.hangUp()
		synctest.Wait()
		if got, took := named(); got != "" || took != failoverWait {
			t.Errorf("without a controller: named %q after %s", got, took)
		}
		if got, took := named(); got != "" || took > 0 {
			t.Errorf("long without a controller: named %q after %s", got, took)
		}
	})
}
