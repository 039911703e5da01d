package active

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/runnelmq/runnel/controller/state"
	"github.com/runnelmq/runnel/controller/store"
	"github.com/runnelmq/runnel/internal/refusal"
)

// maxAppliedWait bounds how long an answer waits for the brokers to hear of a change.
const maxAppliedWait = 2 * time.Second

// A Result is what became of a wish about one topic.
type Result struct {
	Topic   *state.Topic // as it is now; with only a check, as it would be
	Existed bool         // it was there already
	// Applied is true when every broker in service knew of the change before the answer.
	Applied bool
	Err     error

	revision state.Revision
}

// decide has the loop run fn on a result of its own, which the caller gets only when it is finished.
func (a *Active) decide(ctx context.Context, fn func(context.Context, *Result) error) Result {
	r, err := ask(ctx, a, func(ctx context.Context) (Result, error) {
		var r Result
		err := fn(ctx, &r)
		return r, err
	}, nil)
	r.Err = err
	return r
}

// CreateTopics creates topics, each for itself, and waits for up to wait until brokers know of them. With only a check, nothing
// is created.
func (a *Active) CreateTopics(ctx context.Context, wishes []state.NewTopic, onlyCheck bool, wait time.Duration, who string) []Result {
	results := make([]Result, len(wishes))
	taken := map[string]string{} // by folded name: what an earlier item of this check would create
	for n, w := range wishes {
		results[n] = a.decide(ctx, func(ctx context.Context, r *Result) error { return a.createTopic(ctx, w, onlyCheck, who, r) })
		if onlyCheck && results[n].Err == nil {
			results[n].Err = clash(taken, w)
			taken[state.Fold(w.Name)] = w.Name
		}
	}
	if !onlyCheck {
		a.await(ctx, results, wait)
	}
	return results
}

// clash refuses what the items before it would have made impossible.
func clash(taken map[string]string, w state.NewTopic) error {
	other, ok := taken[state.Fold(w.Name)]
	switch {
	case !ok, other == w.Name && w.IfNotExists:
		return nil
	case other == w.Name:
		return refusal.New(state.ErrTopicExists, map[string]string{"topic": w.Name}, "topic %q is asked for twice", w.Name)
	default:
		return refusal.New(state.ErrInvalidName, map[string]string{"topic": w.Name},
			"topic name %q differs only in '.' and '_' from %q in the same request", w.Name, other)
	}
}

func (a *Active) createTopic(ctx context.Context, w state.NewTopic, onlyCheck bool, who string, r *Result) error {
	var plan state.TopicPlan
	var err error
	id, now := uuid.New(), time.Now().UnixMilli()
	a.view(func(i *state.Image) { plan, err = i.CreateTopic(w, a.cfg.Defaults, id, now) })
	if err != nil {
		return err
	}
	r.Topic, r.Existed, r.revision = plan.Topic, plan.Existed, plan.Topic.Revision
	if onlyCheck || plan.Existed {
		return nil
	}
	if r.revision, err = a.commit(ctx, plan.Changes); err != nil {
		return fmt.Errorf("create topic %s: %w", w.Name, err)
	}
	a.Log.Info().Str("topic", w.Name).Stringer("topic_id", id).Int32("partitions", plan.Topic.Partitions).
		Int32("replication_factor", plan.Topic.ReplicationFactor).Str("principal", who).Msg("topic created")
	return nil
}

// EnsureInternal creates a topic that the system keeps for itself, unless it is there, and waits for up to wait until brokers know
// of it.
func (a *Active) EnsureInternal(ctx context.Context, w state.NewTopic, asker state.BrokerID, wait time.Duration) Result {
	r := a.decide(ctx, func(ctx context.Context, r *Result) error {
		var plan state.TopicPlan
		var err error
		id, now := uuid.New(), time.Now().UnixMilli()
		a.view(func(i *state.Image) { plan, err = i.EnsureInternal(w, a.cfg.Defaults, id, now) })
		if err != nil {
			return err
		}
		r.Topic, r.Existed, r.revision = plan.Topic, plan.Existed, plan.Topic.Revision
		if plan.Existed {
			return nil
		}
		if r.revision, err = a.commit(ctx, plan.Changes); err != nil {
			return fmt.Errorf("create topic %s: %w", w.Name, err)
		}
		a.Log.Info().Str("topic", w.Name).Stringer("topic_id", id).Int32("partitions", plan.Topic.Partitions).
			Int32("replication_factor", plan.Topic.ReplicationFactor).Int32("broker", int32(asker)).Msg("internal topic created")
		return nil
	})
	a.awaitOne(ctx, &r, wait)
	return r
}

// DeleteTopics deletes topics, each for itself.
func (a *Active) DeleteTopics(ctx context.Context, refs []state.Ref, onlyCheck bool, wait time.Duration, who string) []Result {
	results := make([]Result, len(refs))
	for n, ref := range refs {
		results[n] = a.decide(ctx, func(ctx context.Context, r *Result) error {
			var changes []state.Change
			var err error
			a.view(func(i *state.Image) { r.Topic, changes, err = i.DeleteTopic(ref) })
			if err != nil || onlyCheck {
				return err
			}
			if r.revision, err = a.commit(ctx, changes); err != nil {
				return fmt.Errorf("delete topic %s: %w", ref.Name, err)
			}
			a.Log.Info().Str("topic", ref.Name).Stringer("topic_id", r.Topic.ID).Str("principal", who).Msg("topic deleted")
			return nil
		})
	}
	if !onlyCheck {
		a.await(ctx, results, wait)
	}
	return results
}

// AlterConfigs changes a topic's configuration, all or nothing.
func (a *Active) AlterConfigs(ctx context.Context, ref state.Ref, set map[string]string, unset []string, onlyCheck bool, wait time.Duration, who string) Result {
	r := a.decide(ctx, func(ctx context.Context, r *Result) error {
		var changes []state.Change
		var err error
		a.view(func(i *state.Image) { r.Topic, changes, err = i.AlterConfigs(ref, set, unset) })
		if err != nil || onlyCheck {
			return err
		}
		r.revision = r.Topic.Revision
		if len(changes) == 0 {
			return nil
		}
		if r.revision, err = a.commit(ctx, changes); err != nil {
			return fmt.Errorf("alter topic %s: %w", ref.Name, err)
		}
		a.Log.Info().Str("topic", ref.Name).Stringer("topic_id", r.Topic.ID).Str("principal", who).Msg("topic configuration changed")
		return begun(a.settle(ctx, r))
	})
	if !onlyCheck {
		a.awaitOne(ctx, &r, wait)
	}
	return r
}

// begun marks the failure of what is partly done: whoever asked may not take it for undone. The next controller goes on with it
// where it can.
func begun(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: a part of it was: %w", store.ErrUnknown, err)
}

// settle brings a topic's partitions in line with its configuration, so that the answer is about all of it.
func (a *Active) settle(ctx context.Context, r *Result) error {
	for {
		var changes []state.Change
		a.view(func(i *state.Image) { changes = i.SettleTopic(r.Topic.ID) })
		if len(changes) == 0 {
			return nil
		}
		rev, err := a.commit(ctx, changes)
		if err != nil {
			return err
		}
		r.revision = rev
	}
}

// AddPartitions raises a topic's partition count.
func (a *Active) AddPartitions(ctx context.Context, ref state.Ref, total int32, onlyCheck bool, wait time.Duration, who string) Result {
	r := a.decide(ctx, func(ctx context.Context, r *Result) error {
		var txns [][]state.Change
		var err error
		a.view(func(i *state.Image) {
			r.Topic, txns, err = i.AddPartitions(ref, total, a.cfg.Defaults.MaxPartitions)
		})
		if err != nil || onlyCheck {
			return err
		}
		for n, changes := range txns {
			if r.revision, err = a.commit(ctx, changes); err != nil {
				if n > 0 {
					err = begun(err)
				}
				return fmt.Errorf("add partitions to %s: %w", ref.Name, err)
			}
		}
		a.Log.Info().Str("topic", ref.Name).Stringer("topic_id", r.Topic.ID).Int32("partitions", total).Str("principal", who).Msg("partitions added")
		return nil
	})
	if !onlyCheck {
		a.awaitOne(ctx, &r, wait)
	}
	return r
}

func (a *Active) awaitOne(ctx context.Context, r *Result, wait time.Duration) {
	results := []Result{*r}
	a.await(ctx, results, wait)
	*r = results[0]
}

// await waits until what was done stands and every broker in service has applied it, or the time is over.
func (a *Active) await(ctx context.Context, results []Result, wait time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, min(wait, maxAppliedWait))
	defer cancel()
	for n := range results {
		r := &results[n]
		if r.Err != nil {
			continue
		}
		if !a.stands(ctx, r) {
			continue
		}
		r.Applied = a.roster.Applied(ctx, r.revision, a.inServiceBrokers)
	}
}

// stands waits until a topic that is being created is in service, and has the minimum of replicas in sync that was asked for, and
// notes the revision of that.
func (a *Active) stands(ctx context.Context, r *Result) bool {
	id := r.Topic.ID
	err := a.Mirror.Until(ctx, func(i *state.Image) bool {
		t := i.Topic(id)
		switch {
		case t == nil:
			return true
		case t.Phase == state.TopicCreating, i.Lowering(id):
			return false
		}
		r.revision = max(r.revision, t.Revision)
		for n := range t.Partitions {
			if p := i.Partition(state.PartitionKey{Topic: id, Number: n}); p != nil {
				r.revision = max(r.revision, p.Revision)
			}
		}
		return true
	})
	return err == nil
}

func (a *Active) inServiceBrokers() []state.BrokerID {
	var ids []state.BrokerID
	a.view(func(i *state.Image) {
		for _, b := range i.Brokers() {
			if b.Phase != state.BrokerFenced {
				ids = append(ids, b.ID)
			}
		}
	})
	return ids
}
