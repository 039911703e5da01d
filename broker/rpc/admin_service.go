package rpc

import (
	"context"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/protobuf/types/known/durationpb"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/broker/router"
	"github.com/runnelmq/runnel/internal/commitlog"
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

// wait returns the context for a change that a controller is asked for.
func wait(ctx context.Context, timeout *durationpb.Duration) (context.Context, context.CancelFunc, error) {
	d, err := timeoutOf(timeout)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, d+adminSlack)
	return ctx, cancel, nil
}

// controller returns the active controller.
func (s *AdminService) controller() (controllerv1.ControllerServiceClient, error) {
	c, _, err := s.deps.Session.Controller()
	if err != nil {
		// Nothing was sent, so nothing was changed; the reason says less than
		// that, the text says it.
		return nil, &factError{kind: err, text: "no controller can be reached: nothing was changed; try again"}
	}
	return c, nil
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
	ctx, cancel, err := wait(ctx, req.GetTimeout())
	if err != nil {
		return nil, err
	}
	defer cancel()
	c, err := s.controller()
	if err != nil {
		return nil, err
	}
	resp, err := c.CreateTopics(ctx, &controllerv1.CreateTopicsRequest{Request: req})
	if err != nil {
		return nil, s.errors.upstream(err)
	}
	return resp.GetResponse(), nil
}

// DeleteTopics implements runnelv1.AdminServiceServer.
func (s *AdminService) DeleteTopics(ctx context.Context, req *runnelv1.DeleteTopicsRequest) (*runnelv1.DeleteTopicsResponse, error) {
	if err := count(len(req.GetTopics())); err != nil {
		return nil, err
	}
	ctx, cancel, err := wait(ctx, req.GetTimeout())
	if err != nil {
		return nil, err
	}
	defer cancel()
	c, err := s.controller()
	if err != nil {
		return nil, err
	}
	resp, err := c.DeleteTopics(ctx, &controllerv1.DeleteTopicsRequest{Request: req})
	if err != nil {
		return nil, s.errors.upstream(err)
	}
	return resp.GetResponse(), nil
}

// AlterTopicConfigs implements runnelv1.AdminServiceServer.
func (s *AdminService) AlterTopicConfigs(
	ctx context.Context, req *runnelv1.AlterTopicConfigsRequest,
) (*runnelv1.AlterTopicConfigsResponse, error) {
	ctx, cancel, err := wait(ctx, req.GetTimeout())
	if err != nil {
		return nil, err
	}
	defer cancel()
	c, err := s.controller()
	if err != nil {
		return nil, err
	}
	resp, err := c.AlterTopicConfigs(ctx, &controllerv1.AlterTopicConfigsRequest{Request: req})
	if err != nil {
		return nil, s.errors.upstream(err)
	}
	return resp.GetResponse(), nil
}

// AddPartitions implements runnelv1.AdminServiceServer.
func (s *AdminService) AddPartitions(ctx context.Context, req *runnelv1.AddPartitionsRequest) (*runnelv1.AddPartitionsResponse, error) {
	ctx, cancel, err := wait(ctx, req.GetTimeout())
	if err != nil {
		return nil, err
	}
	defer cancel()
	c, err := s.controller()
	if err != nil {
		return nil, err
	}
	resp, err := c.AddPartitions(ctx, &controllerv1.AddPartitionsRequest{Request: req})
	if err != nil {
		return nil, s.errors.upstream(err)
	}
	return resp.GetResponse(), nil
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
