package sim

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"

	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/controller/encoding"
	"github.com/runnelmq/runnel/controller/state"
	"github.com/runnelmq/runnel/controller/store"
	"github.com/runnelmq/runnel/internal/record"
)

// A judge looks at all processes and at the metadata store, and says what must
// never be.
type judge struct {
	c *cluster

	leaders map[epochKey]*brokerProcess // who was ever seen leading
	elected map[epochKey]state.BrokerID // who was ever recorded as leader
	ends    map[leaderKey]record.Offset // high watermarks of leaders
	newest  map[state.PartitionKey]*state.Partition
	insight insight
	// bare says of partitions whether a higher minimum found too few members, which
	// no change of the ISR has mended, and how many elections that excused.
	bare map[state.PartitionKey]bareness
	// despair: so much is broken that a recovery election is right.
	despair bool

	// mu guards the fields below
	mu sync.Mutex

	// committed is up to where each partition is known to be committed.
	committed  map[state.PartitionKey]record.Offset
	acked      int
	unchecked  []promised
	complaints []string
	kinds      map[string]int
	// expected are kinds of complaints that a story asks for, with how many
	// came.
	expected map[string]int
}

type bareness struct {
	now       bool
	elections int
}

type epochKey struct {
	state.PartitionKey

	epoch int64
}

type leaderKey struct {
	epochKey

	proc *brokerProcess
}

func newJudge(c *cluster) *judge {
	return &judge{
		c: c, leaders: map[epochKey]*brokerProcess{}, elected: map[epochKey]state.BrokerID{}, ends: map[leaderKey]record.Offset{},
		newest: map[state.PartitionKey]*state.Partition{}, committed: map[state.PartitionKey]record.Offset{}, kinds: map[string]int{}, expected: map[string]int{}, insight: newInsight(),
		bare: map[state.PartitionKey]bareness{},
	}
}

// toldOfAKind is how many complaints of one kind are told.
const toldOfAKind = 5

// complain notes that an invariant does not hold.
func (j *judge) complain(invariant, format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, ok := j.expected[invariant]; ok {
		j.expected[invariant]++
		return
	}
	if j.kinds[invariant]++; j.kinds[invariant] <= toldOfAKind {
		line := invariant + ": " + fmt.Sprintf(format, args...)
		j.complaints = append(j.complaints, line)
		j.c.logs.note("VIOLATED %s", line)
	}
}

func (j *judge) found() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.complaints)
}

// acknowledged notes what a client was promised.
func (j *judge) acknowledged(t *topic, n int32, offset int64) {
	k := state.PartitionKey{Topic: uuid.MustParse(t.id), Number: n}
	j.mu.Lock()
	j.acked++
	j.unchecked = append(j.unchecked, promised{k, record.Offset(offset)})
	j.mu.Unlock()
	j.raise(k, record.Offset(offset)+1)
}

// acks returns how many records were acknowledged.
func (j *judge) acks() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.acked
}

func (j *judge) raise(k state.PartitionKey, end record.Offset) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.committed[k] = max(j.committed[k], end)
}

func (j *judge) known(k state.PartitionKey) record.Offset {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.committed[k]
}

// A picture is what the metadata store holds.
type picture struct {
	brokers    map[state.BrokerID]*state.Broker
	topics     map[uuid.UUID]*state.Topic
	partitions map[state.PartitionKey]*state.Partition
}

func (c *cluster) picture() picture {
	p := picture{map[state.BrokerID]*state.Broker{}, map[uuid.UUID]*state.Topic{}, map[state.PartitionKey]*state.Partition{}}
	for path, pair := range c.kv.Dump() {
		switch o := c.object(path, pair).(type) {
		case *state.Broker:
			p.brokers[o.ID] = o
		case *state.Topic:
			p.topics[o.ID] = o
		case *state.Partition:
			p.partitions[o.PartitionKey()] = o
		}
	}
	return p
}

// object reads a pair of the store, once; nil: it is none of the cluster's.
func (c *cluster) object(path string, pair store.Pair) state.Object {
	if known, ok := c.objects[path]; ok && known.mod == pair.Mod {
		return known.object
	}
	known := readObject{mod: pair.Mod}
	if _, below, ok := strings.Cut(strings.TrimPrefix(path, "/runnel/"), "/"); ok {
		key, err := encoding.ParsePath(below)
		if err == nil {
			known.object, err = encoding.Unmarshal(key, pair.Value, state.Revision(pair.Mod))
		}
		if err != nil {
			c.judge.complain("I21", "%s: %v", path, err)
		}
	}
	c.objects[path] = known
	return known.object
}

// A readObject is an object of the store as of a revision.
type readObject struct {
	mod    int64
	object state.Object
}

// look is called when nothing moves: what it sees was so at one moment.
func (j *judge) look() picture {
	pic := j.c.picture()
	for k, rec := range pic.partitions {
		if t := pic.topics[k.Topic]; t == nil || t.Phase == state.TopicDeleting {
			delete(pic.partitions, k) // of these nothing is kept up any more
			continue
		}
		j.record(k, rec)
	}
	// Before who leads now raises what is known to be committed.
	for k, rec := range pic.partitions {
		j.settled(k, rec)
		j.loosen(k, rec)
	}
	for _, h := range j.c.brokers {
		if h.down || h.proc.Partitions() == nil {
			continue
		}
		for _, p := range h.proc.Partitions().All() {
			j.replica(h, p)
			j.inside(h, p, state.PartitionKey{Topic: p.Topic().ID, Number: p.Number()}, &pic)
		}
	}
	j.kept(&pic)
	j.failed()
	for k, rec := range pic.partitions {
		j.complete(k, rec, &pic)
	}
	j.regained(&pic)
	return pic
}

// record checks that epochs rise, and that each has one leader at most.
func (j *judge) record(k state.PartitionKey, rec *state.Partition) {
	if old := j.newest[k]; old != nil && (rec.LeaderEpoch < old.LeaderEpoch || rec.PartitionEpoch < old.PartitionEpoch) {
		j.complain("I10", "%v: epochs (%d, %d) after (%d, %d)", k, rec.LeaderEpoch, rec.PartitionEpoch, old.LeaderEpoch, old.PartitionEpoch)
	}
	if old := j.newest[k]; old == nil || old.PartitionEpoch != rec.PartitionEpoch {
		j.c.logs.note("%s: leader %d in epoch %d, ISR %v, ELR %v, last known %v, partition epoch %d",
			j.name(k), rec.Leader, rec.LeaderEpoch, rec.ISR, rec.ELR, rec.LastKnown, rec.PartitionEpoch)
	}
	excused := j.excused(k, j.newest[k], rec)
	j.newest[k] = rec
	if len(rec.LossyEpochs) > excused && !j.despair {
		j.complain("I12", "%s: a recovery election, though enough complete copies exist: %+v", j.name(k), *rec)
	}
	if rec.Leader == state.NoLeader {
		return
	}
	if !slices.Contains(rec.ISR, rec.Leader) {
		j.complain("LeaderInIsr", "%s: %+v", j.name(k), *rec)
	}
	e := epochKey{k, rec.LeaderEpoch}
	if who, ok := j.elected[e]; ok && who != rec.Leader {
		j.complain("I10", "%s: brokers %d and %d are leaders of epoch %d", j.name(k), who, rec.Leader, rec.LeaderEpoch)
	}
	j.elected[e] = rec.Leader
}

// excused returns how many recovery elections are right. With a higher minimum what
// is written counts, and the ISR may be too small for it, without an ELR: a leader
// that had committed alone, on its disk, may commit nothing then, but its log does not
// know that when it comes back from a power cut.
func (j *judge) excused(k state.PartitionKey, old, rec *state.Partition) int {
	b := j.bare[k]
	switch n := len(rec.ISR) + len(rec.ELR); {
	case old != nil && rec.MinISR > old.MinISR && n < int(rec.MinISR):
		b.now = true
	case len(rec.ISR) >= int(rec.MinISR):
		b.now = false
	}
	if b.now {
		b.elections = len(rec.LossyEpochs)
	}
	j.bare[k] = b
	return b.elections
}

// settled checks that the present leader, once it knows where committed records
// end, is not behind what was ever committed.
func (j *judge) settled(k state.PartitionKey, rec *state.Partition) {
	if rec.Leader == state.NoLeader {
		return
	}
	p := j.c.replica(rec.Leader, k)
	if p == nil {
		return
	}
	st := p.State()
	if committed := j.known(k); st.Leader && int64(st.Epoch) == rec.LeaderEpoch && st.Settled && st.HighWatermark < committed {
		j.complain("I9", "%s: broker %d leads in epoch %d and says that records end at %d; %d were committed", j.name(k), rec.Leader, st.Epoch, st.HighWatermark, committed)
	}
}

// replica returns a broker's copy, nil when it has none now.
func (c *cluster) replica(id state.BrokerID, k state.PartitionKey) *partition.Partition {
	h := c.brokers[id]
	if h.down || h.proc.Partitions() == nil {
		return nil
	}
	p, err := h.proc.Partitions().Get(k.Topic, k.Number)
	if err != nil {
		return nil
	}
	return p
}

func (j *judge) replica(h *brokerHost, p *partition.Partition) {
	st := p.State()
	k := state.PartitionKey{Topic: p.Topic().ID, Number: p.Number()}
	if st.LogStart > st.HighWatermark || st.HighWatermark > st.LogEnd {
		j.complain("I8", "%s on %s: log start %d, high watermark %d, end %d", p, h.name, st.LogStart, st.HighWatermark, st.LogEnd)
	}
	if !st.Leader {
		return
	}
	e := epochKey{k, int64(st.Epoch)}
	if other := j.leaders[e]; other != nil && other != h.proc {
		j.complain("I10", "%s: %s is the second process to lead in epoch %d", p, h.name, st.Epoch)
	}
	j.leaders[e] = h.proc
	if id, ok := j.elected[e]; ok && id != state.BrokerID(h.id) {
		j.complain("I10", "%s: %s leads in epoch %d, of which broker %d is the leader", p, h.name, st.Epoch, id)
	}
	l := leaderKey{e, h.proc}
	if st.HighWatermark < j.ends[l] {
		j.complain("I9", "%s on %s: the high watermark fell from %d to %d within epoch %d", p, h.name, j.ends[l], st.HighWatermark, st.Epoch)
	}
	j.ends[l] = st.HighWatermark
	j.raise(k, st.HighWatermark)
}

// complete checks that whoever may be elected has all that is committed.
func (j *judge) complete(k state.PartitionKey, rec *state.Partition, pic *picture) {
	for _, id := range slices.Concat(rec.ISR, rec.ELR) {
		if !j.c.brokers[id].registered(pic) {
			continue // what it has is not judged yet
		}
		p := j.c.replica(id, k)
		if p == nil {
			continue
		}
		in := p.Inside()
		in.Sync = rec.Sync
		if has, committed := j.counted(k, in), j.known(k); has < committed {
			j.complain("I12", "%s: broker %d may be elected and has records up to %d, of %d committed: %+v", j.name(k), id, has, committed, *rec)
		}
	}
}

// registered says whether the store knows the present process of a host, and
// has judged what it has.
func (h *brokerHost) registered(pic *picture) bool {
	b := pic.brokers[state.BrokerID(h.id)]
	return !h.down && b != nil && b.Incarnation != h.before && b.Judged
}

// regained finds hosts whose copies are whole again after a power cut, and that
// know it: until then the end of their process makes them suspect once more.
func (j *judge) regained(pic *picture) {
	for _, h := range j.c.brokers {
		if !h.lossy || !h.registered(pic) || h.proc.disk.failing() {
			continue
		}
		whole := true
		for _, rec := range pic.partitions {
			id := state.BrokerID(h.id)
			if slices.Contains(rec.Replicas, id) {
				p := j.c.replica(id, rec.PartitionKey())
				whole = whole && slices.Contains(rec.ISR, id) && p != nil && p.Suspicion() == ""
			}
		}
		h.lossy = !whole
	}
}

func (j *judge) name(k state.PartitionKey) string {
	for _, t := range j.c.topics {
		if t.id == k.Topic.String() {
			return fmt.Sprintf("%s/%d", t.name, k.Number)
		}
	}
	return fmt.Sprintf("%s/%d", k.Topic, k.Number)
}

// serving says whether every partition has a leader that may take writes.
func (j *judge) serving(pic *picture) bool {
	for k, rec := range pic.partitions {
		if rec.Leader == state.NoLeader {
			return false
		}
		p := j.c.replica(rec.Leader, k)
		if p == nil {
			return false
		}
		if st := p.State(); !st.Leader || !st.Settled || !st.MinISRMet {
			return false
		}
	}
	return true
}

// unsettled says what is missing until all is well, "" when it is: leaders,
// full ISRs, equal ends, and no work left half done.
func (j *judge) unsettled(pic *picture) string {
	for id, t := range pic.topics {
		if t.Phase != state.TopicActive {
			return fmt.Sprintf("topic %s (%s) is in phase %d, waiting for %v", t.Name, id, t.Phase, t.AwaitingRemoval)
		}
	}
	for _, h := range j.c.brokers {
		if b := pic.brokers[state.BrokerID(h.id)]; b == nil || b.Phase != state.BrokerActive {
			return fmt.Sprintf("broker %s: %+v", h.name, b)
		}
	}
	for k, rec := range pic.partitions {
		if why := j.unsettledPartition(k, rec); why != "" {
			return j.name(k) + ": " + why
		}
	}
	return ""
}

func (j *judge) unsettledPartition(k state.PartitionKey, rec *state.Partition) string {
	if rec.Leader == state.NoLeader || len(rec.ISR) != len(rec.Replicas) {
		return fmt.Sprintf("%+v", *rec)
	}
	leader := j.c.replica(rec.Leader, k)
	if leader == nil {
		return "the leader has no copy"
	}
	want := leader.State()
	if !want.Leader || !want.Settled || want.HighWatermark != want.LogEnd {
		return fmt.Sprintf("leader %d: %+v", rec.Leader, want)
	}
	for _, id := range rec.Replicas {
		p := j.c.replica(id, k)
		if p == nil {
			return fmt.Sprintf("broker %d has no copy", id)
		}
		if why := p.Suspicion(); why != "" {
			return fmt.Sprintf("broker %d is in sync and still suspect: %s", id, why)
		}
		if st := p.State(); st.LogEnd != want.LogEnd || st.HighWatermark != want.HighWatermark || st.Epoch != want.Epoch {
			return fmt.Sprintf("leader %d: %+v; broker %d: %+v", rec.Leader, want, id, st)
		}
		// A deletion that was not acknowledged may have come to some.
		if st, deleted := p.State(), j.deleted(k); int64(st.LogStart) < deleted {
			return fmt.Sprintf("broker %d begins at %d, and what is below %d was deleted", id, st.LogStart, deleted)
		}
		if in := p.Inside(); in.PartitionEpoch != rec.PartitionEpoch {
			return fmt.Sprintf("broker %d knows of partition epoch %d: %+v", id, in.PartitionEpoch, *rec)
		}
	}
	return ""
}
