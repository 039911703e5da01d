// Package rpc is the controller's counter: it turns requests of brokers into events and errors into statuses, and decides
// nothing.
package rpc

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/controller/active"
	"github.com/runnelmq/runnel/controller/state"
	"github.com/runnelmq/runnel/internal/rpcerr"
	"github.com/runnelmq/runnel/internal/topicconfig"
)

const (
	// maxItems is how many topics one request may be about.
	maxItems = 100
	// defaultWait is how long an answer waits for the brokers when the request does not say.
	defaultWait = 10 * time.Second
)

// An Office knows whether this controller is the active one.
type Office interface {
	// Active returns the present tenure, or a NotActiveError, or ErrStopping.
	Active() (*active.Active, error)
	// Incarnation names this process's start.
	Incarnation() uuid.UUID
	// Stopping is closed when this controller begins to end.
	Stopping() <-chan struct{}
}

// Config says what brokers are told.
type Config struct {
	SessionTimeout time.Duration
}

// A Service serves ControllerService.
type Service struct {
	controllerv1.UnimplementedControllerServiceServer

	cfg    Config
	office Office
	rules  []rpcerr.Rule
	// readers are the goroutines that receive from sessions. They end when their handlers have returned.
	readers sync.WaitGroup
}

// New returns the service.
func New(cfg Config, office Office) *Service {
	return &Service{cfg: cfg, office: office, rules: Rules()}
}

// Wait returns when everything the service began has ended. Call it after the server was stopped.
func (s *Service) Wait() { s.readers.Wait() }

// CreateTopics implements controllerv1.ControllerServiceServer.
func (s *Service) CreateTopics(ctx context.Context, in *controllerv1.CreateTopicsRequest) (*controllerv1.CreateTopicsResponse, error) {
	req := in.GetRequest()
	wait, err := checkForm(len(req.GetTopics()), req.GetTimeout())
	if err != nil {
		return nil, err
	}
	act, err := s.office.Active()
	if err != nil {
		return nil, err
	}
	wishes := make([]state.NewTopic, len(req.GetTopics()))
	for n, t := range req.GetTopics() {
		wishes[n] = state.NewTopic{
			Name: t.GetName(), Partitions: t.Partitions, ReplicationFactor: t.ReplicationFactor, //nolint:protogetter // absent is not 0
			Configs: t.GetConfigs(), IfNotExists: t.GetIfNotExists(),
		}
	}
	resp := &runnelv1.CreateTopicsResponse{}
	for n, r := range act.CreateTopics(ctx, wishes, req.GetValidateOnly(), wait, in.GetPrincipal()) {
		res := &runnelv1.CreateTopicResult{Name: wishes[n].Name, Error: rpcerr.Item(s.rules, r.Err)}
		if r.Err == nil {
			res.Partitions, res.ReplicationFactor = &r.Topic.Partitions, &r.Topic.ReplicationFactor
			if r.Existed || !req.GetValidateOnly() {
				res.TopicId = r.Topic.ID.String()
			}
			created := !r.Existed
			res.Created = &created
			if !req.GetValidateOnly() {
				res.Applied = &r.Applied
			}
		}
		resp.Results = append(resp.Results, res)
	}
	return &controllerv1.CreateTopicsResponse{Response: resp}, nil
}

// DeleteTopics implements controllerv1.ControllerServiceServer.
func (s *Service) DeleteTopics(ctx context.Context, in *controllerv1.DeleteTopicsRequest) (*controllerv1.DeleteTopicsResponse, error) {
	req := in.GetRequest()
	wait, err := checkForm(len(req.GetTopics()), req.GetTimeout())
	if err != nil {
		return nil, err
	}
	act, err := s.office.Active()
	if err != nil {
		return nil, err
	}
	// A reference that makes no sense is refused by itself, not with all the others.
	refs := make([]state.Ref, 0, len(req.GetTopics()))
	bad := map[int]error{}
	for n, t := range req.GetTopics() {
		ref, err := toRef(t.GetName(), t.TopicId) //nolint:protogetter // absent is not empty
		if err != nil {
			bad[n] = err
			continue
		}
		refs = append(refs, ref)
	}
	results := act.DeleteTopics(ctx, refs, req.GetValidateOnly(), wait, in.GetPrincipal())
	resp := &runnelv1.DeleteTopicsResponse{}
	for n, t := range req.GetTopics() {
		res := &runnelv1.DeleteTopicResult{Name: t.GetName()}
		if err := bad[n]; err != nil {
			res.Error = rpcerr.Item(s.rules, err)
			resp.Results = append(resp.Results, res)
			continue
		}
		r := results[0]
		results = results[1:]
		res.Error = rpcerr.Item(s.rules, r.Err)
		if r.Err == nil {
			res.TopicId = r.Topic.ID.String()
			if !req.GetValidateOnly() {
				res.Applied = &r.Applied
			}
		}
		resp.Results = append(resp.Results, res)
	}
	return &controllerv1.DeleteTopicsResponse{Response: resp}, nil
}

// AlterTopicConfigs implements controllerv1.ControllerServiceServer.
func (s *Service) AlterTopicConfigs(ctx context.Context, in *controllerv1.AlterTopicConfigsRequest) (*controllerv1.AlterTopicConfigsResponse, error) {
	req := in.GetRequest()
	wait, err := checkForm(len(req.GetSet())+len(req.GetRemove()), req.GetTimeout())
	if err != nil {
		return nil, err
	}
	ref, err := toRef(req.GetTopic(), req.TopicId) //nolint:protogetter // absent is not empty
	if err != nil {
		return nil, err
	}
	act, err := s.office.Active()
	if err != nil {
		return nil, err
	}
	r := act.AlterConfigs(ctx, ref, req.GetSet(), req.GetRemove(), req.GetValidateOnly(), wait, in.GetPrincipal())
	if r.Err != nil {
		return nil, r.Err
	}
	resp := &runnelv1.AlterTopicConfigsResponse{TopicId: r.Topic.ID.String()}
	for _, e := range topicconfig.Entries(r.Topic.ClusterConfigs, r.Topic.Configs, int(r.Topic.ReplicationFactor)) {
		resp.Configs = append(resp.Configs, &runnelv1.ConfigEntry{Key: e.Key, Value: e.Value, Source: source(e.Source)})
	}
	if !req.GetValidateOnly() {
		resp.Applied = &r.Applied
	}
	return &controllerv1.AlterTopicConfigsResponse{Response: resp}, nil
}

// AddPartitions implements controllerv1.ControllerServiceServer.
func (s *Service) AddPartitions(ctx context.Context, in *controllerv1.AddPartitionsRequest) (*controllerv1.AddPartitionsResponse, error) {
	req := in.GetRequest()
	wait, err := checkForm(1, req.GetTimeout())
	if err != nil {
		return nil, err
	}
	ref, err := toRef(req.GetTopic(), req.TopicId) //nolint:protogetter // absent is not empty
	if err != nil {
		return nil, err
	}
	act, err := s.office.Active()
	if err != nil {
		return nil, err
	}
	r := act.AddPartitions(ctx, ref, req.GetTotal(), req.GetValidateOnly(), wait, in.GetPrincipal())
	if r.Err != nil {
		return nil, r.Err
	}
	resp := &runnelv1.AddPartitionsResponse{TopicId: r.Topic.ID.String(), Partitions: &r.Topic.Partitions}
	if !req.GetValidateOnly() {
		resp.Applied = &r.Applied
	}
	return &controllerv1.AddPartitionsResponse{Response: resp}, nil
}

// checkForm refuses a request about nothing or too much, and returns how long its answer may wait for the brokers.
func checkForm(items int, timeout *durationpb.Duration) (time.Duration, error) {
	switch {
	case items == 0:
		return 0, invalid("the request asks for nothing")
	case items > maxItems:
		return 0, invalid("the request is about %d items: at most %d at a time", items, maxItems)
	case timeout == nil:
		return defaultWait, nil
	}
	if err := timeout.CheckValid(); err != nil || timeout.AsDuration() < 0 {
		return 0, invalid("timeout %v: it must be 0 or more", timeout)
	}
	return timeout.AsDuration(), nil
}

// toRef returns the topic a request names.
func toRef(name string, id *string) (state.Ref, error) {
	ref := state.Ref{Name: name}
	if id == nil || *id == "" {
		return ref, nil
	}
	var err error
	if ref.ID, err = uuid.Parse(*id); err != nil || ref.ID == uuid.Nil {
		return ref, invalid("topic_id %.100q is not a topic's id: leave it out, or give the UUID that a description of the topic shows", *id)
	}
	return ref, nil
}

func source(s topicconfig.Source) runnelv1.ConfigSource {
	switch s {
	case topicconfig.SourceCluster:
		return runnelv1.ConfigSource_CONFIG_SOURCE_CLUSTER
	case topicconfig.SourceTopic:
		return runnelv1.ConfigSource_CONFIG_SOURCE_TOPIC
	default:
		return runnelv1.ConfigSource_CONFIG_SOURCE_DEFAULT
	}
}
