package rpcserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/grpc/credentials"
)

// pair writes a certificate with this serial, which signs itself, and its key.
func pair(t *testing.T, dir string, serial int64) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "broker"}, DNSNames: []string{"x"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"cert": {Type: "CERTIFICATE", Bytes: der}, "key": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// flip makes link point at dir, at once, as Kubernetes does with secrets.
func flip(t *testing.T, link, dir string) {
	t.Helper()
	if err := errors.Join(os.Symlink(dir, link+".new"), os.Rename(link+".new", link)); err != nil {
		t.Fatal(err)
	}
}

// Renewed certificates are used by both sides without a restart; while the
// files are not right, the last ones go on (OP-12).
func TestCertificatesAreRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second, link := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "certs")
		pair(t, first, 1)
		pair(t, second, 2)
		flip(t, link, first)
		at := func(name string) string { return filepath.Join(link, name) }
		var log strings.Builder
		c, err := LoadCertificates(at("cert"), at("key"), at("cert"), zerolog.New(&log))
		if err != nil {
			t.Fatal(err)
		}
		shows := func(serial int64, failures int64) {
			t.Helper()
			c.current() // else one side looks, and the other does not wait for it
			server, client := handshake(t, c.Server(tls.RequireAndVerifyClientCert), c.Client())
			for side, cert := range map[string]*x509.Certificate{"server": client, "client": server} {
				if cert.SerialNumber.Int64() != serial {
					t.Errorf("the %s shows %v, want %d", side, cert.SerialNumber, serial)
				}
			}
			if c.failures.Load() != failures {
				t.Errorf("%d failures, want %d", c.failures.Load(), failures)
			}
		}
		shows(1, 0)
		flip(t, link, second)
		shows(1, 0) // not looked at for each connection
		time.Sleep(lookAgain)
		shows(2, 0)
		if err := os.WriteFile(at("key"), []byte("half of"), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(lookAgain)
		shows(2, 1)
		if !strings.Contains(log.String(), "not right") {
			t.Errorf("logged %s", log.String())
		}
		pair(t, second, 3)
		time.Sleep(lookAgain)
		shows(3, 1)
	})
}

// handshake connects both sides, and returns what each saw of the other.
func handshake(t *testing.T, server, client credentials.TransportCredentials) (seenByServer, seenByClient *x509.Certificate) {
	t.Helper()
	a, b := net.Pipe()
	var wg sync.WaitGroup
	var serr error
	wg.Go(func() {
		_, info, err := server.ServerHandshake(a)
		if serr = err; err == nil {
			seenByServer = info.(credentials.TLSInfo).State.PeerCertificates[0] //nolint:forcetypeassert // it is TLS
		}
	})
	_, info, err := client.ClientHandshake(t.Context(), "x:1", b)
	wg.Wait()
	if err != nil || serr != nil {
		t.Fatalf("%v, %v", err, serr)
	}
	return seenByServer, info.(credentials.TLSInfo).State.PeerCertificates[0] //nolint:forcetypeassert // it is TLS
}
