package controller_test

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	"github.com/runnelmq/runnel/controller"
	"github.com/runnelmq/runnel/controller/store"
)

// A breakable connection can be ended as if the other side, or the network, had ended it.
type breakable struct {
	net.Conn

	broken atomic.Pointer[error] // how it ends; nil: as it does by itself
}

// Read implements net.Conn.
func (b *breakable) Read(p []byte) (int, error) {
	n, err := b.Conn.Read(p)
	if how := b.broken.Load(); err != nil && how != nil {
		err = *how
	}
	return n, err
}

// setDial makes dialling an address fail with err from now on; nil: not any more.
func (w *world) setDial(addr string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dialErrs[addr] = err
}

// unplug has nobody listen at an address any more.
func (w *world) unplug(addr string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.listeners, addr)
}

// cut ends all connections to an address with an error, [io.EOF] as from there; those of controllers only, or all.
func (w *world) cut(addr string, all bool, how error) {
	w.mu.Lock()
	conns := w.conns[byController+addr]
	if all {
		conns = append(slices.Clone(conns), w.conns[addr]...)
	}
	w.mu.Unlock()
	for _, c := range conns {
		c.broken.Store(&how)
		_ = c.Close()
	}
}

// A door is what answers at a broker's internal address.
type door struct {
	replicav1.UnimplementedReplicaServiceServer

	// mu guards the fields below
	mu sync.Mutex

	answer *replicav1.ProbeResponse
	holds  *replicav1.DescribeReplicaResponse // nil: it does not say
}

// DescribeReplica implements replicav1.ReplicaServiceServer.
func (d *door) DescribeReplica(ctx context.Context, req *replicav1.DescribeReplicaRequest) (*replicav1.DescribeReplicaResponse, error) {
	d.mu.Lock()
	holds := proto.CloneOf(d.holds)
	d.mu.Unlock()
	if holds == nil {
		return d.UnimplementedReplicaServiceServer.DescribeReplica(ctx, req)
	}
	return holds, nil
}

// Probe implements replicav1.ReplicaServiceServer.
func (d *door) Probe(context.Context, *replicav1.ProbeRequest) (*replicav1.ProbeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return proto.CloneOf(d.answer), nil
}

func (d *door) set(change func(*replicav1.ProbeResponse)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(d.answer)
}

// open lets a broker be reached at its internal address, until the end of the test.
func (b *broker) open() *door { return b.openAs(func(*replicav1.ProbeResponse) {}) }

// openAs has something else answer.
func (b *broker) openAs(change func(*replicav1.ProbeResponse)) *door {
	rec := b.register.GetBroker()
	d := &door{answer: &replicav1.ProbeResponse{ClusterId: b.cluster(), BrokerId: rec.GetBrokerId(), Incarnation: rec.GetIncarnation()}}
	change(d.answer)
	lis, err := b.w.listen(context.Background(), rec.GetInternalAddress())
	if err != nil {
		b.w.t.Fatal(err)
	}
	srv := grpc.NewServer()
	replicav1.RegisterReplicaServiceServer(srv, d)
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(lis) })
	b.w.t.Cleanup(func() {
		srv.Stop()
		wg.Wait()
	})
	return d
}

// kill ends a broker's process as kill -9 does.
func (b *broker) kill() {
	b.w.unplug(b.register.GetBroker().GetInternalAddress())
	_ = b.conn.Close()
	<-b.ended
	b.cancel()
}

// A mortal controller can be killed.
type mortal struct {
	*running

	kv *mortalKV
}

// mortal starts a controller that can be killed. It must be stopped all the same.
func (w *world) mortal(addr string, change func(*controller.Config, *controller.Deps)) *mortal {
	w.t.Helper()
	m := &mortal{kv: &mortalKV{KV: w.kv}}
	m.running = w.controller(addr, func(c *controller.Config, d *controller.Deps) {
		c.Cluster.FastFencing = true
		d.KV = m.kv
		if change != nil {
			change(c, d)
		}
	})
	return m
}

// kill ends the controller as kill -9 does: nothing of it reaches anyone any more.
func (m *mortal) kill(w *world) {
	m.kv.kill()
	w.unplug(m.addr)
	w.cut(m.addr, true, io.EOF)
}

// A mortalKV is a store that a dead process does not reach.
type mortalKV struct {
	store.KV

	dead atomic.Bool
	stop atomic.Pointer[context.CancelFunc]
}

func (m *mortalKV) kill() {
	m.dead.Store(true)
	if stop := m.stop.Load(); stop != nil {
		(*stop)()
	}
}

var errDead = errors.New("this process is dead")

func (m *mortalKV) Txn(ctx context.Context, cmps []store.Compare, writes []store.Write) (store.TxnResult, error) {
	if m.dead.Load() {
		return store.TxnResult{}, errDead
	}
	return m.KV.Txn(ctx, cmps, writes)
}

func (m *mortalKV) Read(ctx context.Context, keys []string) (store.Page, error) {
	if m.dead.Load() {
		return store.Page{}, errDead
	}
	return m.KV.Read(ctx, keys)
}

func (m *mortalKV) Watch(ctx context.Context, prefix string, from int64, fn func([]store.Event) error) error {
	if m.dead.Load() {
		return errDead
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.stop.Store(&cancel)
	return m.KV.Watch(ctx, prefix, from, fn)
}

func (m *mortalKV) KeepAlive(ctx context.Context, id store.LeaseID) error {
	if m.dead.Load() {
		return errDead
	}
	return m.KV.KeepAlive(ctx, id)
}

func (m *mortalKV) Revoke(ctx context.Context, id store.LeaseID) error {
	if m.dead.Load() {
		return errDead
	}
	return m.KV.Revoke(ctx, id)
}
