package commitlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"path/filepath"

	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// The checkpoint file's layout; see FORMAT.md. Two slots in pages of their own
// are written in turn, so that one is whole whatever happens, and the file
// never grows: a checkpoint needs no room on a full disk.
const (
	checkpointName    = "checkpoint"
	checkpointMagic   = "RNLC"
	checkpointVersion = 1
	checkpointSize    = 8 + 8*8 + 4
	slotSpacing       = 4096
	checkpointFile    = 2 * slotSpacing
)

// A Suspicion says why a log may miss what was acknowledged. It is kept in the
// checkpoint until [Log.SetSuspicion] lifts it, so that no restart forgets it.
type Suspicion uint32

// The suspicions.
const (
	// NotSuspect is a log that is what it was when it was last written.
	NotSuspect Suspicion = iota
	// SuspectDamage: bytes below the durable mark are damaged.
	SuspectDamage
	// SuspectBelowHighWatermark: the log ends below the high watermark that
	// was checkpointed.
	SuspectBelowHighWatermark
	// SuspectBelowRecoveryPoint: the log ends below what was synced.
	SuspectBelowRecoveryPoint
	// SuspectNoCheckpoint: no checkpoint says how far the log was durable.
	SuspectNoCheckpoint
	// SuspectOther: the log's owner said so.
	SuspectOther
	// SuspectTail: records above the durable mark are damaged, and no power cut
	// explains it.
	SuspectTail
)

// String returns the reason in words, fit for a log line.
func (s Suspicion) String() string {
	switch s {
	case NotSuspect:
		return "not suspect"
	case SuspectDamage:
		return "damaged below the durable mark"
	case SuspectBelowHighWatermark:
		return "ends below the checkpointed high watermark"
	case SuspectBelowRecoveryPoint:
		return "ends below what was durable"
	case SuspectNoCheckpoint:
		return "the checkpoint was lost"
	case SuspectOther:
		return "declared suspect"
	case SuspectTail:
		return "its last records were damaged, and cut off"
	default:
		return fmt.Sprintf("suspicion %d", uint32(s))
	}
}

// A checkpoint is what a log remembers beside its batches.
type checkpoint struct {
	seq uint64
	// recoveryPoint is the durable mark: all below it was synced. Invariant
	// of an intact log: logStart, recoveryPoint <= the log's end.
	recoveryPoint record.Offset
	highWatermark record.Offset
	logStart      record.Offset
	// purgedTo: no tombstone or marker was ever removed at or above it.
	purgedTo record.Offset
	// cleanedTo: at and above it batches are as they were appended.
	cleanedTo record.Offset
	// lastAppendMs is a floor for the next append time.
	lastAppendMs int64
	suspicion    Suspicion
	// loose: what was not durable may have been counted, and acknowledged.
	loose bool
}

// looseBit is beside the suspicion.
const looseBit = 1 << 32

func encodeCheckpoint(c *checkpoint) []byte {
	suspicion := uint64(c.suspicion)
	if c.loose {
		suspicion |= looseBit
	}
	b := []byte(checkpointMagic)
	b = binary.LittleEndian.AppendUint32(b, checkpointVersion)
	for _, v := range []uint64{
		c.seq, uint64(c.recoveryPoint), uint64(c.highWatermark), uint64(c.logStart),
		uint64(c.purgedTo), uint64(c.cleanedTo), uint64(c.lastAppendMs), suspicion,
	} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// parseSlot reads one slot. ok is false when it does not hold a checkpoint;
// the error is ErrUnknownFormat.
func parseSlot(b []byte) (c checkpoint, ok bool, err error) {
	if len(b) < checkpointSize || string(b[:4]) != checkpointMagic ||
		binary.LittleEndian.Uint32(b[checkpointSize-4:]) != crc32.Checksum(b[:checkpointSize-4], castagnoli) {
		return checkpoint{}, false, nil
	}
	if v := binary.LittleEndian.Uint32(b[4:]); v != checkpointVersion {
		return checkpoint{}, false, fmt.Errorf("checkpoint version %d: %w", v, ErrUnknownFormat)
	}
	field := func(i int) int64 { return int64(binary.LittleEndian.Uint64(b[8+8*i:])) }
	c = checkpoint{
		seq:           uint64(field(0)),
		recoveryPoint: record.Offset(field(1)),
		highWatermark: record.Offset(field(2)),
		logStart:      record.Offset(field(3)),
		purgedTo:      record.Offset(field(4)),
		cleanedTo:     record.Offset(field(5)),
		lastAppendMs:  field(6),
		suspicion:     Suspicion(field(7)), //nolint:gosec // the lower half
		loose:         field(7)&looseBit != 0,
	}
	valid := c.recoveryPoint >= 0 && c.highWatermark >= 0 && c.logStart >= 0 && c.purgedTo >= 0 && c.cleanedTo >= 0
	return c, valid, nil
}

// parseCheckpoint returns the newer of the two checkpoints in the file.
func parseCheckpoint(b []byte) (c checkpoint, ok bool, err error) {
	for i := range 2 {
		if len(b) < i*slotSpacing+checkpointSize {
			break
		}
		slot, found, err := parseSlot(b[i*slotSpacing:])
		if err != nil {
			return checkpoint{}, false, err
		}
		if found && (!ok || slot.seq > c.seq) {
			c, ok = slot, true
		}
	}
	return c, ok, nil
}

// readCheckpoint returns the checkpoint of a partition directory, if there is
// one that can be read.
func readCheckpoint(fsys vfs.FS, dir string) (c checkpoint, ok bool, err error) {
	b, err := vfs.ReadFile(fsys, filepath.Join(dir, checkpointName))
	if errors.Is(err, fs.ErrNotExist) {
		return checkpoint{}, false, nil
	}
	if err != nil {
		return checkpoint{}, false, err
	}
	return parseCheckpoint(b)
}

// createCheckpoint makes the file of a new log, with room for both slots. It is
// not durable.
func createCheckpoint(fsys vfs.FS, dir string, c *checkpoint) (err error) {
	f, err := fsys.OpenOrCreate(filepath.Join(dir, checkpointName))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()

	b := make([]byte, checkpointFile)
	copy(b[c.slot():], encodeCheckpoint(c))
	if _, err := f.WriteAt(b, 0); err != nil {
		return err
	}
	f.WriteBack()
	return nil
}

// write replaces the older of the two slots, durably. A write that finds no
// room may be tried again, because the other slot stands; a failed sync fails
// the root.
func (c *checkpoint) write(fsys vfs.FS, dir string, failed *Failure) (err error) {
	f, err := fsys.Open(filepath.Join(dir, checkpointName))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()

	if _, err := f.WriteAt(encodeCheckpoint(c), c.slot()); err != nil {
		return err
	}
	return failed.Set(f.Sync())
}

func (c *checkpoint) slot() int64 { return int64(c.seq%2) * slotSpacing }
