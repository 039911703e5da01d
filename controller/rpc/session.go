package rpc

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/controller/active"
	"github.com/runnelmq/runnel/controller/encoding"
	"github.com/runnelmq/runnel/controller/probe"
	"github.com/runnelmq/runnel/controller/state"
	"github.com/runnelmq/runnel/internal/refusal"
	"github.com/runnelmq/runnel/internal/rpcserver"
)

// pieceSize is about the largest piece of a snapshot: small enough that heartbeats between pieces are never late.
const pieceSize = 256 << 10

// maxPendingAcks is how many heartbeats wait for their answer. A newer one makes an older one needless.
const maxPendingAcks = 16

// Session implements controllerv1.ControllerServiceServer.
func (s *Service) Session(stream grpc.BidiStreamingServer[controllerv1.SessionRequest, controllerv1.SessionResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	reg, err := toRegistration(first.GetRegister())
	if err != nil {
		return err
	}
	if err := rpcserver.CheckBroker(stream.Context(), int32(reg.Broker.ID)); err != nil {
		return err
	}
	act, err := s.office.Active()
	if err != nil {
		return err
	}
	if seen := first.GetRegister().GetHighestControllerEpoch(); seen > act.Epoch() {
		return refusal.New(state.ErrClusterMismatch, nil, "the broker has seen a newer controller than this one: "+
			"either this controller's metadata was restored from an older copy, or the broker's data belongs elsewhere")
	}
	adm, err := act.Register(stream.Context(), reg)
	if err != nil {
		return err
	}
	defer act.Leave(adm)
	c := &conn{
		service: s, stream: stream, active: act, adm: adm,
		acks: make(chan uint64, maxPendingAcks), duties: newPile(),
		broke: make(chan error, 2), over: make(chan struct{}),
	}
	defer close(c.over)
	// Receiving ends when the stream's context does, which is when this handler has returned: nobody could wait for it here.
	s.readers.Go(c.receive)
	s.readers.Go(c.work)
	err = c.send()
	if stream.Context().Err() != nil {
		s.broke(stream.Context(), act, adm)
	}
	return err
}

// endWait is how long the end of a connection may come after the end of its streams.
const endWait = 100 * time.Millisecond

// broke tells the controller when a session ended as the end of a process ends it.
func (s *Service) broke(ctx context.Context, act *active.Active, adm *active.Admission) {
	if conn := probe.Caller(ctx); conn != nil && conn.Closed(endWait) {
		act.Leave(adm)
		act.Broke(context.WithoutCancel(ctx), adm)
	}
}

// A conn is one session's stream: one goroutine sends, one receives, and one does what takes longer, so that a slow store never
// delays a heartbeat.
type conn struct {
	service *Service
	stream  grpc.BidiStreamingServer[controllerv1.SessionRequest, controllerv1.SessionResponse]
	active  *active.Active
	adm     *active.Admission
	acks    chan uint64
	duties  *pile
	broke   chan error    // why receiving or working ended; room for both
	over    chan struct{} // closed when sending has ended

	// report is what came of a recovery report so far. It is the working goroutine's.
	report map[state.PartitionKey]state.ReplicaReport
}

// send tells the broker what it must know until the session ends, and returns why it did.
func (c *conn) send() error {
	err := c.put(&controllerv1.SessionResponse{Event: &controllerv1.SessionResponse_Registered{Registered: &controllerv1.Registered{
		ClusterId: c.adm.Cluster.String(), BrokerEpoch: c.adm.Epoch,
		SessionTimeout: durationpb.New(c.service.cfg.SessionTimeout), FeatureLevel: c.adm.Level,
	}}})
	if err != nil {
		return err
	}
	if err := c.snapshot(); err != nil {
		return err
	}
	mayDrain := c.adm.Session.MayDrain()
	for {
		select {
		case n := <-c.acks:
			// All that was committed before the question goes out before the answer: a broker that asks whether it is up to date
			// counts on it.
			if err = c.deltas(); err == nil {
				err = c.ack(n)
			}
		case <-c.adm.Feed.Ready():
			err = c.deltas()
		case <-c.adm.Session.Told():
			// After the changes it may refer to.
			if err = c.deltas(); err == nil {
				err = c.mail()
			}
		case <-mayDrain:
			mayDrain = nil
			err = c.put(&controllerv1.SessionResponse{Event: &controllerv1.SessionResponse_MayDrain{MayDrain: &controllerv1.MayDrain{}}})
		case <-c.adm.Session.Ended():
			return c.adm.Session.Cause()
		case <-c.active.Done():
			_, err := c.service.office.Active()
			return errors.Join(err, active.ErrEnded)
		case err := <-c.broke:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err != nil {
			return err
		}
	}
}

func (c *conn) put(resp *controllerv1.SessionResponse) error {
	resp.ControllerEpoch = c.active.Epoch()
	return c.stream.Send(resp)
}

func (c *conn) ack(n uint64) error {
	return c.put(&controllerv1.SessionResponse{Event: &controllerv1.SessionResponse_Heartbeat{Heartbeat: &controllerv1.ControllerHeartbeat{Number: n}}})
}

// snapshot sends the picture in pieces, and answers heartbeats between them.
func (c *conn) snapshot() error {
	snap := c.adm.Snapshot
	c.adm.Snapshot = state.Delta{} // a large cluster's is worth freeing early
	piece := &controllerv1.MetadataSnapshot{Revision: int64(snap.Revision)}
	size := 0
	flush := func() error {
		err := c.put(&controllerv1.SessionResponse{Event: &controllerv1.SessionResponse_Snapshot{Snapshot: piece}})
		piece, size = &controllerv1.MetadataSnapshot{Revision: int64(snap.Revision)}, 0
		for err == nil {
			select {
			case n := <-c.acks:
				err = c.ack(n)
			default:
				return nil
			}
		}
		return err
	}
	for _, o := range snap.Objects {
		obj := object(o)
		n := proto.Size(obj)
		if size > 0 && size+n > pieceSize {
			if err := flush(); err != nil {
				return err
			}
		}
		piece.Objects = append(piece.Objects, obj)
		size += n
	}
	piece.Complete = true
	return flush()
}

func (c *conn) deltas() error {
	deltas, err := c.adm.Feed.Take()
	if err != nil {
		return err
	}
	for _, d := range deltas {
		msg := &controllerv1.MetadataDelta{Revision: int64(d.Revision)}
		for _, o := range d.Objects {
			msg.Objects = append(msg.Objects, object(o))
		}
		for _, id := range d.Deleted {
			msg.Objects = append(msg.Objects, &controllerv1.MetadataObject{
				Revision: int64(d.Revision), Object: &controllerv1.MetadataObject_DeletedTopicId{DeletedTopicId: id.String()},
			})
		}
		if err := c.put(&controllerv1.SessionResponse{Event: &controllerv1.SessionResponse_Delta{Delta: msg}}); err != nil {
			return err
		}
	}
	return nil
}

func object(o state.Object) *controllerv1.MetadataObject {
	m := &controllerv1.MetadataObject{Revision: int64(o.Modified())}
	switch o := o.(type) {
	case *state.Broker:
		m.Object = &controllerv1.MetadataObject_Broker{Broker: encoding.Broker(o)}
	case *state.Topic:
		m.Object = &controllerv1.MetadataObject_Topic{Topic: encoding.Topic(o)}
	case *state.Partition:
		m.Object = &controllerv1.MetadataObject_Partition{Partition: encoding.Partition(o)}
	}
	return m
}

// receive takes what the broker sends, until the stream ends. It waits for nothing else: behind what waits may be heartbeats.
func (c *conn) receive() {
	defer c.duties.end()
	for {
		req, err := c.stream.Recv()
		if err != nil {
			c.broke <- err
			return
		}
		hb := req.GetHeartbeat()
		if hb == nil {
			c.adm.Session.Heard()
			if !c.duties.add(req) {
				c.broke <- ErrFlooded
				return
			}
			continue
		}
		c.active.Heard(c.adm.Session, state.Revision(hb.GetAppliedRevision()), hb.GetDiskLow(), hb.GetStorageFailed())
		select {
		case c.acks <- hb.GetNumber():
		default: // sending is stuck; the broker will notice by itself
		}
	}
}

// work does what the broker's messages ask for, in order, until receiving ends.
func (c *conn) work() {
	for {
		reqs, more := c.duties.take()
		for _, req := range reqs {
			if err := c.duty(req); err != nil {
				c.broke <- err
				return
			}
		}
		if len(reqs) > 0 {
			continue
		}
		if !more {
			return
		}
		select {
		case <-c.duties.wake:
		case <-c.over:
			return
		}
	}
}

func (c *conn) duty(req *controllerv1.SessionRequest) error {
	ctx := c.stream.Context()
	switch ev := req.GetEvent().(type) {
	case *controllerv1.SessionRequest_Recovery:
		if c.report == nil {
			c.report = map[state.PartitionKey]state.ReplicaReport{}
		}
		if err := addReport(c.report, ev.Recovery); err != nil || !ev.Recovery.GetComplete() {
			return err
		}
		whole := c.report
		c.report = nil // it is the controller's from here on
		return c.active.Recovered(ctx, c.adm, whole)
	case *controllerv1.SessionRequest_Removed:
		ids := make([]uuid.UUID, 0, len(ev.Removed.GetTopicIds()))
		for _, text := range ev.Removed.GetTopicIds() {
			id, err := uuid.Parse(text)
			if err != nil {
				return invalid("removed topic id %.100q is no UUID", text)
			}
			ids = append(ids, id)
		}
		return c.active.Removed(ctx, c.adm, ids)
	case *controllerv1.SessionRequest_ShuttingDown:
		return c.active.ShuttingDown(ctx, c.adm)
	case *controllerv1.SessionRequest_Proposals:
		proposals, err := toProposals(ev.Proposals)
		if err != nil {
			return err
		}
		return c.active.Propose(ctx, c.adm, proposals)
	case *controllerv1.SessionRequest_Leadership:
		r := ev.Leadership
		key, err := toKey("leadership", r.GetTopicId(), r.GetPartition())
		if err != nil {
			return err
		}
		return c.active.Replace(ctx, c.adm, active.LeadershipRequest{Key: key, Epoch: r.GetLeaderEpoch(), Reason: r.GetReason(), Suspect: r.GetSuspect()})
	case *controllerv1.SessionRequest_Released:
		r := ev.Released
		key, err := toKey("released", r.GetTopicId(), r.GetPartition())
		if err != nil {
			return err
		}
		return c.active.Released(ctx, c.adm, key, r.GetLeaderEpoch(), r.GetReleased())
	case *controllerv1.SessionRequest_Register:
		return invalid("a session registers once, with its first message")
	default:
		return invalid("a message of a session that this controller does not know, or that is empty")
	}
}

func addReport(to map[state.PartitionKey]state.ReplicaReport, r *controllerv1.RecoveryReport) error {
	for _, rep := range r.GetReplicas() {
		id, err := uuid.Parse(rep.GetTopicId())
		if err != nil {
			return invalid("recovery report: topic id %.100q is no UUID", rep.GetTopicId())
		}
		shape := state.ShapeLost
		switch rep.GetShape() {
		case controllerv1.ReplicaShape_REPLICA_SHAPE_INTACT:
			shape = state.ShapeIntact
		case controllerv1.ReplicaShape_REPLICA_SHAPE_SUSPECT:
			shape = state.ShapeSuspect
		case controllerv1.ReplicaShape_REPLICA_SHAPE_LOST:
		default:
			return invalid("recovery report: replica shape %v", rep.GetShape())
		}
		to[state.PartitionKey{Topic: id, Number: rep.GetPartition()}] = state.ReplicaReport{
			Shape: shape, LastEpoch: rep.GetLastEpoch(), LogEndOffset: rep.GetLogEndOffset(), HighWatermark: rep.GetHighWatermark(),
		}
	}
	return nil
}

// toRegistration reads a session's first message.
func toRegistration(r *controllerv1.Register) (state.Registration, error) {
	rec := r.GetBroker()
	if rec == nil {
		return state.Registration{}, invalid("the first message of a session must be register, with a broker")
	}
	b, err := encoding.ToBroker(rec, 0)
	if err != nil || b.Incarnation == uuid.Nil || b.DirectoryID == uuid.Nil {
		return state.Registration{}, invalid("register: incarnation and directory_id must be UUIDs: %q, %q", rec.GetIncarnation(), rec.GetDirectoryId())
	}
	if err := rpcserver.CheckRoutable(b.ClientAddress); err != nil {
		return state.Registration{}, invalid("register: advertised client address: %v", err)
	}
	if b.InternalAddress != "" {
		if err := rpcserver.CheckRoutable(b.InternalAddress); err != nil {
			return state.Registration{}, invalid("register: advertised internal address: %v", err)
		}
	}
	reg := state.Registration{Broker: *b, DataEpoch: r.GetDataEpoch(), Epoch: r.GetBrokerEpoch()}
	if r.GetClusterId() != "" {
		if reg.ClusterID, err = uuid.Parse(r.GetClusterId()); err != nil {
			return reg, invalid("register: cluster_id %.100q is no UUID", r.GetClusterId())
		}
	}
	return reg, nil
}
