package rpc

import (
	"context"
	"errors"

	"google.golang.org/grpc/status"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
)

// A ProducerService serves runnel.v1.ProducerService.
type ProducerService struct {
	runnelv1.UnimplementedProducerServiceServer

	ids    *metadata.ProducerIDs
	errors errorTable
}

// NewProducerService returns the service.
func NewProducerService(ids *metadata.ProducerIDs, d AdminDeps) *ProducerService {
	return &ProducerService{ids: ids, errors: newErrorTable(d.Log)}
}

// InitProducer implements runnelv1.ProducerServiceServer.
func (s *ProducerService) InitProducer(ctx context.Context, _ *runnelv1.InitProducerRequest) (*runnelv1.InitProducerResponse, error) {
	id, err := s.ids.Next(ctx)
	if err == nil {
		return &runnelv1.InitProducerResponse{ProducerId: id}, nil
	}
	if _, remote := status.FromError(err); remote && !errors.Is(err, metadata.ErrNoController) {
		err = s.errors.upstream(err)
	}
	return nil, err
}
