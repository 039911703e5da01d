package rpc

import (
	"context"
	"fmt"
	"strconv"

	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/broker/router"
	"github.com/runnelmq/runnel/internal/refusal"
)

// A resetPlan is where a reset goes, partition by partition.
type resetPlan struct {
	results []*runnelv1.OffsetResetResult
	targets []*replicav1.GroupResetTarget
	// failed: some result carries an error, and nothing may be changed.
	failed bool
}

// resolveResets finds the offsets that a request names by place, time or
// distance. Only the leaders know them.
func (s *GroupService) resolveResets(ctx context.Context, resets []*runnelv1.OffsetReset) (*resetPlan, error) {
	if len(resets) == 0 {
		return nil, invalid("name at least one topic to reset the offsets of")
	}
	plan := &resetPlan{}
	var wanted []*runnelv1.OffsetReset // by target
	var parts []router.Part
	seen := map[router.Part]bool{}
	for _, r := range resets {
		if err := checkReset(r); err != nil {
			return nil, err
		}
		t, err := s.deps.Finder.Find(ctx, r.GetTopic(), r.GetTopicId())
		if err == nil && t.Internal {
			err = refusal.New(errTopicSystem, nil, "topic %q is internal: groups can't read it", t.Name)
		}
		if err == nil && r.Partition != nil {
			_, err = t.Find(r.GetPartition())
		}
		if err != nil {
			plan.results = append(plan.results, &runnelv1.OffsetResetResult{Topic: r.GetTopic(), Partition: r.Partition, Error: s.errors.item(err)})
			plan.targets, wanted, parts = append(plan.targets, nil), append(wanted, r), append(parts, router.Part{})
			plan.failed = true
			continue
		}
		for _, n := range partitionsOf(t, r.Partition) {
			part := router.Part{Topic: t.ID, Number: n}
			if seen[part] {
				return nil, invalid("partition %d of topic %q is named twice", n, t.Name)
			}
			seen[part] = true
			plan.results = append(plan.results, &runnelv1.OffsetResetResult{Topic: t.Name, TopicId: t.ID.String(), Partition: new(n)})
			plan.targets = append(plan.targets, &replicav1.GroupResetTarget{TopicId: t.ID.String(), Partition: n})
			wanted, parts = append(wanted, r), append(parts, part)
		}
		if len(plan.results) > mostPerCall {
			return nil, invalid("the request names more than %d partitions: name fewer at a time", mostPerCall)
		}
	}
	if plan.failed {
		return plan, nil
	}
	s.resolvePlaces(ctx, plan, wanted, parts)
	return plan, nil
}

func checkReset(r *runnelv1.OffsetReset) error {
	switch to := r.GetTo().(type) {
	case nil:
		return invalid("topic %q: say where to: an offset, a position, a timestamp or a shift", r.GetTopic())
	case *runnelv1.OffsetReset_Position:
		if p := to.Position; p != runnelv1.Position_POSITION_EARLIEST && p != runnelv1.Position_POSITION_LATEST {
			return invalid("topic %q: position %d is unknown", r.GetTopic(), p)
		}
	case *runnelv1.OffsetReset_Timestamp:
		if err := to.Timestamp.CheckValid(); err != nil {
			return invalid("topic %q: timestamp: %v", r.GetTopic(), err)
		}
	}
	return nil
}

// partitionsOf returns one partition, or all.
func partitionsOf(t *metadata.Topic, n *int32) []int32 {
	if n != nil {
		return []int32{*n}
	}
	out := make([]int32, len(t.Partitions))
	for i := range out {
		out[i] = int32(i) //nolint:gosec // bounded by the image
	}
	return out
}

// resolvePlaces asks the leaders for the ends of all partitions, and for the
// offsets of times.
func (s *GroupService) resolvePlaces(ctx context.Context, plan *resetPlan, wanted []*runnelv1.OffsetReset, parts []router.Part) {
	type place struct{ low, high, at *runnelv1.OffsetAnswer }
	places := make([]place, len(parts))
	var asked []offsetAsked
	var askedParts []router.Part
	query := func(i int, q *runnelv1.OffsetQuery) (*runnelv1.OffsetAnswer, error) {
		seek, err := seeker(q)
		if err != nil {
			return nil, err
		}
		t, _ := s.deps.Store.Load().TopicByID(parts[i].Topic)
		if t == nil {
			return nil, fmt.Errorf("topic %q: %w", wanted[i].GetTopic(), partition.ErrDeleted)
		}
		a := newAnswer(t, parts[i].Number)
		asked = append(asked, offsetAsked{query: q, topic: t, seek: seek, answer: a})
		askedParts = append(askedParts, parts[i])
		return a, nil
	}
	position := func(p runnelv1.Position) *runnelv1.OffsetQuery {
		return &runnelv1.OffsetQuery{Place: &runnelv1.OffsetQuery_Position{Position: p}, Isolation: runnelv1.Isolation_ISOLATION_READ_UNCOMMITTED}
	}
	errs := make([]error, len(parts))
	for i := range parts {
		if places[i].low, errs[i] = query(i, position(runnelv1.Position_POSITION_EARLIEST)); errs[i] != nil {
			continue
		}
		places[i].high, errs[i] = query(i, position(runnelv1.Position_POSITION_LATEST))
		if at, ok := wanted[i].GetTo().(*runnelv1.OffsetReset_Timestamp); ok && errs[i] == nil {
			places[i].at, errs[i] = query(i, &runnelv1.OffsetQuery{Place: &runnelv1.OffsetQuery_Timestamp{Timestamp: at.Timestamp}})
		}
	}
	short, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	failures := map[*runnelv1.OffsetAnswer]error{}
	for k, err := range s.deps.Admin.askOffsetAnswers(short, asked, askedParts) {
		if err != nil {
			failures[asked[k].answer] = err
		}
	}
	for i := range parts {
		p := places[i]
		for _, a := range []*runnelv1.OffsetAnswer{p.low, p.high, p.at} {
			if a != nil && errs[i] == nil {
				errs[i] = failures[a]
			}
		}
		if errs[i] == nil {
			errs[i] = aim(plan.targets[i], wanted[i], p.low.GetOffset(), p.high.GetOffset(), p.at)
		}
		if errs[i] != nil {
			plan.results[i].Error = s.errors.item(errs[i])
			plan.failed = true
		} else if !plan.targets[i].GetRelative() {
			plan.results[i].NewOffset = new(plan.targets[i].GetOffset())
		}
	}
}

// aim sets where a reset goes, in a partition that holds [low, high).
func aim(t *replicav1.GroupResetTarget, r *runnelv1.OffsetReset, low, high int64, at *runnelv1.OffsetAnswer) error {
	t.Low, t.High = low, high
	switch to := r.GetTo().(type) {
	case *runnelv1.OffsetReset_Offset:
		if t.Offset = to.Offset; to.Offset < low || to.Offset > high {
			return outOfLog(r.GetTopic(), t.GetPartition(), to.Offset, low, high)
		}
	case *runnelv1.OffsetReset_Position:
		if t.Offset = low; to.Position == runnelv1.Position_POSITION_LATEST {
			t.Offset = high
		}
	case *runnelv1.OffsetReset_Timestamp:
		if t.Offset = high; at.Offset != nil {
			t.Offset = at.GetOffset()
		}
	case *runnelv1.OffsetReset_Shift:
		t.Offset, t.Relative = to.Shift, true
	}
	return nil
}

// outOfLog says that an offset can't be committed.
func outOfLog(topic string, n int32, offset, low, high int64) error {
	return &refusal.Error{
		Kind: partition.ErrOffsetOutOfRange,
		Text: fmt.Sprintf("%s/%d: offset %d can't be committed: the log holds [%d, %d)", topic, n, offset, low, high),
		Facts: map[string]string{
			"logStartOffset": strconv.FormatInt(low, 10), "highWatermark": strconv.FormatInt(high, 10), "endOffset": strconv.FormatInt(high, 10),
		},
	}
}

// askOffsetAnswers asks leaders for offsets, and returns the failures by index.
func (s *AdminService) askOffsetAnswers(ctx context.Context, asked []offsetAsked, parts []router.Part) []error {
	return s.ask(ctx, router.Question{
		Method: "list_offsets", Parts: parts,
		Here: func(_ context.Context, i int) error {
			return s.offset(asked[i].answer, asked[i].topic, asked[i].seek)
		},
		There: func(ctx context.Context, c replicav1.ForwardServiceClient, at []int) ([]*runnelv1.ItemError, error) {
			return askOffsets(ctx, c, asked, at)
		},
	})
}
