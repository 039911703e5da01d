package producer

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/runnelmq/runnel/internal/record"
)

// Why a batch of an idempotent producer is not taken. Errors that carry facts wrap one of these and have a Metadata method.
var (
	// ErrOutOfOrder: the batch does not follow the last one of its producer. Definite: it was not stored. Facts: producerId,
	// producerEpoch, baseSequence, expectedSequence.
	ErrOutOfOrder = errors.New("the sequence does not follow the last one of this producer")
	// ErrStateLost: it can't be said whether the batch was stored before. Facts: producerId, producerEpoch, baseSequence, and
	// expectedSequence when the producer is known.
	ErrStateLost = errors.New("too little is known of this producer")
	// ErrFenced: a batch with a higher producer epoch was stored. Definite. Facts: producerId, producerEpoch, currentEpoch.
	ErrFenced = errors.New("older producer epoch")
	// ErrOverlap: records of the batch are stored in batches with other bounds. Definite. Facts: as ErrOutOfOrder.
	ErrOverlap = errors.New("stored in part, with other bounds")
	// ErrTooMany: the partition remembers as many producers as it may, and all of them wrote lately. Definite. Facts: limit.
	ErrTooMany = errors.New("too many idempotent producers")
)

// A RefusedError says why a batch is not taken.
type RefusedError struct {
	Kind error // one of the sentinels
	// What the batch says.
	ID       record.ProducerID
	Epoch    record.ProducerEpoch
	Sequence record.Sequence
	// Known is whether the table knows the producer; Expected and Current are 0 without.
	Known    bool
	Expected record.Sequence      // what would have followed
	Current  record.ProducerEpoch // of the newest batch stored
	Limit    int                  // of ErrTooMany

	text string
}

// Error implements error.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("producer %d, epoch %d, sequence %d: %s", e.ID, e.Epoch, e.Sequence, e.text)
}

// Unwrap returns the sentinel.
func (e *RefusedError) Unwrap() error { return e.Kind }

// Metadata returns the facts for the caller.
func (e *RefusedError) Metadata() map[string]string {
	kv := map[string]string{
		"producerId": decimal(e.ID), "producerEpoch": decimal(e.Epoch), "baseSequence": decimal(e.Sequence),
	}
	switch {
	case errors.Is(e.Kind, ErrTooMany):
		kv["limit"] = strconv.Itoa(e.Limit)
	case errors.Is(e.Kind, ErrFenced):
		kv["currentEpoch"] = decimal(e.Current)
	default:
		if e.Known {
			kv["expectedSequence"] = decimal(e.Expected)
		}
	}
	return kv
}

func decimal[I ~int64](v I) string { return strconv.FormatInt(int64(v), 10) }
