package broker

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/runnelmq/runnel/broker/producer"
	"github.com/runnelmq/runnel/internal/config"
	"github.com/runnelmq/runnel/internal/rpcserver"
)

// Config is all that can be tuned of a broker. Sizes and durations are written
// with their units: 64MiB, 500ms, 7d.
type Config struct {
	// ID names the broker in the cluster, from 0. It must be set, and stay the
	// same over restarts. Default: unset (-1).
	ID int32 `yaml:"id" env:"ID"`
	// Rack is the rack or availability zone; replicas are spread over racks.
	// Default: none.
	Rack string `yaml:"rack" env:"RACK"`
	// DataDir is the directory of the logs. Default: ./runnel-data/broker.
	DataDir string `yaml:"data_dir" env:"DATA_DIR"`
	// Controllers are the addresses of the controllers, host:port. Any one that
	// answers tells which is active. Default: 127.0.0.1:7422.
	Controllers []string `yaml:"controllers" env:"CONTROLLERS"`

	Listen   ListenConfig   `yaml:"listen" envPrefix:"LISTEN_"`
	Security SecurityConfig `yaml:"security" envPrefix:"SECURITY_"`
	Storage  StorageConfig  `yaml:"storage" envPrefix:"STORAGE_"`

	Replication ReplicationConfig `yaml:"replication" envPrefix:"REPLICATION_"`

	Producers ProducersConfig `yaml:"producers" envPrefix:"PRODUCERS_"`

	Group GroupConfig `yaml:"group" envPrefix:"GROUP_"`

	Streams  StreamsConfig  `yaml:"streams" envPrefix:"STREAMS_"`
	Shutdown ShutdownConfig `yaml:"shutdown" envPrefix:"SHUTDOWN_"`
	Logging  LoggingConfig  `yaml:"logging" envPrefix:"LOGGING_"`
}

// ListenConfig says where the broker is reached.
type ListenConfig struct {
	// Client is the address for clients. Default: 127.0.0.1:7420.
	Client string `yaml:"client" env:"CLIENT"`
	// AdvertisedClient is the address that clients are told to come to. Needed
	// when Client binds all interfaces, or when they come through a mapped port.
	// Default: Client.
	AdvertisedClient string `yaml:"advertised_client" env:"ADVERTISED_CLIENT"`
	// Internal is the address for brokers and controllers. On any other than a
	// loopback address security.cluster_secret or security.ca_file must be set.
	// Default: 127.0.0.1:7421.
	Internal string `yaml:"internal" env:"INTERNAL"`
	// AdvertisedInternal is the address that they are told to come to; one per
	// broker, never load-balanced. Default: Internal.
	AdvertisedInternal string `yaml:"advertised_internal" env:"ADVERTISED_INTERNAL"`
	// Admin is the address of the admin HTTP port: metrics, health, profiles.
	// Empty: none. Default: 127.0.0.1:7424.
	Admin string `yaml:"admin" env:"ADMIN"`
	// MaxConnections bounds the connections of clients. 0: half of the file
	// descriptors the process may open, so that the logs never lack any.
	// Default: 0.
	MaxConnections int `yaml:"max_connections" env:"MAX_CONNECTIONS"`
	// Reflection lets tools such as grpcurl ask the ports for clients and brokers
	// which services there are. Default: true.
	Reflection bool `yaml:"reflection" env:"REFLECTION"`
}

// SecurityConfig protects the ports inside the cluster, and the clients' one.
type SecurityConfig struct {
	// ClusterSecret must be the same on all brokers and controllers.
	// Default: none.
	ClusterSecret config.Secret `yaml:"cluster_secret" env:"CLUSTER_SECRET"`
	// CertFile and KeyFile are the certificate of this broker, PEM: for the
	// internal port together with CAFile, and for the clients' port with
	// ClientTLS. Default: none.
	CertFile string `yaml:"cert_file" env:"CERT_FILE"`
	// KeyFile: see CertFile.
	KeyFile string `yaml:"key_file" env:"KEY_FILE"`
	// CAFile makes the internal port and the connections to controllers mutual
	// TLS: each side's certificate must be signed by it. PEM. Default: none.
	CAFile string `yaml:"ca_file" env:"CA_FILE"`
	// ClientTLS makes the clients' port TLS. Default: false.
	ClientTLS bool `yaml:"client_tls" env:"CLIENT_TLS"`
}

// StorageConfig tunes the data root.
type StorageConfig struct {
	// ReserveBytes is the free space below which clients' records are refused;
	// below a quarter of it nothing is appended. 0B: 1 GiB, or a twentieth of
	// the disk where that is less. Default: 0B.
	ReserveBytes config.ByteSize `yaml:"reserve_bytes" env:"RESERVE_BYTES"`
	// CheckpointInterval is how often recovery points are written: it bounds
	// what an unclean start has to read again. Default: 5s.
	CheckpointInterval config.Duration `yaml:"checkpoint_interval" env:"CHECKPOINT_INTERVAL"`
	// MaintenanceInterval is how often segments are rolled and removed by age.
	// Default: 10s.
	MaintenanceInterval config.Duration `yaml:"maintenance_interval" env:"MAINTENANCE_INTERVAL"`
	// TrustPageCache: after a crash of the process alone, what the operating
	// system had is taken to be there. Switch it off for volumes that may be
	// detached from a running machine. Default: true.
	TrustPageCache bool `yaml:"trust_page_cache" env:"TRUST_PAGE_CACHE"`
	// Flushers is how many partitions with flush=sync are made durable at a
	// time. Default: 16.
	Flushers int `yaml:"flushers" env:"FLUSHERS"`

	Cleaner CleanerConfig `yaml:"cleaner" envPrefix:"CLEANER_"`
}

// CleanerConfig tunes the compaction of topics with cleanup.policy=compact.
type CleanerConfig struct {
	// Threads is how many partitions are compacted at a time (Kafka's
	// log.cleaner.threads). Default: 1.
	Threads int `yaml:"threads" env:"THREADS"`
	// DedupeBufferBytes is what the maps of keys may take, together: 27 bytes a
	// key (log.cleaner.dedupe.buffer.size). A partition with more keys takes
	// several passes. Default: 64MiB.
	DedupeBufferBytes config.ByteSize `yaml:"dedupe_buffer_bytes" env:"DEDUPE_BUFFER_BYTES"`
	// MaxBytesPerSecond bounds what compaction reads and writes
	// (log.cleaner.io.max.bytes.per.second). 0B: no bound. Default: 0B.
	MaxBytesPerSecond config.ByteSize `yaml:"max_bytes_per_second" env:"MAX_BYTES_PER_SECOND"`
	// Backoff is how long a cleaner waits when nothing is to be compacted, and
	// before it tries again what failed (log.cleaner.backoff.ms). Default: 15s.
	Backoff config.Duration `yaml:"backoff" env:"BACKOFF"`
}

// ReplicationConfig tunes the copying between brokers.
type ReplicationConfig struct {
	// LagTimeMax is for how long a replica in sync may lack a record before its
	// leader asks for it to be taken out. Default: 10s.
	LagTimeMax config.Duration `yaml:"lag_time_max" env:"LAG_TIME_MAX"`
	// Streams is how many connections a broker opens to each broker it copies
	// from. Default: 1.
	Streams int `yaml:"streams" env:"STREAMS"`
	// CatchUpRate bounds the bytes a second that this broker sends to replicas
	// that are not in sync; those in sync are never slowed down. 0B: no bound.
	// Default: 0B.
	CatchUpRate config.ByteSize `yaml:"catch_up_rate" env:"CATCH_UP_RATE"`
	// CatchUpShare is the percentage of the time that this broker copies to a
	// replica that is not in sync while clients write to it: after each piece
	// it rests, the longer the busier the brokers are. 100: no rests. One that falls
	// back further is given none. Default: 25.
	CatchUpShare int `yaml:"catch_up_share" env:"CATCH_UP_SHARE"`
}

// ProducersConfig bounds what is remembered of idempotent producers.
type ProducersConfig struct {
	// Expiry is how long after its last record in a partition a producer is
	// remembered there, by the brokers' clocks; Kafka's
	// producer.id.expiration.ms. A producer that is idle for longer has to take a
	// new id. Must be the same on all brokers. Default: 7d.
	Expiry config.Duration `yaml:"expiry" env:"EXPIRY"`
	// MaxPerPartition is how many producers a partition remembers; each takes
	// about 300 bytes. Beyond, the one that has been idle for the longest is
	// forgotten if that is more than an hour, else new ones are refused. Must be
	// the same on all brokers. Default: 10000.
	MaxPerPartition int `yaml:"max_per_partition" env:"MAX_PER_PARTITION"`
}

// StreamsConfig bounds what streams of clients may hold.
type StreamsConfig struct {
	// MaxAge is after how long, ± 20 %, a stream is asked to move on, so that
	// load spreads. 0s: never. Default: 30m.
	MaxAge config.Duration `yaml:"max_age" env:"MAX_AGE"`
	// GoawayGrace is how long a client has to end a stream that it was asked to. Default: 10s.
	GoawayGrace config.Duration `yaml:"goaway_grace" env:"GOAWAY_GRACE"`
	// ProduceMaxInflight is how many requests of one Produce stream may be
	// unanswered before it is read no further. Default: 1000.
	ProduceMaxInflight int `yaml:"produce_max_inflight" env:"PRODUCE_MAX_INFLIGHT"`
	// FetchBufferBytes is what the answers on their way to readers may hold
	// together. What readers have not taken for a second counts apart, up to as
	// much again, so that twice this is the most there can be; what is stuck
	// beyond that takes room from the large answers of other readers.
	// Default: 256MiB.
	FetchBufferBytes config.ByteSize `yaml:"fetch_buffer_bytes" env:"FETCH_BUFFER_BYTES"`
}

// ShutdownConfig bounds an orderly end.
type ShutdownConfig struct {
	// Timeout is how long a shutdown in order may take. Default: 25s.
	Timeout config.Duration `yaml:"timeout" env:"TIMEOUT"`
	// HandOverTimeout is how long leaderships may take to be handed over before
	// the broker drains without that. Default: 2s.
	HandOverTimeout config.Duration `yaml:"hand_over_timeout" env:"HAND_OVER_TIMEOUT"`
}

// LoggingConfig is about the log of the process.
type LoggingConfig struct {
	// Level is the least severe level written: debug, info, warn or error.
	// Default: info.
	Level string `yaml:"level" env:"LEVEL"`
	// Format is how lines are written: json or text. Default: json.
	Format string `yaml:"format" env:"FORMAT"`
}

// Unset is the ID of a broker that was given none.
const Unset int32 = -1

// DefaultConfig returns the defaults named in Config. ID must still be set.
func DefaultConfig() Config {
	return Config{
		ID:          Unset,
		DataDir:     "./runnel-data/broker",
		Controllers: []string{"127.0.0.1:7422"},
		Listen:      ListenConfig{Client: "127.0.0.1:7420", Internal: "127.0.0.1:7421", Admin: "127.0.0.1:7424", Reflection: true},
		Storage: StorageConfig{
			CheckpointInterval:  config.Duration(5 * time.Second),
			MaintenanceInterval: config.Duration(10 * time.Second),
			TrustPageCache:      true,
			Flushers:            16,
			Cleaner:             CleanerConfig{Threads: 1, DedupeBufferBytes: 64 * config.MiB, Backoff: config.Duration(15 * time.Second)},
		},
		Replication: ReplicationConfig{LagTimeMax: config.Duration(10 * time.Second), Streams: 1, CatchUpShare: 25},
		Producers:   ProducersConfig{Expiry: config.Duration(producer.DefaultExpiryMs * time.Millisecond), MaxPerPartition: producer.DefaultMax},
		Group:       defaultGroupConfig(),
		Streams: StreamsConfig{
			MaxAge:             config.Duration(30 * time.Minute),
			GoawayGrace:        config.Duration(10 * time.Second),
			ProduceMaxInflight: 1000,
			FetchBufferBytes:   256 * config.MiB,
		},
		Shutdown: ShutdownConfig{Timeout: config.Duration(25 * time.Second), HandOverTimeout: config.Duration(2 * time.Second)},
		Logging:  LoggingConfig{Level: "info", Format: "json"},
	}
}

// Validate says everything that is wrong with c, each complaint with the
// option's name.
func (c Config) Validate() error {
	var v complaints
	if c.ID < 0 {
		v.add("id", "must be set, from 0, and be unique in the cluster")
	}
	if c.DataDir == "" {
		v.add("data_dir", "must be set")
	}
	if len(c.Controllers) == 0 {
		v.add("controllers", "must name at least one controller, host:port")
	}
	for _, a := range c.Controllers {
		v.err("controllers", rpcserver.CheckRoutable(a))
	}
	c.Listen.validate(&v, c.Security.guarded())
	c.Security.validate(&v)
	v.duration("storage.checkpoint_interval", c.Storage.CheckpointInterval, 100*time.Millisecond, time.Hour)
	v.duration("storage.maintenance_interval", c.Storage.MaintenanceInterval, 10*time.Millisecond, time.Hour)
	v.number("storage.flushers", int64(c.Storage.Flushers), 1, 1024)
	v.number("storage.cleaner.threads", int64(c.Storage.Cleaner.Threads), 1, 64)
	v.number("storage.cleaner.dedupe_buffer_bytes", int64(c.Storage.Cleaner.DedupeBufferBytes), int64(64*config.KiB), int64(config.TiB))
	v.number("storage.cleaner.max_bytes_per_second", int64(c.Storage.Cleaner.MaxBytesPerSecond), 0, int64(config.TiB))
	v.duration("storage.cleaner.backoff", c.Storage.Cleaner.Backoff, 10*time.Millisecond, time.Hour)
	v.number("storage.reserve_bytes", int64(c.Storage.ReserveBytes), 0, int64(100*config.TiB))
	v.duration("replication.lag_time_max", c.Replication.LagTimeMax, 500*time.Millisecond, time.Hour)
	v.number("replication.streams", int64(c.Replication.Streams), 1, 64)
	v.number("replication.catch_up_share", int64(c.Replication.CatchUpShare), 1, 100)
	v.number("replication.catch_up_rate", int64(c.Replication.CatchUpRate), 0, int64(config.TiB))
	v.duration("producers.expiry", c.Producers.Expiry, time.Minute, 10*365*24*time.Hour)
	v.number("producers.max_per_partition", int64(c.Producers.MaxPerPartition), 10, 1e6)
	c.Group.validate(&v)
	if c.Streams.MaxAge != 0 {
		v.duration("streams.max_age", c.Streams.MaxAge, time.Second, 30*24*time.Hour)
	}
	v.duration("streams.goaway_grace", c.Streams.GoawayGrace, 10*time.Millisecond, 10*time.Minute)
	v.number("streams.produce_max_inflight", int64(c.Streams.ProduceMaxInflight), 1, 1e6)
	v.number("streams.fetch_buffer_bytes", int64(c.Streams.FetchBufferBytes), int64(16*config.MiB), int64(config.TiB))
	v.duration("shutdown.timeout", c.Shutdown.Timeout, 100*time.Millisecond, time.Hour)
	v.duration("shutdown.hand_over_timeout", c.Shutdown.HandOverTimeout, 0, c.Shutdown.Timeout.Std())
	c.Logging.validate(&v)
	return errors.Join(v...)
}

func (l ListenConfig) validate(v *complaints, guarded bool) {
	listens := func(option, addr, advertisedOption, advertised string) (host string) {
		host, _, err := rpcserver.ParseAddress(addr)
		v.err(option, err)
		switch {
		case advertised != "":
			v.err(advertisedOption, rpcserver.CheckRoutable(advertised))
		case err == nil && rpcserver.BindsAll(host):
			v.add(advertisedOption, fmt.Sprintf("must be set to an address others can reach, because %s %q binds all interfaces", option, addr))
		}
		return host
	}
	listens("listen.client", l.Client, "listen.advertised_client", l.AdvertisedClient)
	host := listens("listen.internal", l.Internal, "listen.advertised_internal", l.AdvertisedInternal)
	if !guarded && !rpcserver.IsLoopback(host) {
		v.add("listen.internal", fmt.Sprintf("%q is open to others: set security.cluster_secret or security.ca_file, or listen on a loopback address", l.Internal))
	}
	if l.Admin != "" {
		_, _, err := rpcserver.ParseAddress(l.Admin)
		v.err("listen.admin", err)
	}
	v.number("listen.max_connections", int64(l.MaxConnections), 0, 1e7)
}

// guarded says whether strangers are kept off the internal port.
func (s SecurityConfig) guarded() bool { return s.ClusterSecret != "" || s.CAFile != "" }

func (s SecurityConfig) validate(v *complaints) {
	if s.ClusterSecret != "" && len(s.ClusterSecret) < 16 {
		v.add("security.cluster_secret", "must have at least 16 characters")
	}
	if (s.CertFile == "") != (s.KeyFile == "") {
		v.add("security.cert_file", "and security.key_file belong together: set both or none")
	}
	if s.CAFile != "" && s.CertFile == "" {
		v.add("security.ca_file", "needs security.cert_file and security.key_file")
	}
	if s.ClientTLS && s.CertFile == "" {
		v.add("security.client_tls", "needs security.cert_file and security.key_file")
	}
}

func (l LoggingConfig) validate(v *complaints) {
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, l.Level) {
		v.add("logging.level", fmt.Sprintf("is %q: want debug, info, warn or error", l.Level))
	}
	if l.Format != "json" && l.Format != "text" {
		v.add("logging.format", fmt.Sprintf("is %q: want json or text", l.Format))
	}
}

// complaints gathers what is wrong.
type complaints []error

func (v *complaints) add(option, what string) { *v = append(*v, fmt.Errorf("%s %s", option, what)) }

func (v *complaints) err(option string, err error) {
	if err != nil {
		*v = append(*v, fmt.Errorf("%s: %w", option, err))
	}
}

func (v *complaints) duration(option string, d config.Duration, least, most time.Duration) {
	if d.Std() < least || d.Std() > most {
		v.add(option, fmt.Sprintf("is %s: want %s to %s", d, least, most))
	}
}

func (v *complaints) number(option string, n, least, most int64) {
	if n < least || n > most {
		v.add(option, fmt.Sprintf("is %d: want %d to %d", n, least, most))
	}
}
