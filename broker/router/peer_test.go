package router

import (
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/runnelmq/runnel/broker/metadata"
)

// Servers take so many streams on one connection and let the others wait
// without a word: readers get another connection before that.
func TestPeer_readersShareConnections(t *testing.T) {
	dialed := 0
	r := New(Options{Store: metadata.NewStore(1), Dial: func(addr string) (*grpc.ClientConn, error) {
		dialed++
		return grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	}})
	p := newPeer(r, &metadata.Broker{ID: 2, InternalAddress: "b:1"})
	var done []func()
	for range mostStreams + 1 {
		_, d, err := p.reading(1)
		if err != nil {
			t.Fatal(err)
		}
		done = append(done, d)
	}
	if dialed != 2 {
		t.Errorf("%d connections for %d readers", dialed, len(done))
	}
	for _, d := range done {
		d()
	}
	if _, _, err := p.reading(mostStreams); err != nil || dialed != 2 {
		t.Errorf("%v, %d connections, though all readers have gone", err, dialed)
	}
	p.close(errPeerGone)
	if _, _, err := p.reading(1); err == nil || !Routable(err) {
		t.Errorf("a peer that is closed gave a connection: %v", err)
	}
}
