// Package storetest is a metadata store in memory with etcd's semantics: revisions, compaction, leases, watches, and answers
// that get lost. It also holds the conformance test that etcd itself passes.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/runnelmq/runnel/controller/store"
)

// ErrLost is what a call returns whose answer got lost.
var ErrLost = errors.New("storetest: the answer got lost")

// maxOps is etcd's limit of comparisons, and of writes, in one transaction.
const maxOps = 128

// A Fault says what goes wrong with one transaction.
type Fault uint8

// The faults.
const (
	FaultNone        Fault = iota
	FaultBefore            // it is not made, and the caller cannot know
	FaultAfter             // it is made, and the caller cannot know
	FaultDelayed           // the caller cannot know; it is made when Release is called, if its comparisons hold then
	FaultFull              // refused for want of space, not made
	FaultFullApplied       // refused for want of space, made all the same
)

// A Fake is one etcd. The zero value is not usable.
type Fake struct {
	// mu guards the fields below
	mu sync.Mutex

	revision  int64
	compacted int64 // changes before this revision are forgotten
	pairs     map[string]store.Pair
	history   []store.Event // ascending by revision
	leases    map[store.LeaseID]*lease
	lastLease store.LeaseID
	changed   chan struct{} // closed and replaced at every change a watch may wait for
	fault     func(writes []store.Write) Fault
	down      bool
	readsDown bool
	hook      func()
	audit     func(cmps []store.Compare, writes []store.Write, pairs map[string]store.Pair)
	broken    int // counts how often all watches were broken
	delayed   []func()
	watches   int
}

type lease struct {
	ttl   time.Duration
	timer *time.Timer
}

var _ store.KV = (*Fake)(nil)

// New returns an empty store.
func New() *Fake {
	return &Fake{
		revision: 1,
		pairs:    map[string]store.Pair{},
		leases:   map[store.LeaseID]*lease{},
		changed:  make(chan struct{}),
	}
}

// Inject has fn choose the fault of each transaction from now on; nil: none.
func (f *Fake) Inject(fn func(writes []store.Write) Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fn
}

// SetDown makes every call fail, and breaks all watches, until it is up again.
func (f *Fake) SetDown(down bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = down
	f.broken++
	f.notifyLocked()
}

// SetReadsDown makes every read fail, but for watches, until it is up again.
func (f *Fake) SetReadsDown(down bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.readsDown = down
}

// Hook has fn called at the start of each transaction from now on, which may block; nil: none.
func (f *Fake) Hook(fn func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hook = fn
}

// Audit has fn look at each transaction from now on at the moment it is made: what it compared and writes, and the pairs before.
// fn may not call the store, nor keep the pairs; nil: nobody looks.
func (f *Fake) Audit(fn func(cmps []store.Compare, writes []store.Write, pairs map[string]store.Pair)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.audit = fn
}

// BreakWatches ends all watches that run, as a member that restarts does.
func (f *Fake) BreakWatches() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.broken++
	f.notifyLocked()
}

// Compact forgets the changes before the newest revision.
func (f *Fake) Compact() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.compacted = f.revision
	f.history = slices.DeleteFunc(f.history, func(e store.Event) bool { return e.Mod < f.compacted })
}

// Release makes the delayed transactions whose comparisons hold now.
func (f *Fake) Release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, fn := range f.delayed {
		fn()
	}
	f.delayed = nil
}

// ExpireLeases ends all leases, as if their owners had been silent for too long.
func (f *Fake) ExpireLeases() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(f.leases)) {
		f.endLocked(id)
	}
}

// Close stops the timers of leases. Watches end with their contexts.
func (f *Fake) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.leases {
		l.timer.Stop()
	}
}

// Dump returns all pairs by key.
func (f *Fake) Dump() map[string]store.Pair {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.pairs)
}

// Watches returns how many watches run.
func (f *Fake) Watches() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.watches
}

// Range implements store.KV.
func (f *Fake) Range(ctx context.Context, from, to string, limit int, rev int64) (store.Page, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.readyLocked(ctx); err != nil {
		return store.Page{}, err
	}
	switch {
	case rev == 0:
		rev = f.revision
	case rev < f.compacted:
		return store.Page{}, store.ErrCompacted
	case rev > f.revision:
		return store.Page{}, fmt.Errorf("storetest: revision %d is in the future", rev)
	}
	page := store.Page{Revision: f.revision}
	at := f.atLocked(rev)
	for _, key := range slices.Sorted(maps.Keys(at)) {
		if key >= from && key < to && len(page.Pairs) < limit {
			page.Pairs = append(page.Pairs, at[key])
		}
	}
	return page, nil
}

// atLocked returns the pairs as of a revision that is not compacted: the newest ones, with later changes undone.
func (f *Fake) atLocked(rev int64) map[string]store.Pair {
	if rev == f.revision {
		return f.pairs
	}
	at := map[string]store.Pair{}
	for key, p := range f.pairs {
		if p.Mod <= rev {
			at[key] = p
		}
	}
	for _, e := range f.history {
		if p, known := at[e.Key]; e.Mod <= rev && !e.Deleted && (!known || p.Mod < e.Mod) {
			at[e.Key] = store.Pair{Key: e.Key, Value: e.Value, Mod: e.Mod}
		} else if e.Mod <= rev && e.Deleted {
			delete(at, e.Key)
		}
	}
	return at
}

// Read implements store.KV.
func (f *Fake) Read(ctx context.Context, keys []string) (store.Page, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.readyLocked(ctx); err != nil {
		return store.Page{}, err
	}
	if f.readsDown {
		return store.Page{}, ErrLost
	}
	if len(keys) > maxOps {
		return store.Page{}, fmt.Errorf("storetest: %d keys, more than %d", len(keys), maxOps)
	}
	page := store.Page{Revision: f.revision}
	for _, key := range keys {
		if p, ok := f.pairs[key]; ok {
			page.Pairs = append(page.Pairs, p)
		}
	}
	return page, nil
}

// Txn implements store.KV.
func (f *Fake) Txn(ctx context.Context, cmps []store.Compare, writes []store.Write) (store.TxnResult, error) {
	f.mu.Lock()
	hook := f.hook
	f.mu.Unlock()
	if hook != nil {
		hook()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.readyLocked(ctx); err != nil {
		return store.TxnResult{}, err
	}
	if len(cmps) > maxOps || len(writes) > maxOps {
		return store.TxnResult{}, fmt.Errorf("storetest: %d comparisons and %d writes, more than %d", len(cmps), len(writes), maxOps)
	}
	if f.leaselessLocked(writes) {
		return store.TxnResult{}, store.ErrNoLease
	}
	fault := FaultNone
	if f.fault != nil {
		fault = f.fault(writes)
	}
	switch fault {
	case FaultBefore:
		return store.TxnResult{}, ErrLost
	case FaultFull:
		return store.TxnResult{}, store.ErrFull
	case FaultDelayed:
		f.delayed = append(f.delayed, func() {
			if !f.leaselessLocked(writes) { // etcd looks when it makes a transaction, not when it gets it
				f.applyLocked(cmps, writes)
			}
		})
		return store.TxnResult{}, ErrLost
	case FaultAfter:
		f.applyLocked(cmps, writes)
		return store.TxnResult{}, ErrLost
	case FaultFullApplied:
		f.applyLocked(cmps, writes)
		return store.TxnResult{}, store.ErrFull
	default:
		return f.applyLocked(cmps, writes), nil
	}
}

// leaselessLocked says whether a lease of a write has ended.
func (f *Fake) leaselessLocked(writes []store.Write) bool {
	return slices.ContainsFunc(writes, func(w store.Write) bool { return w.Lease != 0 && f.leases[w.Lease] == nil })
}

func (f *Fake) applyLocked(cmps []store.Compare, writes []store.Write) store.TxnResult {
	for _, c := range cmps {
		p := f.pairs[c.Key]
		if have := p.Mod; (c.Create && p.Create != c.Revision) || (!c.Create && have != c.Revision) {
			return store.TxnResult{Revision: f.revision}
		}
	}
	if f.audit != nil {
		f.audit(cmps, writes, f.pairs)
	}
	f.writeLocked(writes)
	return store.TxnResult{Succeeded: true, Revision: f.revision}
}

func (f *Fake) writeLocked(writes []store.Write) {
	rev := f.revision + 1
	wrote := false
	for _, w := range writes {
		old, exists := f.pairs[w.Key]
		if w.Delete && !exists {
			continue
		}
		wrote = true
		if w.Delete {
			delete(f.pairs, w.Key)
			f.history = append(f.history, store.Event{Key: w.Key, Deleted: true, Mod: rev})
			continue
		}
		p := store.Pair{Key: w.Key, Value: slices.Clone(w.Value), Create: rev, Mod: rev, Lease: w.Lease}
		if exists {
			p.Create = old.Create
		}
		f.pairs[w.Key] = p
		f.history = append(f.history, store.Event{Key: w.Key, Value: p.Value, Mod: rev})
	}
	if wrote {
		f.revision = rev
		f.notifyLocked()
	}
}

func (f *Fake) readyLocked(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if f.down {
		return errors.New("storetest: down")
	}
	return nil
}

func (f *Fake) notifyLocked() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// Watch implements store.KV.
func (f *Fake) Watch(ctx context.Context, prefix string, from int64, fn func([]store.Event) error) error {
	f.mu.Lock()
	f.watches++
	broken := f.broken
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.watches--
	}()
	for {
		f.mu.Lock()
		changed := f.changed
		down := f.down || f.broken != broken
		compacted := from < f.compacted
		var events []store.Event
		for _, e := range f.history {
			if e.Mod >= from && strings.HasPrefix(e.Key, prefix) {
				events = append(events, e)
			}
		}
		next := f.revision + 1
		f.mu.Unlock()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case down:
			return errors.New("storetest: the watch broke")
		case compacted:
			return store.ErrCompacted
		case len(events) > 0:
			if err := fn(events); err != nil {
				return err
			}
		}
		from = max(from, next)
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
}

// Grant implements store.Leases.
func (f *Fake) Grant(ctx context.Context, ttl time.Duration) (store.LeaseID, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.readyLocked(ctx); err != nil {
		return 0, err
	}
	f.lastLease++
	id := f.lastLease
	f.leases[id] = &lease{ttl: ttl, timer: time.AfterFunc(ttl, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.endLocked(id)
	})}
	return id, nil
}

// KeepAlive implements store.Leases.
func (f *Fake) KeepAlive(ctx context.Context, id store.LeaseID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.readyLocked(ctx); err != nil {
		return err
	}
	l := f.leases[id]
	if l == nil {
		return store.ErrNoLease
	}
	l.timer.Reset(l.ttl)
	return nil
}

// Revoke implements store.Leases.
func (f *Fake) Revoke(ctx context.Context, id store.LeaseID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.readyLocked(ctx); err != nil {
		return err
	}
	f.endLocked(id)
	return nil
}

func (f *Fake) endLocked(id store.LeaseID) {
	l := f.leases[id]
	if l == nil {
		return
	}
	l.timer.Stop()
	delete(f.leases, id)
	var writes []store.Write
	for _, key := range slices.Sorted(maps.Keys(f.pairs)) {
		if f.pairs[key].Lease == id {
			writes = append(writes, store.Write{Key: key, Delete: true})
		}
	}
	f.writeLocked(writes)
}
