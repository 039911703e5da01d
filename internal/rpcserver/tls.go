package rpcserver

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

var errNoCertificates = errors.New("no certificate in it")

// LoadTLS reads a certificate and its key, and returns the TLS configuration of
// a server that shows it. With a CA file the other side must show one that the
// CA signed, and client is the configuration for connections of the same kind;
// without, client is nil.
func LoadTLS(certFile, keyFile, caFile string) (server, client *tls.Config, err error) {
	cert, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, nil, fmt.Errorf("certificate %s with key %s: %w", certFile, keyFile, err)
	}
	server = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	if caFile == "" {
		return server, nil, nil
	}
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return nil, nil, fmt.Errorf("CA certificate: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, nil, fmt.Errorf("CA certificate %s: %w", caFile, errNoCertificates)
	}
	server.ClientCAs, server.ClientAuth = pool, tls.RequireAndVerifyClientCert
	client = &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: pool, MinVersion: tls.VersionTLS12}
	return server, client, nil
}
