package partition

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/refusal"
)

// What a partition refuses or fails with. "Definite" means that nothing was
// stored. Errors that carry facts wrap one of these and have a Metadata method.
var (
	// ErrNotLeader: another broker leads. Definite. Facts: leader, leaderEpoch, address.
	ErrNotLeader = errors.New("not the leader of this partition")
	// ErrNoLeader: nobody leads, or this broker is still becoming the leader. Definite.
	ErrNoLeader = errors.New("the partition has no leader at present")
	// ErrFencedEpoch: the caller knows an older leader epoch. Definite. Facts: leaderEpoch.
	ErrFencedEpoch = errors.New("older leader epoch")
	// ErrUnknownEpoch: the caller knows a newer leader epoch than this broker. Definite.
	ErrUnknownEpoch = errors.New("newer leader epoch than this broker knows")
	// ErrNotEnoughReplicas: the ISR is below min.insync.replicas. Definite. Facts: isr, minIsr.
	ErrNotEnoughReplicas = errors.New("not enough in-sync replicas")
	// ErrCommitUncertain: it was appended, and nobody can say whether it stays.
	ErrCommitUncertain = errors.New("appended, but it is uncertain whether it stays")
	// ErrMoving: the leadership is being handed over. Definite.
	ErrMoving = errors.New("the leadership is being handed over")
	// ErrUnconfirmed: this leader lost touch with controllers and followers.
	ErrUnconfirmed = errors.New("the leadership is unconfirmed")
	// ErrOffsetNotAvailable: a new leader does not know its high watermark yet.
	ErrOffsetNotAvailable = errors.New("the end of the log is not known yet")
	// ErrOffsetOutOfRange: see OutOfRangeError.
	ErrOffsetOutOfRange = errors.New("offset out of range")
	// ErrStorageFull: the disk is below its mark. Definite. Facts: freeBytes.
	ErrStorageFull = errors.New("the disk is nearly full")
	// ErrNoDescriptors: the process has no file descriptors to spare. Definite.
	ErrNoDescriptors = errors.New("out of file descriptors")
	// ErrStorageFailed: the disk failed; the broker is going down.
	ErrStorageFailed = errors.New("the storage of this broker failed")
	// ErrLogCorrupt: stored data is damaged. Facts: topic, partition, nextOffset.
	ErrLogCorrupt = errors.New("damaged data in the log")
	// ErrShuttingDown: the broker is going down in an orderly way. Definite.
	ErrShuttingDown = errors.New("the broker is shutting down")
	// ErrDeleted: the topic was deleted, or this broker holds no copy any more.
	ErrDeleted = errors.New("the partition is gone")
	// ErrTooLarge: the batch is over what the topic takes. Definite. Facts: size, maxBytes.
	ErrTooLarge = errors.New("batch too large")
)

// An OutOfRangeError says what the log holds.
type OutOfRangeError struct {
	Offset        record.Offset // as asked
	LogStart      record.Offset
	HighWatermark record.Offset
	LogEnd        record.Offset
}

// Error implements error.
func (e *OutOfRangeError) Error() string {
	if e.Offset > e.LogEnd {
		return fmt.Sprintf("offset %d is beyond the end: the log holds [%d, %d)", e.Offset, e.LogStart, e.LogEnd)
	}
	return fmt.Sprintf("offset %d is below the log start: the log holds [%d, %d)", e.Offset, e.LogStart, e.LogEnd)
}

// Unwrap returns the sentinel.
func (e *OutOfRangeError) Unwrap() error { return ErrOffsetOutOfRange }

// Metadata returns the facts for the caller.
func (e *OutOfRangeError) Metadata() map[string]string {
	return map[string]string{
		"logStartOffset": format(e.LogStart),
		"highWatermark":  format(e.HighWatermark),
		"endOffset":      format(e.LogEnd),
	}
}

// A CorruptError says where stored data is damaged.
type CorruptError struct {
	Topic     string
	Partition int32
	Path      string        // the file, or the directory of the partition
	Position  int64         // in the file, -1: unknown
	From      record.Offset // first offset that can't be read
	Next      record.Offset // where reading can go on; -1: unknown
	Err       error         // what the system says when it does not give the bytes back; nil when they are bad
}

// Error implements error.
func (e *CorruptError) Error() string {
	where := e.Path
	if e.Position >= 0 {
		where = fmt.Sprintf("%s at byte %d", e.Path, e.Position)
	}
	if e.Next < 0 {
		return fmt.Sprintf("%s/%d: the stored data can't be used: %s; restore it from a backup or another replica", e.Topic, e.Partition, where)
	}
	if errors.Is(e.Err, fs.ErrPermission) {
		return fmt.Sprintf("%s/%d: offsets %d to %d can't be read: %s: the user that runs the broker must own all that is in the data directory; they are read again when it does",
			e.Topic, e.Partition, e.From, e.Next-1, e.Err)
	}
	if e.Err != nil {
		return fmt.Sprintf("%s/%d: offsets %d to %d can't be read: %s: records before and after them can be; look at the disk, and restore the partition from a backup or another replica",
			e.Topic, e.Partition, e.From, e.Next-1, e.Err)
	}
	return fmt.Sprintf("%s/%d: offsets %d to %d are damaged in %s: records before and after them can be read; restore the partition from a backup or another replica",
		e.Topic, e.Partition, e.From, e.Next-1, where)
}

// Unwrap returns the sentinel.
func (e *CorruptError) Unwrap() error { return ErrLogCorrupt }

// Metadata returns the facts for the caller.
func (e *CorruptError) Metadata() map[string]string {
	return map[string]string{"topic": e.Topic, "partition": strconv.Itoa(int(e.Partition)), "nextOffset": format(e.Next)}
}

func format[I ~int64 | ~int32 | ~int](v I) string { return strconv.FormatInt(int64(v), 10) }

// NoLeader is ErrNoLeader of partition n of t, and names the brokers that it
// waits for: one of those whose copies are complete.
func NoLeader(t *metadata.Topic, n int32, p *metadata.Partition) error {
	waits := slices.Concat(p.ISR, p.ELR)
	if len(waits) == 0 {
		waits = slices.Clone(p.Replicas)
	}
	slices.Sort(waits)
	var names []string
	for _, id := range slices.Compact(waits) {
		names = append(names, format(id))
	}
	return fmt.Errorf("%s/%d: %w: it waits for broker %s; try again", t.Name, n, ErrNoLeader, strings.Join(names, " or "))
}

// notLeader says who leads instead, as img knows it.
func notLeader(img *metadata.Image, t *metadata.Topic, n int32, p *metadata.Partition) error {
	if p.Leader == metadata.NoBroker {
		return NoLeader(t, n, p)
	}
	kv := map[string]string{"leader": format(p.Leader), "leaderEpoch": format(p.LeaderEpoch)}
	where := ""
	if b, ok := img.Broker(p.Leader); ok {
		kv["address"] = b.ClientAddress
		where = " at " + b.ClientAddress
	}
	return refusal.New(ErrNotLeader, kv, "%s/%d: broker %d%s leads it in epoch %d, not this one", t.Name, n, p.Leader, where, p.LeaderEpoch)
}
