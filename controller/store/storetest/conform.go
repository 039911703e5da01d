package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runnelmq/runnel/controller/store"
)

// prefix keeps the conformance test's keys together; others are around it.
const prefix = "/conform/"

// Conform tests that kv does what store.KV says. compact forgets all changes before the newest revision.
func Conform(t *testing.T, kv store.KV, compact func() error) {
	t.Helper()
	c := &conformance{kv: kv, compact: compact}
	t.Run("writes one revision or none", c.txn)
	t.Run("lists pages as of one revision", c.pages)
	t.Run("watches every revision whole and in order", c.watch)
	t.Run("says when changes were compacted away", c.compaction)
	t.Run("ends keys with their lease", c.leases)
	t.Run("takes 128 comparisons and 128 writes", c.limits)
}

type conformance struct {
	kv      store.KV
	compact func() error
}

func put(key, value string) store.Write { return store.Write{Key: prefix + key, Value: []byte(value)} }

func (c *conformance) mustTxn(t *testing.T, cmps []store.Compare, writes ...store.Write) store.TxnResult {
	t.Helper()
	res, err := c.kv.Txn(t.Context(), cmps, writes)
	if err != nil {
		t.Fatalf("Txn: %v", err)
	}
	return res
}

func (c *conformance) mustRead(t *testing.T, keys ...string) map[string]store.Pair {
	t.Helper()
	full := make([]string, len(keys))
	for n, k := range keys {
		full[n] = prefix + k
	}
	page, err := c.kv.Read(t.Context(), full)
	if err != nil {
		t.Fatalf("Read: %v", err)
	}
	found := map[string]store.Pair{}
	for _, p := range page.Pairs {
		found[p.Key[len(prefix):]] = p
	}
	return found
}

func (c *conformance) txn(t *testing.T) {
	first := c.mustTxn(t, []store.Compare{{Key: prefix + "a"}, {Key: prefix + "b", Create: true}}, put("a", "1"), put("b", "1"))
	if !first.Succeeded {
		t.Fatal("a transaction on absent keys failed")
	}
	if res := c.mustTxn(t, []store.Compare{{Key: prefix + "a"}}, put("c", "1")); res.Succeeded {
		t.Error("a key that exists passed for absent")
	}
	second := c.mustTxn(t, []store.Compare{{Key: prefix + "a", Revision: first.Revision}}, put("a", "2"))
	if !second.Succeeded || second.Revision <= first.Revision {
		t.Fatalf("second transaction: %+v after %+v", second, first)
	}
	for _, bad := range [][]store.Compare{
		{{Key: prefix + "a", Revision: first.Revision}},
		{{Key: prefix + "a", Create: true, Revision: second.Revision}},
		{{Key: prefix + "a", Revision: second.Revision}, {Key: prefix + "b", Revision: second.Revision}},
	} {
		if res := c.mustTxn(t, bad, put("a", "3"), put("c", "1")); res.Succeeded {
			t.Errorf("comparisons %+v hold", bad)
		}
	}
	third := c.mustTxn(t, []store.Compare{{Key: prefix + "a", Create: true, Revision: first.Revision}}, store.Write{Key: prefix + "b", Delete: true}, put("c", "1"))
	want := map[string]store.Pair{
		"a": {Key: prefix + "a", Value: []byte("2"), Create: first.Revision, Mod: second.Revision},
		"c": {Key: prefix + "c", Value: []byte("1"), Create: third.Revision, Mod: third.Revision},
	}
	if diff := cmp.Diff(want, c.mustRead(t, "a", "b", "c", "d")); diff != "" {
		t.Errorf("pairs (-want +got):\n%s", diff)
	}
	again := c.mustTxn(t, nil, put("b", "2"))
	if p := c.mustRead(t, "b")["b"]; p.Create != again.Revision {
		t.Errorf("a key made again has the create revision %d, want %d", p.Create, again.Revision)
	}
}

func (c *conformance) pages(t *testing.T) {
	var rev int64
	for n := range 25 {
		rev = c.mustTxn(t, nil, put(fmt.Sprintf("page/%02d", n), "old")).Revision
	}
	c.mustTxn(t, nil, put("page/07", "new"), put("page/99", "new"))
	c.mustTxn(t, nil, store.Write{Key: prefix + "page/20", Delete: true})
	var got []string
	from := prefix + "page/"
	for {
		page, err := c.kv.Range(t.Context(), from, prefix+"page0", 10, rev)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range page.Pairs {
			got = append(got, p.Key[len(prefix):]+"="+string(p.Value))
		}
		if len(page.Pairs) < 10 {
			break
		}
		from = page.Pairs[9].Key + "\x00"
	}
	var want []string
	for n := range 25 {
		want = append(want, fmt.Sprintf("page/%02d=old", n))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("listing as of revision %d (-want +got):\n%s", rev, diff)
	}
}

// collect watches from a revision until n events came, or the test's patience is over.
func (c *conformance) collect(t *testing.T, from int64, n int) ([]store.Event, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var got []store.Event
	enough := errors.New("enough")
	err := c.kv.Watch(ctx, prefix, from, func(events []store.Event) error {
		got = append(got, events...)
		if len(got) >= n {
			return enough
		}
		return nil
	})
	if errors.Is(err, enough) {
		err = nil
	}
	return got, err
}

func (c *conformance) watch(t *testing.T) {
	start := c.mustTxn(t, nil, put("w/0", "0")).Revision
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for n := range 20 {
			_, _ = c.kv.Txn(t.Context(), nil, []store.Write{put("w/1", fmt.Sprint(n)), put("w/2", fmt.Sprint(n)), {Key: "/elsewhere", Value: []byte("x")}})
		}
		_, _ = c.kv.Txn(t.Context(), nil, []store.Write{{Key: prefix + "w/1", Delete: true}})
	})
	got, err := c.collect(t, start, 42)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 42 || got[0].Mod != start || !got[41].Deleted || got[41].Key != prefix+"w/1" {
		t.Fatalf("%d events, first %+v, last %+v", len(got), got[0], got[len(got)-1])
	}
	if !slices.IsSortedFunc(got, func(a, b store.Event) int { return int(a.Mod - b.Mod) }) {
		t.Error("revisions out of order")
	}
	for n := 1; n < 41; n += 2 {
		if got[n].Mod != got[n+1].Mod || string(got[n].Value) != string(got[n+1].Value) {
			t.Errorf("a revision is torn: %+v, %+v", got[n], got[n+1])
		}
	}
}

func (c *conformance) compaction(t *testing.T) {
	old := c.mustTxn(t, nil, put("x", "1")).Revision
	c.mustTxn(t, nil, put("x", "2"))
	now := c.mustTxn(t, nil, put("x", "3")).Revision
	if err := c.compact(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.collect(t, old, 1); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("watch from a compacted revision: %v, want ErrCompacted", err)
	}
	if _, err := c.kv.Range(t.Context(), prefix, prefix+"z", 10, old); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("listing as of a compacted revision: %v, want ErrCompacted", err)
	}
	if _, err := c.kv.Range(t.Context(), prefix, prefix+"z", 10, now); err != nil {
		t.Errorf("listing as of the newest revision: %v", err)
	}
	next := c.mustTxn(t, nil, put("x", "4")).Revision
	if got, err := c.collect(t, now+1, 1); err != nil || got[0].Mod != next {
		t.Errorf("watch from after the compaction: %+v, %v", got, err)
	}
}

func (c *conformance) leases(t *testing.T) {
	id, err := c.kv.Grant(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	w := put("lease/1", "x")
	w.Lease = id
	start := c.mustTxn(t, nil, w).Revision
	if p := c.mustRead(t, "lease/1")["lease/1"]; p.Lease != id {
		t.Errorf("the pair has lease %d, want %d", p.Lease, id)
	}
	if err := c.kv.KeepAlive(t.Context(), id); err != nil {
		t.Errorf("KeepAlive: %v", err)
	}
	if err := c.kv.Revoke(t.Context(), id); err != nil {
		t.Errorf("Revoke: %v", err)
	}
	if got, err := c.collect(t, start+1, 1); err != nil || !got[0].Deleted || got[0].Key != prefix+"lease/1" {
		t.Errorf("after the lease: %+v, %v", got, err)
	}
	if err := c.kv.KeepAlive(t.Context(), id); !errors.Is(err, store.ErrNoLease) {
		t.Errorf("KeepAlive of an ended lease: %v, want ErrNoLease", err)
	}
	if err := c.kv.Revoke(t.Context(), id); err != nil {
		t.Errorf("Revoke again: %v", err)
	}
	w.Lease = id
	if res, err := c.kv.Txn(t.Context(), nil, []store.Write{w}); err == nil && res.Succeeded {
		t.Error("a key was written with a lease that has ended")
	}
}

func (c *conformance) limits(t *testing.T) {
	var cmps []store.Compare
	var writes []store.Write
	var keys []string
	for n := range maxOps {
		key := fmt.Sprintf("limit/%03d", n)
		keys = append(keys, key)
		cmps = append(cmps, store.Compare{Key: prefix + key})
		writes = append(writes, put(key, "x"))
	}
	if res := c.mustTxn(t, cmps, writes...); !res.Succeeded {
		t.Error("128 comparisons and 128 writes failed")
	}
	if got := c.mustRead(t, keys...); len(got) != maxOps {
		t.Errorf("read %d of %d keys", len(got), maxOps)
	}
	if _, err := c.kv.Txn(t.Context(), nil, append(writes, put("limit/more", "x"))); err == nil {
		t.Error("129 writes were taken")
	}
}
