package cases

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// A proxy passes calls on to the broker, as a mesh's sidecar does, and ends
// streams on which either side says nothing for too long.
type proxy struct {
	w     *town
	quiet time.Duration
	srv   *grpc.Server
	to    *grpc.ClientConn
	reset atomic.Int64 // streams it ended
}

// proxy starts one at addr.
func (w *town) proxy(addr string, quiet time.Duration, opts ...grpc.ServerOption) *proxy {
	w.t.Helper()
	lis, err := w.net.listen(w.t.Context(), addr)
	if err != nil {
		w.t.Fatal(err)
	}
	p := &proxy{w: w, quiet: quiet, to: w.conn(brokerAddr, grpc.WithDefaultCallOptions(grpc.ForceCodecV2(raw{})))}
	p.srv = grpc.NewServer(append([]grpc.ServerOption{
		grpc.ForceServerCodecV2(raw{}), grpc.UnknownServiceHandler(p.pass), grpc.WaitForHandlers(true),
	}, opts...)...)
	w.wg.Go(func() { _ = p.srv.Serve(lis) })
	return p
}

func (p *proxy) close() {
	p.srv.Stop()
	_ = p.to.Close()
}

var errQuiet = status.Error(codes.Unavailable, "stream idle timeout")

// pass passes one call on.
func (p *proxy) pass(_ any, in grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(in)
	ctx, cancel := context.WithCancelCause(in.Context())
	defer cancel(nil)
	out, err := p.to.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		return err
	}
	back := make(chan error, 1)
	var wg sync.WaitGroup
	wg.Go(func() { back <- p.copy(cancel, in, out) })
	there := make(chan error, 1)
	p.w.wg.Go(func() { // ends when the handler has
		there <- p.copy(cancel, out, in)
		_ = out.CloseSend()
	})
	for {
		select {
		case err := <-there:
			if err != nil {
				cancel(err)
			}
			there = nil
		case err = <-back:
			wg.Wait()
			if errors.Is(context.Cause(ctx), errQuiet) {
				p.reset.Add(1)
				return errQuiet
			}
			return err
		}
	}
}

// messages is one direction of a stream.
type messages interface {
	SendMsg(m any) error
	RecvMsg(m any) error
}

// copy copies messages until there are no more, and ends the call when none come
// for too long.
func (p *proxy) copy(cancel context.CancelCauseFunc, to, from messages) error {
	quiet := time.AfterFunc(p.quiet, func() { cancel(errQuiet) })
	defer quiet.Stop()
	for {
		var m frame
		if err := from.RecvMsg(&m); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		quiet.Reset(p.quiet)
		if err := to.SendMsg(&m); err != nil {
			return nil // why it ended is told by the other direction
		}
	}
}

// A frame is a message as bytes.
type frame struct{ b mem.BufferSlice }

// raw carries frames.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(v any) (mem.BufferSlice, error) {
	f, ok := v.(*frame)
	if !ok {
		return nil, errors.New("not a frame")
	}
	return f.b, nil
}

func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	f, ok := v.(*frame)
	if !ok {
		return errors.New("not a frame")
	}
	f.b = mem.BufferSlice{mem.SliceBuffer(data.Materialize())}
	return nil
}
