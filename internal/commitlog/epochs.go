package commitlog

import (
	"path/filepath"
	"slices"

	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// NoEpoch is what a log without any leader epoch answers.
const NoEpoch record.Epoch = -1

// An epochStart says at which offset a leader epoch begins.
type epochStart struct {
	epoch record.Epoch
	start record.Offset
}

// epochList is the history of a log's leader epochs. It is immutable: changes
// return a new list, or the same one when nothing changed. Invariant: both
// epochs and starts strictly increase.
//
// A start may be below the log start: the last entries say whose records there
// were, even when retention has removed all of them.
type epochList []epochStart

// last returns the latest entry's epoch.
func (l epochList) last() record.Epoch {
	if len(l) == 0 {
		return NoEpoch
	}
	return l[len(l)-1].epoch
}

// at returns the epoch of the record at offset, or that it would have had.
func (l epochList) at(offset record.Offset) record.Epoch {
	for _, e := range slices.Backward(l) {
		if e.start <= offset {
			return e.epoch
		}
	}
	return NoEpoch
}

// end answers where epoch e ends: with the largest known epoch that is not
// above e, and the start of the next one, or end for the latest. For an e
// below all known epochs it is e itself, and the start of the lowest. No
// answer is below the log start.
func (l epochList) end(e record.Epoch, logStart, end record.Offset) (record.Epoch, record.Offset) {
	if len(l) == 0 {
		return NoEpoch, end
	}
	if e < l[0].epoch {
		return e, max(l[0].start, logStart)
	}
	i := len(l) - 1
	for l[i].epoch > e {
		i--
	}
	if i == len(l)-1 {
		return l[i].epoch, end
	}
	return l[i].epoch, max(l[i+1].start, logStart)
}

// begin lets epoch e begin at start. Entries that do not come before it in
// both are older claims, and go.
func (l epochList) begin(e record.Epoch, start record.Offset) epochList {
	keep := len(l)
	for keep > 0 && (l[keep-1].epoch >= e || l[keep-1].start >= start) {
		keep--
	}
	return append(l[:keep:keep], epochStart{e, start})
}

// observe takes a batch of epoch e at base into account: it proves what the
// list may not know, or know wrongly, after a crash. Entries that it proves
// wrong go; what begins after it stays.
func (l epochList) observe(e record.Epoch, base record.Offset) epochList {
	if l.at(base) == e {
		return l
	}
	var out epochList
	i := 0
	for ; i < len(l) && l[i].start <= base; i++ {
		if l[i].epoch <= e && (l[i].start < base || l[i].epoch == e) {
			out = append(out, l[i])
		}
	}
	if out.last() != e {
		out = append(out, epochStart{e, base})
	}
	for ; i < len(l); i++ {
		if l[i].epoch > e {
			out = append(out, l[i])
		}
	}
	return out
}

// cut drops the entries that begin at end or after it.
func (l epochList) cut(end record.Offset) epochList {
	keep := len(l)
	for keep > 0 && l[keep-1].start >= end {
		keep--
	}
	return l[:keep:keep]
}

// trim drops the entries that end at or below logStart, but never the last
// one that begins below it: it says whose record was the last there.
func (l epochList) trim(logStart record.Offset) epochList {
	from := 0
	for from+1 < len(l) && l[from+1].start < logStart {
		from++
	}
	return l[from:]
}

// parseEpochs reads the entries of the leader epochs file.
func parseEpochs(pairs [][2]int64) (epochList, error) {
	list := make(epochList, 0, len(pairs))
	for _, p := range pairs {
		e := epochStart{record.Epoch(p[0]), record.Offset(p[1])}
		if e.epoch < 0 || e.start < 0 {
			return nil, errBadPairs
		}
		if n := len(list); n > 0 && (list[n-1].epoch >= e.epoch || list[n-1].start >= e.start) {
			return nil, errBadPairs
		}
		list = append(list, e)
	}
	return list, nil
}

func (l epochList) write(fsys vfs.FS, dir string) error {
	pairs := make([][2]int64, len(l))
	for i, e := range l {
		pairs[i] = [2]int64{int64(e.epoch), int64(e.start)}
	}
	return vfs.WriteFileAtomic(fsys, filepath.Join(dir, epochsName), encodePairs(epochsMagic, pairs))
}
