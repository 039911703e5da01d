package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/runnelmq/runnel/controller/encoding"
	"github.com/runnelmq/runnel/controller/state"
	"github.com/runnelmq/runnel/internal/lifecycle"
)

// pageSize is how many objects one read of the listing fetches.
const pageSize = 1000

// A follower remembers what it has told, so that it can tell the difference after a gap.
type follower struct {
	store *Store
	apply func(state.Revision, []state.Update)
	// told is the revision of each object as it was told last, by key of the store.
	told map[string]int64
	// revision is the last one told; 0 before the first.
	revision int64
}

// Follow calls apply with the whole picture, then with what each revision changed, in order, until ctx is done. When the watch
// falls behind what etcd remembers, everything is listed anew and apply gets the difference, removals included, as one
// revision. It returns early only for metadata it cannot read.
func (s *Store) Follow(ctx context.Context, apply func(state.Revision, []state.Update)) error {
	f := &follower{store: s, apply: apply, told: map[string]int64{}}
	backoff := minBackoff
	for ctx.Err() == nil {
		before := f.revision
		err := f.once(ctx)
		if errors.Is(err, encoding.ErrUnreadable) {
			return err
		}
		if f.revision > before {
			backoff = minBackoff
		}
		if !lifecycle.Wait(ctx, backoff) {
			return nil
		}
		backoff = min(2*backoff, maxBackoff)
	}
	return nil
}

// once lists if it must, then watches until the watch breaks.
func (f *follower) once(ctx context.Context) error {
	if f.revision == 0 {
		if err := f.list(ctx); err != nil {
			return err
		}
	}
	err := f.store.kv.Watch(ctx, f.store.prefix, f.revision+1, f.events)
	if errors.Is(err, ErrCompacted) {
		f.store.resyncs.Add(1)
		return f.list(ctx)
	}
	return err
}

// list reads everything as of one revision and tells the difference to what was told.
func (f *follower) list(ctx context.Context) error {
	pairs, rev, err := f.store.list(ctx)
	if err != nil {
		return err
	}
	var updates []state.Update
	now := make(map[string]int64, len(pairs))
	for _, p := range pairs {
		now[p.Key] = p.Mod
		if f.told[p.Key] == p.Mod {
			continue
		}
		u, err := f.update(p.Key, p.Value, p.Mod, false)
		if err != nil {
			return err
		}
		updates = append(updates, u)
	}
	for path := range f.told {
		if _, ok := now[path]; ok {
			continue
		}
		u, err := f.update(path, nil, 0, true)
		if err != nil {
			return err
		}
		updates = append(updates, u)
	}
	f.told = now
	f.revision = rev
	f.apply(state.Revision(rev), updates)
	return nil
}

// list returns all pairs of the cluster as of one revision, and that revision. A revision that is compacted away on the way
// means a new start.
func (s *Store) list(ctx context.Context) ([]Pair, int64, error) {
	end := prefixEnd(s.prefix)
	for {
		var pairs []Pair
		from, rev := s.prefix, int64(0)
		for {
			page, err := again(ctx, func(ctx context.Context) (Page, error) { return s.kv.Range(ctx, from, end, pageSize, rev) })
			if errors.Is(err, ErrCompacted) {
				break
			}
			if err != nil {
				return nil, 0, fmt.Errorf("list the metadata: %w", err)
			}
			if rev == 0 {
				rev = page.Revision
			}
			pairs = append(pairs, page.Pairs...)
			if len(page.Pairs) < pageSize {
				return pairs, rev, nil
			}
			from = page.Pairs[len(page.Pairs)-1].Key + "\x00"
		}
	}
}

// events tells a batch of changes, revision by revision.
func (f *follower) events(events []Event) error {
	for len(events) > 0 {
		rev, n := events[0].Mod, 1
		for n < len(events) && events[n].Mod == rev {
			n++
		}
		if rev > f.revision { // else it was told before the watch broke
			if err := f.tell(rev, events[:n]); err != nil {
				return err
			}
		}
		events = events[n:]
	}
	return nil
}

func (f *follower) tell(rev int64, events []Event) error {
	updates := make([]state.Update, 0, len(events))
	for _, e := range events {
		u, err := f.update(e.Key, e.Value, e.Mod, e.Deleted)
		if err != nil {
			return err
		}
		updates = append(updates, u)
	}
	for _, e := range events {
		if e.Deleted {
			delete(f.told, e.Key)
		} else {
			f.told[e.Key] = e.Mod
		}
	}
	f.revision = rev
	f.apply(state.Revision(rev), updates)
	return nil
}

func (f *follower) update(path string, value []byte, mod int64, deleted bool) (state.Update, error) {
	k, err := f.store.key(path)
	if err != nil || deleted {
		return state.Update{Key: k}, err
	}
	o, err := encoding.Unmarshal(k, value, state.Revision(mod))
	return state.Update{Key: k, Object: o}, err
}

// prefixEnd returns the first key after all that begin with prefix. Prefixes end in "/", so that the last byte can be raised.
func prefixEnd(prefix string) string {
	return prefix[:len(prefix)-1] + string(prefix[len(prefix)-1]+1)
}
