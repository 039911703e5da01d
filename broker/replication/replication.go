// Package replication carries batches from the leaders of partitions to their
// followers.
//
// A follower opens one stream to each broker that leads partitions it has a
// copy of, and subscribes to these one by one; the leader pushes, the follower
// acknowledges. What is accepted, appended, cut and committed is decided in
// package partition: here is only the way there and back. Nobody on that way
// waits for the disk of another partition, and stored bytes are passed on as
// they are.
package replication

import (
	"errors"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/internal/rpcerr"
	"github.com/runnelmq/runnel/internal/wire"
)

const (
	// streamCredit and partitionCredit are how many bytes a follower takes that
	// it has not appended yet; each may be overdrawn by one batch, so that one
	// always passes.
	streamCredit    = 16 << 20
	partitionCredit = 2 << 20
	// turnBytes is how much an in-sync partition sends before the next one's turn.
	turnBytes = 256 << 10
	// catchUpInFlight bounds what followers that catch up have on their way, so
	// that it never stands before what others wait for.
	catchUpInFlight     = 1 << 20
	defaultCatchUpShare = 25
	// progressDelay is how long news may wait for a data frame to travel with.
	progressDelay = 5 * time.Millisecond
	// parkTime is how long a subscribe waits for the leader's metadata.
	parkTime = time.Second

	heartbeatEvery = 500 * time.Millisecond
	// silence is after how long without a frame a stream is given up. It is well
	// below the lag that costs a follower its place in the ISR.
	silence = 5 * heartbeatEvery
)

// Config tunes both ends. Zero fields have defaults.
type Config struct {
	// Streams is how many streams a follower opens to one leader; its partitions
	// are spread over them. Default 1.
	Streams int
	// CatchUpRate bounds the bytes a second this broker sends to all followers
	// that catch up. 0: no bound. Members of an ISR are never slowed down.
	CatchUpRate int64
	// CatchUpShare is the percentage of the time that a stream sends to partitions
	// that catch up while clients write. 100: no rests. Default 25.
	CatchUpShare int
}

// Deps are what both ends stand on.
type Deps struct {
	Store *metadata.Store
	Set   *partition.Set
	// Incarnation is this process's in its registration.
	Incarnation string
	// ClusterID returns the id of the cluster, "" before it is known.
	ClusterID func() string
	// Pool is the one that the codec of the internal port uses too.
	Pool *wire.Pool
	// Dial returns a connection to another broker's internal port that is shared
	// with nobody, and whose codec is a wire.Codec.
	Dial    func(addr string) (*grpc.ClientConn, error)
	Metrics *Metrics
	Log     zerolog.Logger
}

// Errors that end a stream.
var (
	// ErrWrongPeer: the stream was meant for another cluster, broker or process.
	ErrWrongPeer = errors.New("the stream was meant for another broker")
	// ErrStalePeer: the follower's process has been replaced by a later one.
	ErrStalePeer = errors.New("a later process of this follower is registered")
	// ErrUnknownPeer: the follower's registration has not arrived here in time.
	ErrUnknownPeer = errors.New("the follower is not known here yet")
	// ErrSilent: the other end did not show itself for too long.
	ErrSilent = errors.New("the other broker fell silent")
	// ErrProtocol: the other end sent what it must not.
	ErrProtocol = errors.New("the other broker broke the protocol")
	// ErrClosing: this broker goes down.
	ErrClosing = errors.New("this broker is going down")
)

// Rules says how the errors of streams cross the wire.
func Rules() []rpcerr.Rule {
	return []rpcerr.Rule{
		{Err: ErrWrongPeer, Code: codes.FailedPrecondition, Reason: runnelv1.ErrorReason_ERROR_REASON_STALE_BROKER_EPOCH},
		{Err: ErrStalePeer, Code: codes.FailedPrecondition, Reason: runnelv1.ErrorReason_ERROR_REASON_STALE_BROKER_EPOCH},
		{Err: ErrUnknownPeer, Code: codes.Unavailable, Reason: runnelv1.ErrorReason_ERROR_REASON_STALE_METADATA},
		{Err: ErrSilent, Code: codes.Unavailable, Reason: runnelv1.ErrorReason_ERROR_REASON_SHUTTING_DOWN},
		{Err: ErrProtocol, Code: codes.InvalidArgument, Reason: runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
		{Err: ErrClosing, Code: codes.Unavailable, Reason: runnelv1.ErrorReason_ERROR_REASON_SHUTTING_DOWN},
	}
}
