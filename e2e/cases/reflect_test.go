package cases

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionalpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker"
)

// publicServices are what a person finds who asks a broker what it can do.
var publicServices = []string{"grpc.health.v1.Health", "runnel.v1.AdminService", "runnel.v1.LogService", "runnel.v1.MetadataService"}

// checkTools does what grpcurl does: list, describe, a unary call, a stream.
func checkTools(ctx context.Context, t *testing.T, conn *grpc.ClientConn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	services, describe, err := reflectV1(ctx, conn)
	if err != nil {
		t.Fatal(err)
	}
	old, err := reflectAlpha(ctx, conn)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range publicServices {
		if !slices.Contains(services, s) || !slices.Contains(old, s) {
			t.Errorf("%s is not listed: v1 %v, v1alpha %v", s, services, old)
		}
		if err := describe(s); err != nil {
			t.Errorf("%s is not described: %v", s, err)
		}
	}
	if _, err := runnelv1.NewMetadataServiceClient(conn).GetMetadata(ctx, &runnelv1.GetMetadataRequest{}); err != nil {
		t.Errorf("a unary call: %v", err)
	}
	health, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: "runnel.v1.LogService"})
	if err != nil || health.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health: %v, %v", health, err)
	}
	stream, err := runnelv1.NewLogServiceClient(conn).Produce(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&runnelv1.ProduceRequest{RequestId: 7}); err != nil {
		t.Fatal(err)
	}
	if r, err := stream.Recv(); err != nil || r.GetRequestId() != 7 {
		t.Errorf("a stream: %v, %v", r, err)
	}
}

// reflectV1 lists the services, and returns what describes one.
func reflectV1(ctx context.Context, conn *grpc.ClientConn) (services []string, describe func(string) error, err error) {
	stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		return nil, nil, err
	}
	ask := func(req *reflectionpb.ServerReflectionRequest) (*reflectionpb.ServerReflectionResponse, error) {
		if err := stream.Send(req); err != nil {
			return nil, err
		}
		return stream.Recv()
	}
	resp, err := ask(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
	for _, s := range resp.GetListServicesResponse().GetService() {
		services = append(services, s.GetName())
	}
	return services, func(service string) error {
		resp, err := ask(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: service}})
		if err != nil {
			return err
		}
		for _, b := range resp.GetFileDescriptorResponse().GetFileDescriptorProto() {
			f := &descriptorpb.FileDescriptorProto{}
			if err := proto.Unmarshal(b, f); err != nil {
				return err
			}
			for _, s := range f.GetService() {
				if f.GetPackage()+"."+s.GetName() == service {
					return nil
				}
			}
		}
		return status.Error(codes.NotFound, resp.String())
	}, err
}

func reflectAlpha(ctx context.Context, conn *grpc.ClientConn) (services []string, err error) {
	stream, err := reflectionalpha.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		return nil, err
	}
	//nolint:staticcheck // old tools still speak it
	if err := stream.Send(&reflectionalpha.ServerReflectionRequest{MessageRequest: &reflectionalpha.ServerReflectionRequest_ListServices{}}); err != nil {
		return nil, err
	}
	resp, err := stream.Recv()
	for _, s := range resp.GetListServicesResponse().GetService() { //nolint:staticcheck // as above
		services = append(services, s.GetName()) //nolint:staticcheck // as above
	}
	return services, err
}

// Tools that know nothing but reflection work: directly, with TLS, through a
// proxy. They never hang, not even where one stream at a time is all there is,
// and are told plainly when reflection is off (GR-19).
func TestGR19_reflection(t *testing.T) {
	t.Run("as it is", func(t *testing.T) {
		inTown(t, nil, func(w *town) {
			conn := w.conn(brokerAddr)
			defer conn.Close()
			checkTools(w.t.Context(), w.t, conn)
			pr := w.proxy("10.0.0.1:7420", time.Minute)
			defer pr.close()
			through := w.conn("10.0.0.1:7420")
			defer through.Close()
			checkTools(w.t.Context(), w.t, through)
		})
	})
	t.Run("with TLS", func(t *testing.T) {
		cert, key, pool := certificate(t)
		inTown(t, func(c *broker.Config) {
			c.Security.CertFile, c.Security.KeyFile, c.Security.ClientTLS = cert, key, true
		}, func(w *town) {
			conn := w.conn(brokerAddr, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool, ServerName: "127.0.0.1"})))
			defer conn.Close()
			checkTools(w.t.Context(), w.t, conn)
		})
	})
	t.Run("one stream at a time", func(t *testing.T) {
		inTown(t, nil, func(w *town) {
			pr := w.proxy("10.0.0.1:7420", time.Minute, grpc.MaxConcurrentStreams(1))
			defer pr.close()
			conn := w.conn("10.0.0.1:7420")
			defer conn.Close()
			ctx, cancel := context.WithCancel(w.t.Context())
			if services, _, err := reflectV1(ctx, conn); err != nil || len(services) == 0 {
				w.t.Fatal(services, err)
			}
			// The stream of reflection is open, as careless tools leave it.
			call := func() error {
				ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Second)
				defer cancel()
				_, err := runnelv1.NewMetadataServiceClient(conn).GetMetadata(ctx, &runnelv1.GetMetadataRequest{})
				return err
			}
			start := time.Now()
			if err := call(); status.Code(err) != codes.DeadlineExceeded || time.Since(start) > 5*time.Second {
				w.t.Errorf("after %s: %v", time.Since(start), err)
			}
			cancel()
			if err := call(); err != nil {
				w.t.Errorf("once it is closed: %v", err)
			}
		})
	})
	t.Run("switched off", func(t *testing.T) {
		inTown(t, func(c *broker.Config) { c.Listen.Reflection = false }, func(w *town) {
			conn := w.conn(brokerAddr)
			defer conn.Close()
			_, _, err := reflectV1(w.t.Context(), conn)
			_, old := reflectAlpha(w.t.Context(), conn)
			if status.Code(err) != codes.Unimplemented || status.Code(old) != codes.Unimplemented {
				w.t.Errorf("v1: %v, v1alpha: %v", err, old)
			}
			if _, err := runnelv1.NewMetadataServiceClient(conn).GetMetadata(w.t.Context(), &runnelv1.GetMetadataRequest{}); err != nil {
				w.t.Errorf("the rest: %v", err)
			}
		})
	})
}

// certificate makes a certificate for 127.0.0.1 that signs itself.
func certificate(t *testing.T) (certFile, keyFile string, pool *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	year := 365 * 24 * time.Hour
	start := time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC) // before the time that bubbles begin at
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: start, NotAfter: start.Add(100 * year), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	pool = x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})) {
		t.Fatal("no certificate")
	}
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "PRIVATE KEY", keyDER), pool
}
