package replication

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/url"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	grpcpeer "google.golang.org/grpc/peer"

	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/internal/rpcserver"
)

// An opened stream has received its first message, from a caller who showed a
// certificate.
type opened struct {
	grpc.BidiStreamingServer[replicav1.ReplicateRequest, replicav1.ReplicateResponse]

	ctx  context.Context
	open *replicav1.Open
}

// Context implements grpc.ServerStream.
func (o *opened) Context() context.Context { return o.ctx }

// Recv implements grpc.BidiStreamingServer.
func (o *opened) Recv() (*replicav1.ReplicateRequest, error) {
	return &replicav1.ReplicateRequest{Event: &replicav1.ReplicateRequest_Open{Open: o.open}}, nil
}

// A follower is served only as the broker that its certificate names.
func TestReplicateTakesEachBrokerForItselfOnly(t *testing.T) {
	s := NewServer(Config{}, Deps{Store: metadata.NewStore(1)})
	for uri, want := range map[string]error{
		"runnel:broker:2": ErrProtocol, // let in, to be told that it gives no credit
		"runnel:broker:3": rpcserver.ErrIdentity,
		"runnel:client":   rpcserver.ErrIdentity,
	} {
		u, err := url.Parse(uri)
		if err != nil {
			t.Fatal(err)
		}
		shown := tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{URIs: []*url.URL{u}}}}}
		ctx := grpcpeer.NewContext(t.Context(), &grpcpeer.Peer{AuthInfo: credentials.TLSInfo{State: shown}})
		if err := s.Replicate(&opened{ctx: ctx, open: &replicav1.Open{BrokerId: 2}}); !errors.Is(err, want) {
			t.Errorf("broker 2 with the certificate of %s: %v, want %v", uri, err, want)
		}
	}
}
