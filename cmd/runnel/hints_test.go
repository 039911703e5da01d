package main

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/runnelmq/runnel/internal/certtest"
)

// Who meets a port with TLS is told which flag is missing, not to start a node.
func TestHints_tls(t *testing.T) {
	ca, other := certtest.New(t), certtest.New(t)
	cert, key := ca.Issue("broker", "broker")
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(http.NotFoundHandler())
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	srv.EnableHTTP2 = true
	srv.StartTLS()
	defer srv.Close()
	addr := srv.Listener.Addr().String()
	for _, flags := range [][]string{nil, {"--tls"}, {"--tls-ca", other.CA()}} {
		r := cli(t, "", append(flags, "topic", "list", "--brokers", addr, "--timeout", "2s")...)
		if r.code != exitTimeout || !strings.Contains(r.err, "--tls-ca FILE") || strings.Contains(r.err, "runnel dev") {
			t.Errorf("%q: exit code %d\n%s", flags, r.code, r.err)
		}
	}
}

// What asks etcd does not speak of brokers when etcd does not answer.
func TestHints_etcd(t *testing.T) {
	var lc net.ListenConfig
	mute, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	addr := mute.Addr().String()
	for _, args := range [][]string{{"members"}, {"remove", "controller-3"}, {"backup", t.TempDir() + "/backup"}} {
		r := cli(t, "", append(append([]string{"controller"}, args...), "--etcd-endpoints", addr, "--timeout", "300ms")...)
		if r.code != exitTimeout || !strings.Contains(r.err, "--etcd-endpoints") || strings.Contains(r.err, "broker") {
			t.Errorf("%q: exit code %d\n%s", args, r.code, r.err)
		}
	}
}
