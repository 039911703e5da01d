package rpcerr

import (
	"errors"
	"io"

	"google.golang.org/grpc/status"
)

// A transportError is a status our own gRPC server made: a client that went
// away, a message that was too long. It may pass as it is.
type transportError struct {
	status *status.Status
}

func (e *transportError) Error() string { return e.status.Err().Error() }

// GRPCStatus lets status.FromError see through.
func (e *transportError) GRPCStatus() *status.Status { return e.status }

// Transport marks an error of a server stream's SendMsg or RecvMsg as made by
// our own server. All other statuses a handler returns are those of upstream
// servers, which must not leak. io.EOF stays what it is.
func Transport(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	st, _ := status.FromError(err)
	return &transportError{status: st}
}
