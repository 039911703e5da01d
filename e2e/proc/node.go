package proc

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/runnelmq/runnel/internal/freeport"
)

// Dev says how to run `runnel dev`.
type Dev struct {
	Data string    // its folder
	Args []string  // more arguments
	Env  []string  // more environment
	Log  io.Writer // gets its log too; may be nil
	// Everywhere makes it listen for clients on all interfaces.
	Everywhere bool
}

// A Node is a running `runnel dev`, or a broker or controller of a cluster.
type Node struct {
	*Process

	Name     string // in a cluster: broker-1, controller-1
	Data     string // its folder
	Client   string // address of the client port; "" for a controller
	Admin    string // address of the admin HTTP port
	Internal string // in a cluster: address of the port for brokers and controllers
	Etcd     string // of a controller: address of etcd's port for clients

	again func() (*Process, error)
	// aside starts a broker that looks for its controllers where none are.
	aside func() (*Process, error)
	// joining returns a controller in the place of this one, which has no data,
	// in dir, and joins the etcd at others. Restart starts it.
	joining func(dir, others string) *Node
	// plain starts a controller without --bootstrap.
	plain func() (*Process, error)
	// flags are those that a controller is started with.
	flags []string
}

// Restart starts a node that has ended once more, on the same data and ports,
// and waits until it is ready.
func (n *Node) Restart(ctx context.Context) error {
	if err := n.Start(); err != nil {
		return err
	}
	return n.Ready(ctx)
}

// Start is Restart without the wait.
func (n *Node) Start() error {
	p, err := n.again()
	if err != nil {
		return err
	}
	n.Process = p
	return nil
}

// readyWithin bounds the wait for a node that starts on a loaded machine.
const readyWithin = time.Minute

// StartDev starts a node on free ports and waits until it is ready.
func StartDev(ctx context.Context, b Binary, d Dev) (*Node, error) {
	n, err := LaunchDev(ctx, b, d)
	if err != nil {
		return nil, err
	}
	if err := n.Ready(ctx); err != nil {
		n.Kill()
		return nil, err
	}
	return n, nil
}

// Ready waits until the node takes work.
func (n *Node) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	client := &http.Client{Timeout: time.Second}
	return n.poll(ctx, "/readyz", func() bool {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.Admin+"/readyz", http.NoBody)
		if err != nil {
			return false
		}
		resp, err := client.Do(req)
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

// LaunchDev starts a node on free ports and does not wait.
func LaunchDev(ctx context.Context, b Binary, d Dev) (*Node, error) {
	ports, err := freeport.Take(ctx, 2)
	if err != nil {
		return nil, err
	}
	at := func(i int) string { return "127.0.0.1:" + ports[i] }
	listen := at(0)
	if d.Everywhere {
		listen = "0.0.0.0:" + ports[0]
	}
	args := append([]string{"dev", "--data", d.Data, "--listen", listen, "--admin", at(1)}, d.Args...)
	start := func() (*Process, error) { return b.Start(d.Env, d.Log, args...) }
	p, err := start()
	if err != nil {
		return nil, err
	}
	return &Node{Process: p, Data: d.Data, Client: at(0), Admin: at(1), again: start}, nil
}
