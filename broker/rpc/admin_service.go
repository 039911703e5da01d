package rpc

import (
	"context"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/broker/router"
	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/rpcserver"
	"github.com/runnelmq/runnel/internal/topicconfig"
)

// AdminDeps are what the admin and metadata services stand on.
type AdminDeps struct {
	Store   *metadata.Store
	Session *metadata.Session
	Set     *partition.Set
	Root    *commitlog.Root
	Finder  metadata.Finder
	// Router takes questions to the brokers that lead. nil: nobody does.
	Router *router.Router
	// Descriptors tells how many file descriptors are open and may be; nil or
	// ok false when the system does not say.
	Descriptors func() (open, limit int, ok bool)
	Version     string
	// Drain is closed when the broker wants streams to end.
	Drain <-chan struct{}
	Log   zerolog.Logger
}

// An AdminService serves runnel.v1.AdminService.
type AdminService struct {
	runnelv1.UnimplementedAdminServiceServer

	deps   AdminDeps
	errors errorTable
}

// NewAdminService returns the service.
func NewAdminService(d AdminDeps) *AdminService {
	return &AdminService{deps: d, errors: newErrorTable(d.Log)}
}

const (
	maxTopicsPerCall = 100
	adminTimeout     = 10 * time.Second // when a request names none
	maxAdminTimeout  = 5 * time.Minute
	// adminSlack is what the controller gets beyond the time it may wait for
	// brokers, to make the change itself.
	adminSlack = 5 * time.Second
	// maxAnswer keeps an answer well below the 4 MiB that gRPC runtimes take,
	// maxPage below the 1 MiB that pages promise.
	maxAnswer = 3 << 20
	maxPage   = 900 << 10
)

// timeoutOf reads the timeout of a request.
func timeoutOf(timeout *durationpb.Duration) (time.Duration, error) {
	if timeout == nil {
		return adminTimeout, nil
	}
	d := timeout.AsDuration()
	if timeout.CheckValid() != nil || d < 0 || d > maxAdminTimeout {
		return 0, invalid("timeout %s: want a duration from 0 s to %s", d, maxAdminTimeout)
	}
	return d, nil
}

// count checks how many items a request has.
func count(n int) error {
	if n == 0 || n > maxTopicsPerCall {
		return invalid("the request names %d topics: want 1 to %d", n, maxTopicsPerCall)
	}
	return nil
}

// CreateTopics implements runnelv1.AdminServiceServer.
func (s *AdminService) CreateTopics(ctx context.Context, req *runnelv1.CreateTopicsRequest) (*runnelv1.CreateTopicsResponse, error) {
	if err := count(len(req.GetTopics())); err != nil {
		return nil, err
	}
	results, err := changeEach(ctx, s, req.GetTimeout(), req.GetTopics(),
		func(ctx context.Context, c controllerv1.ControllerServiceClient, topics []*runnelv1.NewTopic, opt grpc.CallOption) ([]*runnelv1.CreateTopicResult, error) {
			part := &runnelv1.CreateTopicsRequest{Topics: topics, ValidateOnly: req.GetValidateOnly(), Timeout: req.GetTimeout()}
			resp, err := c.CreateTopics(ctx, &controllerv1.CreateTopicsRequest{Request: part, Principal: rpcserver.Principal(ctx)}, opt)
			return resp.GetResponse().GetResults(), err
		},
		func(t *runnelv1.NewTopic, err *runnelv1.ItemError) *runnelv1.CreateTopicResult {
			return &runnelv1.CreateTopicResult{Name: t.GetName(), Error: err}
		})
	if err != nil {
		return nil, err
	}
	return &runnelv1.CreateTopicsResponse{Results: results}, nil
}

// DeleteTopics implements runnelv1.AdminServiceServer.
func (s *AdminService) DeleteTopics(ctx context.Context, req *runnelv1.DeleteTopicsRequest) (*runnelv1.DeleteTopicsResponse, error) {
	if err := count(len(req.GetTopics())); err != nil {
		return nil, err
	}
	results, err := changeEach(ctx, s, req.GetTimeout(), req.GetTopics(),
		func(ctx context.Context, c controllerv1.ControllerServiceClient, topics []*runnelv1.TopicRef, opt grpc.CallOption) ([]*runnelv1.DeleteTopicResult, error) {
			part := &runnelv1.DeleteTopicsRequest{Topics: topics, ValidateOnly: req.GetValidateOnly(), Timeout: req.GetTimeout()}
			resp, err := c.DeleteTopics(ctx, &controllerv1.DeleteTopicsRequest{Request: part, Principal: rpcserver.Principal(ctx)}, opt)
			return resp.GetResponse().GetResults(), err
		},
		func(t *runnelv1.TopicRef, err *runnelv1.ItemError) *runnelv1.DeleteTopicResult {
			return &runnelv1.DeleteTopicResult{Name: t.GetName(), Error: err}
		})
	if err != nil {
		return nil, err
	}
	return &runnelv1.DeleteTopicsResponse{Results: results}, nil
}

// AlterTopicConfigs implements runnelv1.AdminServiceServer.
func (s *AdminService) AlterTopicConfigs(ctx context.Context, req *runnelv1.AlterTopicConfigsRequest) (*runnelv1.AlterTopicConfigsResponse, error) {
	return change(ctx, s, req.GetTimeout(),
		func(ctx context.Context, c controllerv1.ControllerServiceClient, opt grpc.CallOption) (*runnelv1.AlterTopicConfigsResponse, error) {
			resp, err := c.AlterTopicConfigs(ctx, &controllerv1.AlterTopicConfigsRequest{Request: req, Principal: rpcserver.Principal(ctx)}, opt)
			return resp.GetResponse(), err
		})
}

// AddPartitions implements runnelv1.AdminServiceServer.
func (s *AdminService) AddPartitions(ctx context.Context, req *runnelv1.AddPartitionsRequest) (*runnelv1.AddPartitionsResponse, error) {
	return change(ctx, s, req.GetTimeout(),
		func(ctx context.Context, c controllerv1.ControllerServiceClient, opt grpc.CallOption) (*runnelv1.AddPartitionsResponse, error) {
			resp, err := c.AddPartitions(ctx, &controllerv1.AddPartitionsRequest{Request: req, Principal: rpcserver.Principal(ctx)}, opt)
			return resp.GetResponse(), err
		})
}

// ListTopicConfigKeys implements runnelv1.AdminServiceServer.
func (s *AdminService) ListTopicConfigKeys(
	context.Context, *runnelv1.ListTopicConfigKeysRequest,
) (*runnelv1.ListTopicConfigKeysResponse, error) {
	resp := &runnelv1.ListTopicConfigKeysResponse{}
	for _, k := range topicconfig.Keys() {
		resp.Keys = append(resp.Keys, &runnelv1.ConfigKey{Key: k.Name, DefaultValue: k.Default, Want: k.Want, Description: k.Description})
	}
	return resp, nil
}
