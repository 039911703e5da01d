package rpcserver

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// Principal says who calls, by the certificate that the caller showed and this
// side verified: its common name, else its first other name. It is "" for a
// caller without one, about whom nothing is known but that it may use the port.
func Principal(ctx context.Context) string {
	cert := shown(ctx)
	switch {
	case cert == nil:
		return ""
	case cert.Subject.CommonName != "":
		return cert.Subject.CommonName
	case len(cert.DNSNames) > 0:
		return cert.DNSNames[0]
	case len(cert.URIs) > 0:
		return cert.URIs[0].String()
	default:
		return cert.Subject.String()
	}
}

// shown returns the caller's certificate if it was verified, else nil.
func shown(ctx context.Context) *x509.Certificate {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 {
		return nil
	}
	return info.State.VerifiedChains[0][0]
}

// BrokerURI begins the names, among a certificate's URIs, of the brokers that
// its holder may be: "runnel:broker:7", or "runnel:broker:*" for any.
const BrokerURI = "runnel:broker:"

// ErrIdentity refuses a caller that says it is what its certificate does not say.
var ErrIdentity = errors.New("the caller is not who it says")

// CheckBroker returns ErrIdentity when the caller shows a certificate, as all
// callers of a port with mutual TLS do, that does not name the broker it says it
// is. Without one, as with a cluster secret, nobody's id can be told.
func CheckBroker(ctx context.Context, id int32) error {
	cert := shown(ctx)
	if cert == nil {
		return nil
	}
	var named []string
	for _, u := range cert.URIs {
		if name, ok := strings.CutPrefix(u.String(), BrokerURI); ok {
			if name == "*" || name == fmt.Sprint(id) {
				return nil
			}
			named = append(named, name)
		}
	}
	is := "of no broker"
	if len(named) > 0 {
		is = "of broker " + strings.Join(named, ", ")
	}
	return fmt.Errorf("%w: it says it is broker %d, and its certificate (%s) is %s: give that broker a certificate with the URI name %s%d",
		ErrIdentity, id, Principal(ctx), is, BrokerURI, id)
}
