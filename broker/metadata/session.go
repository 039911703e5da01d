package metadata

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"google.golang.org/grpc"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/lifecycle"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/rpcerr"
)

// A Shape says how far a replica can be trusted after a start.
type Shape uint8

// The shapes.
const (
	Intact  Shape = iota // nothing it acknowledged can be missing
	Suspect              // it may have lost something
	Lost                 // its directory is missing, unreadable or foreign
)

// A ReplicaReport is what recovery found of one replica.
type ReplicaReport struct {
	Topic         uuid.UUID
	Partition     int32
	Shape         Shape
	LastEpoch     record.Epoch
	LogEnd        record.Offset
	HighWatermark record.Offset
	Reason        string // why it is not intact, for people
}

// An Identity remembers, over restarts, whom this broker belongs to.
type Identity interface {
	// ClusterID returns the id of the cluster, "" before the first registration.
	ClusterID() string
	// HighestControllerEpoch returns the highest controller epoch ever heard of.
	HighestControllerEpoch() int64
	// DataEpoch returns the epoch of the last process that was registered with
	// these data, 0 before the first.
	DataEpoch() int64
	// Remember makes all three durable.
	Remember(clusterID string, controllerEpoch, brokerEpoch int64) error
}

// A Condition is what a heartbeat says of the broker's disk.
type Condition struct {
	DiskLow       bool // below the soft mark
	StorageFailed bool // going down
}

// SessionConfig says who the broker is and where the controllers are.
type SessionConfig struct {
	// Broker is the registration: id, incarnation, directory id, addresses,
	// rack, version and feature levels.
	Broker *controllerv1.BrokerRecord
	// Controllers are the addresses to try, host:port.
	Controllers []string
	// Dial returns a connection to an address; it does no I/O.
	Dial      func(addr string) (*grpc.ClientConn, error)
	Identity  Identity
	Condition func() Condition
	Log       zerolog.Logger
}

// Heartbeats go out each heartbeatEvery; a controller that is silent for
// ⅔ of the session timeout is given up, firstTimeout before that is known.
const (
	heartbeatEvery = 500 * time.Millisecond
	firstTimeout   = 3 * time.Second
	backoffMin     = 50 * time.Millisecond
	backoffMax     = time.Second
	complainEvery  = 30 * time.Second
	// duplicateWait is how long another process may hold the broker's id before
	// this one gives up: the session of a killed predecessor ends by itself.
	duplicateWait = 30 * time.Second
)

// Errors that end a session for good.
var (
	// ErrClusterMismatch means that the data directory belongs to another
	// cluster than the controllers. It ends no session that a controller of its
	// own cluster has taken before: the records don't wait for controllers.
	ErrClusterMismatch = errors.New("the controllers belong to another cluster")
	// ErrDuplicateBroker means that another live process has this broker's id.
	ErrDuplicateBroker = errors.New("another process with this broker id is alive")
)

// ErrNoController is returned while no controller can be reached.
var ErrNoController = errors.New("no controller can be reached")

var errStaleController = errors.New("the controller's epoch is lower than one heard of before")

// A Session keeps the broker registered with the active controller, and the
// store up to date. All methods may be called from any goroutine.
type Session struct {
	cfg     SessionConfig
	store   *Store
	box     outbox
	handler Handler // nil: nobody listens

	attempts attempts
}

// NewSession returns a session that has not begun.
func NewSession(cfg SessionConfig, store *Store) *Session {
	s := &Session{cfg: cfg, store: store}
	s.box.init()
	return s
}

// Run keeps the session up until ctx is done, over as many connections as it
// takes; then it ends it in an orderly way and returns nil. It returns an error
// only for what trying again can't heal.
func (s *Session) Run(ctx context.Context) error {
	next := rotation{addrs: s.cfg.Controllers}
	backoff := backoffMin
	var duplicateSince time.Time
	served := false // a controller took this broker: one that was emptied since is only away
	for ctx.Err() == nil {
		addr := next.pick()
		registered, err := s.connect(ctx, addr)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end of ctx is the orderly end
		}
		if registered {
			served = true
			backoff = backoffMin
			duplicateSince = time.Time{}
		}
		if errors.Is(err, ErrClusterMismatch) && !served {
			return err
		}
		if errors.Is(err, ErrDuplicateBroker) {
			if duplicateSince.IsZero() {
				duplicateSince = time.Now()
			}
			if time.Since(duplicateSince) > duplicateWait {
				return fmt.Errorf("for %s: %w", duplicateWait, err)
			}
		}
		if next.follow(err) {
			s.attempts.referred(addr)
			s.cfg.Log.Debug().Str("controller", addr).Err(err).Msg("following to the active controller")
			continue
		}
		s.cfg.Log.WithLevel(s.attempts.failed(addr, err)).Str("controller", addr).Err(err).Dur("retry_in", backoff).Msg("no session with the controller")
		if !lifecycle.Wait(ctx, backoff/2+rand.N(backoff)) { //nolint:gosec // jitter is no secret
			return nil
		}
		backoff = min(backoff*2, backoffMax)
	}
	return nil
}

// A rotation chooses which controller to try next: the one it was sent to,
// else the configured ones in turn.
type rotation struct {
	addrs []string
	at    int
	hint  string
	hops  int // hints followed in a row
}

func (r *rotation) pick() string {
	if r.hint != "" {
		a := r.hint
		r.hint = ""
		return a
	}
	a := r.addrs[r.at%len(r.addrs)]
	r.at++
	return a
}

// follow takes the address of the active controller from err. Controllers in
// the middle of an election may point at each other: after a few hops the
// caller is to back off.
func (r *rotation) follow(err error) bool {
	info := rpcerr.Info(err)
	if info.GetReason() != rpcerr.Name(runnelv1.ErrorReason_ERROR_REASON_NOT_CONTROLLER) || info.GetMetadata()["address"] == "" {
		r.hops = 0
		return false
	}
	r.hint = info.GetMetadata()["address"]
	r.hops++
	if r.hops > 2 {
		r.hops = 0
		return false
	}
	return true
}

// connect runs one session over one connection.
func (s *Session) connect(ctx context.Context, addr string) (registered bool, err error) {
	conn, err := s.cfg.Dial(addr)
	if err != nil {
		return false, fmt.Errorf("dial %s: %w", addr, err)
	}
	defer func() { _ = conn.Close() }() // it only fails when it was closed before
	c := &connection{session: s, client: controllerv1.NewControllerServiceClient(conn), addr: addr, timeout: firstTimeout}
	err = inItsWords(c.run(ctx))
	s.box.detach()
	return c.registered, translate(err)
}

// translate makes domain errors of a controller's refusals.
func translate(err error) error {
	switch rpcerr.Reason(err) {
	case runnelv1.ErrorReason_ERROR_REASON_DUPLICATE_BROKER:
		return fmt.Errorf("%w: %w", ErrDuplicateBroker, err)
	case runnelv1.ErrorReason_ERROR_REASON_CLUSTER_MISMATCH:
		return fmt.Errorf("%w: %w", ErrClusterMismatch, err)
	default:
		return err
	}
}

// Report gives the session what recovery found. It is told to every controller
// this broker registers with.
func (s *Session) Report(reports []ReplicaReport) { s.box.report(slices.Clone(reports)) }

// Removed confirms that the directories of a deleted topic are gone.
func (s *Session) Removed(topic uuid.UUID) { s.box.remove(topic) }

// Applied says that the broker acts on the image of this revision. The
// controller learns it at once: who created a topic waits for it.
func (s *Session) Applied(revision int64) { s.box.apply(revision) }

// Controller returns a client of the active controller, and its address, while
// the broker is registered there.
func (s *Session) Controller() (client controllerv1.ControllerServiceClient, addr string, err error) {
	return s.box.controller()
}

// AwaitController is Controller, but waits until the broker is registered, or
// returns ErrNoController when ctx is done before.
func (s *Session) AwaitController(ctx context.Context) (client controllerv1.ControllerServiceClient, addr string, err error) {
	return s.box.awaitController(ctx)
}

// LostController returns when the broker was last registered and then was not
// any more; the zero time when that never happened.
func (s *Session) LostController() time.Time { return s.box.lost() }

// Epoch returns the broker epoch of this process, 0 before it is registered.
func (s *Session) Epoch() int64 { return s.box.epoch() }

// Confirmed says whether a controller answered, within the session timeout
// counted from the sending of what it answered.
func (s *Session) Confirmed() bool { return s.box.confirmed(time.Now()) }

// CatchUp returns once the broker acts on all that the controller had told it
// when it answered a question asked now. It fails with ErrNoController when
// there is no session, or with ctx.
func (s *Session) CatchUp(ctx context.Context) error {
	answered, err := s.box.ask()
	if err != nil {
		return err
	}
	select {
	case <-answered:
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrNoController, context.Cause(ctx))
	}
	return s.box.waitApplied(ctx, s.store.Load().Revision)
}

// HandOver tells the controller that the broker is shutting down, and returns
// nil when it leads nothing any more. It fails with ctx.
func (s *Session) HandOver(ctx context.Context) error {
	mayDrain := s.box.shutDown()
	if s.Epoch() == 0 {
		return nil // never in service: there is nothing to hand over, and perhaps nobody to say so
	}
	select {
	case <-mayDrain:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
