// Package metadatatest is a controller for tests of brokers: it speaks the
// session, keeps its state in memory, and does as the test says.
package metadatatest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
)

// A Controller is an active controller, or what a test makes of it. The zero
// value is not usable; see New.
type Controller struct {
	controllerv1.UnimplementedControllerServiceServer

	receivers sync.WaitGroup
	ensuring  chan struct{} // holds a token while an internal topic is looked for

	// mu guards the fields below
	mu sync.Mutex

	// What it says of itself. Change them with Set.
	epoch     int64
	clusterID string
	timeout   time.Duration
	refuse    error // what a session ends with at once
	mute      bool  // answers no heartbeat

	revision int64
	objects  map[string]*controllerv1.MetadataObject
	sessions map[*session]bool
	next     int64 // broker epoch
	producer int64 // next producer id, less 1

	// What it heard.
	registers []*controllerv1.Register
	reports   []*controllerv1.ReplicaReport
	reported  int // complete reports
	removed   []string
	applied   int64
	leaving   int
	ended     int // sessions ended by a half-close
	proposals []*controllerv1.IsrProposal
	asked     []*controllerv1.LeadershipRequest
	released  []*controllerv1.Released
	condition *controllerv1.BrokerHeartbeat
	changed   chan struct{} // closed when any of it changes
}

// New returns an active controller of a new cluster.
func New() *Controller {
	return &Controller{
		epoch: 1, clusterID: uuid.NewString(), timeout: 3 * time.Second, revision: 1,
		objects: map[string]*controllerv1.MetadataObject{}, sessions: map[*session]bool{}, changed: make(chan struct{}),
		ensuring: make(chan struct{}, 1),
	}
}

// Wait returns when no goroutine of the controller runs any more: call it after
// its server has stopped.
func (c *Controller) Wait() { c.receivers.Wait() }

// A Knob changes what the controller says of itself.
type Knob func(*Controller)

// Epoch sets the controller's epoch.
func Epoch(n int64) Knob { return func(c *Controller) { c.epoch = n } }

// Cluster sets the cluster's id.
func Cluster(id string) Knob { return func(c *Controller) { c.clusterID = id } }

// Refuse makes sessions end at once with err; nil ends that.
func Refuse(err error) Knob { return func(c *Controller) { c.refuse = err } }

// Mute makes the controller answer no heartbeats, as if it hung.
func Mute(on bool) Knob { return func(c *Controller) { c.mute = on } }

// Set turns knobs.
func (c *Controller) Set(knobs ...Knob) {
	c.mu.Lock()
	defer c.mu.Unlock()

	for _, k := range knobs {
		k(c)
	}
}

// ClusterID returns the cluster's id.
func (c *Controller) ClusterID() string {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.clusterID
}

// Heard is what brokers said so far.
type Heard struct {
	Registers []*controllerv1.Register
	Reports   []*controllerv1.ReplicaReport
	Reported  int // complete reports
	Removed   []string
	Applied   int64 // highest revision
	Leaving   int
	Ended     int // sessions that were ended in an orderly way
	Sessions  int // open now
	Proposals []*controllerv1.IsrProposal
	Asked     []*controllerv1.LeadershipRequest
	Released  []*controllerv1.Released
	Last      *controllerv1.BrokerHeartbeat
}

// Heard returns what brokers said so far.
func (c *Controller) Heard() Heard {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.heardLocked()
}

func (c *Controller) heardLocked() Heard {
	return Heard{
		Registers: slices.Clone(c.registers), Reports: slices.Clone(c.reports), Reported: c.reported, Removed: slices.Clone(c.removed),
		Applied: c.applied, Leaving: c.leaving, Ended: c.ended, Sessions: len(c.sessions), Last: c.condition,
		Proposals: slices.Clone(c.proposals), Asked: slices.Clone(c.asked), Released: slices.Clone(c.released),
	}
}

// Await returns when what was heard is as the test wants it, or the error of
// ctx.
func (c *Controller) Await(ctx context.Context, want func(Heard) bool) error {
	for {
		c.mu.Lock()
		ok, changed := want(c.heardLocked()), c.changed
		c.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// hear changes what was heard.
func (c *Controller) hear(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()

	f()
	close(c.changed)
	c.changed = make(chan struct{})
}

// Put stores objects in one revision and tells every session; it returns the
// revision.
func (c *Controller) Put(objects ...*controllerv1.MetadataObject) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.putLocked(objects...)
}

func (c *Controller) putLocked(objects ...*controllerv1.MetadataObject) int64 {
	c.revision++
	for _, o := range objects {
		o.Revision = c.revision
		if id := o.GetDeletedTopicId(); id != "" {
			for k, have := range c.objects {
				if have.GetTopic().GetTopicId() == id || have.GetPartition().GetTopicId() == id {
					delete(c.objects, k)
				}
			}
			continue
		}
		c.objects[name(o)] = o
	}
	for s := range c.sessions {
		s.push(&controllerv1.SessionResponse{ControllerEpoch: c.epoch, Event: &controllerv1.SessionResponse_Delta{
			Delta: &controllerv1.MetadataDelta{Revision: c.revision, Objects: objects},
		}})
	}
	return c.revision
}

// Delta tells every session of objects as they are, as of a revision that the
// test chooses, and keeps nothing of it.
func (c *Controller) Delta(revision int64, objects ...*controllerv1.MetadataObject) {
	c.tell(&controllerv1.SessionResponse{Event: &controllerv1.SessionResponse_Delta{
		Delta: &controllerv1.MetadataDelta{Revision: revision, Objects: objects},
	}})
}

func name(o *controllerv1.MetadataObject) string {
	switch {
	case o.GetBroker() != nil:
		return fmt.Sprintf("broker %d", o.GetBroker().GetBrokerId())
	case o.GetTopic() != nil:
		return "topic " + o.GetTopic().GetTopicId()
	default:
		return fmt.Sprintf("partition %s/%d", o.GetPartition().GetTopicId(), o.GetPartition().GetPartition())
	}
}

// Break ends every session with err.
func (c *Controller) Break(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	for s := range c.sessions {
		s.end(err)
	}
}

// MayDrain tells every broker that it may drain.
func (c *Controller) MayDrain() {
	c.tell(&controllerv1.SessionResponse{Event: &controllerv1.SessionResponse_MayDrain{MayDrain: &controllerv1.MayDrain{}}})
}

// Reject tells every broker that a proposal was not carried out.
func (c *Controller) Reject(r *controllerv1.IsrRejection) {
	c.tell(&controllerv1.SessionResponse{Event: &controllerv1.SessionResponse_Rejections{
		Rejections: &controllerv1.IsrRejections{Rejections: []*controllerv1.IsrRejection{r}},
	}})
}

// HandOver asks every broker to give a leadership away.
func (c *Controller) HandOver(h *controllerv1.HandOver) {
	c.tell(&controllerv1.SessionResponse{Event: &controllerv1.SessionResponse_HandOver{HandOver: h}})
}

// tell sends a message over every session.
func (c *Controller) tell(m *controllerv1.SessionResponse) {
	c.mu.Lock()
	defer c.mu.Unlock()

	m.ControllerEpoch = c.epoch
	for s := range c.sessions {
		s.push(m)
	}
}

// A session is one stream.
type session struct {
	wake chan struct{}
	stop chan struct{}

	// mu guards the fields below
	mu sync.Mutex

	queue   []*controllerv1.SessionResponse
	err     error
	stopped bool
}

func (s *session) push(m *controllerv1.SessionResponse) {
	s.mu.Lock()
	s.queue = append(s.queue, m)
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *session) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if !s.stopped {
		s.stopped, s.err = true, err
		close(s.stop)
	}
}

func (s *session) take() []*controllerv1.SessionResponse {
	s.mu.Lock()
	defer s.mu.Unlock()

	q := s.queue
	s.queue = nil
	return q
}

// Session implements controllerv1.ControllerServiceServer.
func (c *Controller) Session(stream grpc.BidiStreamingServer[controllerv1.SessionRequest, controllerv1.SessionResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	s := &session{wake: make(chan struct{}, 1), stop: make(chan struct{})}
	if err := c.register(s, first.GetRegister()); err != nil {
		return err
	}
	defer c.hear(func() { delete(c.sessions, s) })
	received := make(chan struct{})
	// gRPC lets go of a blocked receive only after the handler has returned.
	c.receivers.Go(func() {
		defer close(received)
		for {
			m, err := stream.Recv()
			if err != nil {
				if stream.Context().Err() == nil {
					c.hear(func() { c.ended++ })
				}
				return
			}
			c.take(s, m)
		}
	})
	for {
		for _, m := range s.take() {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
		select {
		case <-s.wake:
		case <-received:
			return nil
		case <-s.stop:
			return s.err
		case <-stream.Context().Done():
			return context.Cause(stream.Context())
		}
	}
}

func (c *Controller) register(s *session, r *controllerv1.Register) error {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.registers = append(c.registers, r)
	close(c.changed)
	c.changed = make(chan struct{})
	if c.refuse != nil {
		return c.refuse
	}
	b, _ := proto.Clone(r.GetBroker()).(*controllerv1.BrokerRecord)
	if old := c.objects[fmt.Sprintf("broker %d", b.GetBrokerId())].GetBroker(); old.GetIncarnation() == b.GetIncarnation() {
		b = old
	} else {
		c.next++
		b.BrokerEpoch, b.Phase = c.next, controllerv1.BrokerPhase_BROKER_PHASE_FENCED
		c.putLocked(&controllerv1.MetadataObject{Object: &controllerv1.MetadataObject_Broker{Broker: b}})
	}
	s.push(&controllerv1.SessionResponse{ControllerEpoch: c.epoch, Event: &controllerv1.SessionResponse_Registered{
		Registered: &controllerv1.Registered{ClusterId: c.clusterID, BrokerEpoch: b.GetBrokerEpoch(), SessionTimeout: durationpb.New(c.timeout), FeatureLevel: 1},
	}})
	// In pieces of one, so that putting them together is tested all the time.
	for _, o := range c.objects {
		s.push(&controllerv1.SessionResponse{ControllerEpoch: c.epoch, Event: &controllerv1.SessionResponse_Snapshot{
			Snapshot: &controllerv1.MetadataSnapshot{Revision: c.revision, Objects: []*controllerv1.MetadataObject{o}},
		}})
	}
	s.push(&controllerv1.SessionResponse{ControllerEpoch: c.epoch, Event: &controllerv1.SessionResponse_Snapshot{
		Snapshot: &controllerv1.MetadataSnapshot{Revision: c.revision, Complete: true},
	}})
	c.sessions[s] = true
	return nil
}

func (c *Controller) take(s *session, m *controllerv1.SessionRequest) {
	c.hear(func() {
		switch {
		case m.GetHeartbeat() != nil:
			c.condition = m.GetHeartbeat()
			c.applied = max(c.applied, m.GetHeartbeat().GetAppliedRevision())
			if !c.mute {
				s.push(&controllerv1.SessionResponse{ControllerEpoch: c.epoch, Event: &controllerv1.SessionResponse_Heartbeat{
					Heartbeat: &controllerv1.ControllerHeartbeat{Number: m.GetHeartbeat().GetNumber()},
				}})
			}
		case m.GetRecovery() != nil:
			c.reports = append(c.reports, m.GetRecovery().GetReplicas()...)
			if m.GetRecovery().GetComplete() {
				c.reported++
			}
		case m.GetRemoved() != nil:
			c.removed = append(c.removed, m.GetRemoved().GetTopicIds()...)
		case m.GetShuttingDown() != nil:
			c.leaving++
		case m.GetProposals() != nil:
			c.proposals = append(c.proposals, m.GetProposals().GetProposals()...)
		case m.GetLeadership() != nil:
			c.asked = append(c.asked, m.GetLeadership())
		case m.GetReleased() != nil:
			c.released = append(c.released, m.GetReleased())
		}
	})
}
