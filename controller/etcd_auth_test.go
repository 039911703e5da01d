package controller_test

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	clientv3 "go.etcd.io/etcd/client/v3"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/controller"
	"github.com/runnelmq/runnel/controller/store"
	"github.com/runnelmq/runnel/internal/config"
)

// guarded makes the data of an etcd that knows the user runnel with the password secret, who may use what docs/cluster.md says,
// and returns a function that starts it.
func guarded(t *testing.T, at string) (start func() *store.Member) {
	t.Helper()
	dir := t.TempDir()
	start = func() *store.Member {
		t.Helper()
		m, err := store.OpenMember(t.Context(), store.Embedded{
			Dir: dir, Client: at, Peer: "127.0.0.1:0", Bootstrap: true,
			QuotaSize: 64 << 20, Compact: time.Hour, Tick: 20 * time.Millisecond, Start: 30 * time.Second,
		}, zerolog.Nop())
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	m := start()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{at}})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	for _, do := range []func() error{
		func() error { _, err := c.UserAdd(ctx, "root", "very secret"); return err },
		func() error { _, err := c.UserGrantRole(ctx, "root", "root"); return err },
		func() error { _, err := c.RoleAdd(ctx, "runnel"); return err },
		func() error {
			_, err := c.RoleGrantPermission(ctx, "runnel", "/runnel/", clientv3.GetPrefixRangeEnd("/runnel/"), clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
		func() error { _, err := c.UserAdd(ctx, "runnel", "secret"); return err },
		func() error { _, err := c.UserGrantRole(ctx, "runnel", "runnel"); return err },
		func() error { _, err := c.AuthEnable(ctx); return err },
		c.Close,
		m.Close,
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	return start
}

// An etcd that demands a name and a password holds the metadata of a controller that knows them, also of one that was started
// before it; one that does not know them ends, and says why.
func TestExternalEtcd_withPassword(t *testing.T) {
	at := freePorts(t, 1)[0]
	start := guarded(t, at)
	external := func(password string) controller.Config {
		cfg := onDisk(t.TempDir())
		cfg.Etcd.Client, cfg.Etcd.Peer, cfg.Etcd.Endpoints = "", "", []string{at}
		cfg.Etcd.Username, cfg.Etcd.Password = "runnel", config.Secret(password)
		return cfg
	}
	waiting, waits := context.WithCancel(t.Context())
	log := &awaited{found: waits, texts: []string{"the metadata store does not answer"}}
	c, err := controller.New(external("secret"), controller.Deps{Bootstrap: true, Log: zerolog.New(zerolog.SyncWriter(log))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	ended := make(chan struct{})
	running.Go(func() {
		defer close(ended)
		if err := c.Run(ctx); err != nil {
			t.Errorf("the controller ended: %v", err)
		}
	})
	late := time.NewTimer(20 * time.Second)
	defer late.Stop()
	select {
	case <-waiting.Done():
	case <-ended:
		t.Fatal("it does not wait for its etcd")
	case <-late.C:
		t.Fatal("it does not say that it waits for its etcd")
	}
	m := start()
	defer func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}()
	defer running.Wait()
	defer cancel()
	select {
	case <-c.Ready():
	case <-ended:
		t.Fatal("it does not wait for its etcd")
	}
	w := &world{t: t, dialer: (&net.Dialer{}).DialContext}
	b := w.newBroker(1).serve(c.Addr())
	defer b.leave()
	created := mustCreate(t, w.client(c.Addr()), &runnelv1.NewTopic{Name: "t"})
	awaitLeader(b, created.GetTopicId(), 1, 0)

	wrong, err := controller.New(external("wrong"), controller.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	if err := wrong.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "etcd.username and etcd.password") {
		t.Errorf("with a wrong password: %v", err)
	}
}
