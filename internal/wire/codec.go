// Package wire carries messages over gRPC without decoding what need not be
// decoded.
//
// Codec is given to servers with grpc.ForceServerCodecV2 and to client calls
// with grpc.ForceCodecV2; it is never registered, because a library must not
// change how the rest of its process talks. It speaks plain Protobuf for every
// generated message. The hot ones have hand-written forms beside them here:
//
//   - a Message received is the bytes as they came. Unmarshalling it cannot
//     fail, so what is wrong with it is said by the handler, inside the answer,
//     and the stream lives on;
//   - ProduceRequest, ProduceResponse, FetchResponse and the ReplicateResponse
//     with data are encoded and parsed by hand, in place, without an allocation
//     a record.
//
// The forms say what the generated code would say of the same bytes; fuzz tests
// hold them to it. Three things differ on purpose: a singular message field that
// occurs twice is refused instead of merged where merging would need a copy,
// batches between brokers have to lie together, and the content of a RecordBatch
// is nobody's business here.
//
// Placed is for every connection, so that a stream ends with the one it was opened on.
package wire

import (
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// Name is the content subtype of the codec, the same as that of the standard
// one: both sides of a call may use either.
const Name = "proto"

// A Codec is an encoding.CodecV2. It is safe for concurrent use.
type Codec struct {
	pool *Pool
}

// NewCodec returns a codec whose buffers come from pool.
func NewCodec(pool *Pool) *Codec { return &Codec{pool: pool} }

// Name implements encoding.CodecV2.
func (*Codec) Name() string { return Name }

// marshaler is one of this package's own messages.
type marshaler interface {
	marshal(pool *Pool) (mem.BufferSlice, error)
}

// Marshal implements encoding.CodecV2. It consumes the buffers that a message
// of this package holds: such a message is sent once.
func (c *Codec) Marshal(v any) (mem.BufferSlice, error) {
	switch m := v.(type) {
	case marshaler:
		return m.marshal(c.pool)
	case proto.Message:
		return c.marshalGenerated(m)
	default:
		return nil, fmt.Errorf("marshal %T: not a message", v)
	}
}

func (c *Codec) marshalGenerated(m proto.Message) (mem.BufferSlice, error) {
	size := proto.Size(m)
	// The sizes inside m were set right above and m belongs to gRPC now.
	opts := proto.MarshalOptions{UseCachedSize: true}
	if mem.IsBelowBufferPoolingThreshold(size) {
		b, err := opts.Marshal(m)
		if err != nil {
			return nil, fmt.Errorf("marshal %T: %w", m, err)
		}
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	buf := c.pool.Get(size)
	out, err := opts.MarshalAppend((*buf)[:0], m)
	if err != nil {
		c.pool.Put(buf)
		return nil, fmt.Errorf("marshal %T: %w", m, err)
	}
	if len(out) != size {
		// A message that grew after Size was taken has left the buffer.
		c.pool.Put(buf)
		return mem.BufferSlice{mem.SliceBuffer(out)}, nil
	}
	return mem.BufferSlice{mem.NewBuffer(buf, c.pool)}, nil
}

// Unmarshal implements encoding.CodecV2. Into a *Message it never fails.
func (c *Codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch m := v.(type) {
	case *Message:
		m.take(data)
		return nil
	case proto.Message:
		buf := data.MaterializeToBuffer(c.pool)
		defer buf.Free()
		if err := proto.Unmarshal(buf.ReadOnlyData(), m); err != nil {
			return fmt.Errorf("unmarshal %T: %w", m, err)
		}
		return nil
	default:
		return fmt.Errorf("unmarshal into %T: not a message", v)
	}
}
