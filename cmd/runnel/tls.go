package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
)

// tlsFlags say how to reach brokers whose port for clients is TLS.
type tlsFlags struct {
	on            bool
	ca, cert, key string
}

func (f *tlsFlags) add(root *cobra.Command, getenv func(string) string) {
	fs := root.PersistentFlags()
	fs.BoolVar(&f.on, "tls", false, "connect with TLS; the system's authorities are trusted, unless --tls-ca is given")
	for _, file := range []struct {
		to              *string
		flag, env, what string
	}{
		{&f.ca, "tls-ca", "RUNNEL_TLS_CA", "connect with TLS, and trust the authorities in this PEM `file`"},
		{&f.cert, "tls-cert", "RUNNEL_TLS_CERT", "certificate to show to brokers that ask for one, a PEM `file`"},
		{&f.key, "tls-key", "RUNNEL_TLS_KEY", "its key, a PEM `file`"},
	} {
		fs.StringVar(file.to, file.flag, getenv(file.env), file.what+"; also "+file.env)
		fs.Lookup(file.flag).DefValue = ""
		_ = root.MarkPersistentFlagFilename(file.flag)
	}
}

// config returns nil for plaintext.
func (f *tlsFlags) config() (*tls.Config, error) {
	if !f.on && f.ca == "" && f.cert == "" && f.key == "" {
		return nil, nil //nolint:nilnil // no TLS, no mistake
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if (f.cert == "") != (f.key == "") {
		return nil, errors.New("--tls-cert and --tls-key go together")
	}
	if f.cert != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return nil, fmt.Errorf("--tls-cert %s, --tls-key %s: %w", f.cert, f.key, err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	if f.ca != "" {
		pem, err := os.ReadFile(f.ca)
		if err != nil {
			return nil, fmt.Errorf("--tls-ca: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--tls-ca %s: no certificate is in it", f.ca)
		}
	}
	return cfg, nil
}
