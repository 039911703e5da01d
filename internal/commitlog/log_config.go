package commitlog

import (
	"fmt"
	"math"
	"time"

	"github.com/runnelmq/runnel/internal/record"
)

// A FlushMode says when an appended batch counts as kept. The log itself
// treats all alike: its owner looks at [Log.Durable] or [Log.End], and calls
// [Log.Sync], by it.
type FlushMode uint8

// The flush modes.
const (
	// FlushAsync leaves batches in the page cache; the root syncs them every
	// [Config.FlushInterval].
	FlushAsync FlushMode = iota
	// FlushSync counts a batch only after an fdatasync covered it.
	FlushSync
)

// String returns "async" or "sync".
func (m FlushMode) String() string {
	if m == FlushSync {
		return "sync"
	}
	return "async"
}

// MaxSegmentBytes is the largest segment: a segment file is one Protobuf
// message, and those end at 2 GiB.
const MaxSegmentBytes = 1 << 30

// Defaults of [Config].
const (
	defaultSegmentAge      = 7 * 24 * time.Hour
	defaultRetentionTime   = 7 * 24 * time.Hour
	defaultIndexInterval   = 4096
	defaultFlushInterval   = time.Second
	unlimitedRetention     = -1
	maxIndexIntervalBytes  = math.MaxInt32
	defaultIdleFiles       = 4
	defaultMinDirtyRatio   = 0.5
	defaultDeleteRetention = 24 * time.Hour
)

// Config is how one log is kept. A zero field stands for its default.
type Config struct {
	// SegmentBytes is the size a segment is rolled before; a batch larger
	// than it gets a segment of its own. Default and cap MaxSegmentBytes.
	SegmentBytes int64
	// SegmentAge is how long after its first batch's append time a segment is
	// rolled. Default 7 days.
	SegmentAge time.Duration
	// IndexIntervalBytes is how far apart index entries are at least. It is
	// fixed for a segment when its index is made. Default 4096.
	IndexIntervalBytes int
	// RetentionBytes is what retention by size never cuts below; negative is
	// no limit, and so is the default.
	RetentionBytes int64
	// RetentionTime is how old a segment's newest batch must be, by its append
	// time, for the segment to go; negative is never. Default 7 days.
	RetentionTime time.Duration
	// Compact says that the log is to be compacted; see [Log.Clean], which
	// does not ask.
	Compact bool
	// MinDirtyRatio is how much of what may be compacted must not have been,
	// for a pass to be due. Default 0.5.
	MinDirtyRatio float64
	// MinCompactionLag is how old a segment's newest batch must be, by its
	// append time, for it to be compacted. Default none.
	MinCompactionLag time.Duration
	// MaxCompactionLag is after how long a batch makes a pass due, whatever
	// the ratio, and the active segment of a log that is compacted rolled.
	// 0 is never, the default.
	MaxCompactionLag time.Duration
	// DeleteRetention is how long a tombstone stays after the first pass that
	// met it. Default 24 h.
	DeleteRetention time.Duration
	// MaxBatchBytes is the largest frame that Append takes. Default and cap
	// record.MaxFrameSize. What is stored already is not held to it.
	MaxBatchBytes int
	// Flush is when an appended batch counts as kept. Default FlushAsync.
	Flush FlushMode
	// FlushInterval is how often the root syncs the log. Default 1 s.
	FlushInterval time.Duration
	// Producers, when not nil, is kept in step with the log. It is looked at
	// when the log is opened, and not later.
	Producers Producers
}

// withDefaults returns c with its zero fields filled in and the caps applied.
func (c Config) withDefaults() Config {
	if c.SegmentBytes <= 0 || c.SegmentBytes > MaxSegmentBytes {
		c.SegmentBytes = MaxSegmentBytes
	}
	if c.SegmentAge <= 0 {
		c.SegmentAge = defaultSegmentAge
	}
	if c.Compact && c.MaxCompactionLag > 0 {
		c.SegmentAge = min(c.SegmentAge, c.MaxCompactionLag)
	}
	if c.MinDirtyRatio <= 0 {
		c.MinDirtyRatio = defaultMinDirtyRatio
	}
	if c.DeleteRetention <= 0 {
		c.DeleteRetention = defaultDeleteRetention
	}
	if c.IndexIntervalBytes <= 0 {
		c.IndexIntervalBytes = defaultIndexInterval
	}
	c.IndexIntervalBytes = min(c.IndexIntervalBytes, maxIndexIntervalBytes)
	if c.RetentionBytes == 0 {
		c.RetentionBytes = unlimitedRetention
	}
	if c.RetentionTime == 0 {
		c.RetentionTime = defaultRetentionTime
	}
	if c.MaxBatchBytes <= 0 || c.MaxBatchBytes > record.MaxFrameSize {
		c.MaxBatchBytes = record.MaxFrameSize
	}
	if c.FlushInterval <= 0 {
		c.FlushInterval = defaultFlushInterval
	}
	return c
}

// OpenOptions say how a log is opened.
type OpenOptions struct {
	// Clean says that the root was shut down in order, so that the
	// checkpoint, and not a scan, says how far the log goes. When the files
	// do not bear it out the log is recovered as after a crash.
	Clean bool
	// Young says that no checkpoint of the log was ever known to be durable: that
	// there is none is no loss, and one that is made need not be durable at once.
	// See [Log.Grown].
	Young bool
	// Loose says that what was not durable may have been counted, where there is
	// no checkpoint that would say it.
	Loose bool
	// Failed is the latch of the data root; nil is one of the log's own.
	Failed *Failure
	// Idle bounds the files that are open and not in use. All logs of a
	// process should share one, so that a log that runs out of file
	// descriptors can close what another one does not need; nil is a small
	// one of the log's own. Beside these each log keeps one file open.
	Idle *IdleFiles
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// OnEvent, when not nil, hears of what the log healed or found after it
	// was opened; [Recovery.Events] has what came before. Readers call it,
	// several at once; it must not call the log.
	OnEvent func(Event)
}

// An EventKind says what an [Event] is about.
type EventKind uint8

// The kinds of events.
const (
	// EventIndexRebuilt: an index was missing, short or damaged, and was made
	// anew from its segment.
	EventIndexRebuilt EventKind = iota + 1
	// EventTailCut: the log was cut at the first bad batch above the durable
	// mark.
	EventTailCut
	// EventSetAside: a file that does not belong to the log was renamed.
	EventSetAside
	// EventDamage: bytes below the durable mark are damaged or gone, and not
	// served.
	EventDamage
	// EventEnvelopeRepaired: the outer tag or length of a sound batch was
	// damaged, and was written again.
	EventEnvelopeRepaired
	// EventEpochsRebuilt: the leader epochs were missing or damaged, and were
	// made anew from the batches.
	EventEpochsRebuilt
	// EventProducersRebuilt: a snapshot of the producers was damaged; an older
	// one, or the batches themselves, said the same.
	EventProducersRebuilt
	// EventCheckpointLost: there are segments and no checkpoint that can be
	// read.
	EventCheckpointLost
	// EventLabelRewritten: the file that holds a topic's name was damaged or
	// held another one, and was written anew.
	EventLabelRewritten
)

// String returns the kind in lower-case words, fit for a log line.
func (k EventKind) String() string {
	switch k {
	case EventIndexRebuilt:
		return "index rebuilt"
	case EventTailCut:
		return "tail cut"
	case EventSetAside:
		return "file set aside"
	case EventDamage:
		return "damage found"
	case EventEnvelopeRepaired:
		return "envelope repaired"
	case EventEpochsRebuilt:
		return "leader epochs rebuilt"
	case EventProducersRebuilt:
		return "producers rebuilt"
	case EventCheckpointLost:
		return "checkpoint lost"
	case EventLabelRewritten:
		return "topic label rewritten"
	default:
		return fmt.Sprintf("event %d", uint8(k))
	}
}

// An Event is something an operator should hear of.
type Event struct {
	Kind EventKind
	// Path is the file it is about.
	Path string
	// Position is where in that file, in bytes; -1 when it is not known.
	Position int64
	// Detail says more, for people.
	Detail string
}
