package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/runnelmq/runnel/controller/encoding"
	"github.com/runnelmq/runnel/controller/state"
	"github.com/runnelmq/runnel/internal/lifecycle"
)

// root begins every key.
const root = "/runnel/"

// Times of one call. They are short enough that a member that hangs is noticed, and long enough for a loaded machine.
const (
	callTimeout = 5 * time.Second
	// txnTimeout is shorter: a member sends what it is asked for to the leader it knows, and what went to one that has just died
	// never comes back. To find out and to ask again is safe.
	txnTimeout = 1500 * time.Millisecond
	minBackoff = 20 * time.Millisecond
	maxBackoff = time.Second
)

// A Store is one cluster's metadata. It is safe for concurrent use.
type Store struct {
	kv     KV
	prefix string

	resyncs   atomic.Int64
	ambiguous atomic.Int64
}

// New returns the store of the cluster called name, which keeps its keys apart from those of others in the same etcd.
func New(kv KV, name string) *Store {
	return &Store{kv: kv, prefix: root + name + "/"}
}

// Resyncs returns how often the watch had to list everything anew because its place was compacted away.
func (s *Store) Resyncs() int64 { return s.resyncs.Load() }

// Ambiguous returns how many transactions had an unknown outcome at first.
func (s *Store) Ambiguous() int64 { return s.ambiguous.Load() }

// A Fence is the create revision of the election key under which a controller is active.
type Fence int64

// Commit makes the changes in one transaction, if this controller is still the active one and every object is as it was when
// the change was decided, and returns its revision. An unknown outcome is found out by reading, for as long as ctx allows.
func (s *Store) Commit(ctx context.Context, fence Fence, changes []state.Change) (state.Revision, error) {
	if len(changes) == 0 || len(changes) > state.MaxChanges {
		return 0, fmt.Errorf("store: a transaction of %d changes", len(changes))
	}
	writes, err := s.writes(changes)
	if err != nil {
		return 0, err
	}
	cmps := []Compare{{Key: s.electionKey(), Create: true, Revision: int64(fence)}}
	for n, c := range changes {
		cmps = append(cmps, Compare{Key: writes[n].Key, Revision: int64(c.Base)})
	}
	if slices.ContainsFunc(changes, func(c state.Change) bool { return c.Base == 0 }) {
		if cmps, writes, err = s.once(ctx, cmps, writes); err != nil {
			return 0, err
		}
	}
	backoff := minBackoff
	inDoubt := false
	for {
		res, err := s.txn(ctx, cmps, writes)
		if err == nil && res.Succeeded {
			return state.Revision(res.Revision), nil
		}
		if err != nil {
			inDoubt = true
			s.ambiguous.Add(1)
		}
		rev, verr := s.verify(ctx, fence, changes, writes[:len(changes)], inDoubt)
		switch {
		case verr == nil:
			return rev, nil
		case !errors.Is(verr, errUntouched):
			return 0, verr
		case err == nil:
			return 0, ErrConflict // it changed, and back again, or an earlier creation came late
		case errors.Is(err, ErrFull):
			return 0, err
		}
		// Nothing was written so far. The same transaction again is safe: if the first is made after all, one of the two fails
		// its comparisons.
		if !lifecycle.Wait(ctx, backoff) {
			return 0, fmt.Errorf("%w: %w", ErrUnknown, err)
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

// creationsKey is the key that every transaction writes that makes an object. No cluster's keys begin with it.
func (s *Store) creationsKey() string { return strings.TrimSuffix(s.prefix, "/") + "~creations" }

// once adds to a transaction that makes objects what keeps it from being made twice. That an object does not exist is true again
// once it was removed: without this, a transaction that is made late, after it was given up and made again, would bring back
// what was removed since.
func (s *Store) once(ctx context.Context, cmps []Compare, writes []Write) ([]Compare, []Write, error) {
	key := s.creationsKey()
	page, err := s.read(ctx, []string{key})
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	before := Compare{Key: key}
	for _, p := range page.Pairs {
		before.Revision = p.Mod
	}
	return append(cmps, before), append(writes, Write{Key: key, Value: []byte("the last creation")}), nil
}

// errUntouched says that nothing of a transaction was made, and that it could be made still.
var errUntouched = errors.New("untouched")

// verify finds out what became of a transaction: the revision that made it, or why it was not made. Unless an answer was lost, it
// was not made, even if everything looks as if.
func (s *Store) verify(ctx context.Context, fence Fence, changes []state.Change, writes []Write, inDoubt bool) (state.Revision, error) {
	keys := []string{s.electionKey()}
	for _, w := range writes {
		keys = append(keys, w.Key)
	}
	page, err := s.read(ctx, keys)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	found := map[string]Pair{}
	for _, p := range page.Pairs {
		found[p.Key] = p
	}
	made, untouched := inDoubt, true
	rev := int64(0)
	for n, w := range writes {
		p, exists := found[w.Key]
		base := int64(changes[n].Base)
		untouched = untouched && p.Mod == base
		if w.Delete {
			made = made && !exists
			continue
		}
		made = made && exists && p.Mod > base && bytes.Equal(p.Value, w.Value) && (rev == 0 || rev == p.Mod)
		rev = p.Mod
	}
	if rev == 0 {
		rev = page.Revision // only removals: no later than this
	}
	switch {
	case made:
		return state.Revision(rev), nil
	case found[s.electionKey()].Create != int64(fence):
		return 0, ErrFenced
	case untouched:
		return 0, errUntouched
	default:
		return 0, ErrConflict
	}
}

func (s *Store) writes(changes []state.Change) ([]Write, error) {
	writes := make([]Write, len(changes))
	for n, c := range changes {
		writes[n] = Write{Key: s.prefix + encoding.Path(c.Key), Delete: c.Object == nil}
		if c.Object == nil {
			continue
		}
		value, err := encoding.Marshal(c.Object)
		if err != nil {
			return nil, fmt.Errorf("store: %s: %w", writes[n].Key, err)
		}
		writes[n].Value = value
	}
	return writes, nil
}

func (s *Store) electionKey() string {
	return s.prefix + encoding.Path(state.Key{Kind: state.KindController})
}

func (s *Store) txn(ctx context.Context, cmps []Compare, writes []Write) (TxnResult, error) {
	ctx, cancel := context.WithTimeout(ctx, txnTimeout)
	defer cancel()
	return s.kv.Txn(ctx, cmps, writes)
}

// read is KV.Read, again and again until it answers or ctx is done.
func (s *Store) read(ctx context.Context, keys []string) (Page, error) {
	return again(ctx, func(ctx context.Context) (Page, error) { return s.kv.Read(ctx, keys) })
}

// again calls a function that only reads until it succeeds or ctx is done. ErrCompacted is not worth another try.
func again[T any](ctx context.Context, fn func(context.Context) (T, error)) (T, error) {
	backoff := minBackoff
	for {
		one, cancel := context.WithTimeout(ctx, callTimeout)
		v, err := fn(one)
		cancel()
		if err == nil || errors.Is(err, ErrCompacted) || !lifecycle.Wait(ctx, backoff) {
			return v, err
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

// firstFeatureLevel is the level of formats that a new cluster begins with.
const firstFeatureLevel = 1

// ClusterID returns the id of the cluster that the store holds. If there is none, it makes one with id when bootstrap is true,
// and returns ErrNoCluster when it is not. A store that is sole, of one cluster's controllers alone, and holds a cluster of another
// name is given none beside it.
func (s *Store) ClusterID(ctx context.Context, id uuid.UUID, bootstrap, sole bool) (uuid.UUID, error) {
	cluster, counters, producers := &state.Cluster{ID: id}, &state.Counters{FeatureLevel: firstFeatureLevel}, &state.ProducerIDs{Next: 1}
	writes, err := s.writes([]state.Change{
		{Key: cluster.Key(), Object: cluster}, {Key: counters.Key(), Object: counters}, {Key: producers.Key(), Object: producers},
	})
	if err != nil {
		return uuid.Nil, err
	}
	var keys []string
	var absent []Compare
	for _, w := range writes {
		keys = append(keys, w.Key)
		absent = append(absent, Compare{Key: w.Key})
	}
	for {
		page, err := s.read(ctx, keys)
		if err != nil {
			return uuid.Nil, fmt.Errorf("read the cluster's id: %w", err)
		}
		if len(page.Pairs) > 0 {
			return readCluster(page.Pairs[0], keys[0])
		}
		others, err := s.others(ctx)
		if err != nil && sole { // elsewhere they are only good to know
			return uuid.Nil, fmt.Errorf("look for clusters of other names: %w", err)
		}
		if !bootstrap || sole && len(others) > 0 {
			return uuid.Nil, s.noCluster(others, sole)
		}
		// Whatever comes of it, the next read tells.
		_, err = s.txn(ctx, absent, writes)
		if err != nil && !lifecycle.Wait(ctx, minBackoff) {
			return uuid.Nil, fmt.Errorf("make the cluster: %w", err)
		}
	}
}

// readCluster returns the cluster's id from the pair that should hold it.
func readCluster(p Pair, key string) (uuid.UUID, error) {
	if p.Key != key {
		return uuid.Nil, fmt.Errorf("%w: %s is there and %s is not: the metadata is damaged", encoding.ErrUnreadable, p.Key, key)
	}
	o, err := encoding.Unmarshal(state.Key{Kind: state.KindCluster}, p.Value, state.Revision(p.Mod))
	if err != nil {
		return uuid.Nil, err
	}
	c, ok := o.(*state.Cluster)
	if !ok {
		return uuid.Nil, fmt.Errorf("%w: %s holds a %T", encoding.ErrUnreadable, key, o)
	}
	return c.ID, nil
}

// key returns the object key of a key of the store.
func (s *Store) key(path string) (state.Key, error) {
	return encoding.ParsePath(strings.TrimPrefix(path, s.prefix))
}
