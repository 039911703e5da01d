package controller

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/runnelmq/runnel/controller/state"
	"github.com/runnelmq/runnel/internal/config"
	"github.com/runnelmq/runnel/internal/rpcserver"
	"github.com/runnelmq/runnel/internal/topicconfig"
)

// Config is all that can be tuned of a controller. Sizes and durations are written with their units: 64MiB, 500ms, 7d.
type Config struct {
	// DataDir is the directory of the embedded etcd's data, in its folder etcd. Default: ./runnel-data/controller.
	DataDir string `yaml:"data_dir" env:"DATA_DIR"`

	Listen   ListenConfig   `yaml:"listen" envPrefix:"LISTEN_"`
	Security SecurityConfig `yaml:"security" envPrefix:"SECURITY_"`
	Cluster  ClusterConfig  `yaml:"cluster" envPrefix:"CLUSTER_"`
	Topics   TopicsConfig   `yaml:"topics" envPrefix:"TOPICS_"`
	Etcd     EtcdConfig     `yaml:"etcd" envPrefix:"ETCD_"`
	Shutdown ShutdownConfig `yaml:"shutdown" envPrefix:"SHUTDOWN_"`
	Logging  LoggingConfig  `yaml:"logging" envPrefix:"LOGGING_"`
}

// ListenConfig says where the controller is reached.
type ListenConfig struct {
	// Controller is the address for brokers. On any other than a loopback address security.cluster_secret or security.ca_file
	// must be set. Default: 127.0.0.1:7422.
	Controller string `yaml:"controller" env:"CONTROLLER"`
	// Advertised is the address that brokers are told to come to when this controller is the active one. Default: Controller.
	Advertised string `yaml:"advertised" env:"ADVERTISED"`
	// Admin is the address of the admin HTTP port: metrics, health, profiles. Empty: none. Default: 127.0.0.1:7424.
	Admin string `yaml:"admin" env:"ADMIN"`
}

// SecurityConfig protects the port for brokers.
type SecurityConfig struct {
	// ClusterSecret must be the same on all brokers and controllers. Default: none.
	ClusterSecret config.Secret `yaml:"cluster_secret" env:"CLUSTER_SECRET"`
	// CertFile is the certificate of this controller, PEM. Default: none.
	CertFile string `yaml:"cert_file" env:"CERT_FILE"`
	// KeyFile is its key, PEM. Default: none.
	KeyFile string `yaml:"key_file" env:"KEY_FILE"`
	// CAFile makes the port mutual TLS: a broker's certificate must be signed by it. PEM. Default: none.
	CAFile string `yaml:"ca_file" env:"CA_FILE"`
}

// ClusterConfig is about brokers and controllers.
type ClusterConfig struct {
	// Name keeps the metadata of several clusters in one etcd apart. Default: runnel.
	Name string `yaml:"name" env:"NAME"`
	// SessionTimeout is how long a broker may be silent before it is fenced. Default: 3s.
	SessionTimeout config.Duration `yaml:"session_timeout" env:"SESSION_TIMEOUT"`
	// ElectionTimeout is how long a controller may be silent before another one takes over. Default: 3s.
	ElectionTimeout config.Duration `yaml:"election_timeout" env:"ELECTION_TIMEOUT"`
	// RecoveryWait is how long a partition, all of whose members may have lost data, waits for all of them, once the first is back, before
	// the best of those that are back is elected. Default: 5m.
	RecoveryWait config.Duration `yaml:"recovery_wait" env:"RECOVERY_WAIT"`
	// PreferredDelay is how long all replicas of a partition must have been in sync before its preferred leader gets the
	// leadership back. Default: 1m.
	PreferredDelay config.Duration `yaml:"preferred_delay" env:"PREFERRED_DELAY"`
	// Probe is whether a broker must be reached at its internal address before it is in service. Default: true.
	Probe bool `yaml:"probe" env:"PROBE"`
	// FastFencing is whether a broker whose connection broke, and at whose internal address nobody listens any more, is fenced at
	// once instead of after SessionTimeout; and the same for controllers and ElectionTimeout. Default: true.
	FastFencing bool `yaml:"fast_fencing" env:"FAST_FENCING"`
}

// TopicsConfig is what topics get that do not say. A change concerns new topics only.
type TopicsConfig struct {
	// Partitions is how many partitions a new topic gets that asks for no number. Default: 1.
	Partitions int32 `yaml:"partitions" env:"PARTITIONS"`
	// ReplicationFactor is how many copies they get if it does not say, or as many as there are brokers, in service or not, where that is less. Default: 3.
	ReplicationFactor int32 `yaml:"replication_factor" env:"REPLICATION_FACTOR"`
	// MaxPartitions is how many partitions one topic may have. Default: 10000.
	MaxPartitions int32 `yaml:"max_partitions" env:"MAX_PARTITIONS"`
	// Configs are topic configuration values by key, such as retention.ms. Default: none.
	Configs map[string]string `yaml:"configs" env:"CONFIGS"`
}

// EtcdConfig says where the metadata is kept.
type EtcdConfig struct {
	// Endpoints are the addresses of an external etcd, host:port or a URL. Empty: an etcd member in this process. Default: none.
	Endpoints []string `yaml:"endpoints" env:"ENDPOINTS"`
	// Username is the name to give an external etcd. Default: none.
	Username string `yaml:"username" env:"USERNAME"`
	// Password is the password to give it. Default: none.
	Password config.Secret `yaml:"password" env:"PASSWORD"`
	// CertFile is the certificate to show to an external etcd, or that of the embedded member, PEM. Default: none.
	CertFile string `yaml:"cert_file" env:"CERT_FILE"`
	// KeyFile is its key, PEM. Default: none.
	KeyFile string `yaml:"key_file" env:"KEY_FILE"`
	// CAFile verifies an external etcd's certificate; it makes the ports of the embedded member mutual TLS, PEM. Default: none,
	// plaintext.
	CAFile string `yaml:"ca_file" env:"CA_FILE"`
	// Name is what the embedded member is called; each has its own. Default: runnel.
	Name string `yaml:"name" env:"NAME"`
	// InitialMembers are the embedded members that a new cluster begins with, this one among them, each as name=host:port with
	// the address of etcd.peer there. All of them are started once with --bootstrap. Default: this one alone.
	InitialMembers []string `yaml:"initial_members" env:"INITIAL_MEMBERS"`
	// Client is the address the embedded member serves etcd's own tools on: a loopback address, unless ca_file is set. Default:
	// 127.0.0.1:7428.
	Client string `yaml:"client" env:"CLIENT"`
	// Peer is the address the embedded member serves other members on: a loopback address, unless ca_file is set. Default:
	// 127.0.0.1:7429.
	Peer string `yaml:"peer" env:"PEER"`
	// AdvertisedPeer is the address that other members come to. Default: Peer.
	AdvertisedPeer string `yaml:"advertised_peer" env:"ADVERTISED_PEER"`
	// QuotaBytes is how much metadata the embedded member takes before it refuses writes. Default: 2GiB.
	QuotaBytes config.ByteSize `yaml:"quota_bytes" env:"QUOTA_BYTES"`
	// History is how long the embedded member remembers changes. Default: 1h.
	History config.Duration `yaml:"history" env:"HISTORY"`
	// Heartbeat is how often embedded members hear of each other. An election takes ten. Default: 100ms.
	Heartbeat config.Duration `yaml:"heartbeat" env:"HEARTBEAT"`
	// StartTimeout is how long the embedded member may take to start. Default: 60s.
	StartTimeout config.Duration `yaml:"start_timeout" env:"START_TIMEOUT"`
}

// ShutdownConfig bounds an orderly end.
type ShutdownConfig struct {
	// Timeout is how long calls that run may take to end. Default: 2s.
	Timeout config.Duration `yaml:"timeout" env:"TIMEOUT"`
}

// LoggingConfig is about the log of the process.
type LoggingConfig struct {
	// Level is the least severe level written: debug, info, warn or error. Default: info.
	Level string `yaml:"level" env:"LEVEL"`
	// Format is how lines are written: json or text. Default: json.
	Format string `yaml:"format" env:"FORMAT"`
}

// DefaultConfig returns the defaults named in Config.
func DefaultConfig() Config {
	return Config{
		DataDir: "./runnel-data/controller",
		Listen:  ListenConfig{Controller: "127.0.0.1:7422", Admin: "127.0.0.1:7424"},
		Cluster: ClusterConfig{
			Name:           "runnel",
			SessionTimeout: config.Duration(3 * time.Second), ElectionTimeout: config.Duration(3 * time.Second),
			RecoveryWait: config.Duration(5 * time.Minute), PreferredDelay: config.Duration(time.Minute),
			Probe: true, FastFencing: true,
		},
		Topics: TopicsConfig{Partitions: 1, ReplicationFactor: 3, MaxPartitions: 10_000},
		Etcd: EtcdConfig{
			Name: "runnel", Client: "127.0.0.1:7428", Peer: "127.0.0.1:7429", QuotaBytes: 2 * config.GiB,
			History: config.Duration(time.Hour), Heartbeat: config.Duration(100 * time.Millisecond),
			StartTimeout: config.Duration(time.Minute),
		},
		Shutdown: ShutdownConfig{Timeout: config.Duration(2 * time.Second)},
		Logging:  LoggingConfig{Level: "info", Format: "json"},
	}
}

// complaints gathers what is wrong with a configuration.
type complaints []error

func (c *complaints) add(option, format string, args ...any) {
	*c = append(*c, fmt.Errorf("option %s: "+format, append([]any{option}, args...)...))
}

func (c *complaints) within(option string, d config.Duration, lo, hi time.Duration) {
	if d.Std() < lo || d.Std() > hi {
		c.add(option, "%v: want %v to %v", d, lo, hi)
	}
}

func (c *complaints) count(option string, n, lo, hi int32) {
	if n < lo || n > hi {
		c.add(option, "%d: want %d to %d", n, lo, hi)
	}
}

// Validate returns all that is wrong with c, each with the option's name.
func (c Config) Validate() error {
	var bad complaints
	if c.DataDir == "" && len(c.Etcd.Endpoints) == 0 {
		bad.add("data_dir", "it must be set")
	}
	c.Listen.validate(&bad)
	c.Security.validate(&bad, c.Listen.Controller)
	if !validName(c.Cluster.Name) {
		bad.add("cluster.name", "%q: want 1 to 64 letters, digits, dots, dashes and underscores", c.Cluster.Name)
	}
	bad.within("cluster.session_timeout", c.Cluster.SessionTimeout, time.Second, 10*time.Minute)
	bad.within("cluster.election_timeout", c.Cluster.ElectionTimeout, time.Second, time.Minute)
	bad.within("cluster.recovery_wait", c.Cluster.RecoveryWait, 0, 24*time.Hour)
	bad.within("cluster.preferred_delay", c.Cluster.PreferredDelay, 0, 24*time.Hour)
	bad.within("shutdown.timeout", c.Shutdown.Timeout, 0, 10*time.Minute)
	c.Topics.validate(&bad)
	c.Etcd.validate(&bad)
	switch c.Logging.Level {
	case "debug", "info", "warn", "error":
	default:
		bad.add("logging.level", "%q: want debug, info, warn or error", c.Logging.Level)
	}
	if c.Logging.Format != "json" && c.Logging.Format != "text" {
		bad.add("logging.format", "%q: want json or text", c.Logging.Format)
	}
	return errors.Join(bad...)
}

func (l ListenConfig) validate(bad *complaints) {
	host, _, err := rpcserver.ParseAddress(l.Controller)
	switch {
	case err != nil:
		bad.add("listen.controller", "%w", err)
	case l.Advertised == "" && rpcserver.BindsAll(host):
		bad.add("listen.advertised", "it must be set, because listen.controller %q binds all interfaces and can't be told to brokers", l.Controller)
	}
	if l.Advertised != "" {
		if err := rpcserver.CheckRoutable(l.Advertised); err != nil {
			bad.add("listen.advertised", "%w", err)
		}
	}
	if l.Admin != "" {
		if _, _, err := rpcserver.ParseAddress(l.Admin); err != nil {
			bad.add("listen.admin", "%w", err)
		}
	}
}

func (s SecurityConfig) validate(bad *complaints, listen string) {
	if (s.CertFile == "") != (s.KeyFile == "") {
		bad.add("security.key_file", "cert_file and key_file go together")
	}
	if s.CAFile != "" && s.CertFile == "" {
		bad.add("security.ca_file", "it needs cert_file and key_file")
	}
	if s.ClusterSecret != "" && len(s.ClusterSecret) < 16 {
		bad.add("security.cluster_secret", "it must have at least 16 characters")
	}
	host, _, err := rpcserver.ParseAddress(listen)
	if err == nil && !rpcserver.IsLoopback(host) && s.ClusterSecret == "" && s.CAFile == "" {
		bad.add("security.cluster_secret", "it, or ca_file, must be set, because listen.controller %q can be reached from other machines", listen)
	}
}

func (t TopicsConfig) validate(bad *complaints) {
	bad.count("topics.max_partitions", t.MaxPartitions, 1, 10_000)
	bad.count("topics.partitions", t.Partitions, 1, max(t.MaxPartitions, 1))
	bad.count("topics.replication_factor", t.ReplicationFactor, 1, 32)
	if _, err := topicconfig.Parse(t.Configs); err != nil {
		bad.add("topics.configs", "%w", err)
	}
}

func (e EtcdConfig) validate(bad *complaints) {
	for _, ep := range e.Endpoints {
		if err := checkEndpoint(ep); err != nil {
			bad.add("etcd.endpoints", "%w", err)
		}
	}
	if (e.CertFile == "") != (e.KeyFile == "") {
		bad.add("etcd.key_file", "cert_file and key_file go together")
	}
	if e.CertFile != "" && e.CAFile == "" {
		bad.add("etcd.ca_file", "it must be set with cert_file")
	}
	if (e.Username == "") != (e.Password == "") {
		bad.add("etcd.password", "username and password go together")
	}
	if len(e.Endpoints) > 0 {
		return // the rest is about the embedded member
	}
	for option, addr := range map[string]string{"etcd.client": e.Client, "etcd.peer": e.Peer} {
		host, _, err := rpcserver.ParseAddress(addr)
		switch {
		case err != nil:
			bad.add(option, "%w", err)
		case net.ParseIP(host) == nil:
			bad.add(option, "%q: want an IP address of this machine, such as 127.0.0.1:7428", addr)
		case !rpcserver.IsLoopback(host) && e.CAFile == "":
			bad.add(option, "%q: the embedded etcd is open to others there: set etcd.ca_file, cert_file and key_file, or use a loopback address, such as 127.0.0.1:7428", addr)
		}
	}
	e.validateMembers(bad)
	if e.QuotaBytes < 16*config.MiB || e.QuotaBytes > 8*config.GiB {
		bad.add("etcd.quota_bytes", "%v: want 16MiB to 8GiB", e.QuotaBytes)
	}
	bad.within("etcd.history", e.History, time.Minute, 24*time.Hour)
	bad.within("etcd.heartbeat", e.Heartbeat, 10*time.Millisecond, 5*time.Second)
	bad.within("etcd.start_timeout", e.StartTimeout, time.Second, time.Hour)
}

func (e EtcdConfig) validateMembers(bad *complaints) {
	if !validName(e.Name) {
		bad.add("etcd.name", "%q: want 1 to 64 letters, digits, dots, dashes and underscores", e.Name)
	}
	advertised := e.Peer
	if e.AdvertisedPeer != "" {
		advertised = e.AdvertisedPeer
		if err := rpcserver.CheckRoutable(e.AdvertisedPeer); err != nil {
			bad.add("etcd.advertised_peer", "%w", err)
		}
	}
	names, mine := map[string]bool{}, len(e.InitialMembers) == 0
	for _, m := range e.InitialMembers {
		name, addr, err := parseMember(m)
		switch {
		case err != nil:
			bad.add("etcd.initial_members", "%w", err)
		case names[name]:
			bad.add("etcd.initial_members", "%q: the name is there twice", m)
		}
		names[name] = true
		if name == e.Name {
			mine = true
			if addr != advertised {
				bad.add("etcd.initial_members", "%q: this member is reached at %s (etcd.advertised_peer, or etcd.peer)", m, advertised)
			}
		}
	}
	if !mine {
		bad.add("etcd.initial_members", "none is named %q, as this member is (etcd.name)", e.Name)
	}
}

// validName reports whether a cluster or a member may have a name.
func validName(s string) bool { return regexp.MustCompile(`^[a-zA-Z0-9._-]{1,64}$`).MatchString(s) }

// parseMember reads name=host:port.
func parseMember(s string) (name, addr string, err error) {
	name, addr, ok := strings.Cut(s, "=")
	if !ok || !validName(name) {
		return "", "", fmt.Errorf("%q: want name=host:port", s)
	}
	return name, addr, rpcserver.CheckRoutable(addr)
}

// nameTaken adds the option to an error about a port that is in use.
func (e EtcdConfig) nameTaken(err error) error {
	op, ok := errors.AsType[*net.OpError](err)
	if !ok || op.Addr == nil {
		return err
	}
	for option, addr := range map[string]string{"etcd.client": e.Client, "etcd.peer": e.Peer} {
		if op.Addr.String() == addr {
			return fmt.Errorf("%s %s: %w: choose another address, or stop what uses this one", option, addr, err)
		}
	}
	return err
}

// checkEndpoint takes host:port and http or https URLs of it.
func checkEndpoint(ep string) error {
	addr := ep
	if strings.Contains(ep, "://") {
		u, err := url.Parse(ep)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil {
			return fmt.Errorf("%q: want host:port, or http:// or https:// before it", ep)
		}
		addr = u.Host
	}
	return rpcserver.CheckRoutable(addr)
}

// internalFactor is the replication factor that internal topics grow to: any one broker may be lost, and one more for repair.
const internalFactor = 3

// defaults returns what topics get that do not say; in dev there is one broker for ever.
func (t TopicsConfig) defaults(dev bool) state.Defaults {
	factor := int32(internalFactor)
	if dev {
		factor = 1
	}
	return state.Defaults{
		InternalFactor: factor,
		Partitions:     t.Partitions, ReplicationFactor: t.ReplicationFactor, Configs: t.Configs, MaxPartitions: t.MaxPartitions,
	}
}
