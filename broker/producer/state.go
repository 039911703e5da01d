package producer

import (
	"encoding/binary"
	"errors"

	"github.com/runnelmq/runnel/internal/record"
)

// ErrBadState says that bytes are not a table's state.
var ErrBadState = errors.New("not the state of producers")

// Sizes of the parts of a state, in bytes; see internal/commitlog/FORMAT.md.
const (
	stateHeaderSize = 4
	stateEntrySize  = 8 + 8 + 1
	stateBatchSize  = 8 + 8 + 4 + 8
)

// AppendState appends all that the table remembers to dst, the producer that has not written for the longest first.
func (t *Table) AppendState(dst []byte) []byte {
	le := binary.LittleEndian
	dst = le.AppendUint32(dst, uint32(len(t.byID))) //nolint:gosec // bounded by the memory
	for e := t.oldest; e != nil; e = e.newer {
		dst = le.AppendUint64(dst, uint64(e.id))
		dst = le.AppendUint64(dst, uint64(e.epoch))
		dst = append(dst, byte(e.n))
		for _, b := range e.batches[:e.n] {
			dst = le.AppendUint64(dst, uint64(b.Sequence))
			dst = le.AppendUint64(dst, uint64(b.Base))
			dst = le.AppendUint32(dst, b.Delta)
			dst = le.AppendUint64(dst, uint64(b.AppendTimeMs))
		}
	}
	return dst
}

// SetState replaces the table's memory by a state that AppendState made. After an error, [ErrBadState], it is empty.
func (t *Table) SetState(state []byte) error {
	t.Reset()
	if err := t.readState(state); err != nil {
		t.Reset()
		return err
	}
	for len(t.byID) > t.cfg.Max {
		t.remove(t.oldest)
	}
	return nil
}

func (t *Table) readState(b []byte) error {
	if len(b) < stateHeaderSize {
		return ErrBadState
	}
	count := binary.LittleEndian.Uint32(b)
	b = b[stateHeaderSize:]
	for range count {
		if len(b) < stateEntrySize {
			return ErrBadState
		}
		e := &entry{id: record.ProducerID(number(b)), epoch: record.ProducerEpoch(number(b[8:])), n: int(b[16])}
		b = b[stateEntrySize:]
		if e.id <= 0 || e.epoch < 0 || t.byID[e.id] != nil || e.n < 1 || e.n > Window || len(b) < e.n*stateBatchSize {
			return ErrBadState
		}
		for i := range e.n {
			e.batches[i] = Batch{
				Sequence: record.Sequence(number(b)), Base: record.Offset(number(b[8:])),
				Delta: binary.LittleEndian.Uint32(b[16:]), AppendTimeMs: number(b[20:]),
			}
			if bad(e, i) {
				return ErrBadState
			}
			b = b[stateBatchSize:]
		}
		if t.newest != nil && e.last().Base <= t.newest.last().Base {
			return ErrBadState
		}
		t.byID[e.id] = e
		t.append(e)
	}
	if len(b) > 0 {
		return ErrBadState
	}
	return nil
}

// bad reports whether batch i of e cannot be.
func bad(e *entry, i int) bool {
	b := &e.batches[i]
	if b.Sequence < 0 || b.Base < 0 || b.next() <= b.Sequence || b.Last() < b.Base {
		return true
	}
	return i > 0 && (b.Sequence != e.batches[i-1].next() || b.Base <= e.batches[i-1].Last())
}

func number(b []byte) int64 { return int64(binary.LittleEndian.Uint64(b)) } //nolint:gosec // two's complement
