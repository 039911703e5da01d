package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/runnelmq/runnel/controller/store"
)

// external returns how to reach the etcd that cfg is about: at endpoints, else where cfg says, else the member of this machine.
func (c Config) external(endpoints []string) (store.External, error) {
	ext := store.External{Endpoints: endpoints, Username: c.Etcd.Username, Password: string(c.Etcd.Password)}
	if len(ext.Endpoints) == 0 {
		ext.Endpoints = c.Etcd.Endpoints
	}
	if len(ext.Endpoints) == 0 {
		ext.Endpoints = []string{c.Etcd.Client}
	}
	if c.Etcd.CAFile != "" {
		var err error
		if ext.TLS, err = store.ClientTLS(c.Etcd.CertFile, c.Etcd.KeyFile, c.Etcd.CAFile); err != nil {
			return ext, fmt.Errorf("etcd: %w", err)
		}
	}
	return ext, nil
}

// connected calls fn with the etcd at endpoints; see external.
func (c Config) connected(ctx context.Context, endpoints []string, log zerolog.Logger, fn func(*store.Etcd) error) (err error) {
	ext, err := c.external(endpoints)
	if err != nil {
		return err
	}
	if err := reach(ctx, ext.Endpoints); err != nil {
		return err
	}
	etcd, err := store.Connect(ext, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, etcd.Close()) }()
	if err := fn(etcd); err != nil {
		return fmt.Errorf("etcd at %s: %w", strings.Join(ext.Endpoints, ", "), err)
	}
	return nil
}

// ErrNoEtcd is what questions to etcd fail with when nobody takes a connection at any of its addresses.
var ErrNoEtcd = errors.New("no member of etcd can be reached")

// reachTimeout is how long an address may take to take a connection.
const reachTimeout = 3 * time.Second

// reach finds out whether somebody is there: etcd's client tries until ctx ends, and does not say then what was wrong.
func reach(ctx context.Context, endpoints []string) error {
	d, failed := net.Dialer{Timeout: reachTimeout}, ErrNoEtcd
	for _, addr := range endpoints {
		if u, err := url.Parse(addr); err == nil && u.Host != "" {
			addr = u.Host
		}
		if !strings.Contains(addr, ":") {
			return nil // etcd's client knows which port that is
		}
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err == nil {
			_ = conn.Close() // nothing was written to it
			return nil
		}
		failed = fmt.Errorf("%w: %w", failed, err)
	}
	return failed
}

// Members returns the members of the cluster's etcd. endpoints are host:port of members; empty: as cfg says.
func Members(ctx context.Context, cfg Config, endpoints []string, log zerolog.Logger) (all []store.MemberInfo, err error) {
	err = cfg.connected(ctx, endpoints, log, func(e *store.Etcd) error {
		all, err = e.Members(ctx)
		return err
	})
	return all, err
}

// RemoveMember removes a member by name or id. A member whose data was lost is removed before its replacement joins.
func RemoveMember(ctx context.Context, cfg Config, endpoints []string, which string, log zerolog.Logger) error {
	return cfg.connected(ctx, endpoints, log, func(e *store.Etcd) error { return e.RemoveMember(ctx, which) })
}

// Backup writes all metadata, as of one moment, while the cluster runs.
func Backup(ctx context.Context, cfg Config, endpoints []string, w io.Writer, log zerolog.Logger) (info store.BackupInfo, err error) {
	err = cfg.connected(ctx, endpoints, log, func(e *store.Etcd) error {
		info, err = store.New(e, cfg.Cluster.Name).Backup(ctx, w)
		return err
	})
	return info, err
}

// Restore makes the metadata of a cluster from a backup: in the external etcd that cfg names, else in a new embedded member of
// this machine, which must hold no data and which the other controllers then join. No controller may run, and brokers must be
// started anew afterwards: what they report then decides which copy of each partition is the best.
func Restore(ctx context.Context, cfg Config, r io.Reader, log zerolog.Logger) (info store.BackupInfo, err error) {
	if err := cfg.Validate(); err != nil {
		return info, fmt.Errorf("controller configuration: %w", err)
	}
	objects, err := store.ReadBackup(r)
	if err != nil {
		return info, err
	}
	if len(cfg.Etcd.Endpoints) > 0 {
		err = cfg.connected(ctx, nil, log, func(e *store.Etcd) error {
			info, err = store.New(e, cfg.Cluster.Name).Restore(ctx, objects)
			return err
		})
		return info, err
	}
	e := cfg.embedded()
	has, err := store.HasData(e.Dir)
	switch {
	case err != nil:
		return info, err
	case has:
		return info, fmt.Errorf("%w, with every broker and controller stopped: move %s away first", store.ErrNotEmpty, e.Dir)
	}
	e.Bootstrap, e.Members = true, nil
	m, err := store.OpenMember(ctx, e, log)
	if err != nil {
		return info, cfg.Etcd.nameTaken(err)
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	return store.New(m, cfg.Cluster.Name).Restore(ctx, objects)
}

// embedded returns how to run the embedded member.
func (c Config) embedded() store.Embedded {
	e := c.Etcd
	out := store.Embedded{
		Dir: filepath.Join(c.DataDir, "etcd"), Name: e.Name, Client: e.Client, Peer: e.Peer, AdvertisedPeer: e.AdvertisedPeer,
		CertFile: e.CertFile, KeyFile: e.KeyFile, CAFile: e.CAFile,
		QuotaSize: int64(e.QuotaBytes), Compact: e.History.Std(), Tick: e.Heartbeat.Std(), Start: e.StartTimeout.Std(),
	}
	for _, m := range e.InitialMembers {
		name, addr, _ := parseMember(m) // validated
		out.Members = append(out.Members, store.Peer{Name: name, Addr: addr})
	}
	return out
}
