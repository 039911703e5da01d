package partition

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/internal/record"
)

// What the two ends of a subscription are told. They are not for clients.
var (
	// ErrPark: the asker knows more than this broker does. Ask again when the
	// set has applied newer metadata, for a second at most; then refuse.
	ErrPark = errors.New("waiting for newer metadata")
	// ErrNotSubscribed: this subscription is not, or no longer, the current one.
	// The leader's end sends "ended" and forgets it; the follower's end forgets
	// it and, while it still follows, subscribes anew.
	ErrNotSubscribed = errors.New("the subscription has ended")
	// ErrDiverged: following this leader would cut what is committed. The
	// partition stays offline here until another leader epoch.
	ErrDiverged = errors.New("the leader's log contradicts committed records")
)

// NoOffset as the next offset of a subscribe asks for a reset: what the follower
// has is damaged. The leader refuses that while the follower may be counted on.
const NoOffset record.Offset = -1

// A FollowerSubscribe is a follower's wish to be sent what comes after its log.
type FollowerSubscribe struct {
	Follower    metadata.BrokerID
	BrokerEpoch int64 // as bound when the stream was opened
	// Leader is who is meant to get it; only the follower's end reads it.
	Leader       metadata.BrokerID
	Epoch        record.Epoch // leader epoch
	Subscription int64        // rises with each subscription of the follower's incarnation
	NextOffset   record.Offset
	LastEpoch    record.Epoch // of the record before NextOffset, if HasLastEpoch
	HasLastEpoch bool
	LogStart     record.Offset
}

// An AnswerKind says what a leader makes of a subscribe.
type AnswerKind uint8

// The answers.
const (
	// Accepted: data follows. HighWatermark and LogStart are set.
	Accepted AnswerKind = iota + 1
	// Diverging: cut at Epoch and End, and subscribe again.
	Diverging
	// Reset: begin anew at LogStart. Epoch, if HasEpoch, is that of the record
	// before it. PurgedTo is set when it is because tombstones are gone.
	Reset
	// Refused: not here, or not in this epoch. LeaderEpoch and Reason are set.
	Refused
)

// A SubscribeAnswer answers a FollowerSubscribe. Which fields are set is said at
// the kinds.
type SubscribeAnswer struct {
	Kind          AnswerKind
	HighWatermark record.Offset
	LogStart      record.Offset
	Epoch         record.Epoch
	HasEpoch      bool
	PurgedTo      record.Offset
	End           record.Offset
	LeaderEpoch   record.Epoch
	Reason        string
}

// A FollowerAck says what a subscription has put in the follower's log.
type FollowerAck struct {
	Follower     metadata.BrokerID
	BrokerEpoch  int64
	Epoch        record.Epoch // leader epoch
	Subscription int64
	Written      record.Offset // end of what the operating system has
	Durable      record.Offset // end of what of that the disk has
	LogStart     record.Offset
}

// A ReplicaRead describes the bytes of ReadReplica: whole batches that cover
// [from, Next).
type ReplicaRead struct {
	N             int // bytes; 0: there is nothing more at present
	Next          record.Offset
	PrevEpoch     record.Epoch // of the record before from, if HasPrevEpoch
	HasPrevEpoch  bool
	HighWatermark record.Offset
	LogStart      record.Offset
}

// A ReplicaProgress is what a follower is to be told beside data.
type ReplicaProgress struct {
	HighWatermark record.Offset
	LogStart      record.Offset
	LogEnd        record.Offset // there is something to read below it
	// Fed is how many bytes clients have appended, as stored, since this broker
	// opened the log: it says how fast the log grows, not how large it is.
	Fed int64
	// InSync: the follower is of the ISR, committed or proposed: it goes before
	// those that catch up, and no throttle may touch it.
	InSync bool
}

// A Data is one data frame, as a follower got it.
type Data struct {
	Epoch         record.Epoch // leader epoch
	Subscription  int64
	Start, Next   record.Offset
	PrevEpoch     record.Epoch // of the record before Start, if HasPrevEpoch
	HasPrevEpoch  bool
	HighWatermark record.Offset
	LogStart      record.Offset
	Batches       []byte // whole stored batches; the partition does not keep them
}

// A Link is one stream of a follower at its leader. Heartbeats confirm all the
// subscriptions that came over it at once.
type Link struct {
	confirmed atomic.Pointer[time.Time]
}

// Confirm notes that the follower answered a heartbeat that was sent at sentAt.
// What it gave up before that in the same stream must have been told before.
func (l *Link) Confirm(sentAt time.Time) {
	if old := l.confirmed.Load(); old == nil || sentAt.After(*old) {
		l.confirmed.Store(&sentAt)
	}
}

func (l *Link) at() time.Time {
	if l == nil {
		return time.Time{}
	}
	if t := l.confirmed.Load(); t != nil {
		return *t
	}
	return time.Time{}
}
