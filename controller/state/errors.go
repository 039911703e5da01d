package state

import (
	"errors"
	"strconv"

	"github.com/runnelmq/runnel/internal/refusal"
)

// What a decision can refuse. Each comes in a refusal.Error, which carries the facts.
var (
	ErrInvalidRequest    = errors.New("invalid request")
	ErrInvalidName       = errors.New("invalid topic name")
	ErrInvalidPartitions = errors.New("invalid partition count")
	ErrInvalidFactor     = errors.New("invalid replication factor")
	ErrTopicExists       = errors.New("topic exists")
	ErrTopicNotFound     = errors.New("topic not found")
	ErrPartitionNotFound = errors.New("partition not found")
	ErrTopicIDMismatch   = errors.New("topic id mismatch")
	ErrTopicInternal     = errors.New("internal topic")
	ErrDuplicateBroker   = errors.New("duplicate broker")
	ErrClusterMismatch   = errors.New("other cluster")
	ErrStaleBrokerEpoch  = errors.New("stale broker epoch")
	ErrFeatureLevel      = errors.New("feature level out of the broker's range")
)

// refuse makes an error; facts are names and values in turn.
func refuse(kind error, text string, facts ...string) *refusal.Error {
	e := &refusal.Error{Kind: kind, Text: text}
	for n := 0; n+1 < len(facts); n += 2 {
		if e.Facts == nil {
			e.Facts = map[string]string{}
		}
		e.Facts[facts[n]] = facts[n+1]
	}
	return e
}

func itoa[T ~int | ~int32 | ~int64](n T) string { return strconv.FormatInt(int64(n), 10) }
