package metadata

import (
	"time"

	"github.com/google/uuid"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/internal/record"
)

// An ISRMember is one member of a proposed ISR.
type ISRMember struct {
	ID    BrokerID
	Epoch int64 // the registration under which it caught up
}

// A Proposal asks the controller for another ISR of a partition this broker
// leads. The answer is the image in which the partition epoch moved, a
// Rejection, or the next snapshot.
type Proposal struct {
	Topic          uuid.UUID
	Partition      int32
	LeaderEpoch    record.Epoch
	PartitionEpoch int64       // it starts from
	ISR            []ISRMember // all of it, the leader included
	Number         uint64      // never used again in this incarnation
	// Session is that of the image it was made from. It is never sent in
	// another one: a later snapshot has settled it, and must stay right.
	Session uint64
}

// A Rejection is a definite no to a proposal.
type Rejection struct {
	Topic          uuid.UUID
	Partition      int32
	Number         uint64
	Reason         string
	PartitionEpoch int64 // that stands
}

// A LeadershipRequest asks the controller to let another broker lead.
type LeadershipRequest struct {
	Topic       uuid.UUID
	Partition   int32
	LeaderEpoch record.Epoch
	Reason      string // for people
	Suspect     bool   // what is stored here may lack something: it leaves the ISR as well
}

// A HandOver asks a leader to get ready to give its leadership away.
type HandOver struct {
	Topic       uuid.UUID
	Partition   int32
	LeaderEpoch record.Epoch
	To          BrokerID
}

// A Released answers a HandOver. When Released is false the leader goes on.
type Released struct {
	Topic       uuid.UUID
	Partition   int32
	LeaderEpoch record.Epoch
	Released    bool
}

// A Handler hears what the controller wants of a leader. It must not block.
type Handler interface {
	Rejected(r Rejection)
	HandOver(h HandOver)
}

// Handle makes h hear what the controller wants. Call it before Run.
func (s *Session) Handle(h Handler) { s.handler = h }

// Propose sends proposals, when the session in which they were made still
// stands; else the next snapshot is their answer.
func (s *Session) Propose(ps ...Proposal) {
	s.box.mu.Lock()
	s.box.proposals = append(s.box.proposals, ps...)
	s.box.mu.Unlock()
	s.box.poke()
}

// AskLeader asks for another leader. It is sent at most once: who still wants it
// later asks again.
func (s *Session) AskLeader(r LeadershipRequest) {
	s.box.say(&controllerv1.SessionRequest{Event: &controllerv1.SessionRequest_Leadership{Leadership: &controllerv1.LeadershipRequest{
		TopicId: r.Topic.String(), Partition: r.Partition, LeaderEpoch: int64(r.LeaderEpoch), Reason: r.Reason, Suspect: r.Suspect,
	}}})
}

// Release answers a HandOver, if its session still stands.
func (s *Session) Release(r Released) {
	s.box.say(&controllerv1.SessionRequest{Event: &controllerv1.SessionRequest_Released{Released: &controllerv1.Released{
		TopicId: r.Topic.String(), Partition: r.Partition, LeaderEpoch: int64(r.LeaderEpoch), Released: r.Released,
	}}})
}

// Timeout returns the session timeout: for so long one answer of the controller
// vouches for this broker.
func (s *Session) Timeout() time.Duration {
	s.box.mu.Lock()
	defer s.box.mu.Unlock()

	if s.box.timeout <= 0 {
		return firstTimeout
	}
	return s.box.timeout
}

// say queues a message that concerns only the session that stands now.
func (b *outbox) say(m *controllerv1.SessionRequest) {
	b.mu.Lock()
	if b.client != nil {
		b.once = append(b.once, m)
	}
	b.mu.Unlock()
	b.poke()
}

// snapshotDone begins the part of a session in which proposals may be sent, and
// returns its number. It comes before the snapshot's image is published.
func (b *outbox) snapshotDone() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()

	b.snapshots++
	b.session = b.snapshots
	return b.session
}

// proposalPiece bounds one message of proposals.
const proposalPiece = 1000

// dueProposalsLocked takes the proposals that belong to this session; the others
// are settled by its snapshot.
func (b *outbox) dueProposalsLocked() []*controllerv1.SessionRequest {
	var out []*controllerv1.SessionRequest
	var piece *controllerv1.IsrProposals
	for _, p := range b.proposals {
		if p.Session != b.session {
			continue
		}
		if piece == nil || len(piece.Proposals) == proposalPiece {
			piece = &controllerv1.IsrProposals{}
			out = append(out, &controllerv1.SessionRequest{Event: &controllerv1.SessionRequest_Proposals{Proposals: piece}})
		}
		piece.Proposals = append(piece.Proposals, p.message())
	}
	b.proposals = nil
	return out
}

func (p *Proposal) message() *controllerv1.IsrProposal {
	m := &controllerv1.IsrProposal{
		TopicId: p.Topic.String(), Partition: p.Partition, LeaderEpoch: int64(p.LeaderEpoch), PartitionEpoch: p.PartitionEpoch, Number: p.Number,
	}
	for _, i := range p.ISR {
		m.Isr = append(m.Isr, &controllerv1.IsrMember{BrokerId: int32(i.ID), BrokerEpoch: i.Epoch})
	}
	return m
}

// rejected passes rejections on. One whose topic can't be read concerns nobody.
func (c *connection) rejected(rs *controllerv1.IsrRejections) {
	for _, r := range rs.GetRejections() {
		id, err := uuid.Parse(r.GetTopicId())
		if err != nil || c.session.handler == nil {
			continue
		}
		c.session.handler.Rejected(Rejection{
			Topic: id, Partition: r.GetPartition(), Number: r.GetNumber(), Reason: r.GetReason(), PartitionEpoch: r.GetPartitionEpoch(),
		})
	}
}

func (c *connection) handOver(h *controllerv1.HandOver) {
	id, err := uuid.Parse(h.GetTopicId())
	if err != nil || c.session.handler == nil {
		return
	}
	c.session.handler.HandOver(HandOver{
		Topic: id, Partition: h.GetPartition(), LeaderEpoch: record.Epoch(h.GetLeaderEpoch()), To: BrokerID(h.GetTo()),
	})
}
