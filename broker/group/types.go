package group

import (
	"bytes"
	"cmp"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/runnelmq/runnel/internal/refusal"
)

// A Part is one partition of a topic, whatever the topic is called.
type Part struct {
	Topic  uuid.UUID
	Number int32
}

// String returns topic id/number.
func (p Part) String() string { return fmt.Sprintf("%s/%d", p.Topic, p.Number) }

// Compare orders parts by topic id and number.
func (p Part) Compare(q Part) int {
	if c := bytes.Compare(p.Topic[:], q.Topic[:]); c != 0 {
		return c
	}
	return cmp.Compare(p.Number, q.Number)
}

// A Topic is what groups know of a topic. Immutable.
type Topic struct {
	ID         uuid.UUID
	Name       string
	Partitions int32
	// Racks are those of each partition's replicas; nil: unknown.
	Racks [][]string
}

// Topics is the cluster's topics at one moment.
type Topics interface {
	// Named returns the topic of that name that records can be read of.
	Named(name string) (*Topic, bool)
	// All returns all of those in the order of their names, internal ones not.
	All() []*Topic
}

// A Stream names one Join stream for the life of a coordinator. 0: none.
type Stream uint64

// Terms are what a member joins with.
type Terms struct {
	Instance string // static members only
	Topics   []string
	Pattern  string
	Assignor Assignor
	Rack     string
	// Session is without a message for how long a member is taken for dead.
	Session time.Duration
	// Rebalance is how long it may take to give a partition up.
	Rebalance     time.Duration
	ClientName    string
	ClientAddress string
}

// An Owned partition is one that a member was told to own.
type Owned struct {
	Part Part
	// Epoch is the member epoch at which it came to the member.
	Epoch int64
}

// A State is what is stored about a group as such.
type State struct {
	Epoch    int64
	Assignor Assignor
	// EmptySinceMs is since when there is no member, Unix milliseconds; 0: there are some.
	EmptySinceMs int64
}

// A Member is what is stored about a member.
type Member struct {
	ID    string
	Terms Terms
	Epoch int64
	// Owned is by part.
	Owned []Owned
	// Replaced are the ids of processes whose place this one took, newest last.
	Replaced []string
}

// An Offset is what is stored about a committed offset.
type Offset struct {
	Part        Part
	Offset      int64
	LeaderEpoch int64 // -1: not given
	Metadata    string
	CommitMs    int64 // Unix milliseconds
	// By is who committed it, if that is known.
	By Turn
}

// A Turn is the place of a commit among those of a member.
type Turn struct {
	// Sequence rises with each; 0: not known, and nothing else is.
	Sequence uint64
	Member   string
	// Assigned is the epoch at which the partition came to the member.
	Assigned int64
}

// A Change is one record of a coordinator's log: exactly one field besides Group
// is set.
type Change struct {
	Group      string
	State      *State
	Gone       bool // the group is
	Member     *Member
	MemberGone string
	Offset     *Offset
	OffsetGone *Part
}

// A Message is for one member, when all changes that were made with it or
// before are committed.
type Message struct {
	Stream Stream
	// Joined and Assignment may come together, in this order.
	Joined     *Joined
	Assignment *Assignment
	// Err ends the stream, after the rest; Left does, without an error.
	Err  error
	Left bool
}

// Joined answers a join.
type Joined struct {
	Member    string
	Epoch     int64
	Session   time.Duration
	Rebalance time.Duration
	Resumed   bool
}

// An Assignment says what a member is to own.
type Assignment struct {
	Revision uint64
	Epoch    int64
	Owned    []Owned // by part
}

// Effects are what events cause, in order.
type Effects struct {
	Changes  []Change
	Messages []Message
}

// Empty says whether there are none.
func (fx *Effects) Empty() bool { return len(fx.Changes) == 0 && len(fx.Messages) == 0 }

func (fx *Effects) change(c Change) { fx.Changes = append(fx.Changes, c) }

func (fx *Effects) tell(m Message) {
	if m.Stream != 0 {
		fx.Messages = append(fx.Messages, m)
	}
}

func fail(kind error, facts map[string]string, format string, args ...any) error {
	return refusal.New(kind, facts, format, args...)
}
