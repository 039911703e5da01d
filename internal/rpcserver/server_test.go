package rpcserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionalpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/lifecycle"
	"github.com/runnelmq/runnel/internal/memnet"
	"github.com/runnelmq/runnel/internal/rpcerr"
)

var errGone = errors.New("gone")

// service answers as its fields say.
type service struct {
	runnelv1.UnimplementedAdminServiceServer
	runnelv1.UnimplementedMetadataServiceServer

	err    error
	called int
}

func (s *service) DescribeCluster(context.Context, *runnelv1.DescribeClusterRequest) (*runnelv1.DescribeClusterResponse, error) {
	s.called++
	return &runnelv1.DescribeClusterResponse{Version: "1"}, s.err
}

func (s *service) ListTopics(context.Context, *runnelv1.ListTopicsRequest) (*runnelv1.ListTopicsResponse, error) {
	s.called++
	return &runnelv1.ListTopicsResponse{}, s.err
}

func (s *service) WatchMetadata(_ *runnelv1.WatchMetadataRequest, _ grpc.ServerStreamingServer[runnelv1.WatchMetadataResponse]) error {
	s.called++
	return s.err
}

type fixture struct {
	*service

	server *Server
	reg    *prometheus.Registry
	logged *strings.Builder
	conn   *grpc.ClientConn
}

func start(t *testing.T, o Options, d DialOptions) *fixture {
	t.Helper()
	f := &fixture{service: &service{}, reg: prometheus.NewRegistry(), logged: &strings.Builder{}}
	o.Metrics, o.Log = f.reg, zerolog.New(f.logged)
	o.Rules = []rpcerr.Rule{{Err: errGone, Code: codes.NotFound, Reason: runnelv1.ErrorReason_ERROR_REASON_TOPIC_NOT_FOUND}}
	f.server = New(o)
	runnelv1.RegisterAdminServiceServer(f.server, f.service)
	runnelv1.RegisterMetadataServiceServer(f.server, f.service)
	f.server.Recovering()
	lis := memnet.Listen("broker:7420", 1<<20)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := f.server.Serve(lis); err != nil {
			t.Errorf("Serve = %v", err)
		}
	})
	d.Dial = func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }
	conn, err := Dial("x:1", d)
	if err != nil {
		t.Fatal(err)
	}
	f.conn = conn
	t.Cleanup(func() {
		_ = conn.Close()
		f.server.Stop()
		wg.Wait()
	})
	return f
}

func TestErrorsAreTranslated(t *testing.T) {
	f := start(t, Options{}, DialOptions{})
	c := runnelv1.NewAdminServiceClient(f.conn)
	f.err = fmt.Errorf("topic x: %w", errGone)
	_, err := c.DescribeCluster(t.Context(), &runnelv1.DescribeClusterRequest{})
	if status.Code(err) != codes.NotFound || rpcerr.Reason(err) != runnelv1.ErrorReason_ERROR_REASON_TOPIC_NOT_FOUND {
		t.Errorf("a known error came as %v", err)
	}
	f.err = errors.New("password=hunter2")
	_, err = c.DescribeCluster(t.Context(), &runnelv1.DescribeClusterRequest{})
	if status.Code(err) != codes.Internal || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("an unknown error came as %v", err)
	}
	id := rpcerr.Info(err).GetMetadata()["requestId"]
	if id == "" || !strings.Contains(f.logged.String(), id) || !strings.Contains(f.logged.String(), "hunter2") {
		t.Errorf("request id %q is not in the log with the cause: %s", id, f.logged)
	}
	f.err = status.Error(codes.PermissionDenied, "of another server")
	stream, err := runnelv1.NewMetadataServiceClient(f.conn).WatchMetadata(t.Context(), &runnelv1.WatchMetadataRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Internal {
		t.Errorf("a status of another server came as %v", err)
	}
	if n := series(t, f.reg); n != 5 { // two codes of a unary call, its duration, one code of a stream, the open streams
		t.Errorf("%d series", n)
	}
}

// series counts what a scrape would show.
func series(t *testing.T, reg *prometheus.Registry) int {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range families {
		n += len(f.GetMetric())
	}
	return n
}

// A name that is not UTF-8 is the caller's mistake, not a fault of the server.
// The zone of an IPv6 address reaches the dialer (OP-09).
func TestDialZone(t *testing.T) {
	dialed := make(chan string, 100)
	conn, err := Dial("[fe80::1%eth0]:7421", DialOptions{Dial: func(_ context.Context, addr string) (net.Conn, error) {
		select {
		case dialed <- addr:
		default:
		}
		return nil, errGone
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := runnelv1.NewAdminServiceClient(conn).ListTopics(t.Context(), &runnelv1.ListTopicsRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("%v", err)
	}
	if got := <-dialed; got != "[fe80::1%eth0]:7421" {
		t.Errorf("dialed %q", got)
	}
}

func TestMalformedRequests(t *testing.T) {
	f := start(t, Options{}, DialOptions{})
	bad := rawMessage("\x0a\x03\xff\xfe\x80") // field 1, a string, of bytes that are no UTF-8
	err := f.conn.Invoke(t.Context(), "/runnel.v1.AdminService/ListTopics", &bad, &runnelv1.ListTopicsResponse{}, grpc.ForceCodecV2(rawCodec{}))
	if status.Code(err) != codes.InvalidArgument || rpcerr.Reason(err) != runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST {
		t.Errorf("unary: %v", err)
	}
	stream, err := f.conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, "/runnel.v1.MetadataService/WatchMetadata", grpc.ForceCodecV2(rawCodec{}))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg(&bad); err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	err = stream.RecvMsg(&rawMessage{})
	if status.Code(err) != codes.InvalidArgument || rpcerr.Reason(err) != runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST {
		t.Errorf("stream: %v", err)
	}
	if f.called != 0 {
		t.Errorf("%d malformed requests reached the service", f.called)
	}
}

func TestTooLargeRequest(t *testing.T) {
	f := start(t, Options{}, DialOptions{})
	big := rawMessage("\x0a" + string([]byte{0x80, 0x80, 0x80, 0x04}) + strings.Repeat("a", 8<<20))
	err := f.conn.Invoke(t.Context(), "/runnel.v1.AdminService/ListTopics", &big, &runnelv1.ListTopicsResponse{}, grpc.ForceCodecV2(rawCodec{}))
	if status.Code(err) != codes.InvalidArgument || rpcerr.Reason(err) != runnelv1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE || rpcerr.Info(err).GetMetadata()["maxBytes"] == "" {
		t.Errorf("unary: %v", err)
	}
	stream, err := f.conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, "/runnel.v1.MetadataService/WatchMetadata", grpc.ForceCodecV2(rawCodec{}))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg(&big); err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	err = stream.RecvMsg(&rawMessage{})
	if status.Code(err) != codes.InvalidArgument || rpcerr.Reason(err) != runnelv1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE {
		t.Errorf("%v", err)
	}
}

func TestClusterSecret(t *testing.T) {
	for name, c := range map[string]struct {
		server, client string
		want           codes.Code
	}{
		"none is asked for": {"", "", codes.OK},
		"the right one":     {"0123456789abcdef", "0123456789abcdef", codes.OK},
		"a wrong one":       {"0123456789abcdef", "0123456789abcdeF", codes.Unauthenticated},
		"none is given":     {"0123456789abcdef", "", codes.Unauthenticated},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, Options{Port: InternalPort, Secret: c.server}, DialOptions{Secret: c.client})
			_, err := runnelv1.NewAdminServiceClient(f.conn).DescribeCluster(t.Context(), &runnelv1.DescribeClusterRequest{})
			if status.Code(err) != c.want {
				t.Errorf("a call: %v, want %v", err, c.want)
			}
			if c.want != codes.OK && rpcerr.Reason(err) != runnelv1.ErrorReason_ERROR_REASON_UNAUTHENTICATED {
				t.Errorf("a call: %v has the reason %v", err, rpcerr.Reason(err))
			}
			stream, err := runnelv1.NewMetadataServiceClient(f.conn).WatchMetadata(t.Context(), &runnelv1.WatchMetadataRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Recv(); (status.Code(err) == codes.Unauthenticated) != (c.want == codes.Unauthenticated) {
				t.Errorf("a stream: %v", err)
			}
			listing, err := reflectionpb.NewServerReflectionClient(f.conn).ServerReflectionInfo(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			_ = listing.CloseSend() // it fails when the answer is there already
			if _, err := listing.Recv(); (status.Code(err) == codes.Unauthenticated) != (c.want == codes.Unauthenticated) {
				t.Errorf("reflection: %v", err)
			}
			if _, err := healthpb.NewHealthClient(f.conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
				t.Errorf("a health check needs no secret: %v", err)
			}
		})
	}
}

// A broker with a wrong secret tries again every second. The log of who refuses
// it says so once a minute, where it is and what it carries, and never a secret.
func TestClusterSecret_isToldOnceInAWhile(t *testing.T) {
	f := start(t, Options{Port: InternalPort, Secret: "0123456789abcdef"}, DialOptions{Secret: "wrongwrongwrongwrong"})
	for range 20 {
		_, err := runnelv1.NewAdminServiceClient(f.conn).DescribeCluster(t.Context(), &runnelv1.DescribeClusterRequest{})
		if !strings.Contains(status.Convert(err).Message(), "this one carries another one") {
			t.Fatalf("the caller hears: %v", err)
		}
	}
	text := f.logged.String()
	if n := strings.Count(text, "\n"); n != 1 || !strings.Contains(text, `"secret":"another one"`) || !strings.Contains(text, `"peer":`) {
		t.Errorf("%d lines: %s", n, text)
	}
	if strings.Contains(text, "0123456789abcdef") || strings.Contains(text, "wrongwrong") || f.called != 0 {
		t.Errorf("called %d times: %s", f.called, text)
	}
}

func TestHealthFollowsReadiness(t *testing.T) {
	f := start(t, Options{}, DialOptions{})
	check := func(service string) healthpb.HealthCheckResponse_ServingStatus {
		resp, err := healthpb.NewHealthClient(f.conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
		if err != nil {
			t.Fatalf("%q: %v", service, err)
		}
		return resp.GetStatus()
	}
	services := []string{"", "runnel.v1.AdminService", "runnel.v1.MetadataService"}
	for _, step := range []struct {
		ready bool
		want  healthpb.HealthCheckResponse_ServingStatus
	}{{false, healthpb.HealthCheckResponse_NOT_SERVING}, {true, healthpb.HealthCheckResponse_SERVING}, {false, healthpb.HealthCheckResponse_NOT_SERVING}} {
		f.server.SetReady(step.ready)
		for _, s := range services {
			if got := check(s); got != step.want {
				t.Errorf("ready %v: service %q is %v", step.ready, s, got)
			}
		}
	}
}

func TestReflection(t *testing.T) {
	f := start(t, Options{}, DialOptions{})
	v1, err := reflectionpb.NewServerReflectionClient(f.conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := v1.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	resp, err := v1.Recv()
	if err != nil || !strings.Contains(resp.String(), "runnel.v1.AdminService") {
		t.Errorf("v1: %v, %v", resp, err)
	}
	alpha, err := reflectionalpha.NewServerReflectionClient(f.conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	//nolint:staticcheck // old tools still speak it
	if err := alpha.Send(&reflectionalpha.ServerReflectionRequest{MessageRequest: &reflectionalpha.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	old, err := alpha.Recv()
	if err != nil || !strings.Contains(old.String(), "runnel.v1.AdminService") {
		t.Errorf("v1alpha: %v, %v", old, err)
	}
}

// Nobody can make up label values: calls of methods that do not exist leave no
// series (OP-04).
func TestUnknownMethodsLeaveNoSeries(t *testing.T) {
	f := start(t, Options{}, DialOptions{})
	for i := range 50 {
		method := fmt.Sprintf("/runnel.v1.AdminService/Made%dUp\"\n", i)
		err := f.conn.Invoke(t.Context(), method, &runnelv1.ListTopicsRequest{}, &runnelv1.ListTopicsResponse{})
		if err == nil {
			t.Fatal("took it")
		}
	}
	if n := series(t, f.reg); n != 0 {
		t.Errorf("%d series", n)
	}
}

// A connection that nothing was called on for long is still there.
// Whoever connects and says nothing does not keep a server from ending.
func TestStopsBesideASilentConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lis := memnet.Listen("broker:7420", 1<<16)
		srv := New(Options{})
		ctx, cancel := context.WithCancel(t.Context())
		var serving sync.WaitGroup
		serving.Go(func() {
			if err := lifecycle.Serve(ctx, srv.Server, lis, time.Second); err != nil {
				t.Error(err)
			}
		})
		conn, err := lis.Dial()
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		begun := time.Now()
		cancel()
		serving.Wait()
		if took := time.Since(begun); took > handshakeTimeout {
			t.Errorf("took %v", took)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestDialStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, Options{}, DialOptions{})
		if _, err := runnelv1.NewAdminServiceClient(f.conn).DescribeCluster(t.Context(), &runnelv1.DescribeClusterRequest{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Hour)
		if s := f.conn.GetState(); s != connectivity.Ready {
			t.Errorf("it is %v", s)
		}
	})
}

func TestDialFailsFast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, err := Dial("nowhere:1", DialOptions{Dial: func(context.Context, string) (net.Conn, error) { return nil, errGone }})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		begin := time.Now()
		_, err = runnelv1.NewAdminServiceClient(conn).DescribeCluster(t.Context(), &runnelv1.DescribeClusterRequest{})
		if took := time.Since(begin); status.Code(err) != codes.Unavailable || took > 0 {
			t.Errorf("%v after %v", err, took)
		}
	})
}
