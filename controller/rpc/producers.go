package rpc

import (
	"context"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/controller/state"
	"github.com/runnelmq/runnel/internal/rpcserver"
)

// AllocateProducerIds implements controllerv1.ControllerServiceServer.
func (s *Service) AllocateProducerIds(
	ctx context.Context, in *controllerv1.AllocateProducerIdsRequest,
) (*controllerv1.AllocateProducerIdsResponse, error) {
	if err := rpcserver.CheckBroker(ctx, in.GetBrokerId()); err != nil {
		return nil, err
	}
	act, err := s.office.Active()
	if err != nil {
		return nil, err
	}
	first, err := act.GiveProducerIDs(ctx)
	if err != nil {
		return nil, err
	}
	return &controllerv1.AllocateProducerIdsResponse{FirstProducerId: first, Count: state.ProducerIDBlock}, nil
}
