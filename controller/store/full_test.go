package store_test

import (
	"errors"
	"testing"

	"github.com/rs/zerolog"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/runnelmq/runnel/controller/store"
)

// A member that was full writes again when it is started with room: with a higher quota, or after its history was compacted away.
// Without any it goes on refusing.
func TestMember_full(t *testing.T) {
	e := embedded(t.TempDir())
	e.QuotaSize = 4 << 20
	write := func(m *store.Member) error {
		_, err := m.Txn(t.Context(), nil, []store.Write{{Key: "/k", Value: make([]byte, 256<<10)}})
		return err
	}
	within := func(quota int64, fn func(m *store.Member)) {
		t.Helper()
		e.QuotaSize = quota
		m, err := store.OpenMember(t.Context(), e, zerolog.Nop())
		if err != nil {
			t.Fatal(err)
		}
		fn(m)
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
	fill := func(m *store.Member) {
		t.Helper()
		for range 200 {
			if err := write(m); errors.Is(err, store.ErrFull) {
				return
			} else if err != nil {
				t.Fatal(err)
			}
		}
		t.Fatal("it takes more than its quota")
	}
	// It notices late that it has more than its quota, and by how much is a matter of time: the quotas are far apart.
	const much, little, none = 1 << 30, 4 << 20, 1 << 20
	within(little, fill)
	within(none, func(m *store.Member) {
		if err := write(m); !errors.Is(err, store.ErrFull) {
			t.Errorf("started anew without room: %v", err)
		}
		compact(t, m)
		if err := write(m); !errors.Is(err, store.ErrFull) {
			t.Errorf("compacted: %v", err)
		}
	})
	within(little, func(m *store.Member) {
		if err := write(m); err != nil {
			t.Errorf("compacted and started anew: %v", err)
		}
		fill(m)
	})
	within(much, func(m *store.Member) {
		if err := write(m); err != nil {
			t.Errorf("with a higher quota: %v", err)
		}
	})
}

// compact removes the history from a member, as it does by itself after a while.
func compact(t *testing.T, m *store.Member) {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{m.ClientAddr().String()}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	got, err := c.Get(t.Context(), "/k")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Compact(t.Context(), got.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
}
