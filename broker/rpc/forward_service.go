package rpc

import (
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"

	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
)

// A ForwardService serves runnel.replica.v1.ForwardService, on the internal
// port: what clients asked other brokers for. It never forwards anything.
type ForwardService struct {
	replicav1.UnimplementedForwardServiceServer

	logs      *LogService
	admin     *AdminService
	groups    *GroupService // nil: there are none
	pipelines *pipelineBook
	// drain is closed by Drain.
	drain     chan struct{}
	drainOnce sync.Once
	readers   sync.WaitGroup
	// waiting counts what was stored and is waited for.
	waiting atomic.Int64
}

// NewForwardService returns a service that starts nothing until it is called.
func NewForwardService(logs *LogService, admin *AdminService) *ForwardService {
	return &ForwardService{logs: logs, admin: admin, groups: logs.groups, pipelines: newPipelineBook(), drain: make(chan struct{})}
}

// Register adds the service to a server, whose codec must be a wire.Codec.
func (s *ForwardService) Register(r grpc.ServiceRegistrar) {
	stream := func(name string, h func(grpc.ServerStream) error) grpc.StreamDesc {
		return grpc.StreamDesc{
			StreamName: name, ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, ss grpc.ServerStream) error { return h(ss) },
		}
	}
	desc := replicav1.ForwardService_ServiceDesc
	desc.Streams = []grpc.StreamDesc{stream("ForwardProduce", s.produce), stream("ForwardFetch", s.fetch), stream("ForwardJoin", s.join)}
	r.RegisterService(&desc, s)
}

// Drain asks every stream to end. What was read is still answered; the senders
// are told that nothing else was.
func (s *ForwardService) Drain() { s.drainOnce.Do(func() { close(s.drain) }) }

// Wait returns when no goroutine of the service runs any more. Call it when the
// server has stopped.
func (s *ForwardService) Wait() { s.readers.Wait() }
