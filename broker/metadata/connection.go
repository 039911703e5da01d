package metadata

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
)

// A connection is one Session stream, from register to its end.
type connection struct {
	session *Session
	client  controllerv1.ControllerServiceClient
	addr    string

	registered bool
	timeout    time.Duration // of the session
	clusterID  string
	epoch      int64 // controller epoch of this connection

	snapshot []*controllerv1.MetadataObject // pieces gathered so far
	complete bool                           // the snapshot is published; deltas follow
}

type sessionStream = grpc.BidiStreamingClient[controllerv1.SessionRequest, controllerv1.SessionResponse]

var (
	errSilent = errors.New("the controller fell silent")
	errLeft   = errors.New("the session was ended by this broker")
)

// run speaks with the controller until the stream breaks, the controller falls
// silent, or ctx is done. In the last case the stream is half-closed, so that
// the controller sees a broker that left, not one that died.
func (c *connection) run(ctx context.Context) error {
	streamCtx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	silence := time.AfterFunc(c.deadline(), func() { cancel(errSilent) })
	defer silence.Stop()

	stream, err := c.client.Session(streamCtx)
	if err == nil {
		err = stream.Send(c.register())
	}
	if err != nil {
		return c.because(streamCtx, stream, err)
	}
	received := make(chan struct{})
	var recvErr error
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(received)
		recvErr = c.receive(stream, silence)
	})
	sendErr := c.send(ctx, stream, received)
	if sendErr != nil {
		cancel(sendErr)
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return c.because(streamCtx, stream, errors.Join(recvErr, ignoreEOF(sendErr)))
}

// because prefers why we broke the stream, then why the controller did.
func (c *connection) because(ctx context.Context, stream sessionStream, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errSilent) {
		return fmt.Errorf("controller %s: %w for %s", c.addr, errSilent, c.deadline())
	}
	if errors.Is(err, io.EOF) && stream != nil { // the status is at the receiving end
		if _, rerr := stream.Recv(); rerr != nil && !errors.Is(rerr, io.EOF) {
			return rerr
		}
	}
	return err
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, errLeft) {
		return nil
	}
	return err
}

// deadline is how long the controller may be silent: the broker must notice
// before it is fenced.
func (c *connection) deadline() time.Duration { return c.timeout * 2 / 3 }

func (c *connection) register() *controllerv1.SessionRequest {
	id := c.session.cfg.Identity
	broker, _ := proto.Clone(c.session.cfg.Broker).(*controllerv1.BrokerRecord)
	return &controllerv1.SessionRequest{Event: &controllerv1.SessionRequest_Register{Register: &controllerv1.Register{
		Broker: broker, ClusterId: id.ClusterID(), HighestControllerEpoch: id.HighestControllerEpoch(), DataEpoch: id.DataEpoch(),
		BrokerEpoch: c.session.Epoch(),
	}}}
}

// send empties the outbox and sends heartbeats until received is closed. When
// ctx is done it half-closes, and gives the controller a moment to end.
func (c *connection) send(ctx context.Context, stream sessionStream, received <-chan struct{}) error {
	box := &c.session.box
	tick := time.NewTicker(heartbeatEvery)
	defer tick.Stop()
	for {
		beat := false
		select {
		case <-received:
			return nil
		case <-ctx.Done():
			return leave(stream, received)
		case <-box.wake:
		case <-tick.C:
			beat = true
		}
		if _, _, err := box.controller(); err != nil {
			continue // nothing may come between register and its answer
		}
		events, now := box.due()
		for _, e := range events {
			if err := stream.Send(e); err != nil {
				return err
			}
		}
		if beat || now {
			if err := stream.Send(box.heartbeat(time.Now(), c.session.cfg.Condition())); err != nil {
				return err
			}
		}
	}
}

func leave(stream sessionStream, received <-chan struct{}) error {
	if err := stream.CloseSend(); err != nil {
		return err
	}
	t := time.NewTimer(heartbeatEvery)
	defer t.Stop()
	select {
	case <-received:
		return nil
	case <-t.C:
		return errLeft
	}
}

func (c *connection) receive(stream sessionStream, silence *time.Timer) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		silence.Reset(c.deadline())
		if err := c.handle(m); err != nil {
			return err
		}
	}
}

func (c *connection) handle(m *controllerv1.SessionResponse) error {
	if m.GetControllerEpoch() < c.epoch || m.GetControllerEpoch() < c.session.cfg.Identity.HighestControllerEpoch() {
		return fmt.Errorf("controller %s: %w: %d", c.addr, errStaleController, m.GetControllerEpoch())
	}
	c.epoch = m.GetControllerEpoch()
	if r := m.GetRegistered(); r != nil {
		return c.welcome(r)
	}
	if !c.registered {
		return fmt.Errorf("controller %s sent %T before it answered the registration", c.addr, m.GetEvent())
	}
	switch {
	case m.GetHeartbeat() != nil:
		c.session.box.heard(m.GetHeartbeat().GetNumber())
	case m.GetSnapshot() != nil:
		return c.piece(m.GetSnapshot())
	case m.GetDelta() != nil:
		return c.delta(m.GetDelta())
	case m.GetMayDrain() != nil:
		c.session.box.drain()
	case m.GetRejections() != nil:
		c.rejected(m.GetRejections())
	case m.GetHandOver() != nil:
		c.handOver(m.GetHandOver())
	}
	return nil
}

func (c *connection) welcome(r *controllerv1.Registered) error {
	s := c.session
	want := s.cfg.Identity.ClusterID()
	switch {
	case r.GetClusterId() == "":
		return fmt.Errorf("controller %s has no cluster yet", c.addr)
	case want != "" && want != r.GetClusterId():
		return fmt.Errorf("%w: the data directory belongs to cluster %s, controller %s to cluster %s: check the controllers' addresses and the data directory",
			ErrClusterMismatch, want, c.addr, r.GetClusterId())
	}
	if err := s.cfg.Identity.Remember(r.GetClusterId(), c.epoch, r.GetBrokerEpoch()); err != nil {
		return fmt.Errorf("remember cluster %s: %w", r.GetClusterId(), err)
	}
	c.clusterID = r.GetClusterId()
	if t := r.GetSessionTimeout().AsDuration(); t > 0 {
		c.timeout = t
	}
	c.registered = true
	s.attempts.succeeded()
	s.box.attach(c.client, c.addr, r.GetBrokerEpoch(), c.timeout)
	s.cfg.Log.Info().Str("controller", c.addr).Int64("broker_epoch", r.GetBrokerEpoch()).Int64("controller_epoch", c.epoch).
		Msg("registered with the controller")
	return nil
}

// piece gathers the snapshot; the last piece makes it the image. A snapshot is
// the whole: what is not in it is unknown, which is not the same as deleted.
func (c *connection) piece(p *controllerv1.MetadataSnapshot) error {
	c.snapshot = append(c.snapshot, p.GetObjects()...)
	if !p.GetComplete() {
		return nil
	}
	empty := &Image{Self: c.session.store.Load().Self, ClusterID: c.clusterID, Session: c.session.box.snapshotDone()}
	img, err := empty.Next(c.epoch, p.GetRevision(), c.snapshot)
	if err != nil {
		return err
	}
	c.snapshot, c.complete = nil, true
	c.publish(img)
	return nil
}

func (c *connection) delta(d *controllerv1.MetadataDelta) error {
	if !c.complete {
		return fmt.Errorf("controller %s sent a delta before its snapshot", c.addr)
	}
	old := c.session.store.Load()
	if d.GetRevision() <= old.Revision {
		return nil
	}
	img, err := old.Next(c.epoch, d.GetRevision(), d.GetObjects())
	if err != nil {
		return err
	}
	c.publish(img)
	return nil
}

func (c *connection) publish(img *Image) {
	for id := range c.session.box.removals() {
		if t, ok := img.TopicByID(id); !ok || !t.awaits(img.Self) {
			c.session.box.removedKnown(id)
		}
	}
	c.session.store.Publish(img)
}
