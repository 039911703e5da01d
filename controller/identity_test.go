package controller_test

import (
	"context"
	"net"
	"testing"

	"github.com/rs/zerolog"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/controller"
	"github.com/runnelmq/runnel/internal/certtest"
	"github.com/runnelmq/runnel/internal/rpcserver"
)

// Where certificates are demanded, a session and a wish of a broker's own are only for the broker that the certificate names.
func TestMutualTLS_takes_each_broker_for_itself_only(t *testing.T) {
	var ca *certtest.Authority
	secured := func(c *controller.Config, _ *controller.Deps) {
		ca = certtest.New(t) // valid at the bubble's time
		cert, key := ca.Issue("controller", "controller")
		c.Security = controller.SecurityConfig{CertFile: cert, KeyFile: key, CAFile: ca.CA()}
	}
	alone(t, secured, func(w *world) {
		t := w.t
		for name, tt := range map[string]struct {
			uris []string
			want codes.Code
		}{
			"its own":          {[]string{"runnel:broker:1"}, codes.OK},
			"another broker's": {[]string{"runnel:broker:2"}, codes.PermissionDenied},
			"a client's":       {nil, codes.PermissionDenied},
		} {
			cert, key := ca.Issue("caller", "caller", tt.uris...)
			certs, err := rpcserver.LoadCertificates(cert, key, ca.CA(), zerolog.Nop())
			if err != nil {
				t.Fatal(err)
			}
			dial := func(ctx context.Context, _ string) (net.Conn, error) { return w.dial(ctx, addr1) }
			conn, err := rpcserver.Dial("127.0.0.1:7422", rpcserver.DialOptions{Dial: dial, TLS: certs.Client()})
			if err != nil {
				t.Fatal(err)
			}
			c := controllerv1.NewControllerServiceClient(conn)
			stream, err := c.Session(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.Send(&controllerv1.SessionRequest{Event: &controllerv1.SessionRequest_Register{Register: w.newBroker(1).register}}); err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Recv(); status.Code(err) != tt.want {
				t.Errorf("a session with %s certificate: %v, want %v", name, err, tt.want)
			}
			_, err = c.EnsureInternalTopic(t.Context(), &controllerv1.EnsureInternalTopicRequest{BrokerId: 1, Name: "__x", Partitions: 1})
			if denied := status.Code(err) == codes.PermissionDenied; denied != (tt.want == codes.PermissionDenied) {
				t.Errorf("an internal topic with %s certificate: %v", name, err)
			}
			_, err = c.AllocateProducerIds(t.Context(), &controllerv1.AllocateProducerIdsRequest{BrokerId: 1})
			if status.Code(err) != tt.want {
				t.Errorf("producer ids with %s certificate: %v, want %v", name, err, tt.want)
			}
			if err := conn.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
