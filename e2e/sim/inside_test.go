package sim

import (
	"crypto/sha256"
	"slices"
	"strings"
	"time"

	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/controller/encoding"
	"github.com/runnelmq/runnel/controller/state"
	"github.com/runnelmq/runnel/controller/store"
	"github.com/runnelmq/runnel/internal/record"
)

// An insight is what a judge remembers of what it saw inside processes.
type insight struct {
	before map[*partition.Partition]partition.Inside // of leaders, at the last look
	// batches are the sums of all batches that any copy holds below its high
	// watermark, read how far each copy was compared with them.
	batches map[state.PartitionKey]map[record.Offset][sha256.Size]byte
	read    map[*partition.Partition]record.Offset
	buf     []byte
	// least is the smallest minimum of in-sync replicas a partition ever had.
	least map[state.PartitionKey]int32
	// async says of which partitions what is written counted, as the store had it
	// at the last look, and loose up to where anything was ever committed so.
	async map[state.PartitionKey]bool
	loose map[state.PartitionKey]record.Offset
	// starts are where epochs began.
	starts map[state.PartitionKey]map[record.Epoch]record.Offset
	// halted are the high watermarks a process had when its disk was first
	// seen to have failed.
	halted map[*partition.Partition]record.Offset
	// gone is up to where records may have been deleted, deleted up to where
	// they were.
	gone, deleted map[state.PartitionKey]int64
}

func newInsight() insight {
	return insight{
		before: map[*partition.Partition]partition.Inside{}, batches: map[state.PartitionKey]map[record.Offset][sha256.Size]byte{},
		read: map[*partition.Partition]record.Offset{}, buf: make([]byte, 1<<20), least: map[state.PartitionKey]int32{},
		async: map[state.PartitionKey]bool{}, loose: map[state.PartitionKey]record.Offset{}, starts: map[state.PartitionKey]map[record.Epoch]record.Offset{},
		halted: map[*partition.Partition]record.Offset{}, gone: map[state.PartitionKey]int64{}, deleted: map[state.PartitionKey]int64{},
	}
}

// mayGo notes that somebody asks for the deletion of records.
func (j *judge) mayGo(k state.PartitionKey, before int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.insight.gone[k] = max(j.insight.gone[k], before)
}

// areGone notes that a deletion was acknowledged.
func (j *judge) areGone(k state.PartitionKey, before int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.insight.deleted[k] = max(j.insight.deleted[k], before)
}

// deleted is up to where records were deleted, and that was acknowledged.
func (j *judge) deleted(k state.PartitionKey) int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.insight.deleted[k]
}

// gone is up to where records may have been deleted.
func (j *judge) gone(k state.PartitionKey) int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.insight.gone[k]
}

// promised is an acknowledged record that was not looked for yet.
type promised struct {
	key    state.PartitionKey
	offset record.Offset
}

// inside looks at one copy.
func (j *judge) inside(h *brokerHost, p *partition.Partition, k state.PartitionKey, pic *picture) {
	in := p.Inside()
	j.contents(h, p, k, in)
	j.halts(h, p, in)
	if may := j.gone(k); int64(in.LogStart) > may {
		j.complain("I17", "%s on %s begins at %d, and what is below %d was to be deleted", p, h.name, in.LogStart, may)
	}
	was, seen := j.insight.before[p]
	j.insight.before[p] = in
	if !in.Leader {
		return
	}
	// The minimum holds at each advance: where neither look finds it met, in one
	// and the same committed state, nothing may have advanced between them.
	same := seen && was.Leader && was.Epoch == in.Epoch && was.PartitionEpoch == in.PartitionEpoch
	if same && in.HighWatermark > was.HighWatermark && len(in.Committed) < in.MinISR {
		j.complain("I8", "%s on %s: the high watermark rose from %d to %d with the ISR %v, below %d", p, h.name, was.HighWatermark, in.HighWatermark, in.Committed, in.MinISR)
	}
	j.apart(h, p, k, in)
	if !in.Sync || seen && !was.Sync {
		j.insight.loose[k] = max(j.insight.loose[k], in.HighWatermark)
	}
	if in.HighWatermark > j.counted(k, in) {
		j.complain("I8", "%s on %s: the high watermark is %d, and the disk has what is below %d", p, h.name, in.HighWatermark, in.Durable)
	}
	for _, m := range in.Maximal {
		id := state.BrokerID(m)
		if !j.whole(id, pic) {
			continue // another process, or another disk: who leads may not know
		}
		member := j.c.replica(id, k)
		if member == nil || member == p {
			continue
		}
		other := member.Inside()
		other.Sync = in.Sync
		if has := j.counted(k, other); has < in.HighWatermark {
			j.complain("I8", "%s on %s: the high watermark is %d, and broker %d of the maximal ISR %v has what is below %d: %+v", p, h.name, in.HighWatermark, id, in.Maximal, has, other)
		}
	}
}

// counted is up to where a copy has what it may be counted for: on the disk,
// where that is what counts, but for what was committed before it did.
func (j *judge) counted(k state.PartitionKey, in partition.Inside) record.Offset {
	if !in.Sync {
		return in.LogEnd
	}
	return min(max(in.Durable, j.insight.loose[k]), in.LogEnd)
}

// loosen notes what was committed while it was enough that it is written.
func (j *judge) loosen(k state.PartitionKey, rec *state.Partition) {
	if j.insight.async[k] || !rec.Sync {
		j.insight.loose[k] = max(j.insight.loose[k], j.known(k))
	}
	j.insight.async[k] = !rec.Sync
}

// apart checks that a leader has committed nothing at or above the start of a
// later epoch: what is there is the later leader's. What was acknowledged to it
// before may be late to come, and is true.
func (j *judge) apart(h *brokerHost, p *partition.Partition, k state.PartitionKey, in partition.Inside) {
	starts := j.insight.starts[k]
	if starts == nil {
		starts = map[record.Epoch]record.Offset{}
		j.insight.starts[k] = starts
	}
	starts[in.Epoch] = in.Start
	for epoch, start := range starts {
		if epoch > in.Epoch && start < in.HighWatermark && !j.despair {
			j.complain("I10", "%s on %s: in epoch %d all below %d is committed, and epoch %d began at %d", p, h.name, in.Epoch, in.HighWatermark, epoch, start)
		}
	}
}

// whole says whether what a broker's process acknowledged is what its copies
// hold: it was not started anew since the controllers last judged it.
func (j *judge) whole(id state.BrokerID, pic *picture) bool {
	h := j.c.brokers[id]
	return h.registered(pic) && !h.lossy && h.proc.disk.failedAt().IsZero()
}

// contents compares what a copy holds below its high watermark with what all
// others were seen to hold there.
func (j *judge) contents(h *brokerHost, p *partition.Partition, k state.PartitionKey, in partition.Inside) {
	sums := j.insight.batches[k]
	if sums == nil {
		sums = map[record.Offset][sha256.Size]byte{}
		j.insight.batches[k] = sums
	}
	at := max(j.insight.read[p], in.LogStart)
	for at < in.HighWatermark {
		n, err := p.ReadInside(j.insight.buf, at)
		if err != nil || n == 0 {
			break // it is being closed, or cut
		}
		for b := j.insight.buf[:n]; len(b) > 0 && at < in.HighWatermark; {
			f, v := record.ParseFrame(b, int64(len(b)), len(b))
			if v != record.OK {
				j.complain("I11", "%s on %s at offset %d: verdict %v", p, h.name, at, v)
				return
			}
			if f.Header.NextOffset() > in.HighWatermark {
				return
			}
			sum := sha256.Sum256(b[:f.Size])
			if old, ok := sums[f.Header.BaseOffset]; ok && old != sum {
				j.complain("I2", "%s on %s: what is committed at offset %d is not what it was, or is elsewhere: %x, not %x", p, h.name, f.Header.BaseOffset, sum[:4], old[:4])
			}
			sums[f.Header.BaseOffset] = sum
			at, b = f.Header.NextOffset(), b[f.Size:]
		}
	}
	j.insight.read[p] = at
}

// kept checks that what was acknowledged is held by as many as was promised.
func (j *judge) kept(pic *picture) {
	for k, rec := range pic.partitions {
		if least, ok := j.insight.least[k]; !ok || rec.MinISR < least {
			j.insight.least[k] = rec.MinISR
		}
	}
	j.mu.Lock()
	acks := j.unchecked
	j.unchecked = nil
	j.mu.Unlock()
	for _, a := range acks {
		rec := pic.partitions[a.key]
		if rec == nil {
			continue
		}
		n := int32(0)
		for _, id := range rec.Replicas {
			p := j.c.replica(id, a.key)
			if p == nil || !j.whole(id, pic) {
				n++ // what it holds can't be seen now
				continue
			}
			in := p.Inside()
			end := in.LogEnd
			if in.Sync && rec.Sync && j.insight.least[a.key] == 1 {
				end = j.counted(a.key, in)
			}
			if end > a.offset {
				n++
			}
		}
		if n < j.insight.least[a.key] {
			j.complain("I13", "%s: offset %d was acknowledged, and %d replicas hold it, not %d", j.name(a.key), a.offset, n, j.insight.least[a.key])
		}
	}
}

// halts checks that a process whose disk failed promises nothing more.
func (j *judge) halts(h *brokerHost, p *partition.Partition, in partition.Inside) {
	if h.proc.disk.failedAt().IsZero() {
		return
	}
	hw, seen := j.insight.halted[p]
	if !seen {
		j.insight.halted[p] = in.HighWatermark
		return
	}
	if in.Leader && in.HighWatermark > hw {
		j.complain("I20", "%s on %s: the disk has failed, and the high watermark rose from %d to %d", p, h.name, hw, in.HighWatermark)
	}
}

// failStop is how long a process may take to end when its disk has failed.
const failStop = 10 * time.Second

// failed checks that processes whose disks failed end.
func (j *judge) failed() {
	for _, h := range j.c.brokers {
		at := h.proc.disk.failedAt()
		if h.down || at.IsZero() || time.Since(at) < failStop {
			continue
		}
		select {
		case <-h.proc.done:
		default:
			j.complain("I20", "%s: the disk failed %v ago, and the process goes on", h.name, time.Since(at))
		}
	}
}

// audit checks each write to the metadata store at the moment it is made: it was
// decided by the controller that is active then, and on what it replaces. The
// judge's lock is all it takes: the store's is held.
func (j *judge) audit(cmps []store.Compare, writes []store.Write, pairs map[string]store.Pair) {
	election := encoding.Path(state.Key{Kind: state.KindController})
	fenced := false
	for _, c := range cmps {
		fenced = fenced || (strings.HasSuffix(c.Key, "/"+election) && c.Create && c.Revision != 0)
	}
	for _, w := range writes {
		_, exists := pairs[w.Key]
		campaign := strings.HasSuffix(w.Key, "/"+election)
		compared := slices.ContainsFunc(cmps, func(c store.Compare) bool { return c.Key == w.Key })
		switch {
		case !compared:
			j.complain("I21", "%s was written without a look at what it replaces", w.Key)
		case fenced || !exists && len(pairs) < 2: // the cluster is being made
			continue
		case campaign:
			fenced = true // and what goes with it
		default:
			j.complain("I21", "%s was written by a controller that did not prove to be the active one", w.Key)
		}
	}
}
