package record

import (
	"fmt"
	"math"
)

// setFacts is what a scan of a record set finds out.
type setFacts struct {
	count                      int
	last                       uint32 // offset delta of the last record
	minTimestamp, maxTimestamp int64
}

// scanSet holds an uncompressed record set to the strict profile and to lim, in one pass, and allocates only to refuse.
func scanSet(set []byte, baseTimestamp int64, lim *Limits) (setFacts, error) {
	if len(set) == 0 {
		return setFacts{}, corruptf(-1, "the batch has no records: send at least one")
	}
	facts := setFacts{minTimestamp: math.MaxInt64, maxTimestamp: math.MinInt64}
	last := int64(-1)
	var r rawRecord
	for pos := 0; pos < len(set); {
		if facts.count == lim.MaxRecords {
			return setFacts{}, &BatchError{
				Kind: ErrTooLarge, Record: facts.count, Position: pos, Size: facts.count + 1, Limit: lim.MaxRecords, Records: true,
				What: fmt.Sprintf("more than %d records in one batch: send smaller batches", lim.MaxRecords),
			}
		}
		next, f := r.decode(set, pos)
		if f != noFault {
			return setFacts{}, &BatchError{Kind: ErrCorruptBatch, Record: facts.count, Position: next, What: f.String()}
		}
		delta := int64(facts.count)
		if r.hasOffset {
			delta = int64(r.offset)
		}
		timestamp := baseTimestamp + r.delta
		if r.size > lim.MaxRecordBytes || delta <= last || (timestamp < baseTimestamp) != (r.delta < 0) ||
			(lim.RequireKeys && r.key == nil) {
			return setFacts{}, refuse(&r, facts.count, pos, delta <= last, lim)
		}
		facts.minTimestamp = min(facts.minTimestamp, timestamp)
		facts.maxTimestamp = max(facts.maxTimestamp, timestamp)
		last = delta
		facts.count++
		pos = next
	}
	facts.last = uint32(last)
	return facts, nil
}

// refuse says which rule of the batch, rather than of its own form, the record breaks.
func refuse(r *rawRecord, index, pos int, offsetBack bool, lim *Limits) error {
	switch {
	case r.size > lim.MaxRecordBytes:
		return tooLargeRecord(index, pos, r.size, lim.MaxRecordBytes)
	case offsetBack:
		return &BatchError{
			Kind: ErrCorruptBatch, Record: index, Position: pos,
			What: "its offset is not above that of the record before: leave offset_delta out, or let it increase",
		}
	case lim.RequireKeys && r.key == nil:
		return &BatchError{
			Kind: ErrInvalidRecord, Record: index, Position: pos,
			What: "it has no key, and every record of a compacted topic needs one (an empty key is a key)",
		}
	default:
		return &BatchError{
			Kind: ErrInvalidRecord, Record: index, Position: pos,
			What: "base_timestamp_ms + timestamp_delta_ms overflows",
		}
	}
}

func tooLargeRecord(index, pos, size, limit int) error {
	return &BatchError{
		Kind: ErrTooLarge, Record: index, Position: pos, Size: size, Limit: limit,
		What: fmt.Sprintf("it takes %d bytes serialized and uncompressed, the limit is %d: make it smaller or raise max.message.bytes", size, limit),
	}
}
