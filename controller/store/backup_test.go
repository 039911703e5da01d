package store_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/google/uuid"

	"github.com/runnelmq/runnel/controller/encoding"
	"github.com/runnelmq/runnel/controller/state"
	"github.com/runnelmq/runnel/controller/store"
	"github.com/runnelmq/runnel/controller/store/storetest"
)

// filled returns a store with one of each object, and n partitions.
func filled(t *testing.T, n int32) (*storetest.Fake, *store.Store) {
	t.Helper()
	kv := storetest.New()
	t.Cleanup(kv.Close)
	s := store.New(kv, "c")
	if _, err := s.ClusterID(t.Context(), uuid.New(), true, false); err != nil {
		t.Fatal(err)
	}
	topic := uuid.New()
	objects := []state.Object{
		&state.Topic{ID: topic, Name: "t", Phase: state.TopicActive, Partitions: n, ReplicationFactor: 2},
		&state.Name{Name: "t", Topic: topic},
		&state.Broker{ID: 1, Incarnation: uuid.New(), DirectoryID: uuid.New(), Epoch: 1, Phase: state.BrokerActive, Judged: true},
	}
	for p := range n {
		objects = append(objects, &state.Partition{
			Topic: topic, Number: p, Replicas: []state.BrokerID{1, 2}, Leader: 1, LeaderEpoch: 3, PartitionEpoch: 9,
			ISR: []state.BrokerID{1}, ELR: []state.BrokerID{2}, MinISR: 2, LossyEpochs: []int64{2},
		})
	}
	for _, o := range objects {
		value, err := encoding.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := kv.Txn(t.Context(), nil, []store.Write{{Key: "/runnel/c/" + encoding.Path(o.Key()), Value: value}}); err != nil {
			t.Fatal(err)
		}
	}
	return kv, s
}

func TestBackup_is_restored_far_ahead_of_what_may_have_happened_since(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, from := filled(t, 300)
		var file bytes.Buffer
		info, err := from.Backup(t.Context(), &file)
		if err != nil || info.Objects != 306 || info.Revision == 0 {
			t.Fatalf("%+v, %v", info, err)
		}
		objects, err := store.ReadBackup(&file)
		if err != nil {
			t.Fatal(err)
		}
		kv := storetest.New()
		defer kv.Close()
		n := 0
		kv.Inject(func([]store.Write) storetest.Fault { // every answer is lost once
			if n++; n%2 == 1 {
				return storetest.FaultAfter
			}
			return storetest.FaultNone
		})
		to := store.New(kv, "d")
		if info, err = to.Restore(t.Context(), objects); err != nil || info.Objects != 305 {
			t.Fatalf("%+v, %v", info, err)
		}
		var again bytes.Buffer
		if _, err := to.Backup(t.Context(), &again); err != nil {
			t.Fatal(err)
		}
		restored, err := store.ReadBackup(&again)
		if err != nil {
			t.Fatal(err)
		}
		ids := 0
		for _, o := range restored {
			switch o := o.(type) {
			case *state.Broker:
				t.Errorf("broker %+v", o)
			case *state.Counters:
				if o.BrokerEpoch < 1<<20 || o.ControllerEpoch < 1<<20 || o.FeatureLevel != 1 {
					t.Errorf("counters %+v", o)
				}
			case *state.ProducerIDs:
				ids++
				if o.Next < 1000<<20 {
					t.Errorf("producer ids from %d on may be given again", o.Next)
				}
			case *state.Partition:
				if o.Leader != state.NoLeader || len(o.ISR)+len(o.ELR) > 0 || !slices.Equal(o.LastKnown, o.Replicas) || o.LeaderEpoch < 1<<20 || o.PartitionEpoch < 1<<20 || !slices.Equal(o.LossyEpochs, []int64{2}) {
					t.Fatalf("partition %+v", o)
				}
			}
		}
		if ids != 1 {
			t.Errorf("%d records of producer ids", ids)
		}
		id1, err1 := from.ClusterID(t.Context(), uuid.New(), false, false)
		id2, err2 := to.ClusterID(t.Context(), uuid.New(), false, false)
		if id1 != id2 || err1 != nil || err2 != nil {
			t.Errorf("clusters %s and %s; %v, %v", id1, id2, err1, err2)
		}
		if _, err := to.Restore(t.Context(), objects[1:]); err == nil {
			t.Error("restored over a cluster")
		}
	})
}

func TestReadBackup_takes_whole_ones_only(t *testing.T) {
	_, s := filled(t, 2)
	var file bytes.Buffer
	if _, err := s.Backup(t.Context(), &file); err != nil {
		t.Fatal(err)
	}
	whole := file.Bytes()
	for n := range whole {
		if _, err := store.ReadBackup(bytes.NewReader(whole[:n])); err == nil {
			t.Fatalf("the first %d of %d bytes pass for a backup", n, len(whole))
		}
		damaged := slices.Clone(whole)
		damaged[n] ^= 0x10
		if _, err := store.ReadBackup(bytes.NewReader(damaged)); err == nil {
			t.Fatalf("damage at %d of %d bytes passes", n, len(whole))
		}
	}
	empty := storetest.New()
	defer empty.Close()
	if _, err := store.New(empty, "c").Backup(t.Context(), &file); !errors.Is(err, store.ErrNoCluster) {
		t.Errorf("a backup of nothing: %v", err)
	}
}

func FuzzReadBackup(f *testing.F) {
	f.Add([]byte("runnel metadata backup 1\n\x00\x00\x00\x00\x00"))
	f.Fuzz(func(_ *testing.T, b []byte) {
		_, _ = store.ReadBackup(bytes.NewReader(b))
	})
}
