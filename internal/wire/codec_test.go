package wire

import (
	"bytes"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

func TestPool_givesPowersOfTwo(t *testing.T) {
	p := NewPool()
	for n, want := range map[int]int{
		0: 2 << 10, 1: 2 << 10, 2 << 10: 2 << 10, 2<<10 + 1: 4 << 10, 33 << 10: 64 << 10, 1 << 20: 1 << 20, 4 << 20: 4 << 20, 4<<20 + 1: 4<<20 + 1,
	} {
		b := p.Get(n)
		if len(*b) != n || cap(*b) != want && n <= MaxPooled || SizeFor(n) != want {
			t.Errorf("Get(%d): length %d, capacity %d, SizeFor %d, want %d", n, len(*b), cap(*b), SizeFor(n), want)
		}
		p.Put(b)
	}
	foreign := make([]byte, 5000)
	p.Put(&foreign) // left to the garbage collector
	if got := p.Get(5000); cap(*got) != 8<<10 {
		t.Errorf("a foreign buffer came back: capacity %d", cap(*got))
	}
}

func TestMessage_neverFailsAndMovesIntoOneBuffer(t *testing.T) {
	pool := NewPool()
	codec := NewCodec(pool)
	parts := mem.BufferSlice{mem.SliceBuffer("\xff\xff"), mem.SliceBuffer(""), mem.SliceBuffer("not a message")}
	var m Message
	for range 2 { // it may be reused
		if err := codec.Unmarshal(parts, &m); err != nil {
			t.Fatal(err)
		}
		if m.Len() != 15 {
			t.Errorf("length %d", m.Len())
		}
	}
	b := m.Copy(pool, 100)
	if !bytes.Equal((*b)[100:], []byte("\xff\xffnot a message")) || m.Len() != 0 {
		t.Errorf("copied %q, %d left", (*b)[100:], m.Len())
	}
}

func TestCodec_speaksGeneratedMessages(t *testing.T) {
	codec := NewCodec(NewPool())
	for _, size := range []int{0, 10, 2000, 1 << 20} {
		want := &runnelv1.ProduceRecord{Value: bytes.Repeat([]byte("v"), size)}
		out, err := codec.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		got := &runnelv1.ProduceRecord{}
		if err := codec.Unmarshal(out, got); err != nil || !proto.Equal(want, got) {
			t.Errorf("%d bytes: %v", size, err)
		}
		out.Free()
	}
	if err := codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer{0xff}}, &runnelv1.ProduceRecord{}); err == nil {
		t.Error("garbage was taken for a generated message")
	}
	if _, err := codec.Marshal(7); err == nil {
		t.Error("7 was marshaled")
	}
	if err := codec.Unmarshal(nil, 7); err == nil {
		t.Error("7 was unmarshaled into")
	}
}
