package proc

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/runnelmq/runnel/internal/freeport"
)

// Cluster says how to run controllers and brokers.
type Cluster struct {
	Dir         string   // their data, one folder each
	Controllers int      // how many
	Brokers     int      // how many; their ids are 1 and up
	BrokerSet   []string // key=value of every broker's configuration
	// ControllerSet are key=value of every controller's configuration.
	ControllerSet []string
	Log           io.Writer // gets all their logs too; may be nil
	// Links puts a proxy before each port that brokers and controllers reach
	// each other by, so that connections can be cut. Linux only.
	Links bool
}

// A Group is a running cluster.
type Group struct {
	Controllers []*Node
	Brokers     []*Node
	// Links is nil unless they were asked for.
	Links *Links
}

// portsOfController and portsOfBroker are how many each listens on.
const (
	portsOfController = 4 // controller, admin, etcd client, etcd peer
	portsOfBroker     = 3 // client, internal, admin
)

// StartCluster starts a new cluster on free ports and waits until all of it is
// ready.
func StartCluster(ctx context.Context, b Binary, c Cluster) (*Group, error) {
	ports, err := freeport.Take(ctx, (portsOfController+1)*c.Controllers+(portsOfBroker+1)*c.Brokers)
	if err != nil {
		return nil, err
	}
	take := func() string {
		at := "127.0.0.1:" + ports[0]
		ports = ports[1:]
		return at
	}
	g := &Group{}
	if c.Links {
		g.Links = NewLinks()
	}
	l := &launcher{Cluster: c, b: b, g: g, take: take}
	if err := l.launch(ctx); err != nil {
		g.Kill()
		return nil, err
	}
	if err := g.Ready(ctx); err != nil {
		g.Kill()
		return nil, err
	}
	return g, nil
}

// A launcher starts the processes of one cluster.
type launcher struct {
	Cluster

	b    Binary
	g    *Group
	take func() string // a free address
}

func (l *launcher) launch(ctx context.Context) error {
	var (
		members   []member
		advertise []string
	)
	for i := range l.Controllers {
		m := member{name: "controller-" + strconv.Itoa(i+1), listen: l.take(), admin: l.take(), etcd: l.take(), peer: l.take()}
		m.advertised = m.listen
		if err := l.proxy(ctx, m.name, m.listen, &m.advertised); err != nil {
			return err
		}
		members, advertise = append(members, m), append(advertise, m.advertised)
	}
	for _, m := range members {
		args := l.controllerArgs(m, members)
		n, err := l.start(m.name, m.admin, args)
		if err != nil {
			return err
		}
		n.plain = func() (*Process, error) { return l.run(m.name, append([]string{args[0]}, args[2:]...)) }
		n.Internal, n.Etcd, n.flags = m.listen, m.etcd, args[2:]
		n.joining = func(dir, others string) *Node {
			again := *l
			again.Dir = dir
			args := again.controllerArgs(m, nil)
			args = append([]string{"controller", "join", others}, args[2:]...)
			fresh := *n
			fresh.Data = filepath.Join(dir, m.name)
			fresh.again = func() (*Process, error) { return l.run(m.name, args) }
			return &fresh
		}
		l.g.Controllers = append(l.g.Controllers, n)
	}
	for id := 1; id <= l.Brokers; id++ {
		name, client, internal, admin := "broker-"+strconv.Itoa(id), l.take(), l.take(), l.take()
		advertised := internal
		if err := l.proxy(ctx, name, internal, &advertised); err != nil {
			return err
		}
		args := append([]string{"broker"}, set(append([]string{
			"id=" + strconv.Itoa(id), "data_dir=" + filepath.Join(l.Dir, name), "controllers=" + strings.Join(advertise, ","),
			"listen.client=" + client, "listen.internal=" + internal, "listen.advertised_internal=" + advertised, "listen.admin=" + admin,
			"storage.reserve_bytes=64MiB", "logging.format=text",
		}, l.BrokerSet...))...)
		n, err := l.start(name, admin, args)
		if err != nil {
			return err
		}
		n.aside = func() (*Process, error) {
			return l.run(name, slices.Concat(args, []string{"--set", "controllers=127.0.0.1:1"}))
		}
		n.Client, n.Internal = client, internal
		l.g.Brokers = append(l.g.Brokers, n)
	}
	return nil
}

// A member is one controller, before it runs.
type member struct{ name, listen, advertised, admin, etcd, peer string }

// controllerArgs are those of a controller that begins a cluster with all, or
// with none that joins one.
func (l *launcher) controllerArgs(m member, all []member) []string {
	var members []string
	for _, other := range all {
		members = append(members, other.name+"="+other.peer)
	}
	return append([]string{"controller", "--bootstrap"}, set(append([]string{
		"data_dir=" + filepath.Join(l.Dir, m.name), "listen.controller=" + m.listen, "listen.advertised=" + m.advertised,
		"listen.admin=" + m.admin, "etcd.client=" + m.etcd, "etcd.peer=" + m.peer,
		"etcd.name=" + m.name, "etcd.initial_members=" + strings.Join(members, ","), "logging.format=text",
	}, l.ControllerSet...))...)
}

// proxy puts a proxy before a port, where links are wanted.
func (l *launcher) proxy(ctx context.Context, name, target string, advertised *string) error {
	if l.g.Links == nil {
		return nil
	}
	*advertised = l.take()
	return l.g.Links.Serve(ctx, name, *advertised, target)
}

func (l *launcher) start(name, admin string, args []string) (*Node, error) {
	again := func() (*Process, error) { return l.run(name, args) }
	p, err := again()
	if err != nil {
		return nil, err
	}
	return &Node{Process: p, Name: name, Data: filepath.Join(l.Dir, name), Admin: admin, again: again}, nil
}

func (l *launcher) run(name string, args []string) (*Process, error) {
	p, err := l.b.Start(nil, l.Log, args...)
	if err == nil && l.g.Links != nil {
		l.g.Links.Name(p.Pid(), name)
	}
	return p, err
}

func set(kvs []string) []string {
	var args []string
	for _, kv := range kvs {
		args = append(args, "--set", kv)
	}
	return args
}

// All returns controllers and brokers.
func (g *Group) All() []*Node { return append(append([]*Node(nil), g.Controllers...), g.Brokers...) }

// Seeds returns the brokers' addresses for clients.
func (g *Group) Seeds() []string {
	var addrs []string
	for _, b := range g.Brokers {
		addrs = append(addrs, b.Client)
	}
	return addrs
}

// Ready waits until every process takes work.
func (g *Group) Ready(ctx context.Context) error {
	var all errgroup.Group
	for _, n := range g.All() {
		all.Go(func() error {
			if err := n.Ready(ctx); err != nil {
				return fmt.Errorf("%s: %w", n.Name, err)
			}
			return nil
		})
	}
	return all.Wait()
}

// Kill ends all as a crash would.
func (g *Group) Kill() {
	for _, n := range g.All() {
		n.Kill()
	}
	if g.Links != nil {
		g.Links.Close()
	}
}
