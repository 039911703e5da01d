package rpc

import (
	"context"
	"fmt"
	"sync"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/broker/router"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/refusal"
)

// An endBook remembers how far partitions are known to be committed. That only
// grows within a leader epoch.
type endBook struct {
	// mu guards the field below
	mu sync.Mutex

	ends map[endKey]int64
}

// mostEnds is how many are remembered.
const mostEnds = 100_000

// An endKey names a partition in one leader epoch.
type endKey struct {
	part  router.Part
	epoch record.Epoch
}

func (b *endBook) covers(k endKey, offset int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()

	end, ok := b.ends[k]
	return ok && offset <= end
}

func (b *endBook) note(k endKey, end int64) {
	b.mu.Lock()
	defer b.mu.Unlock()

	if b.ends == nil || len(b.ends) >= mostEnds {
		b.ends = map[endKey]int64{}
	}
	b.ends[k] = max(b.ends[k], end)
}

// A commitPlace is an offset that is to be committed.
type commitPlace struct {
	topic  *metadata.Topic
	number int32
	offset int64
}

// checkEnds says which of a member's offsets are not committed in their partitions, so that
// nobody can have read what lies before them: those of records of an earlier
// topic, or of nothing at all.
func (s *GroupService) checkEnds(ctx context.Context, places []commitPlace) []error {
	errs := make([]error, len(places))
	var asked []offsetAsked
	var parts []router.Part
	var at []int
	var keys []endKey
	q := &runnelv1.OffsetQuery{
		Place:     &runnelv1.OffsetQuery_Position{Position: runnelv1.Position_POSITION_LATEST},
		Isolation: runnelv1.Isolation_ISOLATION_READ_UNCOMMITTED,
	}
	for i, p := range places {
		mp, err := p.topic.Find(p.number)
		if err != nil {
			errs[i] = err
			continue
		}
		part := router.Part{Topic: p.topic.ID, Number: p.number}
		key := endKey{part, mp.LeaderEpoch}
		if s.ends.covers(key, p.offset) {
			continue
		}
		asked = append(asked, offsetAsked{query: q, topic: p.topic, seek: highWatermark, answer: newAnswer(p.topic, p.number)})
		parts, at, keys = append(parts, part), append(at, i), append(keys, key)
	}
	if len(asked) == 0 {
		return errs
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	caughtUp := sync.OnceValue(func() error { return s.deps.Finder.CatchUp(ctx) })
	for k, err := range s.deps.Admin.askOffsetAnswers(ctx, asked, parts) {
		i, a := at[k], asked[k].answer
		switch {
		case err != nil:
			errs[i] = err
		case places[i].offset > a.GetOffset():
			errs[i] = s.beyondEnd(&places[i], a, caughtUp)
		default:
			s.ends.note(endKey{keys[k].part, record.Epoch(a.GetLeaderEpoch())}, a.GetOffset())
		}
	}
	return errs
}

// checkThere says which partitions do not exist.
func checkThere(_ context.Context, places []commitPlace) []error {
	errs := make([]error, len(places))
	for i, p := range places {
		_, errs[i] = p.topic.Find(p.number)
	}
	return errs
}

// beyondEnd says that nobody can have read up to an offset, if it is certain that
// who told the end leads the partition: a leader that was replaced may believe
// in itself for a while, and has not what the next one has served.
func (s *GroupService) beyondEnd(p *commitPlace, told *runnelv1.OffsetAnswer, caughtUp func() error) error {
	if caughtUp() != nil {
		return fmt.Errorf("%s/%d: offset %d is beyond the end that its leader told, and no controller answers whether it still leads: %w; try again",
			p.topic.Name, p.number, p.offset, partition.ErrUnconfirmed)
	}
	t, ok := s.deps.Store.Load().TopicByID(p.topic.ID)
	if !ok {
		return fmt.Errorf("%s/%d: %w", p.topic.Name, p.number, partition.ErrDeleted)
	}
	mp, err := t.Find(p.number)
	if err != nil {
		return err
	}
	if mp.LeaderEpoch > record.Epoch(told.GetLeaderEpoch()) {
		return fmt.Errorf("%s/%d: %w: try again", p.topic.Name, p.number, partition.ErrOffsetNotAvailable)
	}
	end := told.GetOffset()
	return refusal.New(partition.ErrOffsetOutOfRange, map[string]string{"highWatermark": decimal(end), "endOffset": decimal(end)},
		"%s/%d: offset %d can't be committed: its records end at %d", p.topic.Name, p.number, p.offset, end)
}

// highWatermark is how far this leader knows the partition to be committed. It
// need not know more: what a reader was given lies below it.
func highWatermark(p *partition.Partition) (record.Offset, *int64, bool, record.Epoch, error) {
	st := p.State()
	if st.Err == nil && !st.Settled {
		return 0, nil, false, st.Epoch, fmt.Errorf("%s: %w: try again", p, partition.ErrOffsetNotAvailable)
	}
	return st.HighWatermark, nil, true, st.Epoch, st.Err
}
