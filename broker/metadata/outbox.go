package metadata

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/google/uuid"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
)

// An outbox keeps what the broker has to say to whichever controller is active,
// and what the present one answered. The connection's sender empties it.
type outbox struct {
	wake chan struct{} // capacity 1: something is to be sent

	// mu guards the fields below
	mu sync.Mutex

	client      controllerv1.ControllerServiceClient // nil: not registered
	arrived     chan struct{}                        // closed while registered
	lostAt      time.Time                            // when the last registration ended; zero: never
	addr        string
	brokerEpoch int64
	timeout     time.Duration // of the session

	reports     []ReplicaReport
	haveReports bool
	sentReports bool // on this connection

	removed     map[uuid.UUID]bool // value: sent on this connection
	applied     int64
	sentApplied int64
	appliedMore chan struct{} // closed when applied rises

	number    uint64               // of the last heartbeat
	sentAt    map[uint64]time.Time // of heartbeats that are not answered
	asked     map[uint64][]chan struct{}
	asking    []chan struct{} // to be asked with the next heartbeat
	confirmAt time.Time       // when the last heartbeat that was answered was sent

	// session is the number of the snapshot that this connection was given, 0
	// before it is complete; snapshots is the last number used.
	session   uint64
	snapshots uint64
	proposals []Proposal
	once      []*controllerv1.SessionRequest // for this connection only

	leaving     bool
	sentLeaving bool
	mayDrain    chan struct{}
	drained     bool
}

func (b *outbox) init() {
	b.wake = make(chan struct{}, 1)
	b.arrived = make(chan struct{})
	b.appliedMore = make(chan struct{})
	b.mayDrain = make(chan struct{})
	b.removed = map[uuid.UUID]bool{}
}

// poke wakes the sender.
func (b *outbox) poke() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *outbox) report(reports []ReplicaReport) {
	b.mu.Lock()
	b.reports, b.haveReports, b.sentReports = reports, true, false
	b.mu.Unlock()
	b.poke()
}

func (b *outbox) remove(topic uuid.UUID) {
	b.mu.Lock()
	b.removed[topic] = false
	b.mu.Unlock()
	b.poke()
}

// removedKnown forgets a confirmation that the cluster has taken note of.
func (b *outbox) removedKnown(topic uuid.UUID) {
	b.mu.Lock()
	defer b.mu.Unlock()

	delete(b.removed, topic)
}

func (b *outbox) apply(revision int64) {
	b.mu.Lock()
	if revision > b.applied {
		b.applied = revision
		close(b.appliedMore)
		b.appliedMore = make(chan struct{})
	}
	b.mu.Unlock()
	b.poke()
}

func (b *outbox) waitApplied(ctx context.Context, revision int64) error {
	for {
		b.mu.Lock()
		applied, more := b.applied, b.appliedMore
		b.mu.Unlock()
		if applied >= revision {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return fmt.Errorf("metadata of revision %d is still being applied: %w", revision, context.Cause(ctx))
		}
	}
}

func (b *outbox) controller() (controllerv1.ControllerServiceClient, string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()

	if b.client == nil {
		return nil, "", ErrNoController
	}
	return b.client, b.addr, nil
}

// awaitController is controller, but waits for a registration.
func (b *outbox) awaitController(ctx context.Context) (controllerv1.ControllerServiceClient, string, error) {
	for {
		b.mu.Lock()
		arrived := b.arrived
		b.mu.Unlock()
		if c, addr, err := b.controller(); err == nil {
			return c, addr, nil
		}
		select {
		case <-arrived:
		case <-ctx.Done():
			return nil, "", ErrNoController
		}
	}
}

// lost returns when the last registration ended.
func (b *outbox) lost() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.lostAt
}

func (b *outbox) epoch() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.brokerEpoch
}

func (b *outbox) confirmed(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()

	return !b.confirmAt.IsZero() && now.Sub(b.confirmAt) < b.timeout
}

// attach begins a registered connection: what the last one was told is to be
// told again.
func (b *outbox) attach(c controllerv1.ControllerServiceClient, addr string, epoch int64, timeout time.Duration) {
	b.mu.Lock()
	if b.client == nil {
		close(b.arrived)
	}
	b.client, b.addr, b.brokerEpoch, b.timeout = c, addr, epoch, timeout
	b.sentReports, b.sentApplied, b.sentLeaving = false, 0, false
	b.session, b.proposals, b.once = 0, nil, nil
	b.sentAt = map[uint64]time.Time{}
	b.asked = map[uint64][]chan struct{}{}
	for id := range b.removed {
		b.removed[id] = false
	}
	b.mu.Unlock()
	b.poke()
}

// detach ends it. Questions without an answer stay open for their askers'
// deadlines, or for the next connection.
func (b *outbox) detach() {
	b.mu.Lock()
	defer b.mu.Unlock()

	if b.client != nil {
		b.arrived, b.lostAt = make(chan struct{}), time.Now()
	}
	b.client, b.addr = nil, ""
	for _, waiting := range b.asked {
		b.asking = append(b.asking, waiting...)
	}
	b.asked = nil
}

// ask returns a channel that is closed when a heartbeat sent after now is
// answered.
func (b *outbox) ask() (<-chan struct{}, error) {
	b.mu.Lock()
	if b.client == nil {
		b.mu.Unlock()
		return nil, ErrNoController
	}
	ch := make(chan struct{})
	b.asking = append(b.asking, ch)
	b.mu.Unlock()
	b.poke()
	return ch, nil
}

// heartbeat composes the next heartbeat.
func (b *outbox) heartbeat(now time.Time, c Condition) *controllerv1.SessionRequest {
	b.mu.Lock()
	defer b.mu.Unlock()

	b.number++
	b.sentAt[b.number] = now
	if len(b.asking) > 0 {
		b.asked[b.number] = b.asking
		b.asking = nil
	}
	b.sentApplied = b.applied
	return &controllerv1.SessionRequest{Event: &controllerv1.SessionRequest_Heartbeat{Heartbeat: &controllerv1.BrokerHeartbeat{
		Number: b.number, AppliedRevision: b.applied, DiskLow: c.DiskLow, StorageFailed: c.StorageFailed,
	}}}
}

// heard takes the answer to heartbeat number, which answers all before it too.
func (b *outbox) heard(number uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()

	if at, ok := b.sentAt[number]; ok && at.After(b.confirmAt) {
		b.confirmAt = at
	}
	for n := range b.sentAt {
		if n <= number {
			delete(b.sentAt, n)
		}
	}
	for n, waiting := range b.asked {
		if n <= number {
			for _, ch := range waiting {
				close(ch)
			}
			delete(b.asked, n)
		}
	}
}

func (b *outbox) shutDown() <-chan struct{} {
	b.mu.Lock()
	b.leaving = true
	ch := b.mayDrain
	b.mu.Unlock()
	b.poke()
	return ch
}

func (b *outbox) drain() {
	b.mu.Lock()
	defer b.mu.Unlock()

	if !b.drained {
		b.drained = true
		close(b.mayDrain)
	}
}

// reportPiece bounds one message of a recovery report.
const reportPiece = 1000

// due takes what has not been sent on this connection, and says whether a
// heartbeat should follow at once.
func (b *outbox) due() (out []*controllerv1.SessionRequest, beat bool) {
	b.mu.Lock()
	defer b.mu.Unlock()

	if b.haveReports && !b.sentReports {
		b.sentReports = true
		out = append(out, reportMessages(b.reports)...)
	}
	var removed []string
	for id, sent := range b.removed {
		if !sent {
			removed = append(removed, id.String())
			b.removed[id] = true
		}
	}
	if len(removed) > 0 {
		out = append(out, &controllerv1.SessionRequest{Event: &controllerv1.SessionRequest_Removed{
			Removed: &controllerv1.TopicsRemoved{TopicIds: removed},
		}})
	}
	if b.leaving && !b.sentLeaving {
		b.sentLeaving = true
		out = append(out, &controllerv1.SessionRequest{Event: &controllerv1.SessionRequest_ShuttingDown{ShuttingDown: &controllerv1.ShuttingDown{}}})
	}
	out = append(out, b.dueProposalsLocked()...)
	out = append(out, b.once...)
	b.once = nil
	return out, len(b.asking) > 0 || b.applied > b.sentApplied
}

func reportMessages(reports []ReplicaReport) []*controllerv1.SessionRequest {
	var out []*controllerv1.SessionRequest
	for {
		n := min(len(reports), reportPiece)
		piece := &controllerv1.RecoveryReport{Complete: n == len(reports)}
		for _, r := range reports[:n] {
			piece.Replicas = append(piece.Replicas, r.message())
		}
		out = append(out, &controllerv1.SessionRequest{Event: &controllerv1.SessionRequest_Recovery{Recovery: piece}})
		if reports = reports[n:]; piece.GetComplete() {
			return out
		}
	}
}

func (r ReplicaReport) message() *controllerv1.ReplicaReport {
	shape := controllerv1.ReplicaShape_REPLICA_SHAPE_INTACT
	switch r.Shape {
	case Intact:
	case Suspect:
		shape = controllerv1.ReplicaShape_REPLICA_SHAPE_SUSPECT
	case Lost:
		shape = controllerv1.ReplicaShape_REPLICA_SHAPE_LOST
	}
	return &controllerv1.ReplicaReport{
		TopicId: r.Topic.String(), Partition: r.Partition, Shape: shape, LastEpoch: int64(r.LastEpoch),
		LogEndOffset: int64(r.LogEnd), HighWatermark: int64(r.HighWatermark), Reason: r.Reason,
	}
}

// removals returns the topics whose removal the cluster has not taken note of.
func (b *outbox) removals() map[uuid.UUID]bool {
	b.mu.Lock()
	defer b.mu.Unlock()

	return maps.Clone(b.removed)
}
