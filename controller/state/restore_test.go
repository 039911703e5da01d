package state

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
)

// Whatever was given since the backup, or after it was restored before, is not
// given again, also when the clock is wrong and it is restored once only. Numbers
// stay those that JSON can tell.
func TestRestored_givesNothingAgain(t *testing.T) {
	const used = epochBlock / 2 // since
	at := time.Date(2031, 5, 1, 0, 0, 0, 0, time.UTC)
	numbers := func(now time.Time, e int64) map[string]int64 {
		p, _ := Restored(&Partition{LeaderEpoch: e, PartitionEpoch: e}, now).(*Partition)
		c, _ := Restored(&Counters{BrokerEpoch: e, ControllerEpoch: e}, now).(*Counters)
		ids, _ := Restored(&ProducerIDs{Next: e}, now).(*ProducerIDs)
		return map[string]int64{
			"leader epoch": p.LeaderEpoch, "partition epoch": p.PartitionEpoch, "broker epoch": c.BrokerEpoch,
			"controller epoch": c.ControllerEpoch, "producer id": ids.Next,
		}
	}
	for name, tt := range map[string]struct {
		backup int64
		before time.Time // of the restoration before; zero: none
		now    time.Time
	}{
		"once":                      {backup: 5, now: at},
		"the clock stands at 1970":  {backup: 5, now: time.Unix(0, 0)},
		"the same backup twice":     {backup: 5, before: at, now: at.Add(2 * time.Second)},
		"one of after a first time": {backup: at.Unix()*epochBlock + 9, before: at, now: at.Add(time.Hour)},
		"twice":                     {backup: at.Unix()*epochBlock + 9, before: at.Add(time.Hour), now: at.Add(time.Hour + 2*time.Second)},
		"after one, in 1970":        {backup: at.Unix()*epochBlock + 9, now: time.Unix(0, 0)},
	} {
		t.Run(name, func(t *testing.T) {
			given := map[string]int64{}
			if !tt.before.IsZero() {
				given = numbers(tt.before, tt.backup)
			}
			for what, n := range numbers(tt.now, tt.backup) {
				if last := max(given[what], tt.backup) + used; n <= last || n > 1<<53 {
					t.Errorf("%s: %d, want more than %d", what, n, last)
				}
			}
		})
	}
}

// A broker that ran over a restoration reports what its copies were when it started:
// by that the best is not to be told. Started anew it is let in.
func TestRestored_brokersAreStartedAnew(t *testing.T) {
	now := time.Date(2031, 5, 1, 0, 0, 0, 0, time.UTC)
	i := NewImage()
	i.counters, _ = Restored(&Counters{BrokerEpoch: 9, ControllerEpoch: 3}, now).(*Counters)
	r := registration(1, 1)
	r.Epoch = 9
	if _, err := i.Register(r); !errors.Is(err, ErrClusterMismatch) {
		t.Errorf("it ran: %v", err)
	}
	for _, r.Epoch = range []int64{0, i.Counters().BrokerEpoch} { // anew; and of another session since
		if changes, err := i.Register(r); err != nil || len(changes) == 0 {
			t.Errorf("epoch %d: %v, %v", r.Epoch, changes, err)
		}
	}
}

// Controllers with an older copy of their data don't know who is in sync now. A
// broker whose data, or whose process, is of a later time tells them from the newest.
func TestOlderMetadata(t *testing.T) {
	i := NewImage()
	i.counters = &Counters{BrokerEpoch: 9}
	i.brokers[1] = &Broker{ID: 1, Epoch: 5, Phase: BrokerFenced, DirectoryID: id(1)}
	for name, tt := range map[string]struct {
		broker        BrokerID
		data, process int64
		refused       bool
	}{
		"new": {2, 0, 0, false}, "not known": {2, 9, 0, false}, "not known, started later": {2, 10, 0, true},
		"of before": {1, 5, 0, false}, "started later": {1, 6, 0, true}, "runs": {1, 6, 6, true}, "still the one of before": {1, 4, 4, false},
	} {
		r := registration(tt.broker, 1)
		r.DataEpoch, r.Epoch = tt.data, tt.process
		if _, err := i.Register(r); errors.Is(err, ErrClusterMismatch) != tt.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A new partition has a leader epoch above those of what had its number before the
// restoration, and one that was in the backup is not taken for new.
func TestRestored_newPartitions(t *testing.T) {
	now := time.Date(2031, 5, 1, 0, 0, 0, 0, time.UTC)
	counters, _ := Restored(&Counters{ControllerEpoch: 3}, now).(*Counters)
	i := NewImage()
	if e := i.firstEpoch(); e != 1 {
		t.Errorf("the first epoch of a new cluster is %d", e)
	}
	i.counters = counters
	made := &Partition{Topic: uuid.New(), LeaderEpoch: i.firstEpoch(), PartitionEpoch: 1, ISR: []BrokerID{1}}
	if made.LeaderEpoch <= now.Unix()*epochBlock || !made.unused() {
		t.Errorf("a new partition: %+v, unused: %v", made, made.unused())
	}
	old, _ := Restored(&Partition{Topic: uuid.New(), LeaderEpoch: 1, PartitionEpoch: 1, Replicas: []BrokerID{1}, ISR: []BrokerID{1}}, now).(*Partition)
	for range 3 {
		if old.unused() {
			t.Errorf("taken for new: %+v", old)
		}
		old = old.clone()
		old.LeaderEpoch++
		old.PartitionEpoch++
	}
}
