package rpc

import (
	"context"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/controller/state"
	"github.com/runnelmq/runnel/internal/rpcserver"
)

// EnsureInternalTopic implements controllerv1.ControllerServiceServer.
func (s *Service) EnsureInternalTopic(ctx context.Context, in *controllerv1.EnsureInternalTopicRequest) (*controllerv1.EnsureInternalTopicResponse, error) {
	if err := rpcserver.CheckBroker(ctx, in.GetBrokerId()); err != nil {
		return nil, err
	}
	act, err := s.office.Active()
	if err != nil {
		return nil, err
	}
	wish := state.NewTopic{Name: in.GetName(), Partitions: new(in.GetPartitions()), Configs: in.GetConfigs()}
	r := act.EnsureInternal(ctx, wish, state.BrokerID(in.GetBrokerId()), defaultWait)
	if r.Err != nil {
		return nil, r.Err
	}
	return &controllerv1.EnsureInternalTopicResponse{
		TopicId: r.Topic.ID.String(), Partitions: r.Topic.Partitions, ReplicationFactor: r.Topic.ReplicationFactor, Created: !r.Existed, Applied: r.Applied,
	}, nil
}
