package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"

	"github.com/runnelmq/runnel/internal/lifecycle"
	"github.com/runnelmq/runnel/internal/rpcserver"
)

// rawServerCommand makes this program the server of the raw ceiling.
const rawServerCommand = "raw-server"

// The streams of the raw server.
const (
	rawService = "runnel.bench.Raw"
	sinkMethod = "/" + rawService + "/Sink"   // takes messages, answers each with ackSize bytes
	pourMethod = "/" + rawService + "/Source" // takes a size and a count, and sends so many
	ackSize    = 32                           // about a ProduceResponse
)

// A frame is a message that nobody looks into.
type frame struct {
	data mem.BufferSlice
}

func (f *frame) free() {
	f.data.Free()
	f.data = nil
}

// rawCodec passes bytes through.
type rawCodec struct{}

// Marshal implements encoding.CodecV2.
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	f, ok := v.(*frame)
	if !ok {
		return nil, fmt.Errorf("a raw stream carries frames, not %T", v)
	}
	return f.data, nil
}

// Unmarshal implements encoding.CodecV2. The frame is valid until it is freed.
func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	f, ok := v.(*frame)
	if !ok {
		return fmt.Errorf("a raw stream carries frames, not %T", v)
	}
	data.Ref()
	f.data = data
	return nil
}

// Name implements encoding.CodecV2.
func (rawCodec) Name() string { return "raw" }

// loadCodec passes frames through and everything else as Protobuf.
type loadCodec struct{ rawCodec }

// Marshal implements encoding.CodecV2.
func (c loadCodec) Marshal(v any) (mem.BufferSlice, error) {
	if _, ok := v.(*frame); ok {
		return c.rawCodec.Marshal(v)
	}
	return encoding.GetCodecV2(protocodec.Name).Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (c loadCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if _, ok := v.(*frame); ok {
		return c.rawCodec.Unmarshal(data, v)
	}
	return encoding.GetCodecV2(protocodec.Name).Unmarshal(data, v)
}

// Name implements encoding.CodecV2.
func (loadCodec) Name() string { return protocodec.Name }

// serveRaw serves the raw streams, after it has told its address on stdout,
// until stdin ends: so it never outlives its parent.
func serveRaw(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	srv := rpcserver.New(rpcserver.Options{Port: rpcserver.ClientPort, Log: zerolog.Nop(), Codec: rawCodec{}})
	srv.RegisterService(&grpc.ServiceDesc{
		ServiceName: rawService,
		HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{
			{StreamName: "Sink", Handler: sink, ServerStreams: true, ClientStreams: true},
			{StreamName: "Source", Handler: source, ServerStreams: true, ClientStreams: true},
		},
	}, struct{}{})
	if _, err := fmt.Fprintln(stdout, lis.Addr()); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	ctx, cancel := context.WithCancel(ctx)
	g.Go(func() error {
		defer cancel()
		_, err := io.Copy(io.Discard, stdin)
		return err
	})
	g.Go(func() error { return lifecycle.Serve(ctx, srv.Server, lis, time.Second) })
	return g.Wait()
}

func sink(_ any, stream grpc.ServerStream) error {
	ack := mem.SliceBuffer(make([]byte, ackSize))
	for {
		var f frame
		if err := stream.RecvMsg(&f); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		f.free()
		if err := stream.SendMsg(&frame{data: mem.BufferSlice{ack}}); err != nil {
			return err
		}
	}
}

func source(_ any, stream grpc.ServerStream) error {
	var ask frame
	if err := stream.RecvMsg(&ask); err != nil {
		return err
	}
	b := ask.data.Materialize()
	ask.free()
	if len(b) != 16 {
		return fmt.Errorf("want 16 bytes, got %d", len(b))
	}
	message := mem.SliceBuffer(make([]byte, binary.LittleEndian.Uint64(b)))
	for range binary.LittleEndian.Uint64(b[8:]) {
		if err := stream.SendMsg(&frame{data: mem.BufferSlice{message}}); err != nil {
			return err
		}
	}
	return nil
}

func sourceRequest(size int, count int64) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(size))
	return binary.LittleEndian.AppendUint64(b, uint64(count))
}
