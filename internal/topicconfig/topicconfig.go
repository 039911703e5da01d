// Package topicconfig is the one table of a topic's configuration keys: their defaults, their ranges, and what they parse to.
//
// The controller checks every value with it, at creation and at every change alike, and brokers read the values in force with
// it, so the two cannot disagree. Key names are Kafka's where the idea is Kafka's. Numbers are plain whole numbers in the unit
// that the key's name ends in; there is no unit text, no sign but a minus, and no leading zero, so a stored value is the only
// spelling of what it means.
package topicconfig

import (
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// Names of the keys.
const (
	CleanupPolicyKey   = "cleanup.policy"
	CompressionTypeKey = "compression.type"
	DeleteRetentionKey = "delete.retention.ms"
	FlushKey           = "flush"
	FlushIntervalKey   = "flush.interval.ms"
	IndexIntervalKey   = "index.interval.bytes"
	MaxMessageBytesKey = "max.message.bytes"
	TimestampAfterKey  = "message.timestamp.after.max.ms"
	TimestampBeforeKey = "message.timestamp.before.max.ms"
	TimestampTypeKey   = "message.timestamp.type"
	MaxCompactionKey   = "max.compaction.lag.ms"
	MinCleanableKey    = "min.cleanable.dirty.ratio"
	MinCompactionKey   = "min.compaction.lag.ms"
	MinInsyncKey       = "min.insync.replicas"
	RetentionBytesKey  = "retention.bytes"
	RetentionTimeKey   = "retention.ms"
	SegmentBytesKey    = "segment.bytes"
	SegmentAgeKey      = "segment.ms"
	UncleanElectionKey = "unclean.leader.election.enable"
)

// Unlimited is the value of a limit that is switched off.
const Unlimited = -1

// A Flush says when a replica counts a record as written.
type Flush uint8

// The flush modes.
const (
	FlushAuto  Flush = iota // sync where one in-sync replica suffices, async where replicas carry the durability
	FlushAsync              // when the operating system has it
	FlushSync               // when the disk has it
)

// A TimestampType says whose clock stamps a topic's records.
type TimestampType uint8

// The timestamp types.
const (
	CreateTime    TimestampType = iota // the producer's
	LogAppendTime                      // the leader's
)

// A Config holds a topic's values in force. It is comparable.
type Config struct {
	// RetentionTime is how long a record is kept at least, by append time; negative: for ever.
	RetentionTime time.Duration
	// RetentionBytes is how much of a partition is kept at least; negative: all of it.
	RetentionBytes int64
	// SegmentBytes is the size at which a segment is closed.
	SegmentBytes int64
	// SegmentAge is the age at which a segment is closed.
	SegmentAge time.Duration
	// IndexIntervalBytes is the distance of entries in a segment's sparse index.
	IndexIntervalBytes int
	// MaxMessageBytes is the size of the largest record.
	MaxMessageBytes int
	// Flush says when a replica counts a record as written; see Sync.
	Flush Flush
	// FlushInterval is how often the background flush runs.
	FlushInterval time.Duration
	// MinInsyncReplicas is how many in-sync replicas a write with acks ALL needs; 0: by replication factor, see MinISR.
	MinInsyncReplicas int
	// TimestampType says whose clock stamps records.
	TimestampType TimestampType
	// TimestampBefore is how far in the past a producer's timestamp may lie; negative: any distance.
	TimestampBefore time.Duration
	// TimestampAfter is how far in the future a producer's timestamp may lie.
	TimestampAfter time.Duration
	// Compact says that the last record of each key is kept, and older ones go.
	Compact bool
	// Delete says that old segments are removed, by RetentionTime and RetentionBytes.
	Delete bool
	// DeleteRetention is how long a tombstone survives its first compaction.
	DeleteRetention time.Duration
	// MinCleanableRatio is how much of a partition, 0 to 1, must not have been compacted for that to be done.
	MinCleanableRatio float64
	// MinCompactionLag is for how long a record is not compacted, by append time.
	MinCompactionLag time.Duration
	// MaxCompactionLag is after how long a record is, whatever the ratio.
	MaxCompactionLag time.Duration
	// UncleanElection permits electing a replica that may have lost acknowledged records.
	UncleanElection bool
}

// A Key describes one configuration key for people.
type Key struct {
	Name        string
	Default     string
	Want        string // the values it takes, in words
	Description string
}

// A Source says where a value in force comes from.
type Source uint8

// The sources of a value.
const (
	SourceDefault Source = iota // built in
	SourceCluster               // the cluster's defaults when the topic was created
	SourceTopic                 // set on the topic
)

// An Entry is one key with its value in force.
type Entry struct {
	Key    string
	Value  string
	Source Source
}

// Default returns the built-in configuration.
func Default() Config {
	var c Config
	for _, k := range table() {
		// The table's own defaults parse: a test says so.
		_ = k.set(&c, k.def)
	}
	return c
}

// Keys returns every key in the order of names. The caller owns the slice.
func Keys() []Key {
	defs := table()
	keys := make([]Key, len(defs))
	for i, k := range defs {
		keys[i] = Key{Name: k.name, Default: k.def, Want: k.want, Description: k.description}
	}
	return keys
}

// IsUnlimited reports whether value switches the limit of key off: -1 where that is allowed, and in milliseconds also what
// is longer than any time there is.
func IsUnlimited(key, value string) bool {
	var c Config
	n, ok := parseInt(value, Unlimited, math.MaxInt64)
	if !ok || set(&c, table(), key, value) != nil {
		return false
	}
	return n == Unlimited || n == math.MaxInt64 || strings.HasSuffix(key, ".ms") && n >= longest.Milliseconds()
}

// Parse returns the configuration that values make over the built-in defaults. Its error names everything that is wrong, and
// is ErrInvalid.
func Parse(values map[string]string) (Config, error) {
	return Resolve(nil, values)
}

// Resolve is Parse with the cluster's defaults between the built-in ones and the topic's own values.
func Resolve(cluster, topic map[string]string) (Config, error) {
	c := Default()
	var errs Errors
	defs := table()
	for _, layer := range []map[string]string{cluster, topic} {
		for _, name := range slices.Sorted(maps.Keys(layer)) {
			if err := set(&c, defs, name, layer[name]); err != nil {
				errs = append(errs, err)
			}
		}
	}
	if len(errs) == 0 {
		errs = c.contradictions(cluster, topic)
	}
	if len(errs) > 0 {
		return Config{}, errs
	}
	return c, nil
}

// MinISR returns how many in-sync replicas a write with acks ALL needs under replication factor rf.
func (c Config) MinISR(rf int) int {
	switch {
	case c.MinInsyncReplicas > 0:
		return c.MinInsyncReplicas
	case rf >= 3:
		return 2
	default:
		return 1
	}
}

// Sync reports whether a replica counts a record only when its disk has it, under minISR needed in-sync replicas.
func (c Config) Sync(minISR int) bool {
	switch c.Flush {
	case FlushSync:
		return true
	case FlushAsync:
		return false
	default:
		return minISR <= 1
	}
}

// CheckReplication says whether the configuration can hold under replication factor rf.
func (c Config) CheckReplication(rf int) error {
	if c.MinInsyncReplicas <= rf {
		return nil
	}
	return Errors{{
		Key:   MinInsyncKey,
		Value: formatInt(int64(c.MinInsyncReplicas)),
		Want:  "at most the replication factor, " + formatInt(int64(rf)),
	}}
}

// Entries returns every key in the order of names with its value in force and where that comes from, for a topic of
// replication factor rf. Values that do not parse are shown as they are.
func Entries(cluster, topic map[string]string, rf int) []Entry {
	defs := table()
	entries := make([]Entry, len(defs))
	for i, k := range defs {
		e := Entry{Key: k.name, Value: k.def, Source: SourceDefault}
		if v, ok := cluster[k.name]; ok {
			e.Value, e.Source = v, SourceCluster
		}
		if v, ok := topic[k.name]; ok {
			e.Value, e.Source = v, SourceTopic
		}
		if k.name == MinInsyncKey && e.Value == auto {
			e.Value = formatInt(int64(Config{}.MinISR(rf)))
		}
		entries[i] = e
	}
	return entries
}
