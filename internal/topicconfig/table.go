package topicconfig

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Limits that follow from what readers can take.
const (
	// maxSegmentBytes keeps a segment file, which is one Protobuf message, below what Protobuf runtimes read.
	maxSegmentBytes = 1 << 30
	// maxMessageBytes keeps a record in a batch, and a batch in an answer, below gRPC's default message limit.
	maxMessageBytes = 3<<20 + 1<<19
)

// auto stands for a default that depends on the topic's replication factor.
const auto = "auto"

// A definition is one key: set parses a value into c and reports whether it is allowed.
type definition struct {
	name        string
	def         string
	want        string
	description string
	set         func(c *Config, value string) bool
}

// table returns the definitions in the order of names.
func table() []definition {
	all := slices.Concat(storageKeys(), recordKeys(), durabilityKeys())
	slices.SortFunc(all, func(a, b definition) int { return strings.Compare(a.name, b.name) })
	return all
}

// storageKeys are about what is kept, and how.
func storageKeys() []definition {
	return []definition{
		{
			name: CleanupPolicyKey, def: "delete", want: `"delete", "compact" or "compact,delete"`,
			description: "What happens to old data: delete removes whole segments by retention.ms and retention.bytes, " +
				"compact keeps the last record of each key, and both together do both.",
			set: setCleanupPolicy,
		},
		{
			name: DeleteRetentionKey, def: "86400000", want: "milliseconds, a whole number from 0",
			description: "How long a delete marker survives after it was first compacted.",
			set: func(c *Config, v string) bool {
				return setMillis(&c.DeleteRetention, v, 0, math.MaxInt64)
			},
		},
		{
			name: IndexIntervalKey, def: "4096", want: "bytes, a whole number from 1 to 1073741824",
			description: "Distance between two entries of a segment's sparse index: smaller finds faster, and takes more memory and disk.",
			set: func(c *Config, v string) bool {
				return setInt(&c.IndexIntervalBytes, v, 1, maxSegmentBytes)
			},
		},
		{
			name: MaxCompactionKey, def: "9223372036854775807", want: "milliseconds, a whole number from 1, and not below min.compaction.lag.ms, or 9223372036854775807 for no limit",
			description: "Age at which a record is compacted even if min.cleanable.dirty.ratio is not reached, or its topic idle.",
			set: func(c *Config, v string) bool {
				return setMillis(&c.MaxCompactionLag, v, 1, math.MaxInt64)
			},
		},
		{
			name: MinCleanableKey, def: "0.5", want: "a number from 0 to 1, such as 0.5",
			description: "How much of what can be compacted must not have been yet for it to be done: lower wastes less disk, and costs more work.",
			set:         func(c *Config, v string) bool { return setRatio(&c.MinCleanableRatio, v) },
		},
		{
			name: MinCompactionKey, def: "0", want: "milliseconds, a whole number from 0",
			description: "How long a record stays as it is after it was appended, before compaction may remove it.",
			set: func(c *Config, v string) bool {
				return setMillis(&c.MinCompactionLag, v, 0, math.MaxInt64)
			},
		},
		{
			name: RetentionBytesKey, def: "-1", want: "bytes, a whole number from 0, or -1 for no limit",
			description: "How much of each partition is kept; older segments are deleted.",
			set: func(c *Config, v string) bool {
				return setInt(&c.RetentionBytes, v, Unlimited, math.MaxInt64)
			},
		},
		{
			name: RetentionTimeKey, def: "604800000", want: "milliseconds, a whole number from 0, or -1 for ever",
			description: "How long records are kept after they were appended; older segments are deleted.",
			set: func(c *Config, v string) bool {
				return setMillis(&c.RetentionTime, v, Unlimited, math.MaxInt64)
			},
		},
		{
			name: SegmentBytesKey, def: "1073741824", want: "bytes, a whole number from 65536 to 1073741824 (1 GiB)",
			description: "Size at which a segment file is closed and the next one begun.",
			set: func(c *Config, v string) bool {
				return setInt(&c.SegmentBytes, v, 1<<16, maxSegmentBytes)
			},
		},
		{
			name: SegmentAgeKey, def: "604800000", want: "milliseconds, a whole number from 1",
			description: "Age at which a segment file is closed and the next one begun.",
			set: func(c *Config, v string) bool {
				return setMillis(&c.SegmentAge, v, 1, math.MaxInt64)
			},
		},
	}
}

// recordKeys are about what is taken from producers.
func recordKeys() []definition {
	return []definition{
		{
			name: CompressionTypeKey, def: "producer", want: `"producer" (batches are stored as they were sent)`,
			description: "How batches are compressed on disk: producer keeps what the producer chose.",
			set:         func(_ *Config, v string) bool { return v == "producer" },
		},
		{
			name: MaxMessageBytesKey, def: "1048576", want: "bytes, a whole number from 1 to 3670016 (3.5 MiB), and not above segment.bytes",
			description: "Size of the largest record that is taken: its key, value and headers with their framing, before compression. It is no limit of what is sent together.",
			set: func(c *Config, v string) bool {
				return setInt(&c.MaxMessageBytes, v, 1, maxMessageBytes)
			},
		},
		{
			name: TimestampAfterKey, def: "3600000", want: "milliseconds, a whole number from 0",
			description: "How far ahead of the leader's clock a record's own timestamp may be.",
			set: func(c *Config, v string) bool {
				return setMillis(&c.TimestampAfter, v, 0, math.MaxInt64)
			},
		},
		{
			name: TimestampBeforeKey, def: "-1", want: "milliseconds, a whole number from 0, or -1 for any distance",
			description: "How far behind the leader's clock a record's own timestamp may be.",
			set: func(c *Config, v string) bool {
				return setMillis(&c.TimestampBefore, v, Unlimited, math.MaxInt64)
			},
		},
		{
			name: TimestampTypeKey, def: "CreateTime", want: `"CreateTime" or "LogAppendTime"`,
			description: "Whose clock stamps records: the producer's, or the leader's.",
			set:         setTimestampType,
		},
	}
}

// durabilityKeys are about what an acknowledgement is worth.
func durabilityKeys() []definition {
	return []definition{
		{
			name: FlushKey, def: auto, want: `"auto", "async" or "sync"`,
			description: "When a replica counts a record as written: async when the operating system has it, sync when the disk has it, " +
				"auto is sync where min.insync.replicas is 1 and async elsewhere.",
			set: setFlush,
		},
		{
			name: FlushIntervalKey, def: "1000", want: "milliseconds, a whole number from 1 to 3600000",
			description: "How often written data is flushed to disk in the background.",
			set: func(c *Config, v string) bool {
				return setMillis(&c.FlushInterval, v, 1, time.Hour.Milliseconds())
			},
		},
		{
			name: MinInsyncKey, def: auto, want: `a whole number from 1, not above the replication factor, or "auto"`,
			description: "How many replicas must be in sync before a write with acks ALL is taken; auto is 2 with a replication factor of 3 or more, else 1.",
			set:         setMinInsync,
		},
		{
			name: UncleanElectionKey, def: "false", want: `"true" or "false"`,
			description: "Whether a replica that may lack acknowledged records can be elected when no other is left.",
			set:         func(c *Config, v string) bool { return setBool(&c.UncleanElection, v) },
		},
	}
}

// set lays one value over c.
func set(c *Config, defs []definition, name, value string) *Error {
	i := slices.IndexFunc(defs, func(d definition) bool { return d.name == name })
	if i < 0 {
		return &Error{Key: name, Value: value, Want: suggestion(defs, name), Unknown: true}
	}
	if !defs[i].set(c, value) {
		return &Error{Key: name, Value: value, Want: defs[i].want}
	}
	return nil
}

// contradictions returns what single values cannot show. Of two that do not fit together it names the one that was set last, in
// layers that each go before the one before.
func (c Config) contradictions(layers ...map[string]string) Errors {
	var errs Errors
	if message := int64(c.MaxMessageBytes); message > c.SegmentBytes {
		errs = append(errs, &Error{
			Key: SegmentBytesKey, Value: formatInt(c.SegmentBytes),
			Want: fmt.Sprintf("at least %s, %d, or a smaller %[1]s with it", MaxMessageBytesKey, message),
		})
		if lastSet(layers, MaxMessageBytesKey) >= max(lastSet(layers, SegmentBytesKey), 0) {
			errs[0] = &Error{
				Key: MaxMessageBytesKey, Value: formatInt(message),
				Want: fmt.Sprintf("at most %s, %d, or a larger %[1]s with it", SegmentBytesKey, c.SegmentBytes),
			}
		}
	}
	if c.MaxCompactionLag < c.MinCompactionLag {
		errs = append(errs, &Error{
			Key:   MaxCompactionKey,
			Value: formatInt(c.MaxCompactionLag.Milliseconds()),
			Want:  "at least min.compaction.lag.ms, " + formatInt(c.MinCompactionLag.Milliseconds()),
		})
	}
	return errs
}

// lastSet returns the last layer that sets a key, -1 for none.
func lastSet(layers []map[string]string, key string) int {
	last := -1
	for n, layer := range layers {
		if _, ok := layer[key]; ok {
			last = n
		}
	}
	return last
}

// parseInt takes the one canonical spelling of a number in [lo, hi].
func parseInt(v string, lo, hi int64) (int64, bool) {
	n, err := strconv.ParseInt(v, 10, 64)
	return n, err == nil && formatInt(n) == v && n >= lo && n <= hi
}

func formatInt(n int64) string { return strconv.FormatInt(n, 10) }

func setInt[T int | int64](dst *T, v string, lo, hi int64) bool {
	n, ok := parseInt(v, lo, hi)
	if ok {
		*dst = T(n)
	}
	return ok
}

// longest is the longest time that a key in milliseconds stands for, 292 years.
const longest = time.Duration(math.MaxInt64 / int64(time.Millisecond) * int64(time.Millisecond))

// setMillis sets a duration. What a Duration cannot hold becomes the longest one it can: to Kafka's users the largest
// number means never.
func setMillis(dst *time.Duration, v string, lo, hi int64) bool {
	n, ok := parseInt(v, lo, hi)
	if ok {
		*dst = time.Duration(min(n, longest.Milliseconds())) * time.Millisecond
	}
	return ok
}

func setBool(dst *bool, v string) bool {
	*dst = v == "true"
	return v == "true" || v == "false"
}

func setCleanupPolicy(c *Config, v string) bool {
	switch v {
	case "delete":
		c.Compact, c.Delete = false, true
	case "compact":
		c.Compact, c.Delete = true, false
	case "compact,delete", "delete,compact":
		c.Compact, c.Delete = true, true
	default:
		return false
	}
	return true
}

// setRatio takes a plain decimal number: digits, and more of them after a point.
func setRatio(dst *float64, v string) bool {
	whole, rest, point := strings.Cut(v, ".")
	digits := func(s string) bool {
		return s != "" && len(s) <= 9 && !strings.ContainsFunc(s, func(r rune) bool { return r < '0' || r > '9' })
	}
	if !digits(whole) || (len(whole) > 1 && whole[0] == '0') || (point && !digits(rest)) {
		return false
	}
	f, err := strconv.ParseFloat(v, 64)
	if err != nil || f > 1 {
		return false
	}
	*dst = f
	return true
}

func setFlush(c *Config, v string) bool {
	switch v {
	case auto:
		c.Flush = FlushAuto
	case "async":
		c.Flush = FlushAsync
	case "sync":
		c.Flush = FlushSync
	default:
		return false
	}
	return true
}

func setTimestampType(c *Config, v string) bool {
	switch v {
	case "CreateTime":
		c.TimestampType = CreateTime
	case "LogAppendTime":
		c.TimestampType = LogAppendTime
	default:
		return false
	}
	return true
}

func setMinInsync(c *Config, v string) bool {
	if v == auto {
		c.MinInsyncReplicas = 0
		return true
	}
	return setInt(&c.MinInsyncReplicas, v, 1, math.MaxInt16)
}

// suggestion says what a writer of name may have meant.
func suggestion(defs []definition, name string) string {
	best, distance := "", 4
	for _, d := range defs {
		if len(name) >= len(d.name)+distance {
			continue // too far off, and possibly far too long to compare
		}
		if n := editDistance(d.name, name); n < distance {
			best, distance = d.name, n
		}
	}
	if best == "" {
		return "one of those that AdminService.ListTopicConfigKeys lists"
	}
	return strconv.Quote(best) + "?"
}

// editDistance counts the single-byte insertions, deletions and replacements between a and b.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
