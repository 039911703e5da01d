package wire_test

import (
	"testing"

	"github.com/runnelmq/runnel/internal/wire"
)

func TestDialText(t *testing.T) {
	for in, want := range map[string]string{
		`connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"`:                                                                   "dial tcp 127.0.0.1:1: connect: connection refused",
		`last connection error: connection error: desc = "transport: authentication handshake failed: tls: failed to verify certificate: x509: certificate signed by unknown authority"`: "authentication handshake failed: tls: failed to verify certificate: x509: certificate signed by unknown authority",
		`connection error: desc = "error reading server preface: EOF"`:                                                                                                                   "the connection was taken, and nobody answered on it as gRPC does: " + wire.NoGRPC,
		`connection error: desc = "error reading server preface: remote error: tls: certificate required"`:                                                                               "error reading server preface: remote error: tls: certificate required",
		"the broker is shutting down": "the broker is shutting down",
		"":                            "",
	} {
		if got := wire.DialText(in); got != want {
			t.Errorf("%s\nis %s\nwant %s", in, got, want)
		}
	}
}
