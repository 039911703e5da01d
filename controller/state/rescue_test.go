package state

import (
	"errors"
	"testing"
)

// While a broker that holds the most does not answer, no copy with less is chosen
// unasked: it may be alive. One that holds no more than others hinders nobody.
func TestRescue_silent(t *testing.T) {
	for name, tt := range map[string]struct {
		silent int64 // what the silent broker 3 reported as its end; -1: nothing
		from   BrokerID
		want   BrokerID
	}{
		"it has more":                    {90, NoLeader, NoLeader},
		"it has more, and is chosen":     {90, 3, 3},
		"it has more, and another is":    {90, 1, 1},
		"it has as much":                 {70, NoLeader, 2},
		"it has less":                    {10, NoLeader, 2},
		"nobody knows what it has":       {-1, NoLeader, 2},
		"nobody knows, and it is chosen": {-1, 3, 3},
	} {
		b := withBrokers(t, 3)
		k := PartitionKey{b.newTopic("t", 1, 3, nil), 0}
		p := b.Partition(k).clone()
		p.Leader, p.ISR, p.ELR = NoLeader, nil, nil
		b.commit([]Change{put(p, p.Revision)})
		reports := Reports{1: {k: {LastEpoch: 1, LogEndOffset: 40}}, 2: {k: {LastEpoch: 1, LogEndOffset: 70}}}
		if tt.silent >= 0 {
			reports[3] = map[PartitionKey]ReplicaReport{k: {LastEpoch: 1, LogEndOffset: tt.silent}}
		}
		r, err := b.Rescue(Ref{Name: "t"}, 0, tt.from, reports, map[BrokerID]bool{3: true})
		if r.Leader != tt.want || (tt.want == NoLeader) != errors.Is(err, ErrInvalidRequest) || len(r.Copies) != 3 {
			t.Errorf("%s: elects %d, want %d; %v", name, r.Leader, tt.want, err)
		}
		if changed := r.Change.Object != nil; changed != (tt.want != NoLeader) {
			t.Errorf("%s: %+v", name, r.Change)
		}
	}
}
