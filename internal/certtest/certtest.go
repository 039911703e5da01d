// Package certtest makes certificates for tests.
package certtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// An Authority signs certificates, for 127.0.0.1, and keeps them in files that
// end with the test.
type Authority struct {
	t    testing.TB
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	n    int64
}

// New returns an authority of its own.
func New(tb testing.TB) *Authority {
	tb.Helper()
	a := &Authority{t: tb, dir: tb.TempDir()}
	a.cert, a.key = a.issue("ca", &x509.Certificate{
		Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	return a
}

// CA returns the file of the authority's certificate.
func (a *Authority) CA() string { return a.file("ca.crt") }

// Issue makes a certificate, and returns its file and that of its key. common
// may be empty; uris are further names.
func (a *Authority) Issue(name, common string, uris ...string) (cert, key string) {
	a.t.Helper()
	c := &x509.Certificate{Subject: pkix.Name{CommonName: common}}
	for _, text := range uris {
		u, err := url.Parse(text)
		a.must(err)
		c.URIs = append(c.URIs, u)
	}
	a.issue(name, c)
	return a.file(name + ".crt"), a.file(name + ".key")
}

func (a *Authority) file(name string) string { return filepath.Join(a.dir, name) }

func (a *Authority) issue(name string, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	a.n++
	c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(a.n), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	a.must(err)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	a.must(err)
	secret, err := x509.MarshalECPrivateKey(key)
	a.must(err)
	a.must(os.WriteFile(a.file(name+".crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	a.must(os.WriteFile(a.file(name+".key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret}), 0o600))
	cert, err := x509.ParseCertificate(der)
	a.must(err)
	return cert, key
}

func (a *Authority) must(err error) {
	a.t.Helper()
	if err != nil {
		a.t.Fatal(err)
	}
}
