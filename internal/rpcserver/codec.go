package rpcserver

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/runnelmq/runnel/internal/rpcerr"
)

// ErrMalformed is returned for a request whose bytes are not the message they
// should be; such as a name that is not valid UTF-8.
var ErrMalformed = errors.New("malformed request")

// markField is the number of the unknown field that carries the reason why a
// request could not be read. It is the highest there is, so no message has it.
const markField = protowire.MaxValidNumber

// tolerant makes an unreadable request arrive at the interceptors, which
// refuse it as INVALID_ARGUMENT. Left to itself gRPC would answer INTERNAL, as
// if the server were at fault.
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
	err := t.CodecV2.Unmarshal(data, v)
	if err == nil {
		return nil
	}
	m, ok := v.(proto.Message)
	if !ok {
		return err
	}
	proto.Reset(m)
	mark := protowire.AppendTag(nil, markField, protowire.BytesType)
	mark = protowire.AppendString(mark, rpcerr.Clean(err.Error()))
	m.ProtoReflect().SetUnknown(mark)
	return nil
}

// malformed returns what tolerant noted in m, if anything.
func malformed(m any) error {
	msg, ok := m.(proto.Message)
	if !ok {
		return nil
	}
	num, typ, n := protowire.ConsumeTag(msg.ProtoReflect().GetUnknown())
	if n < 0 || num != markField || typ != protowire.BytesType {
		return nil
	}
	why, _ := protowire.ConsumeString(msg.ProtoReflect().GetUnknown()[n:])
	return fmt.Errorf("%w: %s", ErrMalformed, why)
}
