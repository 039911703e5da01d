package main

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
)

const (
	defaultPort        = 7420
	defaultControllers = 3
)

// A layout is which processes there are, with their ports. The first broker has
// the usual one for clients.
type layout struct{ controllers, brokers []*server }

// plan lays the processes out. Process i has the ports of base + 10 i and on:
// a broker 0 (clients), 1 (inside), 4 (admin); a controller 2, 5 (admin), 8
// and 9 (etcd).
func plan(o options) layout {
	at := func(i, port int) string { return fmt.Sprintf("127.0.0.1:%d", o.basePort+10*i+port) }
	var l layout
	var controllers, members []string
	for i := range o.controllers {
		controllers = append(controllers, at(i, 2))
		members = append(members, fmt.Sprintf("controller-%d=%s", i+1, at(i, 9)))
	}
	for i := range o.controllers {
		name := "controller-" + strconv.Itoa(i+1)
		l.controllers = append(l.controllers, &server{
			name: name, address: at(i, 2), admin: at(i, 5), ports: []string{at(i, 2), at(i, 5), at(i, 8), at(i, 9)},
			command: append([]string{"controller", "--bootstrap"}, set(
				"data_dir="+filepath.Join(o.data, name), "listen.controller="+at(i, 2), "listen.admin="+at(i, 5),
				"etcd.name="+name, "etcd.initial_members="+strings.Join(members, ","), "etcd.client="+at(i, 8), "etcd.peer="+at(i, 9),
				"logging.format=text",
			)...),
		})
	}
	for i := range o.brokers {
		name := "broker-" + strconv.Itoa(i+1)
		l.brokers = append(l.brokers, &server{
			name: name, address: at(i, 0), admin: at(i, 4), ports: []string{at(i, 0), at(i, 1), at(i, 4)},
			command: append([]string{"broker"}, set(
				"id="+strconv.Itoa(i+1), "data_dir="+filepath.Join(o.data, name), "controllers="+strings.Join(controllers, ","),
				"listen.client="+at(i, 0), "listen.internal="+at(i, 1), "listen.admin="+at(i, 4), "logging.format=text",
			)...),
		})
	}
	return l
}

// free fails when somebody listens where a server is to. What answers there would be taken for that server, and be called ready.
func free(ctx context.Context, servers []*server) error {
	var lc net.ListenConfig
	for _, s := range servers {
		for _, addr := range s.ports {
			lis, err := lc.Listen(ctx, "tcp", addr)
			if err != nil {
				return fmt.Errorf("%s can't have its port: %w: stop what uses it, such as make dev or another cluster,\n"+
					"or begin a cluster with other ports in another folder (make cluster CLUSTER_DATA=runnel-cluster-2 CLUSTER_FLAGS=\"--base-port 9420\")", s.name, err)
			}
			if err := lis.Close(); err != nil {
				return err
			}
		}
	}
	return nil
}

func set(kvs ...string) []string {
	var args []string
	for _, kv := range kvs {
		args = append(args, "--set", kv)
	}
	return args
}
