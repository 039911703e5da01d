package active

import (
	"context"
	"errors"
	"fmt"

	"github.com/runnelmq/runnel/controller/sessions"
	"github.com/runnelmq/runnel/controller/state"
	"github.com/runnelmq/runnel/controller/store"
)

// Propose takes the in-sync replicas that a broker proposes for partitions it leads. What is carried out is answered by the
// change itself, what certainly is not by a rejection; nothing else is. Proposals of a session that was replaced are dropped:
// the snapshot of its successor shows what became of them.
func (a *Active) Propose(ctx context.Context, adm *Admission, proposals []state.Proposal) error {
	return a.do(ctx, func(ctx context.Context) error {
		if a.roster.Connected(adm.Session.Broker()) != adm.Session {
			return nil
		}
		for len(proposals) > 0 {
			n, err := a.propose(ctx, adm, proposals)
			if err != nil {
				return err
			}
			proposals = proposals[n:]
		}
		return nil
	})
}

// propose commits the longest run of proposals that fits in one transaction, and returns how many they are.
func (a *Active) propose(ctx context.Context, adm *Admission, proposals []state.Proposal) (int, error) {
	var changes []state.Change
	n := 0
	seen := map[state.PartitionKey]bool{}
	a.view(func(i *state.Image) {
		for _, p := range proposals {
			if seen[p.Key] || len(changes) == state.MaxChanges {
				return // what follows is judged by what this becomes
			}
			seen[p.Key] = true
			n++
			change, err := i.Propose(adm.Session.Broker(), adm.Epoch, p)
			rejection, rejected := errors.AsType[*state.RejectedError](err)
			switch {
			case err == nil:
				changes = append(changes, change)
			case rejected:
				adm.Session.Tell(rejection)
			default:
				a.Log.Warn().Err(err).Int32("broker", int32(adm.Session.Broker())).Stringer("topic_id", p.Key.Topic).
					Int32("partition", p.Key.Number).Msg("a proposal is left without an answer")
			}
		}
	})
	if len(changes) == 0 {
		return n, nil
	}
	if _, err := a.commit(ctx, changes); err != nil {
		return 0, a.doubt(adm, changes, err)
	}
	a.Metrics.isrChanges.Add(float64(len(changes)))
	return n, nil
}

// doubt deals with proposals whose transaction was not certainly made: the broker registers anew, and its snapshot is cut when
// nothing of them can be made any more.
func (a *Active) doubt(adm *Admission, changes []state.Change, err error) error {
	if errors.Is(err, store.ErrFenced) {
		return err
	}
	if !errors.Is(err, store.ErrConflict) {
		for _, c := range changes {
			a.desk.limbo[state.PartitionKey{Topic: c.Key.Topic, Number: c.Key.Partition}] = c.Base
		}
	}
	adm.Session.End(fmt.Errorf("%w: %w", sessions.ErrUncertain, err))
	return err
}

// resolve sees to it that no transaction of proposals that was given up can be made any more: each compares the revision of the
// partitions it changes, so it is enough that all of them have moved on.
func (a *Active) resolve(ctx context.Context) error {
	for len(a.desk.limbo) > 0 {
		var changes []state.Change
		a.view(func(i *state.Image) {
			for k, base := range a.desk.limbo {
				p := i.Partition(k)
				if p == nil || p.Revision != base {
					delete(a.desk.limbo, k)
					continue
				}
				if c, ok := i.Touch(k); ok && len(changes) < state.MaxChanges {
					changes = append(changes, c)
				}
			}
		})
		if len(changes) == 0 {
			continue
		}
		_, err := a.commit(ctx, changes)
		if errors.Is(err, store.ErrConflict) {
			err = a.overtaken(ctx, changes)
		}
		if err != nil {
			return fmt.Errorf("resolve earlier proposals: %w", err)
		}
	}
	return nil
}

// overtaken waits until the picture shows that one of the partitions has moved on.
func (a *Active) overtaken(ctx context.Context, changes []state.Change) error {
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	err := a.Mirror.Until(ctx, func(i *state.Image) bool {
		for _, c := range changes {
			p := i.Partition(state.PartitionKey{Topic: c.Key.Topic, Number: c.Key.Partition})
			if p == nil || p.Revision != c.Base {
				return true
			}
		}
		return false
	})
	if err != nil {
		return fmt.Errorf("%w: %w", store.ErrUnknown, err)
	}
	return nil
}
