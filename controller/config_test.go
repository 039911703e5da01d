package controller_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/runnelmq/runnel/controller"
	"github.com/runnelmq/runnel/internal/config"
)

func TestDefaultConfig_is_valid_and_has_all_tags(t *testing.T) {
	cfg := controller.DefaultConfig()
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
	opts, err := config.Options(&cfg)
	if err != nil || len(opts) < 30 {
		t.Errorf("%d options, %v", len(opts), err)
	}
	var out bytes.Buffer
	if err := config.Print(&out, cfg); err != nil || !strings.Contains(out.String(), "session_timeout: 3s") {
		t.Errorf("printed: %v\n%s", err, out.String())
	}
}

func TestLoad_takes_every_layer(t *testing.T) {
	cfg := controller.DefaultConfig()
	err := config.Load(&cfg, config.Source{
		Env: map[string]string{"CLUSTER_SESSION_TIMEOUT": "20s", "ETCD_ENDPOINTS": "https://etcd:2379,[::1]:2379", "TOPICS_CONFIGS": `{retention.ms: "1000"}`},
		Set: []string{"etcd.quota_bytes=64MiB", "topics.partitions=4"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := controller.DefaultConfig()
	want.Cluster.SessionTimeout = config.Duration(20e9)
	want.Etcd.Endpoints = []string{"https://etcd:2379", "[::1]:2379"}
	want.Etcd.QuotaBytes = 64 * config.MiB
	want.Topics.Partitions, want.Topics.Configs = 4, map[string]string{"retention.ms": "1000"}
	if diff := cmp.Diff(want, cfg); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
}

// Each bad value is refused with the option's name, wherever it comes from.
func TestValidate_refuses(t *testing.T) {
	for _, set := range []string{
		"data_dir=",
		"listen.controller=0.0.0.0:7422", "listen.controller=:7422", "listen.controller=10.0.0.1:7422", "listen.controller=localhost",
		"listen.controller=::1", "listen.controller=localhost:70000", "listen.controller= 127.0.0.1:7422", "listen.controller=a,b:1",
		"listen.advertised=0.0.0.0:1", "listen.advertised=[::]:1", "listen.advertised=host:0", "listen.advertised=:7422", "listen.advertised=::1",
		"listen.admin=x",
		"security.cluster_secret=short", "security.cert_file=x", "security.key_file=x", "security.ca_file=x",
		"cluster.name=", "cluster.name=a/b",
		"cluster.session_timeout=20", "cluster.session_timeout=0s", "cluster.session_timeout=-1s", "cluster.session_timeout=10ms", "cluster.session_timeout=1h",
		"cluster.election_timeout=20", "cluster.election_timeout=0s", "cluster.election_timeout=2m", "cluster.recovery_wait=-1s", "cluster.recovery_wait=20",
		"topics.partitions=0", "topics.partitions=-1", "topics.partitions=10001", "topics.replication_factor=0", "topics.max_partitions=0", "topics.max_partitions=1000000",
		"topics.configs={segment.bytes: '-1'}", "topics.configs={no.such: '1'}",
		"etcd.endpoints=[::1]", "etcd.endpoints=::1", "etcd.endpoints=ftp://x:1", "etcd.endpoints=http://x:1/path", "etcd.endpoints=host:0",
		"etcd.username=x", "etcd.password=x", "etcd.cert_file=x", "etcd.key_file=x",
		"etcd.client=0.0.0.0:7428", "etcd.client=:7428", "etcd.client=10.0.0.1:7428", "etcd.peer=[::]:7429", "etcd.peer=etcd:7429", "etcd.peer=x",
		"etcd.quota_bytes=1024", "etcd.quota_bytes=1KiB", "etcd.quota_bytes=1TiB", "etcd.history=0s", "etcd.history=20",
		"etcd.heartbeat=0s", "etcd.heartbeat=1m", "etcd.start_timeout=0s", "shutdown.timeout=-1s", "shutdown.timeout=20",
		"logging.level=loud", "logging.format=xml", "no.such=1",
	} {
		option, _, _ := strings.Cut(set, "=")
		cfg := controller.DefaultConfig()
		err := config.Load(&cfg, config.Source{Env: map[string]string{}, Set: []string{set}})
		if err == nil {
			err = cfg.Validate()
		}
		group, _, _ := strings.Cut(option, ".")
		if err == nil || !strings.Contains(err.Error(), group+".") && !strings.Contains(err.Error(), option) {
			t.Errorf("--set %s: %v", set, err)
		}
	}
	for _, set := range [][]string{
		{"listen.controller=[::1]:7422"},
		{"listen.controller=localhost:0"},
		{"listen.controller=0.0.0.0:7422", "listen.advertised=c1:7422", "security.cluster_secret=0123456789abcdef"},
		{"etcd.endpoints=etcd:2379,[fe80::1%eth0]:2379"},
		{"etcd.client=[::1]:7428"},
	} {
		cfg := controller.DefaultConfig()
		if err := config.Load(&cfg, config.Source{Env: map[string]string{}, Set: set}); err != nil {
			t.Errorf("--set %v: %v", set, err)
		} else if err := cfg.Validate(); err != nil {
			t.Errorf("--set %v: %v", set, err)
		}
	}
}

func TestValidate_joins_all_complaints(t *testing.T) {
	cfg := controller.DefaultConfig()
	cfg.DataDir, cfg.Cluster.Name, cfg.Topics.Partitions = "", "", 0
	_, err := controller.New(cfg, controller.Deps{})
	for _, option := range []string{"data_dir", "cluster.name", "topics.partitions"} {
		if err == nil || !strings.Contains(err.Error(), option) {
			t.Errorf("%s is not in: %v", option, err)
		}
	}
}
