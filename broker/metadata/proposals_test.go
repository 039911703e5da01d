package metadata_test

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/uuid"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/metadata/metadatatest"
)

// handler notes what a controller wants.
type handler struct {
	// mu guards the fields below
	mu sync.Mutex

	rejections []metadata.Rejection
	handOvers  []metadata.HandOver
}

func (h *handler) Rejected(r metadata.Rejection) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rejections = append(h.rejections, r)
}

func (h *handler) HandOver(o metadata.HandOver) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.handOvers = append(h.handOvers, o)
}

// A proposal goes to the session in which it was made, once, and to no other:
// the next snapshot has settled it.
func TestPropose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		c, id := w.controllers["a"], uuid.New()
		propose := func(number, session uint64) {
			w.Propose(metadata.Proposal{
				Topic: id, Partition: 3, LeaderEpoch: 4, PartitionEpoch: 5, ISR: []metadata.ISRMember{{ID: 1, Epoch: 7}, {ID: 2, Epoch: 8}},
				Number: number, Session: session,
			})
			settle()
		}
		propose(1, 0)
		defer w.run(t)()
		w.await(t, "a", registered)
		settle()
		first := w.store.Load().Session
		if first == 0 || len(c.Heard().Proposals) != 0 {
			t.Fatalf("session %d, heard %v", first, c.Heard().Proposals)
		}
		propose(2, first)
		got := c.Heard().Proposals
		if len(got) != 1 || got[0].GetTopicId() != id.String() || got[0].GetPartition() != 3 || got[0].GetLeaderEpoch() != 4 || got[0].GetPartitionEpoch() != 5 ||
			got[0].GetNumber() != 2 || len(got[0].GetIsr()) != 2 || got[0].GetIsr()[1].GetBrokerId() != 2 || got[0].GetIsr()[1].GetBrokerEpoch() != 8 {
			t.Errorf("heard %v", got)
		}
		c.Put(metadatatest.TopicObjects(id, "orders", 1, 1, 1)...)
		settle()
		if s := w.store.Load().Session; s != first {
			t.Errorf("a delta made it session %d", s)
		}
		c.Set(metadatatest.Refuse(errors.New("away")))
		c.Break(errors.New("broken"))
		settle()
		propose(3, first) // while there is none
		c.Set(metadatatest.Refuse(nil))
		w.await(t, "a", func(h metadatatest.Heard) bool { return h.Sessions == 1 && len(h.Registers) > 1 })
		settle()
		second := w.store.Load().Session
		if second <= first {
			t.Errorf("session %d after %d", second, first)
		}
		propose(4, first) // by a partition that has not seen the snapshot yet
		propose(5, second)
		var numbers []uint64
		for _, p := range c.Heard().Proposals {
			numbers = append(numbers, p.GetNumber())
		}
		if len(numbers) != 2 || numbers[1] != 5 {
			t.Errorf("heard of proposals %v, want 2 and 5", numbers)
		}
	})
}

func TestControllerAndLeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		c, id, h := w.controllers["a"], uuid.New(), &handler{}
		w.Handle(h)
		if w.Timeout() <= 0 {
			t.Error("no session timeout before the first session")
		}
		w.AskLeader(metadata.LeadershipRequest{Topic: id}) // nobody is there to hear it
		defer w.run(t)()
		w.await(t, "a", registered)
		settle()
		w.AskLeader(metadata.LeadershipRequest{Topic: id, Partition: 1, LeaderEpoch: 2, Reason: "corrupt", Suspect: true})
		w.Release(metadata.Released{Topic: id, Partition: 1, LeaderEpoch: 2, Released: true})
		settle()
		heard := c.Heard()
		if len(heard.Asked) != 1 || heard.Asked[0].GetReason() != "corrupt" || !heard.Asked[0].GetSuspect() || heard.Asked[0].GetLeaderEpoch() != 2 {
			t.Errorf("asked %v", heard.Asked)
		}
		if len(heard.Released) != 1 || !heard.Released[0].GetReleased() || heard.Released[0].GetPartition() != 1 {
			t.Errorf("released %v", heard.Released)
		}
		c.Reject(&controllerv1.IsrRejection{TopicId: id.String(), Partition: 1, Number: 9, Reason: "fenced", PartitionEpoch: 6})
		c.Reject(&controllerv1.IsrRejection{TopicId: "no id"})
		c.HandOver(&controllerv1.HandOver{TopicId: id.String(), Partition: 1, LeaderEpoch: 2, To: 3})
		c.HandOver(&controllerv1.HandOver{TopicId: "no id"})
		settle()
		h.mu.Lock()
		defer h.mu.Unlock()
		if len(h.rejections) != 1 || h.rejections[0] != (metadata.Rejection{Topic: id, Partition: 1, Number: 9, Reason: "fenced", PartitionEpoch: 6}) {
			t.Errorf("rejections %+v", h.rejections)
		}
		if len(h.handOvers) != 1 || h.handOvers[0] != (metadata.HandOver{Topic: id, Partition: 1, LeaderEpoch: 2, To: 3}) {
			t.Errorf("hand-overs %+v", h.handOvers)
		}
	})
}
