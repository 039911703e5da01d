package client

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A connection that the other side closes at once, as a port with TLS does to who
// speaks without, says so until something was answered; what a broker answers is
// left as it is.
func TestDoor_slammed(t *testing.T) {
	lost := status.Error(codes.Unavailable, "write tcp 127.0.0.1:1->127.0.0.1:2: write: broken pipe")
	var d door
	if err := d.judge(lost); !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "TLS") {
		t.Errorf("before any answer: %v", err)
	}
	answer, err := status.New(codes.Unavailable, "broken pipe").WithDetails(&errdetails.ErrorInfo{Reason: "NOT_LEADER"})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.judge(answer.Err()); !errors.Is(err, answer.Err()) {
		t.Errorf("a broker's answer became %v", err)
	}
	if err := d.judge(nil); err != nil {
		t.Fatal(err)
	}
	if err := d.judge(lost); !errors.Is(err, lost) {
		t.Errorf("after an answer: %v", err)
	}
}

// gRPC's words about a connection that never came about are said once.
func TestDoor_neverOpened(t *testing.T) {
	var d door
	err := rpcError(d.judge(status.Error(codes.Unavailable, `connection error: desc = "error reading server preface: read tcp 127.0.0.1:1->127.0.0.1:2: connection reset by peer"`)))
	if !errors.Is(err, ErrUnreachable) || strings.Count(err.Error(), "is it a port with TLS") != 1 || strings.Contains(err.Error(), "lost") {
		t.Errorf("it says %v", err)
	}
}
