package active

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	"github.com/runnelmq/runnel/controller/state"
	"github.com/runnelmq/runnel/internal/refusal"
)

// A Rescue is the answer to an operator who recovers a partition.
type Rescue struct {
	state.Rescue

	// Reported is when the brokers reported.
	Reported map[state.BrokerID]time.Time
	Epoch    int64 // of the leader elected
	Applied  bool
}

// Rescue elects a copy of a partition without a leader, even if records are lost; with only a check, it tells which.
func (a *Active) Rescue(ctx context.Context, ref state.Ref, partition int32, from state.BrokerID, onlyCheck bool, wait time.Duration, who string) (Rescue, error) {
	// Asked outside of the loop, which must not wait for a broker: without a leader no copy changes.
	live := a.liveCopies(ctx, ref, partition)
	r, err := ask(ctx, a, func(ctx context.Context) (rescued, error) {
		r, err := a.choose(ref, partition, from, live)
		if err == nil && !onlyCheck {
			err = a.elect(ctx, &r, ref, partition, who)
		}
		return r, err
	}, nil)
	if err == nil && !onlyCheck {
		r.Applied = a.applied(ctx, r.revision, wait)
	}
	return r.Rescue, err
}

// A rescued is a Rescue, and which revision brokers are to have applied.
type rescued struct {
	Rescue

	revision state.Revision
}

// choose decides which copy to elect. The copies are told of with some errors, too.
func (a *Active) choose(ref state.Ref, partition int32, from state.BrokerID, live census) (rescued, error) {
	r := rescued{Rescue: Rescue{Reported: map[state.BrokerID]time.Time{}}}
	var err error
	reports := maps.Clone(a.desk.reports)
	maps.Copy(reports, live.reports)
	a.view(func(i *state.Image) { r.Rescue.Rescue, err = i.Rescue(ref, partition, from, reports, live.silent) })
	for _, c := range r.Copies {
		switch _, now := live.reports[c.Broker]; {
		case now:
			r.Reported[c.Broker] = live.at
		case c.Report != nil:
			r.Reported[c.Broker] = a.desk.reportedAt[c.Broker]
		}
	}
	return r, err
}

// elect makes what was chosen so.
func (a *Active) elect(ctx context.Context, r *rescued, ref state.Ref, partition int32, who string) error {
	var err error
	if r.revision, err = a.commit(ctx, []state.Change{r.Change}); err != nil {
		return fmt.Errorf("recover %s/%d: %w", ref.Name, partition, err)
	}
	if p, ok := r.Change.Object.(*state.Partition); ok {
		r.Epoch = p.LeaderEpoch
		a.Log.Error().Str("topic", ref.Name).Int32("partition", partition).Int32("leader", int32(p.Leader)).Str("principal", who).
			Msg("an operator had a leader elected that may lack acknowledged records")
	}
	return nil
}

// liveTimeout is how long a broker may take to say what it holds.
const liveTimeout = time.Second

// A census is what brokers hold of one partition, as they said just now.
type census struct {
	at      time.Time
	reports state.Reports
	silent  map[state.BrokerID]bool // that are registered and did not answer
}

// liveCopies asks the brokers of a partition what they hold of it. Of those that do not answer the last report stands.
func (a *Active) liveCopies(ctx context.Context, ref state.Ref, partition int32) census {
	var key state.PartitionKey
	var brokers []*state.Broker
	silent := map[state.BrokerID]bool{}
	a.view(func(i *state.Image) {
		t := i.TopicNamed(ref.Name)
		if t == nil {
			return
		}
		key = state.PartitionKey{Topic: t.ID, Number: partition}
		if p := i.Partition(key); p != nil {
			for _, id := range p.Replicas {
				b := i.Broker(id)
				if b == nil || b.InternalAddress == "" {
					continue // nobody could ask it
				}
				silent[id] = true
				if a.roster.Connected(id) != nil {
					brokers = append(brokers, b)
				}
			}
		}
	})
	ctx, cancel := context.WithTimeout(ctx, liveTimeout)
	defer cancel()
	c := census{at: time.Now(), reports: state.Reports{}, silent: silent}
	answers := make([]*replicav1.DescribeReplicaResponse, len(brokers))
	failed := make([]error, len(brokers))
	var wg sync.WaitGroup
	for n, b := range brokers {
		wg.Go(func() {
			if answers[n], failed[n] = a.Prober.Replica(ctx, b.InternalAddress, key.Topic.String(), key.Number); failed[n] != nil {
				a.Log.Debug().Err(failed[n]).Int32("broker", int32(b.ID)).Msg("a broker does not say what it holds")
			}
		})
	}
	wg.Wait()
	for n, b := range brokers {
		got := answers[n]
		if status.Code(failed[n]) == codes.Unimplemented { // an earlier version, which is there
			delete(c.silent, b.ID)
		}
		if got == nil || got.GetIncarnation() != b.Incarnation.String() {
			continue
		}
		r := state.ReplicaReport{Shape: state.ShapeLost, LastEpoch: got.GetLastEpoch(), LogEndOffset: got.GetLogEndOffset(), HighWatermark: got.GetHighWatermark()}
		switch {
		case !got.GetHeld():
		case got.GetIntact() && !b.Outdated:
			r.Shape = state.ShapeIntact
		default:
			r.Shape = state.ShapeSuspect
		}
		delete(c.silent, b.ID)
		c.reports[b.ID] = map[state.PartitionKey]state.ReplicaReport{key: r}
	}
	return c
}

// Hold takes a broker out of service until its process is started anew.
func (a *Active) Hold(ctx context.Context, id state.BrokerID, wait time.Duration, who string) (epoch int64, applied bool, err error) {
	h, err := ask(ctx, a, func(ctx context.Context) (held, error) { return a.hold(ctx, id, who) }, nil)
	if err != nil {
		return 0, false, err
	}
	return h.epoch, a.applied(ctx, h.revision, wait), nil
}

// A held is the epoch of a broker out of service, and since which revision it is.
type held struct {
	epoch    int64
	revision state.Revision
}

func (a *Active) hold(ctx context.Context, id state.BrokerID, who string) (h held, err error) {
	if a.cfg.Dev {
		return h, refusal.New(state.ErrInvalidRequest, nil, "there is one process only: no broker is taken out of service here")
	}
	var changes []state.Change
	var b *state.Broker
	a.view(func(i *state.Image) { changes, b, err = i.Hold(id) })
	if err != nil {
		return h, err
	}
	h.epoch, h.revision = b.Epoch, b.Revision
	if len(changes) == 0 {
		return h, nil
	}
	if h.revision, err = a.commit(ctx, changes); err != nil {
		return h, fmt.Errorf("fence broker %d: %w", id, err)
	}
	a.Metrics.fencings.WithLabelValues(causeOperator).Inc()
	a.Log.Warn().Int32("broker", int32(id)).Int64("broker_epoch", h.epoch).Str("principal", who).Msg("an operator took a broker out of service")
	return h, begun(a.settleBroker(ctx, id))
}

// applied waits until every broker in service has applied a revision, or the time is over.
func (a *Active) applied(ctx context.Context, rev state.Revision, wait time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, min(wait, maxAppliedWait))
	defer cancel()
	return a.roster.Applied(ctx, rev, a.inServiceBrokers)
}
