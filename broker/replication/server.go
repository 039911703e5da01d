package replication

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/internal/rpcserver"
)

// A Server is the leaders' end: it serves followers. It needs a server whose
// codec is a wire.Codec.
type Server struct {
	replicav1.UnimplementedReplicaServiceServer

	cfg     Config
	deps    Deps
	catchUp *bucket // of all streams together
	// written is when a record was last seen to be appended to a partition that
	// has followers, in nanoseconds.
	written atomic.Int64
	stuck   stuck

	drain     chan struct{}
	drainOnce sync.Once
	// workers are the goroutines of streams. gRPC lets go of one that waits in
	// it only after its handler returned; Wait joins them.
	workers sync.WaitGroup
}

// NewServer returns a server that starts nothing until it is called.
func NewServer(cfg Config, deps Deps) *Server {
	if cfg.CatchUpShare <= 0 || cfg.CatchUpShare > 100 {
		cfg.CatchUpShare = defaultCatchUpShare
	}
	return &Server{cfg: cfg, deps: deps, catchUp: newBucket(cfg.CatchUpRate), drain: make(chan struct{})}
}

// wrote notes that records were appended.
func (s *Server) wrote(now time.Time) { s.written.Store(now.UnixNano()) }

// busy says whether clients write, or did a moment ago.
func (s *Server) busy(now time.Time) bool {
	at := s.written.Load()
	return at != 0 && now.UnixNano()-at < int64(busyFor)
}

// Drain ends all streams, and those to come. It does not wait.
func (s *Server) Drain() { s.drainOnce.Do(func() { close(s.drain) }) }

// Wait returns when no goroutine of the server runs any more. Call it when the
// gRPC server has stopped.
func (s *Server) Wait() { s.workers.Wait() }

// Probe implements replicav1.ReplicaServiceServer. It answers from the moment
// the port is open: the controller asks before it admits this broker.
func (s *Server) Probe(context.Context, *replicav1.ProbeRequest) (*replicav1.ProbeResponse, error) {
	return &replicav1.ProbeResponse{
		ClusterId: s.deps.ClusterID(), BrokerId: int32(s.deps.Store.Load().Self), Incarnation: s.deps.Incarnation,
	}, nil
}

// DescribeReplica implements replicav1.ReplicaServiceServer.
func (s *Server) DescribeReplica(_ context.Context, req *replicav1.DescribeReplicaRequest) (*replicav1.DescribeReplicaResponse, error) {
	id, err := metadata.ParseTopicID(req.GetTopicId())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	out := &replicav1.DescribeReplicaResponse{Incarnation: s.deps.Incarnation}
	if c, held := s.deps.Set.Describe(id, req.GetPartition()); held {
		out.Held, out.Intact = true, c.Intact
		out.LastEpoch, out.LogEndOffset, out.HighWatermark = int64(c.LastEpoch), int64(c.LogEnd), int64(c.HighWatermark)
	}
	return out, nil
}

// Replicate implements replicav1.ReplicaServiceServer.
func (s *Server) Replicate(ss grpc.BidiStreamingServer[replicav1.ReplicateRequest, replicav1.ReplicateResponse]) error {
	first, err := ss.Recv()
	if err != nil {
		return err
	}
	open := first.GetOpen()
	if open == nil {
		return fmt.Errorf("%w: the first message is %T, not open", ErrProtocol, first.GetEvent())
	}
	if err := rpcserver.CheckBroker(ss.Context(), open.GetBrokerId()); err != nil {
		return err
	}
	if err := s.admit(ss.Context(), open); err != nil {
		return err
	}
	return newLeaderStream(s, ss, open).serve()
}

// admit checks that the stream is between the two processes it was opened for.
// What this broker's metadata may not show yet is waited for.
func (s *Server) admit(ctx context.Context, open *replicav1.Open) error {
	timer := time.NewTimer(parkTime)
	defer timer.Stop()
	for {
		changed := s.deps.Store.Changed()
		wait, err := s.judge(open)
		if !wait {
			return err
		}
		select {
		case <-changed:
		case <-timer.C:
			return err
		case <-s.drain:
			return ErrClosing
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// judge says whether a stream is welcome; wait: newer metadata may change that.
func (s *Server) judge(open *replicav1.Open) (wait bool, err error) {
	img := s.deps.Store.Load()
	self, known := img.Broker(img.Self)
	switch {
	case open.GetCreditBytes() <= 0:
		return false, fmt.Errorf("%w: open gives no credit", ErrProtocol)
	case open.GetLeaderId() != int32(img.Self) || open.GetLeaderIncarnation() != s.deps.Incarnation:
		return false, fmt.Errorf("%w: this is broker %d, process %s", ErrWrongPeer, img.Self, s.deps.Incarnation)
	case img.ClusterID != "" && open.GetClusterId() != img.ClusterID:
		return false, fmt.Errorf("%w: this broker is of cluster %s", ErrWrongPeer, img.ClusterID)
	case !known || self.Incarnation != s.deps.Incarnation || self.Epoch < open.GetLeaderBrokerEpoch():
		return true, fmt.Errorf("%w: this broker does not know its own registration %d", ErrUnknownPeer, open.GetLeaderBrokerEpoch())
	case self.Epoch > open.GetLeaderBrokerEpoch():
		return false, fmt.Errorf("%w: this broker's epoch is %d", ErrWrongPeer, self.Epoch)
	}
	return judgePeer(img, metadata.BrokerID(open.GetBrokerId()), open.GetIncarnation(), open.GetBrokerEpoch())
}

// judgePeer says whether a follower's process is the registered one.
func judgePeer(img *metadata.Image, id metadata.BrokerID, incarnation string, epoch int64) (wait bool, err error) {
	b, ok := img.Broker(id)
	switch {
	case !ok || b.Epoch < epoch:
		return true, fmt.Errorf("%w: broker %d in epoch %d", ErrUnknownPeer, id, epoch)
	case b.Epoch > epoch || b.Incarnation != incarnation:
		return false, fmt.Errorf("%w: broker %d is in epoch %d", ErrStalePeer, id, b.Epoch)
	}
	return false, nil
}
