package coordinator

import (
	"fmt"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	groupv1 "github.com/runnelmq/runnel/api/runnel/group/v1"
	"github.com/runnelmq/runnel/broker/group"
)

// Versions of what is stored. See group_record.proto.
const (
	keyVersion   = 1
	valueVersion = 1
)

// encode returns the record of a change. A nil value is a tombstone.
func encode(c *group.Change) (key, value []byte, err error) {
	k := &groupv1.RecordKey{Version: keyVersion, Group: c.Group}
	var v *groupv1.RecordValue
	switch {
	case c.State != nil, c.Gone:
		k.Object = &groupv1.RecordKey_State{State: &groupv1.StateKey{}}
		if s := c.State; s != nil {
			v = &groupv1.RecordValue{Object: &groupv1.RecordValue_State{State: &groupv1.StateValue{
				Epoch: s.Epoch, Assignor: int32(s.Assignor), EmptySinceMs: s.EmptySinceMs,
			}}}
		}
	case c.Member != nil:
		k.Object = memberKey(c.Member.ID)
		v = &groupv1.RecordValue{Object: &groupv1.RecordValue_Member{Member: encodeMember(c.Member)}}
	case c.MemberGone != "":
		k.Object = memberKey(c.MemberGone)
	case c.Offset != nil:
		k.Object = offsetKey(c.Offset.Part)
		o := &groupv1.OffsetValue{Offset: c.Offset.Offset, Metadata: c.Offset.Metadata, CommitMs: c.Offset.CommitMs}
		if c.Offset.LeaderEpoch >= 0 {
			o.LeaderEpoch = new(c.Offset.LeaderEpoch)
		}
		o.Sequence, o.MemberId, o.AssignmentEpoch = c.Offset.By.Sequence, c.Offset.By.Member, c.Offset.By.Assigned
		v = &groupv1.RecordValue{Object: &groupv1.RecordValue_Offset{Offset: o}}
	case c.OffsetGone != nil:
		k.Object = offsetKey(*c.OffsetGone)
	}
	stable := proto.MarshalOptions{Deterministic: true}
	if key, err = stable.Marshal(k); err != nil || v == nil {
		return key, nil, err
	}
	v.Version = valueVersion
	value, err = stable.Marshal(v)
	return key, value, err
}

func memberKey(id string) *groupv1.RecordKey_Member {
	return &groupv1.RecordKey_Member{Member: &groupv1.MemberKey{MemberId: id}}
}

func offsetKey(p group.Part) *groupv1.RecordKey_Offset {
	return &groupv1.RecordKey_Offset{Offset: &groupv1.OffsetKey{TopicId: p.Topic[:], Partition: p.Number}}
}

func encodeMember(m *group.Member) *groupv1.MemberValue {
	v := &groupv1.MemberValue{
		Epoch: m.Epoch, InstanceId: m.Terms.Instance, Topics: m.Terms.Topics, TopicPattern: m.Terms.Pattern, Assignor: int32(m.Terms.Assignor),
		Rack: m.Terms.Rack, SessionTimeoutMs: m.Terms.Session.Milliseconds(), RebalanceTimeoutMs: m.Terms.Rebalance.Milliseconds(),
		ClientName: m.Terms.ClientName, ClientAddress: m.Terms.ClientAddress, Replaced: m.Replaced,
	}
	var last group.Owned
	for i, o := range m.Owned { // by part
		if i == 0 || o.Part.Topic != last.Part.Topic {
			v.Owned = append(v.Owned, &groupv1.OwnedTopic{TopicId: o.Part.Topic[:]})
		}
		t := v.GetOwned()[len(v.GetOwned())-1]
		n := len(t.Runs)
		switch {
		case n > 0 && o.Part.Number == last.Part.Number+1 && o.Epoch == last.Epoch:
			t.Runs[n-2]++
		case n > 0:
			t.Runs = append(t.Runs, int64(o.Part.Number)-int64(last.Part.Number)-1, 1, o.Epoch)
		default:
			t.Runs = append(t.Runs, int64(o.Part.Number), 1, o.Epoch)
		}
		last = o
	}
	return v
}

// unreadable says why a record can't be taken in.
func unreadable(format string, args ...any) error {
	return fmt.Errorf("%w: %s", group.ErrUnreadable, fmt.Sprintf(format, args...))
}

// decode returns the change of a record.
func decode(key, value []byte) (group.Change, error) {
	k := &groupv1.RecordKey{}
	if err := proto.Unmarshal(key, k); err != nil {
		return group.Change{}, unreadable("a key is no RecordKey: %v", err)
	}
	if k.GetVersion() != keyVersion {
		return group.Change{}, unreadable("a key has version %d, this broker knows %d: run the version that wrote it", k.GetVersion(), keyVersion)
	}
	c := group.Change{Group: k.GetGroup()}
	var v *groupv1.RecordValue
	if value != nil {
		v = &groupv1.RecordValue{}
		if err := proto.Unmarshal(value, v); err != nil {
			return c, unreadable("a value is no RecordValue: %v", err)
		}
		if v.GetVersion() != valueVersion {
			return c, unreadable("a value of group %q has version %d, this broker knows %d: run the version that wrote it", c.Group, v.GetVersion(), valueVersion)
		}
	}
	var err error
	switch o := k.GetObject().(type) {
	case *groupv1.RecordKey_State:
		err = decodeState(&c, v)
	case *groupv1.RecordKey_Member:
		err = decodeMember(&c, o.Member.GetMemberId(), v)
	case *groupv1.RecordKey_Offset:
		err = decodeOffset(&c, o.Offset, v)
	default:
		err = unreadable("a key of group %q names no object that this version knows", c.Group)
	}
	return c, err
}

func decodeState(c *group.Change, v *groupv1.RecordValue) error {
	if v == nil {
		c.Gone = true
		return nil
	}
	s := v.GetState()
	if s == nil {
		return unreadable("the record of group %q has a value of another kind", c.Group)
	}
	c.State = &group.State{Epoch: s.GetEpoch(), Assignor: assignor(s.GetAssignor()), EmptySinceMs: s.GetEmptySinceMs()}
	return nil
}

// assignor reads one that was stored. One that a newer version knows is for it.
func assignor(n int32) group.Assignor {
	if a := group.Assignor(n); a.Valid() && int32(a) == n { //nolint:gosec // compared
		return a
	}
	return group.Sticky
}

func decodeMember(c *group.Change, id string, v *groupv1.RecordValue) error {
	if id == "" {
		return unreadable("a member of group %q has no id", c.Group)
	}
	if v == nil {
		c.MemberGone = id
		return nil
	}
	s := v.GetMember()
	if s == nil {
		return unreadable("the record of a member of group %q has a value of another kind", c.Group)
	}
	m := &group.Member{
		ID: id, Epoch: s.GetEpoch(), Replaced: s.GetReplaced(),
		Terms: group.Terms{
			Instance: s.GetInstanceId(), Topics: s.GetTopics(), Pattern: s.GetTopicPattern(), Assignor: assignor(s.GetAssignor()), Rack: s.GetRack(),
			Session: time.Duration(s.GetSessionTimeoutMs()) * time.Millisecond, Rebalance: time.Duration(s.GetRebalanceTimeoutMs()) * time.Millisecond,
			ClientName: s.GetClientName(), ClientAddress: s.GetClientAddress(),
		},
	}
	for _, t := range s.GetOwned() {
		topic, err := uuid.FromBytes(t.GetTopicId())
		if err != nil || len(t.GetRuns())%3 != 0 {
			return unreadable("the record of member %s of group %q has a damaged list of partitions", id, c.Group)
		}
		next := int64(0)
		for r := t.GetRuns(); len(r) > 0; r = r[3:] {
			first, count := next+r[0], r[1]
			if r[0] < 0 || count < 1 || first > maxPartition || count > maxPartition-first {
				return unreadable("the record of member %s of group %q has a damaged list of partitions", id, c.Group)
			}
			for n := first; n < first+count; n++ {
				m.Owned = append(m.Owned, group.Owned{Part: group.Part{Topic: topic, Number: int32(n)}, Epoch: r[2]}) //nolint:gosec // bounded above
			}
			next = first + count
		}
	}
	c.Member = m
	return nil
}

// maxPartition is far above any partition number there can be.
const maxPartition = 1 << 20

func decodeOffset(c *group.Change, k *groupv1.OffsetKey, v *groupv1.RecordValue) error {
	topic, err := uuid.FromBytes(k.GetTopicId())
	if err != nil || k.GetPartition() < 0 {
		return unreadable("the key of an offset of group %q names no partition", c.Group)
	}
	part := group.Part{Topic: topic, Number: k.GetPartition()}
	if v == nil {
		c.OffsetGone = &part
		return nil
	}
	s := v.GetOffset()
	if s == nil {
		return unreadable("the record of an offset of group %q has a value of another kind", c.Group)
	}
	c.Offset = &group.Offset{
		Part: part, Offset: s.GetOffset(), LeaderEpoch: -1, Metadata: s.GetMetadata(), CommitMs: s.GetCommitMs(),
		By: group.Turn{Sequence: s.GetSequence(), Member: s.GetMemberId(), Assigned: s.GetAssignmentEpoch()},
	}
	if s.LeaderEpoch != nil {
		c.Offset.LeaderEpoch = s.GetLeaderEpoch()
	}
	return nil
}
