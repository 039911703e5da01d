package partition

import (
	"slices"

	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/record"
)

// A modelRecord is told from every other by n.
type modelRecord struct {
	epoch record.Epoch
	n     int
}

type modelEpoch struct {
	epoch record.Epoch
	start record.Offset
}

// A modelLog is a log as the core sees it, with a disk that may lose what was
// not synced.
type modelLog struct {
	base   record.Offset // of records[0]: what is below start is not removed at once
	start  record.Offset
	synced record.Offset
	// records hold [base, base+len).
	records []modelRecord
	epochs  []modelEpoch
}

func (l *modelLog) PurgedTo() record.Offset { return 0 }

func (l *modelLog) Start() record.Offset { return l.start }
func (l *modelLog) End() record.Offset   { return l.base + record.Offset(len(l.records)) }

func (l *modelLog) at(o record.Offset) (modelRecord, bool) {
	if o < l.start || o >= l.End() {
		return modelRecord{}, false
	}
	return l.records[o-l.base], true
}

// EpochAt is as commitlog.Log has it.
func (l *modelLog) EpochAt(o record.Offset) record.Epoch {
	for _, e := range slices.Backward(l.epochs) {
		if e.start <= o {
			return e.epoch
		}
	}
	return commitlog.NoEpoch
}

// EpochEnd is as commitlog.Log has it.
func (l *modelLog) EpochEnd(e record.Epoch) (record.Epoch, record.Offset) {
	if len(l.epochs) == 0 {
		return commitlog.NoEpoch, l.End()
	}
	if e < l.epochs[0].epoch {
		return e, max(l.epochs[0].start, l.start)
	}
	i := len(l.epochs) - 1
	for l.epochs[i].epoch > e {
		i--
	}
	if i == len(l.epochs)-1 {
		return l.epochs[i].epoch, l.End()
	}
	return l.epochs[i].epoch, max(l.epochs[i+1].start, l.start)
}

func (l *modelLog) startEpoch(e record.Epoch, at record.Offset) {
	keep := len(l.epochs)
	for keep > 0 && (l.epochs[keep-1].epoch >= e || l.epochs[keep-1].start >= at) {
		keep--
	}
	l.epochs = append(slices.Clip(l.epochs[:keep]), modelEpoch{e, at})
}

func (l *modelLog) append(r modelRecord) {
	if len(l.epochs) == 0 || l.epochs[len(l.epochs)-1].epoch < r.epoch {
		l.startEpoch(r.epoch, l.End())
	}
	l.records = append(l.records, r)
}

func (l *modelLog) truncate(to record.Offset) {
	if to < l.End() {
		l.records = l.records[: to-l.base : to-l.base]
	}
	for len(l.epochs) > 0 && l.epochs[len(l.epochs)-1].start >= l.End() {
		l.epochs = l.epochs[:len(l.epochs)-1]
	}
	l.synced = min(l.synced, l.End())
}

func (l *modelLog) reset(start record.Offset) {
	*l = modelLog{base: start, start: start, synced: start}
}

func (l *modelLog) deleteBefore(o record.Offset) {
	l.start = max(l.start, o)
	for len(l.epochs) > 1 && l.epochs[1].start < l.start {
		l.epochs = l.epochs[1:]
	}
}

func (l *modelLog) progress() progress { return progress{l.End(), l.synced} }
