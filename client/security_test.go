package client_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/runnelmq/runnel/client"
	"github.com/runnelmq/runnel/internal/certtest"
	"github.com/runnelmq/runnel/internal/memnet"
)

// A doorman lets only those in who have the token, and counts them by method.
type doorman struct {
	// mu guards the fields below
	mu sync.Mutex

	in      map[string]int
	refused int
}

func (d *doorman) check(ctx context.Context, method string) error {
	md, _ := metadata.FromIncomingContext(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	if got := md.Get("authorization"); len(got) != 1 || got[0] != "Bearer secret" {
		d.refused++
		return status.Error(codes.Unauthenticated, "who are you?")
	}
	d.in[method[strings.LastIndex(method, "/")+1:]]++
	return nil
}

// secure starts two brokers behind TLS, with a doorman.
func secure(t *testing.T) (f *fakeBroker, d *doorman, addrs []string, roots *x509.CertPool) {
	t.Helper()
	ca := certtest.New(t)
	certFile, keyFile := ca.Issue("broker", "broker")
	cert, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	pem, err := os.ReadFile(ca.CA())
	if err != nil {
		t.Fatal(err)
	}
	roots = x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	d = &doorman{in: map[string]int{}}
	f = emptyFake()
	for _, addr := range []string{"127.0.0.1:7420", "127.0.0.1:7430"} {
		addrs = append(addrs, addr)
		t.Cleanup(f.startNode(addr, memnet.Listen(addr, 1<<20), true,
			grpc.Creds(credentials.NewServerTLSFromCert(&cert)),
			grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
				if err := d.check(ctx, info.FullMethod); err != nil {
					return nil, err
				}
				return next(ctx, req)
			}),
			grpc.StreamInterceptor(func(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
				if err := d.check(s.Context(), info.FullMethod); err != nil {
					return err
				}
				return next(srv, s)
			})))
	}
	f.create("t", 4)
	return f, d, addrs, roots
}

func (f *fakeBroker) connect(t *testing.T, addrs []string, opts ...client.Option) *client.Client {
	t.Helper()
	c, err := client.New(addrs, append(opts, client.Dialer(f.dial))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// A token goes with every call and stream, to the leaders too, over TLS.
func TestClient_tlsAndToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, d, addrs, roots := secure(t)
		c := f.connect(t, addrs[:1], client.TLS(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}), client.Token("secret"))
		p, y := producer(t, c), newTally()
		sent := 0
		for ; sent < 1000 || f.routed()["direct"] == 0 && sent < 100000; sent += 100 { // until it has heard of the leaders
			spread(t, p, y, sent, sent+100)
			flush(t, p)
		}
		y.check(t, sent, 0, 0)
		r := newReader(t, c)
		assign(t, r, client.Assignment{Topic: "t", Partition: client.AnyPartition})
		read(t, r, sent)
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, m := range []string{"InitProducer", "DescribeTopics", "WatchMetadata", "Produce", "Fetch"} {
			if d.in[m] == 0 {
				t.Errorf("no %s was let in: %v", m, d.in)
			}
		}
		if got := f.routed(); d.refused > 0 || got["direct"] == 0 {
			t.Errorf("%d calls without the token; requests %v, want direct ones", d.refused, got)
		}
	})
}

// Without what it takes nothing is written, and the error says why.
func TestClient_refusedAtTheDoor(t *testing.T) {
	type options = []client.Option
	trust := func(roots *x509.CertPool, server string) client.Option {
		return client.TLS(&tls.Config{RootCAs: roots, ServerName: server, MinVersion: tls.VersionTLS13})
	}
	for name, c := range map[string]struct {
		opts   func(roots *x509.CertPool) options
		want   string
		within time.Duration
	}{
		"no token":            {func(roots *x509.CertPool) options { return options{trust(roots, "")} }, "who are you?", 0},
		"wrong token":         {func(roots *x509.CertPool) options { return options{trust(roots, ""), client.Token("guess")} }, "who are you?", 0},
		"unknown authority":   {func(*x509.CertPool) options { return options{client.TLS(nil), client.Token("secret")} }, "unknown authority", 0},
		"no TLS":              {func(*x509.CertPool) options { return nil }, "TLS", 2 * time.Minute},
		"another certificate": {func(roots *x509.CertPool) options { return options{trust(roots, "else")} }, "else", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, _, addrs, roots := secure(t)
				begun := time.Now()
				p := producer(t, f.connect(t, addrs, c.opts(roots)...))
				rs, err := p.ProduceSync(t.Context(), client.Record{Topic: "t", Value: []byte("x")})
				if rs[0].Outcome() != client.Failed || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v: %v; want it failed for %q", rs[0].Outcome(), err, c.want)
				}
				if took := time.Since(begun); took > c.within {
					t.Errorf("it took %v, want at most %v", took, c.within)
				}
				if f.calls > 0 {
					t.Errorf("%d requests were taken", f.calls)
				}
			})
		})
	}
	if _, err := client.New([]string{"127.0.0.1:7420"}, client.Token("secret")); err == nil {
		t.Error("a token is sent without TLS")
	}
}

// What is documented as safe for concurrent use is used so; run it with -race.
func TestClient_concurrentUse(t *testing.T) {
	f := newFakeCluster(t, 2, map[string]int{"t": 4})
	c := f.client(t)
	p, r := producer(t, c), newReader(t, c)
	assign(t, r, client.Assignment{Topic: "t", Partition: client.AnyPartition})
	y := newTally()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all, writers sync.WaitGroup
	for g := range 4 {
		writers.Go(func() {
			for i := range 250 {
				v := itoa(g*250 + i)
				p.Produce(ctx, client.Record{Topic: "t", Key: []byte(v), Value: []byte(v)}, y.done(v))
				switch i % 50 {
				case 10:
					_ = p.Flush(ctx)
				case 20:
					_, _ = p.ProduceSync(ctx, client.Record{Topic: "t", Key: []byte(v), Value: []byte("sync")})
				case 30:
					_, _ = c.NewAdmin().DescribeTopics(ctx, []string{"t"})
				}
			}
		})
	}
	stop := make(chan struct{})
	for part := range int32(4) {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond): //nolint:forbidigo // real time
				}
				_ = r.Pause("t", part)
				r.Position("t", part)
				_ = r.Resume("t", part)
				_ = r.Seek(ctx, "t", part, client.BeforeEnd(10))
			}
		})
	}
	all.Go(func() {
		for _, err := range r.Records(ctx) {
			if err != nil {
				if !errors.Is(err, client.ErrClosed) {
					t.Errorf("read: %v", err)
				}
				return
			}
		}
	})
	writers.Wait()
	var closers sync.WaitGroup
	for range 3 {
		closers.Go(func() { _ = p.Close(ctx) })
		closers.Go(func() { _ = r.Close() })
		closers.Go(func() { p.Produce(ctx, client.Record{Topic: "t"}, nil) })
	}
	closers.Wait()
	close(stop)
	all.Wait()
	y.check(t, 1000, 0, 0)
}
