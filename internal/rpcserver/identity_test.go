package rpcserver

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/certtest"
)

// A registrar takes whoever says it is broker 7.
type registrar struct {
	runnelv1.UnimplementedAdminServiceServer

	who chan string
}

// DescribeCluster implements runnelv1.AdminServiceServer.
func (r *registrar) DescribeCluster(ctx context.Context, _ *runnelv1.DescribeClusterRequest) (*runnelv1.DescribeClusterResponse, error) {
	r.who <- Principal(ctx)
	return &runnelv1.DescribeClusterResponse{}, CheckBroker(ctx, 7)
}

func TestIdentity(t *testing.T) {
	ca := certtest.New(t)
	load := func(common string, names ...string) (server, client credentials.TransportCredentials) {
		t.Helper()
		cert, key := ca.Issue("one", common, names...)
		c, err := LoadCertificates(cert, key, ca.CA(), zerolog.Nop())
		if err != nil {
			t.Fatal(err)
		}
		return c.Server(tls.RequireAndVerifyClientCert), c.Client()
	}
	serverTLS, _ := load("server")
	srv := New(Options{Port: InternalPort, TLS: serverTLS})
	reg := &registrar{who: make(chan string, 1)}
	runnelv1.RegisterAdminServiceServer(srv, reg)
	lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	var wg sync.WaitGroup
	wg.Go(func() { done <- srv.Serve(lis) })
	defer func() {
		srv.Stop()
		wg.Wait()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	}()
	for name, tt := range map[string]struct {
		common string
		names  []string
		code   codes.Code
		who    string
		says   string
	}{
		"its own":          {"", []string{"runnel:broker:7"}, codes.OK, "runnel:broker:7", ""},
		"several":          {"pair", []string{"spiffe://x/y", "runnel:broker:6", "runnel:broker:7"}, codes.OK, "pair", ""},
		"any broker's":     {"fleet", []string{"runnel:broker:*"}, codes.OK, "fleet", ""},
		"another broker's": {"eight", []string{"runnel:broker:8"}, codes.PermissionDenied, "eight", "broker 8"},
		"a longer number":  {"long", []string{"runnel:broker:77"}, codes.PermissionDenied, "long", "broker 77"},
		"a client's":       {"alice", nil, codes.PermissionDenied, "alice", "of no broker: give that broker a certificate with the URI name runnel:broker:7"},
	} {
		t.Run(name, func(t *testing.T) {
			_, clientTLS := load(tt.common, tt.names...)
			conn, err := Dial(lis.Addr().String(), DialOptions{TLS: clientTLS})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_, err = runnelv1.NewAdminServiceClient(conn).DescribeCluster(t.Context(), &runnelv1.DescribeClusterRequest{})
			if status.Code(err) != tt.code || !strings.Contains(status.Convert(err).Message(), tt.says) {
				t.Errorf("%v", err)
			}
			if who := <-reg.who; who != tt.who {
				t.Errorf("principal %q, want %q", who, tt.who)
			}
		})
	}
}

// Without certificates there is no identity, and nothing to compare.
func TestIdentity_plaintext(t *testing.T) {
	if who, err := Principal(t.Context()), CheckBroker(t.Context(), 7); who != "" || err != nil {
		t.Errorf("%q, %v", who, err)
	}
}
