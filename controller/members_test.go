package controller_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/controller"
	"github.com/runnelmq/runnel/controller/store"
	"github.com/runnelmq/runnel/internal/config"
	"github.com/runnelmq/runnel/internal/freeport"
)

// freePorts returns addresses of the loopback interface that are the test's.
func freePorts(t *testing.T, n int) []string {
	t.Helper()
	ports, err := freeport.Take(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	for i, port := range ports {
		ports[i] = net.JoinHostPort("127.0.0.1", port)
	}
	return ports
}

// A trio is three controllers whose embedded members make one etcd.
type trio struct {
	t     *testing.T
	log   zerolog.Logger
	cfgs  []controller.Config
	ctls  []*controller.Controller
	stops []func() error
	ends  []chan struct{} // closed when one is over
}

func (tr *trio) start(n int, deps controller.Deps) {
	deps.Log = tr.log
	c, err := controller.New(tr.cfgs[n], deps)
	if err != nil {
		tr.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	var wg sync.WaitGroup
	var runErr error
	wg.Go(func() {
		defer close(done)
		runErr = c.Run(ctx)
	})
	tr.ctls[n], tr.ends[n] = c, done
	tr.stops[n] = func() error {
		cancel()
		<-done
		return runErr
	}
}

// active waits until one of the controllers is active, and returns which.
func (tr *trio) active(among ...int) int {
	tr.t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		for _, n := range among {
			if act, _ := tr.ctls[n].Active(); act != nil {
				return n
			}
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			tr.t.Fatal("no controller became active")
		}
	}
}

func newTrio(t *testing.T) *trio {
	t.Helper()
	tr := &trio{t: t, ctls: make([]*controller.Controller, 3), stops: make([]func() error, 3), ends: make([]chan struct{}, 3)}
	tr.log = zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel)
	ports := freePorts(t, 9)
	var members []string
	for n := range 3 {
		members = append(members, fmt.Sprintf("m%d=%s", n, ports[3*n]))
	}
	dir := t.TempDir()
	for n := range 3 {
		cfg := onDisk(filepath.Join(dir, fmt.Sprint(n)))
		cfg.Listen.Controller, cfg.Listen.Admin = ports[3*n+2], ""
		cfg.Etcd.Name, cfg.Etcd.InitialMembers, cfg.Etcd.Peer, cfg.Etcd.Client = fmt.Sprintf("m%d", n), members, ports[3*n], ports[3*n+1]
		cfg.Etcd.Heartbeat = config.Duration(50 * time.Millisecond)
		tr.cfgs = append(tr.cfgs, cfg)
	}
	return tr
}

func others(n int) []int { return []int{(n + 1) % 3, (n + 2) % 3} }

// Three controllers begin a cluster; one of them ends, is lost, and is replaced; a backup brings everything back elsewhere.
func TestThreeMembers(t *testing.T) {
	tr := newTrio(t)
	start := time.Now()
	for n := range 3 {
		tr.start(n, controller.Deps{Bootstrap: true})
	}
	act := tr.active(0, 1, 2)
	t.Logf("active after %v", time.Since(start))
	w := &world{t: t, dialer: (&net.Dialer{}).DialContext}
	b := w.newBroker(1).serve(tr.ctls[act].Addr())
	topic := mustCreate(t, w.client(tr.ctls[act].Addr()), &runnelv1.NewTopic{Name: "t", Partitions: new(int32(3))}).GetTopicId()

	// The active controller does not lead etcd, too.
	leads := func() string {
		all, err := controller.Members(t.Context(), tr.cfgs[0], []string{tr.cfgs[0].Etcd.Client, tr.cfgs[1].Etcd.Client, tr.cfgs[2].Etcd.Client}, tr.log)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range all {
			if m.Leader {
				return m.Name
			}
		}
		return ""
	}
	for range 300 {
		if l := leads(); l != "" && l != tr.cfgs[act].Etcd.Name {
			break
		}
		waitABit(t)
	}
	if l := leads(); l == tr.cfgs[act].Etcd.Name {
		t.Errorf("the active controller %s leads etcd, too", l)
	}

	// It ends, and another goes on.
	start = time.Now()
	if err := tr.stops[act](); err != nil {
		t.Fatal(err)
	}
	b.failure()
	b.leave()
	next := tr.active(others(act)...)
	t.Logf("another one was active after %v", time.Since(start))
	b.serve(tr.ctls[next].Addr())
	b.until("all partitions", func() bool { return len(b.partitions) == 3 })
	if b.topicNamed("t").GetTopicId() != topic {
		t.Errorf("the topic is %v", b.topicNamed("t"))
	}

	// It has lost its data: neither as it is nor with join does it come back before the lost member is removed.
	live := []string{tr.cfgs[next].Etcd.Client}
	if err := os.RemoveAll(tr.cfgs[act].DataDir); err != nil {
		t.Fatal(err)
	}
	for want, deps := range map[string]controller.Deps{
		"--bootstrap":                         {},
		"controller join":                     {Bootstrap: true}, // leaves files behind, which are in nobody's way
		"controller remove " + tr.nameOf(act): {Join: live},
	} {
		tr.start(act, deps)
		if err := tr.awaitEnd(act); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a member without its data, started with %+v: %v, want advice: %s", deps, err, want)
		}
	}
	if err := controller.RemoveMember(t.Context(), tr.cfgs[act], live, "nobody", tr.log); err == nil || !strings.Contains(err.Error(), "m0") {
		t.Errorf("removing nobody: %v", err)
	}
	if err := controller.RemoveMember(t.Context(), tr.cfgs[act], live, tr.cfgs[act].Etcd.Name, tr.log); err != nil {
		t.Fatal(err)
	}
	tr.removedStaysOut(act)
	start = time.Now()
	tr.start(act, controller.Deps{Join: live})
	if !tr.bound(act) {
		t.Fatalf("it did not join: %v", tr.stops[act]())
	}
	t.Logf("joined after %v", time.Since(start))
	all, err := controller.Members(t.Context(), tr.cfgs[act], live, tr.log)
	if err != nil || len(all) != 3 {
		t.Fatalf("members %+v, %v", all, err)
	}
	for _, m := range all {
		if m.Learner || m.Name == "" {
			t.Errorf("member %+v", m)
		}
	}
	tr.backupAndRestore(b, live, topic)
	var wg sync.WaitGroup
	for n := range 3 {
		wg.Go(func() { _ = tr.stops[n]() }) // the last one has no etcd to say goodbye to
	}
	wg.Wait()
}

// removedStaysOut starts a member that was removed as if it were a first one: the others send it away, and its files have to go.
func (tr *trio) removedStaysOut(n int) {
	t := tr.t
	t.Helper()
	tr.start(n, controller.Deps{Bootstrap: true})
	if tr.bound(n) {
		t.Error("a member that was removed came back")
	}
	if err := tr.stops[n](); !errors.Is(err, store.ErrStopped) || !strings.Contains(err.Error(), "controller join") {
		t.Errorf("a member that was removed: %v, want %v", err, store.ErrStopped)
	}
	if err := os.RemoveAll(tr.cfgs[n].DataDir); err != nil {
		t.Fatal(err)
	}
}

func (tr *trio) nameOf(n int) string { return tr.cfgs[n].Etcd.Name }

// bound waits until a controller listens, and reports whether it does.
func (tr *trio) bound(n int) bool {
	timer := time.NewTimer(20 * time.Second)
	defer timer.Stop()
	select {
	case <-tr.ctls[n].Bound():
		return true
	case <-tr.ends[n]:
		return false
	case <-timer.C:
		return false
	}
}

// awaitEnd waits until a controller has ended by itself, and returns why; or until
// it listens, which it must not.
func (tr *trio) awaitEnd(n int) error {
	select {
	case <-tr.ctls[n].Bound():
	case <-tr.ends[n]:
	}
	return tr.stops[n]()
}

func (tr *trio) backupAndRestore(b *broker, live []string, topic string) {
	t := tr.t
	var file bytes.Buffer
	info, err := controller.Backup(t.Context(), tr.cfgs[0], live, &file, tr.log)
	if err != nil || info.Objects < 7 {
		t.Fatalf("%+v, %v", info, err)
	}
	b.leave() // nothing writes to it any more
	epoch := b.controllerEpoch
	cfg := onDisk(t.TempDir())
	if _, err := controller.Restore(t.Context(), cfg, &file, tr.log); err != nil {
		t.Fatal(err)
	}
	if _, err := controller.Restore(t.Context(), cfg, bytes.NewReader(file.Bytes()), tr.log); err == nil {
		t.Error("restored twice")
	}
	c, stop := startOnDisk(t, cfg, controller.Deps{})
	again := b.restarted()
	again.register.HighestControllerEpoch = epoch
	again.serve(c.Addr())
	p := awaitLeader(again, topic, 1, 1)
	if err := stop(); err != nil {
		t.Error(err)
	}
	again.failure()
	again.leave()
	if again.register.GetClusterId() != b.register.GetClusterId() || len(p.GetLossyEpochs()) != 1 || again.controllerEpoch <= epoch {
		t.Errorf("cluster %s, controller epoch %d after %d, partition %v", again.register.GetClusterId(), again.controllerEpoch, epoch, p)
	}
}

// waitABit lets real time pass.
func waitABit(t *testing.T) {
	t.Helper()
	timer := time.NewTimer(10 * time.Millisecond)
	defer timer.Stop()
	<-timer.C
}
