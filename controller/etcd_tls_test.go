package controller_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/controller"
	"github.com/runnelmq/runnel/controller/store"
	"github.com/runnelmq/runnel/internal/certtest"
)

// An awaited log calls found when all texts have been written.
type awaited struct {
	found func()
	texts []string
	text  strings.Builder
}

func (a *awaited) Write(p []byte) (int, error) {
	n, err := a.text.Write(p)
	for _, t := range a.texts {
		if !strings.Contains(a.text.String(), t) {
			return n, err
		}
	}
	a.found()
	return n, err
}

// An etcd that demands certificates holds the metadata of a controller that has one, and of none that has not.
func TestExternalEtcd_overTLS(t *testing.T) {
	ca, strangers := certtest.New(t), certtest.New(t)
	etcdCert, etcdKey := ca.Issue("etcd", "etcd")
	at := freePorts(t, 1)[0]
	member, err := store.OpenMember(t.Context(), store.Embedded{
		Dir: t.TempDir(), Client: at, Peer: "127.0.0.1:0", CertFile: etcdCert, KeyFile: etcdKey, CAFile: ca.CA(), Bootstrap: true,
		QuotaSize: 64 << 20, Compact: time.Hour, Tick: 20 * time.Millisecond, Start: 30 * time.Second,
	}, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := member.Close(); err != nil {
			t.Error(err)
		}
	}()
	external := func(cert, key, ca string) controller.Config {
		t.Helper()
		cfg := onDisk(t.TempDir())
		cfg.Etcd.Client, cfg.Etcd.Peer, cfg.Etcd.Endpoints = "", "", []string{"https://" + at}
		cfg.Etcd.CertFile, cfg.Etcd.KeyFile, cfg.Etcd.CAFile = cert, key, ca
		return cfg
	}
	cert, key := ca.Issue("controller", "controller")
	c, stop := startOnDisk(t, external(cert, key, ca.CA()), controller.Deps{Bootstrap: true})
	w := &world{t: t, dialer: (&net.Dialer{}).DialContext}
	b := w.newBroker(1).serve(c.Addr())
	created := mustCreate(t, w.client(c.Addr()), &runnelv1.NewTopic{Name: "t"})
	awaitLeader(b, created.GetTopicId(), 1, 0)
	if err := stop(); err != nil {
		t.Error(err)
	}
	b.leave()

	// The same etcd, another controller, all that was there.
	c, stop = startOnDisk(t, external(cert, key, ca.CA()), controller.Deps{})
	b = b.restarted().serve(c.Addr())
	if topic := b.topicNamed("t"); topic.GetTopicId() != created.GetTopicId() {
		t.Errorf("the topic is %v", topic)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	b.leave()

	badCert, badKey := strangers.Issue("controller", "controller")
	t.Run("strangers", func(t *testing.T) {
		for name, files := range map[string][3]string{
			"an etcd of another authority":           {cert, key, strangers.CA()},
			"a certificate of another authority":     {badCert, badKey, ca.CA()},
			"a controller that shows no certificate": {"", "", ca.CA()},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				// It may be started before its etcd, so it waits, and says why; who shows no certificate may only see a broken pipe.
				log := &awaited{found: cancel, texts: []string{"the metadata store does not answer"}}
				if files[0] != "" {
					log.texts = append(log.texts, "tls: ")
				}
				one, err := controller.New(external(files[0], files[1], files[2]), controller.Deps{Bootstrap: true, Log: zerolog.New(zerolog.SyncWriter(log))})
				if err != nil {
					t.Fatal(err)
				}
				if err := one.Run(ctx); err != nil || !errors.Is(ctx.Err(), context.Canceled) {
					t.Errorf("%v, %v\n%s", err, ctx.Err(), log.text.String())
				}
			})
		}
	})
}
