package rpc

import (
	"github.com/google/uuid"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/controller/active"
	"github.com/runnelmq/runnel/controller/state"
)

// mail tells the broker what only it is told: rejections and hand-overs.
func (c *conn) mail() error {
	rejections := &controllerv1.IsrRejections{}
	for _, m := range c.adm.Session.Mail() {
		switch m := m.(type) {
		case *state.RejectedError:
			rejections.Rejections = append(rejections.Rejections, &controllerv1.IsrRejection{
				TopicId: m.Key.Topic.String(), Partition: m.Key.Number, Number: m.Number, Reason: m.Reason, PartitionEpoch: m.PartitionEpoch,
			})
		case *active.HandOver:
			err := c.put(&controllerv1.SessionResponse{Event: &controllerv1.SessionResponse_HandOver{HandOver: &controllerv1.HandOver{
				TopicId: m.Key.Topic.String(), Partition: m.Key.Number, LeaderEpoch: m.Epoch, To: int32(m.To),
			}}})
			if err != nil {
				return err
			}
		}
	}
	if len(rejections.GetRejections()) == 0 {
		return nil
	}
	return c.put(&controllerv1.SessionResponse{Event: &controllerv1.SessionResponse_Rejections{Rejections: rejections}})
}

// toProposals reads what a leader proposes.
func toProposals(in *controllerv1.IsrProposals) ([]state.Proposal, error) {
	out := make([]state.Proposal, 0, len(in.GetProposals()))
	for _, p := range in.GetProposals() {
		key, err := toKey("proposal", p.GetTopicId(), p.GetPartition())
		if err != nil {
			return nil, err
		}
		prop := state.Proposal{Key: key, LeaderEpoch: p.GetLeaderEpoch(), PartitionEpoch: p.GetPartitionEpoch(), Number: p.GetNumber()}
		for _, m := range p.GetIsr() {
			prop.ISR = append(prop.ISR, state.Member{ID: state.BrokerID(m.GetBrokerId()), Epoch: m.GetBrokerEpoch()})
		}
		out = append(out, prop)
	}
	return out, nil
}

func toKey(what, topic string, partition int32) (state.PartitionKey, error) {
	id, err := uuid.Parse(topic)
	if err != nil {
		return state.PartitionKey{}, invalid("%s: topic id %.100q is no UUID", what, topic)
	}
	return state.PartitionKey{Topic: id, Number: partition}, nil
}
