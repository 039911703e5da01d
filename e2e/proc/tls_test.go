package proc

import (
	"context"
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
	"testing"
	"time"

	"github.com/runnelmq/runnel/client"
)

// An authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string // its certificate
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{}
	a.cert = &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	a.key, a.file, _ = a.issue(t, a.cert)
	return a
}

// issue signs c, and returns its key, and the files of both.
func (a *authority) issue(t *testing.T, c *x509.Certificate) (key *ecdsa.PrivateKey, certFile, keyFile string) {
	t.Helper()
	key = must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	c.SerialNumber, c.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: t.Name()}
	c.NotBefore = time.Now().Add(-time.Hour)
	if c.NotAfter.IsZero() {
		c.NotAfter = time.Now().Add(time.Hour)
	}
	signer := a.key
	if signer == nil {
		signer = key
	}
	der := must[[]byte](t)(x509.CreateCertificate(rand.Reader, c, a.cert, &key.PublicKey, signer))
	private := must[[]byte](t)(x509.MarshalPKCS8PrivateKey(key))
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return key, certFile, keyFile
}

// tlsPatience is for how long one who asks would wait, so that what fails at once does
// so in far less, on any machine.
const tlsPatience = time.Minute

func serverCert() *x509.Certificate {
	return &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
}

// What is wrong with certificates is said by the first command, at once and in
// words (OP-13).
func TestTLS(t *testing.T) {
	t.Parallel()
	ca, stranger := newAuthority(t), newAuthority(t)
	serve := func(c *x509.Certificate, more ...string) *Node {
		_, cert, key := ca.issue(t, c)
		return dev(t, Dev{Args: append([]string{
			"--set", "broker.security.client_tls=true", "--set", "broker.security.cert_file=" + cert, "--set", "broker.security.key_file=" + key,
		}, more...)})
	}
	n, plain := serve(serverCert()), dev(t, Dev{})
	old, elsewhere := serverCert(), serverCert()
	old.NotAfter = time.Now().Add(-time.Minute)
	elsewhere.IPAddresses, elsewhere.DNSNames = nil, []string{"elsewhere.example"}
	expired, other := serve(old), serve(elsewhere)

	n.cli(t, "topic", "create", "secret", "--tls-ca", ca.file)
	cmd := n.command(t, "produce", "secret")
	cmd.Stdin, cmd.Env = strings.NewReader("x\n"), append(cmd.Env, "RUNNEL_TLS_CA="+ca.file)
	if r := n.try(t, cmd); r.Code != 0 {
		t.Errorf("produce: exit code %d\n%s", r.Code, r.Stderr)
	}
	if got := n.cli(t, "consume", "secret", "--exit-at-end", "--tls-ca", ca.file); got != "x\n" {
		t.Errorf("read %q", got)
	}
	for name, c := range map[string]struct {
		at   *Node
		by   *authority
		want string
	}{
		"another authority": {n, stranger, "certificate"}, "expired": {expired, ca, "expired"},
		"another name": {other, ca, "certificate"}, "TLS to plaintext": {plain, ca, "tls"},
	} {
		clientsAreTold(t, name, c.at, c.by, c.want)
	}
	for name, c := range map[string]struct {
		at   *Node
		args []string
		want string
	}{
		"another authority":   {n, []string{"--tls-ca", stranger.file}, "certificate"},
		"the system's":        {n, []string{"--tls"}, "certificate"},
		"expired":             {expired, []string{"--tls-ca", ca.file}, "expired"},
		"another name":        {other, []string{"--tls-ca", ca.file}, "certificate"},
		"plaintext to TLS":    {n, nil, "TLS"},
		"TLS to plaintext":    {plain, []string{"--tls-ca", ca.file}, "tls"},
		"no such file":        {n, []string{"--tls-ca", "/no/such/file"}, "--tls-ca"},
		"a key on its own":    {n, []string{"--tls-key", ca.file}, "--tls-cert and --tls-key"},
		"no certificate file": {n, []string{"--tls-ca", os.Args[0]}, "no certificate"},
	} {
		begun := time.Now()
		r := c.at.try(t, c.at.command(t, append([]string{"topic", "list", "--timeout", tlsPatience.String()}, c.args...)...))
		if took := time.Since(begun); r.Code == 0 || took > tlsPatience/2 || !strings.Contains(r.Stderr, c.want) || strings.Contains(r.Stderr, "did not end") {
			t.Errorf("%s: exit code %d after %v, want %q in\n%s", name, r.Code, took, c.want, r.Stderr)
		}
	}
}

// clientsAreTold wants all that a program can do with an untrusted broker to fail at
// once, for good, and with the reason.
func clientsAreTold(t *testing.T, name string, at *Node, by *authority, want string) {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(must[[]byte](t)(os.ReadFile(by.file)))
	c := must[*client.Client](t)(client.New([]string{at.Client}, client.TLS(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13})))
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), tlsPatience)
	defer cancel()
	for what, call := range map[string]func() error{
		"a producer": func() error {
			p := must[*client.Producer](t)(c.NewProducer())
			defer p.Close(ctx)
			_, err := p.ProduceSync(ctx, client.Record{Topic: "secret", Value: []byte("v")})
			return err
		},
		"a reader": func() error {
			r := must[*client.Reader](t)(c.NewReader())
			defer r.Close()
			if err := r.Assign(ctx, client.Assignment{Topic: "secret"}); err != nil {
				return err
			}
			_, err := r.Poll(ctx)
			return err
		},
		"a reader of all": func() error {
			r := must[*client.Reader](t)(c.NewReader())
			defer r.Close()
			return r.Assign(ctx, client.Assignment{Topic: "secret", Partition: client.AnyPartition})
		},
		"a member": func() error {
			g := must[*client.Group](t)(c.NewGroup("g", client.Topics("secret")))
			defer g.Close()
			_, err := g.Poll(ctx)
			return err
		},
	} {
		begun := time.Now()
		err := call()
		if took := time.Since(begun); err == nil || !strings.Contains(err.Error(), want) || took > tlsPatience/2 ||
			client.Retriable(err) || errors.Is(err, client.ErrOutcomeUnknown) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s, %s: %v after %v, want %q", name, what, err, took, want)
		}
	}
}
