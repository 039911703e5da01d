package rpcserver

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/rs/zerolog"
	"google.golang.org/grpc/credentials"
)

var errNoCertificates = errors.New("no certificate in it")

// lookAgain is how often the files of certificates are looked at, when
// connections are made.
const lookAgain = 10 * time.Second

// Certificates are what a process shows to others, and by whom theirs must be
// signed. The files are read anew when they changed, so that renewed ones are
// used without a restart; connections that are open stay. While the files are
// not right, the last ones that were are used.
type Certificates struct {
	certFile, keyFile, caFile string
	log                       zerolog.Logger

	now      atomic.Pointer[loaded]
	looked   atomic.Int64 // when the files were last looked at, Unix nanoseconds
	looking  atomic.Bool  // somebody reads them
	failures atomic.Int64
}

// A loaded is one reading of the files.
type loaded struct {
	files [3][]byte
	cert  tls.Certificate
	pool  *x509.CertPool // nil without a CA file
}

// LoadCertificates reads a certificate, its key, and the CA that those of
// others must be signed by, "" for none. All are PEM.
func LoadCertificates(certFile, keyFile, caFile string, log zerolog.Logger) (*Certificates, error) {
	c := &Certificates{certFile: certFile, keyFile: keyFile, caFile: caFile, log: log}
	l, err := c.read()
	if err != nil {
		return nil, err
	}
	c.now.Store(l)
	c.looked.Store(time.Now().UnixNano())
	return c, nil
}

func (c *Certificates) read() (*loaded, error) {
	l := &loaded{}
	for i, name := range []string{c.certFile, c.keyFile, c.caFile} {
		if name == "" {
			continue
		}
		var err error
		if l.files[i], err = os.ReadFile(name); err != nil {
			return nil, fmt.Errorf("certificates: %w", err)
		}
	}
	var err error
	if l.cert, err = tls.X509KeyPair(l.files[0], l.files[1]); err != nil {
		return nil, fmt.Errorf("certificate %s with key %s: %w", c.certFile, c.keyFile, err)
	}
	if c.caFile != "" {
		l.pool = x509.NewCertPool()
		if !l.pool.AppendCertsFromPEM(l.files[2]) {
			return nil, fmt.Errorf("CA certificate %s: %w", c.caFile, errNoCertificates)
		}
	}
	return l, nil
}

// current returns what is to be used for a new connection. One caller at a
// time looks at the files; the others don't wait for it.
func (c *Certificates) current() *loaded {
	now := c.now.Load()
	if time.Since(time.Unix(0, c.looked.Load())) < lookAgain || !c.looking.CompareAndSwap(false, true) {
		return now
	}
	defer c.looking.Store(false)
	c.looked.Store(time.Now().UnixNano())
	fresh, err := c.read()
	if err != nil {
		c.failures.Add(1)
		c.log.Error().Err(err).Time("not_after", now.cert.Leaf.NotAfter).
			Msg("the certificate files are not right: the ones from before are used on; put right ones there")
		return now
	}
	if bytes.Equal(bytes.Join(fresh.files[:], []byte{0}), bytes.Join(now.files[:], []byte{0})) {
		return now
	}
	c.now.Store(fresh)
	c.log.Info().Time("not_after", fresh.cert.Leaf.NotAfter).Str("serial", fresh.cert.Leaf.SerialNumber.String()).Msg("new certificates are in use")
	return fresh
}

// Server returns what a port shows. With a CA it also asks callers for
// certificates, as auth says.
func (c *Certificates) Server(auth tls.ClientAuthType) credentials.TransportCredentials {
	return live{func() *tls.Config {
		now := c.current()
		cfg := &tls.Config{Certificates: []tls.Certificate{now.cert}, MinVersion: tls.VersionTLS12}
		if now.pool != nil {
			cfg.ClientCAs, cfg.ClientAuth = now.pool, auth
		}
		return cfg
	}}
}

// Client returns what connections to others show, whose certificates must be
// signed by the CA.
func (c *Certificates) Client() credentials.TransportCredentials {
	return live{func() *tls.Config {
		now := c.current()
		return &tls.Config{Certificates: []tls.Certificate{now.cert}, RootCAs: now.pool, MinVersion: tls.VersionTLS12}
	}}
}

// Register adds when the certificate expires, and how often the files were not
// right, to the metrics of a process.
func (c *Certificates) Register(reg prometheus.Registerer, process string) {
	auto := promauto.With(prometheus.WrapRegistererWith(prometheus.Labels{"process": process}, reg))
	auto.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "certificate_expiry_timestamp_seconds", Help: "When the certificate in use expires.",
	}, func() float64 { return float64(c.now.Load().cert.Leaf.NotAfter.Unix()) })
	auto.NewCounterFunc(prometheus.CounterOpts{
		Name: "certificate_reload_failures_total", Help: "Times that changed certificate files were not right.",
	}, func() float64 { return float64(c.failures.Load()) })
}

// live are credentials that ask for the configuration at each handshake.
type live struct{ config func() *tls.Config }

// ClientHandshake implements credentials.TransportCredentials.
func (l live) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return credentials.NewTLS(l.config()).ClientHandshake(ctx, authority, conn)
}

// ServerHandshake implements credentials.TransportCredentials.
func (l live) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return credentials.NewTLS(l.config()).ServerHandshake(conn)
}

// Info implements credentials.TransportCredentials.
func (live) Info() credentials.ProtocolInfo { return credentials.NewTLS(nil).Info() }

// Clone implements credentials.TransportCredentials.
func (l live) Clone() credentials.TransportCredentials { return l }

// OverrideServerName implements credentials.TransportCredentials. Names come
// from addresses only.
func (live) OverrideServerName(string) error { return errors.ErrUnsupported }
