package client

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// After a gap, numbers are used again only when nothing may be stored under
// them.
func TestNumbering(t *testing.T) {
	batchOf := func(n int) *batch { return &batch{seq: notNumbered, entries: make([]entry, n)} }
	for name, c := range map[string]struct {
		hurt        func(n *numbering, a, b *batch)
		epoch, next int64
	}{
		"the second failed for certain": {func(n *numbering, _, b *batch) { n.gone(b, false); n.anew(false) }, 0, 3},
		"the first too":                 {func(n *numbering, a, b *batch) { n.gone(b, false); n.gone(a, false); n.anew(false) }, 0, 0},
		"the second is in doubt":        {func(n *numbering, _, b *batch) { n.gone(b, true); n.anew(false) }, 1, 0},
		"the first is, then the second": {func(n *numbering, a, b *batch) { n.gone(a, true); n.gone(b, false); n.anew(false) }, 1, 0},
		"what is left is in doubt":      {func(n *numbering, a, _ *batch) { n.gone(a, false); n.anew(true) }, 1, 0},
		"the leader knows nothing":      {func(n *numbering, _, _ *batch) { n.lost = true; n.anew(false) }, 1, 0},
		"of an older epoch":             {func(n *numbering, a, _ *batch) { n.lost = true; n.anew(false); n.gone(a, true) }, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var n numbering
			a, b := batchOf(3), batchOf(4)
			n.assign(a)
			n.assign(b)
			n.assign(b) // has one already
			if a.seq != 0 || b.seq != 3 || n.next != 7 {
				t.Fatalf("numbers %d and %d, then %d", a.seq, b.seq, n.next)
			}
			c.hurt(&n, a, b)
			next := batchOf(1)
			n.assign(next)
			if next.epoch != c.epoch || next.seq != c.next || n.gap || n.doubt || n.lost {
				t.Errorf("the next batch is number %d in epoch %d, %+v; want %d in %d", next.seq, next.epoch, n, c.next, c.epoch)
			}
		})
	}
}

type idService struct {
	runnelv1.UnimplementedProducerServiceServer
	last int64
}

func (s *idService) InitProducer(context.Context, *runnelv1.InitProducerRequest) (*runnelv1.InitProducerResponse, error) {
	s.last++
	return &runnelv1.InitProducerResponse{ProducerId: s.last}, nil
}

// A producer never takes another identity: what it has sent is known by the
// first.
func TestIdentityStays(t *testing.T) {
	lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	runnelv1.RegisterProducerServiceServer(srv, &idService{})
	c, err := New([]string{lis.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	p, err := c.NewProducer()
	if err != nil {
		t.Fatal(err)
	}
	p.workers.Go(func() { _ = srv.Serve(lis) })
	p.identify(t.Context())
	first := p.identity.Load()
	p.identify(t.Context())
	if first == nil || first.id != 1 || p.identity.Load() != first {
		t.Errorf("identity %+v, at first %+v", p.identity.Load(), first)
	}
	srv.Stop()
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
