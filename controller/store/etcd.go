package store

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// An Etcd is a KV in etcd.
type Etcd struct {
	client *clientv3.Client
}

var _ KV = (*Etcd)(nil)

// External says how to reach an etcd that is not ours.
type External struct {
	Endpoints []string // host:port, or http(s)://host:port
	TLS       *tls.Config
	Username  string
	Password  string
}

// Errors about an external etcd.
var (
	// ErrAway is returned when it does not answer: it may be about to be started.
	ErrAway = errors.New("etcd does not answer")
	// ErrDenied is returned when it knows no such name and password.
	ErrDenied = errors.New("etcd knows no such name and password: check etcd.username and etcd.password")
)

// connectTimeout is how long an etcd may take to check a name and a password.
const connectTimeout = 2 * time.Second

// Connect returns a KV in an external etcd. With a name and a password it asks etcd for a token, for connectTimeout at most;
// without, it does no I/O: the first call connects.
func Connect(e External, log zerolog.Logger) (*Etcd, error) {
	client, err := clientv3.New(clientv3.Config{
		Endpoints: e.Endpoints, TLS: e.TLS, Username: e.Username, Password: e.Password, DialTimeout: connectTimeout,
		DialKeepAliveTime: 5 * time.Second, DialKeepAliveTimeout: 3 * time.Second, PermitWithoutStream: true,
		Logger: zapLogger(log, nil),
	})
	switch {
	case err == nil:
		return &Etcd{client: client}, nil
	case errors.Is(err, rpctypes.ErrAuthFailed):
		return nil, fmt.Errorf("%w (%w)", ErrDenied, err)
	case errors.Is(err, context.DeadlineExceeded), status.Code(err) == codes.Unavailable, status.Code(err) == codes.DeadlineExceeded:
		return nil, fmt.Errorf("%w: %w", ErrAway, err)
	default:
		return nil, fmt.Errorf("etcd client: %w", err)
	}
}

// Close ends the client.
func (e *Etcd) Close() error {
	if err := e.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("etcd client: %w", err)
	}
	return nil
}

// Range implements KV.
func (e *Etcd) Range(ctx context.Context, from, to string, limit int, rev int64) (Page, error) {
	resp, err := e.client.Get(ctx, from, clientv3.WithRange(to), clientv3.WithLimit(int64(limit)), clientv3.WithRev(rev))
	if err != nil {
		return Page{}, translate(err)
	}
	return Page{Pairs: pairs(nil, resp.Kvs), Revision: resp.Header.GetRevision()}, nil
}

// Read implements KV.
func (e *Etcd) Read(ctx context.Context, keys []string) (Page, error) {
	ops := make([]clientv3.Op, len(keys))
	for n, key := range keys {
		ops[n] = clientv3.OpGet(key)
	}
	resp, err := e.client.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return Page{}, translate(err)
	}
	page := Page{Revision: resp.Header.GetRevision()}
	for _, r := range resp.Responses {
		page.Pairs = pairs(page.Pairs, r.GetResponseRange().GetKvs())
	}
	return page, nil
}

func pairs(to []Pair, kvs []*mvccpb.KeyValue) []Pair {
	for _, kv := range kvs {
		to = append(to, Pair{Key: string(kv.GetKey()), Value: kv.GetValue(), Create: kv.GetCreateRevision(), Mod: kv.GetModRevision(), Lease: LeaseID(kv.GetLease())})
	}
	return to
}

// Txn implements KV.
func (e *Etcd) Txn(ctx context.Context, cmps []Compare, writes []Write) (TxnResult, error) {
	ifs := make([]clientv3.Cmp, len(cmps))
	for n, c := range cmps {
		target := clientv3.ModRevision(c.Key)
		if c.Create {
			target = clientv3.CreateRevision(c.Key)
		}
		ifs[n] = clientv3.Compare(target, "=", c.Revision)
	}
	thens := make([]clientv3.Op, len(writes))
	for n, w := range writes {
		switch {
		case w.Delete:
			thens[n] = clientv3.OpDelete(w.Key)
		case w.Lease != 0:
			thens[n] = clientv3.OpPut(w.Key, string(w.Value), clientv3.WithLease(clientv3.LeaseID(w.Lease)))
		default:
			thens[n] = clientv3.OpPut(w.Key, string(w.Value))
		}
	}
	resp, err := e.client.Txn(ctx).If(ifs...).Then(thens...).Commit()
	if err != nil {
		return TxnResult{}, translate(err)
	}
	return TxnResult{Succeeded: resp.Succeeded, Revision: resp.Header.GetRevision()}, nil
}

// Watch implements KV.
func (e *Etcd) Watch(ctx context.Context, prefix string, from int64, fn func([]Event) error) error {
	// Cancelled on return, else the server would go on sending to nobody. RequireLeader: a member cut off from the others would
	// be silent, not wrong, and nobody would notice.
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	for resp := range e.client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(from)) {
		if resp.CompactRevision != 0 {
			return ErrCompacted
		}
		if err := resp.Err(); err != nil {
			return translate(err)
		}
		if len(resp.Events) == 0 {
			continue
		}
		events := make([]Event, len(resp.Events))
		for n, ev := range resp.Events {
			events[n] = Event{
				Key: string(ev.Kv.GetKey()), Value: ev.Kv.GetValue(), Mod: ev.Kv.GetModRevision(),
				Deleted: ev.Type == clientv3.EventTypeDelete,
			}
		}
		if err := fn(events); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// Grant implements Leases.
func (e *Etcd) Grant(ctx context.Context, ttl time.Duration) (LeaseID, error) {
	resp, err := e.client.Grant(ctx, int64((ttl+time.Second-1)/time.Second))
	if err != nil {
		return 0, translate(err)
	}
	return LeaseID(resp.ID), nil
}

// KeepAlive implements Leases.
func (e *Etcd) KeepAlive(ctx context.Context, id LeaseID) error {
	_, err := e.client.KeepAliveOnce(ctx, clientv3.LeaseID(id))
	return translate(err)
}

// Revoke implements Leases.
func (e *Etcd) Revoke(ctx context.Context, id LeaseID) error {
	_, err := e.client.Revoke(ctx, clientv3.LeaseID(id))
	if err = translate(err); errors.Is(err, ErrNoLease) {
		return nil
	}
	return err
}

// translate gives etcd's errors our names.
func translate(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, rpctypes.ErrCompacted):
		return fmt.Errorf("%w: %w", ErrCompacted, err)
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return fmt.Errorf("%w: %w", ErrNoLease, err)
	case errors.Is(err, rpctypes.ErrNoSpace):
		return fmt.Errorf("%w: %w", ErrFull, err)
	default:
		return fmt.Errorf("etcd: %w", err)
	}
}

// ClientTLS returns how to talk to an external etcd whose certificate caFile verifies, showing a certificate if there is one.
func ClientTLS(certFile, keyFile, caFile string) (*tls.Config, error) {
	info := transport.TLSInfo{CertFile: certFile, KeyFile: keyFile, TrustedCAFile: caFile}
	cfg, err := info.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("TLS files: %w", err)
	}
	return cfg, nil
}
