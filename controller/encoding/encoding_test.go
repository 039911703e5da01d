package encoding

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/protobuf/encoding/protowire"
	"pgregory.net/rapid"

	"github.com/runnelmq/runnel/controller/state"
)

func anyUUID() *rapid.Generator[uuid.UUID] {
	return rapid.Map(rapid.SliceOfN(rapid.Byte(), 16, 16), func(b []byte) uuid.UUID { return uuid.UUID(b) })
}

func anyIDs(least int) *rapid.Generator[[]state.BrokerID] {
	return rapid.Custom(func(t *rapid.T) []state.BrokerID {
		ids := rapid.SliceOfN(rapid.Int32Min(0), least, 5).Draw(t, "ids")
		return toIDs(ids)
	})
}

func anyMap() *rapid.Generator[map[string]string] {
	return rapid.Custom(func(t *rapid.T) map[string]string {
		m := rapid.MapOfN(rapid.StringMatching(`[a-z.]{1,9}`), rapid.StringN(0, 9, -1), 0, 3).Draw(t, "map")
		if len(m) == 0 {
			return nil
		}
		return m
	})
}

func anyObject() *rapid.Generator[state.Object] {
	return rapid.Custom(func(t *rapid.T) state.Object {
		rev := state.Revision(rapid.Int64Min(1).Draw(t, "revision"))
		n, m := rapid.Int64Min(1).Draw(t, "n"), rapid.Int32Min(0).Draw(t, "m")
		text, id, id2 := rapid.StringN(1, 9, -1).Draw(t, "text"), anyUUID().Draw(t, "id"), anyUUID().Draw(t, "id2")
		switch rapid.IntRange(0, 7).Draw(t, "kind") {
		case 0:
			return &state.Broker{
				ID: state.BrokerID(m), Incarnation: id, DirectoryID: id2, Epoch: n, Phase: state.BrokerPhase(rapid.IntRange(1, 3).Draw(t, "phase")),
				Judged: rapid.Bool().Draw(t, "judged"), ClientAddress: text, InternalAddress: text + "i", Rack: text + "r", Version: "v",
				MinFeatureLevel: m, MaxFeatureLevel: m, Revision: rev,
			}
		case 1:
			return &state.Topic{
				ID: id, Name: text, Phase: state.TopicPhase(rapid.IntRange(1, 3).Draw(t, "phase")), Partitions: m, ReplicationFactor: m,
				Configs: anyMap().Draw(t, "configs"), ClusterConfigs: anyMap().Draw(t, "cluster configs"), Internal: rapid.Bool().Draw(t, "internal"),
				CreatedMs: n, AwaitingRemoval: anyIDs(0).Draw(t, "awaiting"), Revision: rev,
			}
		case 2:
			return &state.Name{Name: text, Topic: id, Revision: rev}
		case 3:
			return &state.Partition{
				Topic: id, Number: m, Replicas: anyIDs(1).Draw(t, "replicas"), Leader: state.BrokerID(rapid.Int32Min(-1).Draw(t, "leader")),
				LeaderEpoch: n, PartitionEpoch: n, ISR: anyIDs(0).Draw(t, "isr"), ELR: anyIDs(0).Draw(t, "elr"), LastKnown: anyIDs(0).Draw(t, "last known"),
				MinISR: m, Sync: rapid.Bool().Draw(t, "sync"), LossyEpochs: []int64{n}, Revision: rev,
			}
		case 4:
			return &state.Counters{BrokerEpoch: n, ControllerEpoch: n, FeatureLevel: m, Revision: rev}
		case 6:
			return &state.ProducerIDs{Next: n, Revision: rev}
		case 5:
			return &state.Cluster{ID: id, Revision: rev}
		default:
			return &state.Controller{Address: text, Incarnation: id, Epoch: n, Revision: rev}
		}
	})
}

func TestObjects_come_back_as_they_were(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := anyObject().Draw(t, "object")
		path := Path(o.Key())
		k, err := ParsePath(path)
		if err != nil || k != o.Key() {
			t.Fatalf("path %q: %+v, %v", path, k, err)
		}
		value, err := Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Unmarshal(k, value, o.Modified())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(o, got); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
		again, err := Marshal(got)
		if err != nil || string(again) != string(value) {
			t.Fatalf("other bytes the second time: %v", err)
		}
		// What a newer version added must not be lost by writing it back.
		newer := protowire.AppendVarint(protowire.AppendTag(value, 1000, protowire.VarintType), 1)
		if _, err := Unmarshal(k, newer, 1); !errors.Is(err, ErrUnreadable) || !strings.Contains(err.Error(), "newer version") {
			t.Fatalf("a field of a newer version: %v", err)
		}
	})
}

func TestParsePath_refuses(t *testing.T) {
	for _, path := range []string{"", "brokers", "brokers/", "brokers/x", "brokers/99999999999", "topics/x", "partitions/x/0", "partitions/" + uuid.NewString(), "partitions/" + uuid.NewString() + "/x", "groups/x", "counters/x"} {
		if k, err := ParsePath(path); !errors.Is(err, ErrUnreadable) {
			t.Errorf("%q: %+v, %v", path, k, err)
		}
	}
}

func TestUnmarshal_refuses_a_record_at_the_wrong_place(t *testing.T) {
	value, err := Marshal(&state.Topic{ID: uuid.New(), Phase: state.TopicActive})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Unmarshal(state.TopicKey(uuid.New()), value, 1); !errors.Is(err, ErrUnreadable) {
		t.Errorf("another topic's record: %v", err)
	}
}

func FuzzUnmarshal(f *testing.F) {
	for kind := range uint8(8) {
		f.Add(kind, []byte("\x0a\x01x"))
	}
	f.Fuzz(func(t *testing.T, kind uint8, value []byte) {
		k := state.Key{Kind: state.Kind(1 + kind%7)}
		o, err := Unmarshal(k, value, 1)
		if (o == nil) == (err == nil) {
			t.Errorf("object %v, error %v", o, err)
		}
		if err != nil && !errors.Is(err, ErrUnreadable) {
			t.Errorf("error %v", err)
		}
	})
}
