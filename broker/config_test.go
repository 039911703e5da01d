package broker

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runnelmq/runnel/internal/config"
)

func valid() Config {
	c := DefaultConfig()
	c.ID = 1
	return c
}

func TestDefaultsNeedOnlyAnID(t *testing.T) {
	if err := valid().Validate(); err != nil {
		t.Error(err)
	}
	if err := DefaultConfig().Validate(); err == nil || !strings.HasPrefix(err.Error(), "id ") {
		t.Errorf("without an id: %v", err)
	}
}

func TestEveryOptionHasItsNames(t *testing.T) {
	c := DefaultConfig()
	options, err := config.Options(&c)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, o := range options {
		// The variable is the key in capitals: one can be told from the other.
		if want := strings.ToUpper(strings.ReplaceAll(o.Key, ".", "_")); o.Env != want {
			t.Errorf("option %s is the variable %s, want %s", o.Key, o.Env, want)
		}
		if seen[o.Env] {
			t.Errorf("two options are the variable %s", o.Env)
		}
		seen[o.Env] = true
	}
	if len(options) < 20 {
		t.Errorf("%d options", len(options))
	}
}

func TestPrintedConfigReadsBack(t *testing.T) {
	var out bytes.Buffer
	if err := config.Print(&out, valid()); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "broker.yaml")
	if err := os.WriteFile(name, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	var back Config
	if err := config.Load(&back, config.Source{File: name, Env: map[string]string{}}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(valid(), back); diff != "" {
		t.Error(diff)
	}
}

func TestValidate(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		want   []string // each in the error; none: it is valid
	}{
		"IPv6":                                   {func(c *Config) { c.Listen.Client, c.Listen.Internal = "[::1]:7420", "[::1]:7421" }, nil},
		"any port":                               {func(c *Config) { c.Listen.Client, c.Listen.Internal, c.Listen.Admin = "127.0.0.1:0", "127.0.0.1:0", "" }, nil},
		"all interfaces with an address to tell": {func(c *Config) { c.Listen.Client, c.Listen.AdvertisedClient = ":7420", "[2001:db8::1]:7420" }, nil},
		"all interfaces":                         {func(c *Config) { c.Listen.Client = "0.0.0.0:7420" }, []string{"listen.advertised_client", "0.0.0.0:7420"}},
		"all interfaces, IPv6":                   {func(c *Config) { c.Listen.Client = "[::]:7420" }, []string{"listen.advertised_client"}},
		"all interfaces, no host":                {func(c *Config) { c.Listen.Client = ":7420" }, []string{"listen.advertised_client"}},
		"telling all interfaces":                 {func(c *Config) { c.Listen.AdvertisedClient = "0.0.0.0:7420" }, []string{"listen.advertised_client", "0.0.0.0"}},
		"telling port 0":                         {func(c *Config) { c.Listen.AdvertisedClient = "a.example:0" }, []string{"listen.advertised_client", "port 0"}},
		"IPv6 without brackets":                  {func(c *Config) { c.Listen.Client = "::1" }, []string{"listen.client", `"::1"`, "brackets"}},
		"no port":                                {func(c *Config) { c.Listen.Client = "localhost" }, []string{"listen.client", `"localhost"`}},
		"a port too high":                        {func(c *Config) { c.Listen.Internal = "127.0.0.1:70000" }, []string{"listen.internal", "70000"}},
		"two in one":                             {func(c *Config) { c.Controllers = []string{"a:1,b:2"} }, []string{"controllers", "a:1,b:2"}},
		"no controller":                          {func(c *Config) { c.Controllers = nil }, []string{"controllers"}},
		"a controller anywhere":                  {func(c *Config) { c.Controllers = []string{":7422"} }, []string{"controllers", ":7422"}},
		"an open internal port": {
			func(c *Config) { c.Listen.Internal = "10.0.0.1:7421" },
			[]string{"listen.internal", "security.cluster_secret"},
		},
		"an internal port with a secret":      {func(c *Config) { c.Listen.Internal, c.Security.ClusterSecret = "10.0.0.1:7421", "0123456789abcdef" }, nil},
		"a short secret":                      {func(c *Config) { c.Security.ClusterSecret = "short" }, []string{"security.cluster_secret", "16"}},
		"half a certificate":                  {func(c *Config) { c.Security.CertFile = "a.pem" }, []string{"security.key_file"}},
		"an authority without a certificate":  {func(c *Config) { c.Security.CAFile = "ca.pem" }, []string{"security.ca_file"}},
		"TLS for clients without certificate": {func(c *Config) { c.Security.ClientTLS = true }, []string{"security.client_tls"}},
		"a checkpoint each nanosecond":        {func(c *Config) { c.Storage.CheckpointInterval = 20 }, []string{"storage.checkpoint_interval", "20ns"}},
		"a negative duration":                 {func(c *Config) { c.Streams.GoawayGrace = -1 }, []string{"streams.goaway_grace"}},
		"no age limit":                        {func(c *Config) { c.Streams.MaxAge = 0 }, nil},
		"an age of a millisecond":             {func(c *Config) { c.Streams.MaxAge = config.Duration(time.Millisecond) }, []string{"streams.max_age"}},
		"no flushers":                         {func(c *Config) { c.Storage.Flushers = 0 }, []string{"storage.flushers"}},
		"no cleaner":                          {func(c *Config) { c.Storage.Cleaner.Threads = 0 }, []string{"storage.cleaner.threads"}},
		"a map of a few keys":                 {func(c *Config) { c.Storage.Cleaner.DedupeBufferBytes = 100 }, []string{"storage.cleaner.dedupe_buffer_bytes"}},
		"a cleaner without rest":              {func(c *Config) { c.Storage.Cleaner.Backoff = 0 }, []string{"storage.cleaner.backoff"}},
		"a small buffer":                      {func(c *Config) { c.Streams.FetchBufferBytes = 1 }, []string{"streams.fetch_buffer_bytes"}},
		"a longer part than the whole":        {func(c *Config) { c.Shutdown.HandOverTimeout = config.Duration(time.Minute) }, []string{"shutdown.hand_over_timeout"}},
		"a level that is none":                {func(c *Config) { c.Logging.Level = "loud" }, []string{"logging.level", "loud", "debug, info, warn or error"}},
		"no level":                            {func(c *Config) { c.Logging.Level = "" }, []string{"logging.level"}},
		"a format that is none":               {func(c *Config) { c.Logging.Format = "xml" }, []string{"logging.format", "xml", "json or text"}},
		"the other format":                    {func(c *Config) { c.Logging.Level, c.Logging.Format = "debug", "text" }, nil},
		"all at once": {
			func(c *Config) { c.ID, c.DataDir, c.Listen.Client, c.Storage.Flushers = -1, "", "x", 0 },
			[]string{"id", "data_dir", "listen.client", "storage.flushers"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := valid()
			c.change(&cfg)
			err := cfg.Validate()
			if (err == nil) != (len(c.want) == 0) {
				t.Fatalf("Validate = %v", err)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not say %q", err, w)
				}
			}
			if _, nerr := New(cfg, Deps{}); (nerr == nil) != (err == nil) {
				t.Errorf("New = %v", nerr)
			}
		})
	}
}
