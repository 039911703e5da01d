package coordinator

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/runnelmq/runnel/broker/group"
)

func drawPart(t *rapid.T) group.Part {
	return group.Part{Topic: uuid.UUID{3: rapid.Byte().Draw(t, "topic")}, Number: rapid.Int32Range(0, 40).Draw(t, "number")}
}

func drawChange(t *rapid.T) group.Change {
	text := rapid.StringN(0, 8, 20)
	c := group.Change{Group: rapid.StringN(1, 8, 20).Draw(t, "group")}
	part := drawPart(t)
	switch rapid.IntRange(0, 5).Draw(t, "kind") {
	case 0:
		c.State = &group.State{Epoch: rapid.Int64Range(0, 1<<40).Draw(t, "epoch"), Assignor: group.Range, EmptySinceMs: rapid.Int64Range(0, 1<<42).Draw(t, "empty")}
	case 1:
		c.Gone = true
	case 2:
		m := &group.Member{ID: rapid.StringN(1, 8, 20).Draw(t, "id"), Epoch: rapid.Int64Range(1, 1<<40).Draw(t, "epoch")}
		m.Terms = group.Terms{
			Instance: text.Draw(t, "instance"), Topics: rapid.SliceOfN(text, 1, 4).Draw(t, "topics"), Pattern: text.Draw(t, "pattern"),
			Assignor: group.Sticky, Rack: text.Draw(t, "rack"), Session: time.Second, Rebalance: time.Minute,
		}
		seen := map[group.Part]bool{}
		for range rapid.IntRange(0, 60).Draw(t, "owned") {
			p := drawPart(t)
			if !seen[p] {
				m.Owned = append(m.Owned, group.Owned{Part: p, Epoch: rapid.Int64Range(1, 3).Draw(t, "assigned")})
			}
			seen[p] = true
		}
		slices.SortFunc(m.Owned, func(a, b group.Owned) int { return a.Part.Compare(b.Part) })
		c.Member = m
	case 3:
		c.MemberGone = rapid.StringN(1, 8, 20).Draw(t, "id")
	case 4:
		c.Offset = &group.Offset{
			Part: part, Offset: rapid.Int64().Draw(t, "offset"), LeaderEpoch: rapid.Int64Range(-1, 9).Draw(t, "leader epoch"),
			Metadata: text.Draw(t, "metadata"), CommitMs: rapid.Int64Range(0, 1<<42).Draw(t, "time"),
		}
		if rapid.Bool().Draw(t, "by a member") {
			c.Offset.By = group.Turn{Sequence: rapid.Uint64Min(1).Draw(t, "sequence"), Member: text.Draw(t, "member"), Assigned: rapid.Int64Range(1, 9).Draw(t, "assigned")}
		}
	default:
		c.OffsetGone = &part
	}
	return c
}

func TestCodec_roundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawChange(t)
		key, value, err := encode(&c)
		if err != nil {
			t.Fatal(err)
		}
		got, err := decode(key, value)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

// Whatever is stored is taken in or refused, and never a panic or a lot of memory.
func FuzzDecode(f *testing.F) {
	c := group.Change{Group: "g", Member: &group.Member{ID: "m", Owned: []group.Owned{{Part: group.Part{Number: 3}, Epoch: 1}}}}
	key, value, err := encode(&c)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(key, value)
	f.Add(key, []byte(nil))
	f.Fuzz(func(t *testing.T, key, value []byte) {
		if _, err := decode(key, value); err != nil && !errors.Is(err, group.ErrUnreadable) {
			t.Errorf("%v", err)
		}
	})
}

// What a newer version wrote is not guessed at.
func TestDecode_unknownVersions(t *testing.T) {
	c := group.Change{Group: "g", State: &group.State{Epoch: 1, Assignor: group.Sticky}}
	key, value, err := encode(&c)
	if err != nil {
		t.Fatal(err)
	}
	newer := func(b []byte) []byte { // field 1, the version, comes first
		b = slices.Clone(b)
		b[1]++
		return b
	}
	if _, err := decode(key, value); err != nil {
		t.Error(err)
	}
	for name, kv := range map[string][2][]byte{"key": {newer(key), value}, "tombstone": {newer(key), nil}, "value": {key, newer(value)}} {
		if _, err := decode(kv[0], kv[1]); !errors.Is(err, group.ErrUnreadable) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
