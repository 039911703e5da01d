package rpcserver

import (
	"errors"
	"fmt"
	"strconv"

	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/runnelmq/runnel/internal/rpcerr"
)

// ErrTooLarge is returned for a request over MaxMessage.
var ErrTooLarge = errors.New("the request is too large")

// ErrMalformed is returned for a request whose bytes are not the message they
// should be; such as a name that is not valid UTF-8.
var ErrMalformed = errors.New("malformed request")

// The numbers of the unknown fields that carry the reason why a request could
// not be read. They are the highest there are, so no message has them.
const (
	malformedField = protowire.MaxValidNumber
	tooLargeField  = protowire.MaxValidNumber - 1
)

// tolerant makes an unreadable request arrive at the interceptors, which
// refuse it as INVALID_ARGUMENT. Left to itself gRPC would answer INTERNAL, as
// if the server were at fault, or RESOURCE_EXHAUSTED, as if it helped to wait.
// Messages that are not generated, the hot ones, are left alone: their handlers
// answer in-band.
type tolerant struct {
	encoding.CodecV2
}

func codecOr(c encoding.CodecV2) encoding.CodecV2 {
	if c != nil {
		return c
	}
	return encoding.GetCodecV2(protocodec.Name)
}

// Unmarshal implements encoding.CodecV2. It fails only for what is no message.
func (t tolerant) Unmarshal(data mem.BufferSlice, v any) error {
	m, generated := v.(proto.Message)
	if !generated {
		return t.CodecV2.Unmarshal(data, v)
	}
	if data.Len() > MaxMessage {
		mark(m, tooLargeField, fmt.Sprintf("it has %d bytes, at most %d are taken: split it", data.Len(), MaxMessage))
		return nil
	}
	if err := t.CodecV2.Unmarshal(data, v); err != nil {
		mark(m, malformedField, rpcerr.Clean(err.Error()))
	}
	return nil
}

// mark leaves nothing of m but a reason.
func mark(m proto.Message, field protowire.Number, why string) {
	proto.Reset(m)
	b := protowire.AppendTag(nil, field, protowire.BytesType)
	m.ProtoReflect().SetUnknown(protowire.AppendString(b, why))
}

// refused returns what tolerant noted in m, if anything.
func refused(m any) error {
	msg, ok := m.(proto.Message)
	if !ok {
		return nil
	}
	unknown := msg.ProtoReflect().GetUnknown()
	num, typ, n := protowire.ConsumeTag(unknown)
	if n < 0 || num < tooLargeField || typ != protowire.BytesType {
		return nil
	}
	why, _ := protowire.ConsumeString(unknown[n:])
	if num == tooLargeField {
		return tooLargeError{why}
	}
	return fmt.Errorf("%w: %s", ErrMalformed, why)
}

// A tooLargeError tells a client the server's limit.
type tooLargeError struct {
	text string
}

// Error implements error.
func (e tooLargeError) Error() string { return ErrTooLarge.Error() + ": " + e.text }

// Unwrap returns the sentinel.
func (tooLargeError) Unwrap() error { return ErrTooLarge }

// Metadata implements rpcerr.Metadata.
func (tooLargeError) Metadata() map[string]string {
	return map[string]string{"maxBytes": strconv.Itoa(MaxMessage)}
}
