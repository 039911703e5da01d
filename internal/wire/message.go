package wire

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// A Message is a received message as its bytes. Its zero value is ready for
// RecvMsg, again and again. It owns gRPC's buffers until Free or Copy.
type Message struct {
	bufs mem.BufferSlice
}

// take keeps data, which gRPC frees when the codec returns.
func (m *Message) take(data mem.BufferSlice) {
	m.Free()
	data.Ref()
	m.bufs = append(m.bufs, data...)
}

// Len returns the size of the message in bytes.
func (m *Message) Len() int { return m.bufs.Len() }

// Free gives the buffers back. The message is empty afterwards.
func (m *Message) Free() {
	m.bufs.Free()
	clear(m.bufs)
	m.bufs = m.bufs[:0]
}

// Copy moves the message into one buffer from pool, headroom bytes after its
// beginning, and frees gRPC's. The caller owns the buffer.
func (m *Message) Copy(pool *Pool, headroom int) *[]byte {
	buf := pool.Get(headroom + m.Len())
	m.bufs.CopyTo((*buf)[headroom:])
	m.Free()
	return buf
}

// Decode parses the message with the generated code, and frees it.
func (m *Message) Decode(pool *Pool, into proto.Message) error {
	buf := m.bufs.MaterializeToBuffer(pool)
	defer m.Free()
	defer buf.Free()
	return proto.Unmarshal(buf.ReadOnlyData(), into)
}

// marshal lets a message that was received be passed on as it is.
func (m *Message) marshal(*Pool) (mem.BufferSlice, error) { //nolint:unparam // it is a marshaler
	out := m.bufs
	m.bufs = nil
	return out, nil
}

// NewMessage returns a message of bytes that the caller does not change any
// more.
func NewMessage(b []byte) *Message { return &Message{bufs: mem.BufferSlice{mem.SliceBuffer(b)}} }
