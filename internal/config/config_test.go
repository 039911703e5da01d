package config

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

type sample struct {
	ID    int32    `yaml:"id" env:"ID"`
	Name  string   `yaml:"name" env:"NAME"`
	Peers []string `yaml:"peers" env:"PEERS"`
	Log   struct {
		Size  ByteSize `yaml:"size" env:"SIZE"`
		Every Duration `yaml:"every" env:"EVERY"`
		Sync  bool     `yaml:"sync" env:"SYNC"`
	} `yaml:"log" envPrefix:"LOG_"`
	Topics map[string]string `yaml:"topics" env:"TOPICS"`
	Key    Secret            `yaml:"key" env:"KEY"`
}

func defaults() sample {
	s := sample{ID: 1, Name: "default"}
	s.Log.Size, s.Log.Every = 64*MiB, Duration(time.Second)
	return s
}

func file(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestLayers(t *testing.T) {
	for name, c := range map[string]struct {
		file string
		env  map[string]string
		set  []string
		want func(*sample)
	}{
		"defaults":                  {want: func(*sample) {}},
		"an empty file":             {file: "# nothing\n", want: func(*sample) {}},
		"the file beats defaults":   {file: "name: file\nlog:\n  every: 250ms\n", want: func(s *sample) { s.Name = "file"; s.Log.Every = Duration(250 * time.Millisecond) }},
		"the environment beats it":  {file: "name: file", env: map[string]string{"R_NAME": "env", "R_LOG_SIZE": "1GiB"}, want: func(s *sample) { s.Name = "env"; s.Log.Size = GiB }},
		"set beats all":             {file: "id: 2", env: map[string]string{"R_ID": "3"}, set: []string{"id=4", "id=5"}, want: func(s *sample) { s.ID = 5 }},
		"set reaches inner options": {set: []string{"log.size=1MB", "log.sync=true"}, want: func(s *sample) { s.Log.Size = 1e6; s.Log.Sync = true }},
		"lists":                     {file: "peers: [a:1, 'b:2']", want: func(s *sample) { s.Peers = []string{"a:1", "b:2"} }},
		"lists in the environment":  {env: map[string]string{"R_PEERS": "a:1, [::1]:2"}, want: func(s *sample) { s.Peers = []string{"a:1", "[::1]:2"} }},
		"lists of IPv6 addresses":   {set: []string{"peers=[::1]:2,[::2]:3"}, want: func(s *sample) { s.Peers = []string{"[::1]:2", "[::2]:3"} }},
		"an IPv6 address last":      {set: []string{"peers=[::1]:2,[::2]"}, want: func(s *sample) { s.Peers = []string{"[::1]:2", "[::2]"} }},
		"lists as YAML":             {set: []string{"peers=[a:1, '[::1]:2']"}, want: func(s *sample) { s.Peers = []string{"a:1", "[::1]:2"} }},
		"maps":                      {set: []string{"topics=a=1, b.c=x=y"}, want: func(s *sample) { s.Topics = map[string]string{"a": "1", "b.c": "x=y"} }},
		"maps as YAML":              {set: []string{"topics={a: 1, b: 'x,y'}"}, want: func(s *sample) { s.Topics = map[string]string{"a": "1", "b": "x,y"} }},
		"strings are taken as they are": {
			set: []string{"name={a: b}", "key=x=y"}, want: func(s *sample) { s.Name = "{a: b}"; s.Key = "x=y" },
		},
		"other variables are none of ours": {env: map[string]string{"OTHER_ID": "9"}, want: func(*sample) {}},
	} {
		t.Run(name, func(t *testing.T) {
			got, want := defaults(), defaults()
			c.want(&want)
			src := Source{Prefix: "R_", Env: c.env, Set: c.set}
			if c.env == nil {
				src.Env = map[string]string{}
			}
			if c.file != "" {
				src.File = file(t, c.file)
			}
			if err := Load(&got, src); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestMistakesNameTheOption(t *testing.T) {
	for name, c := range map[string]struct {
		file string
		env  map[string]string
		set  []string
		want []string // each in the error
	}{
		"a typo in the file":            {file: "naem: x", want: []string{"c.yaml:1", "unknown option naem"}},
		"a typo below":                  {file: "log:\n  sze: 1MiB", want: []string{"c.yaml:2", "unknown option log.sze"}},
		"a forgotten group":             {set: []string{"every=1s"}, want: []string{"unknown option every", "did you mean log.every?"}},
		"other separators":              {set: []string{"log-every=1s"}, want: []string{"did you mean log.every?"}},
		"twice":                         {file: "id: 1\nid: 2", want: []string{"id"}},
		"a bare duration in the file":   {file: "log: {every: 20}", want: []string{"option log.every", `"20"`, "unit"}},
		"a bare duration in quotes":     {file: "log: {every: '20'}", want: []string{"option log.every", "unit"}},
		"a bare zero":                   {set: []string{"log.every=0"}, want: []string{"log.every", "unit"}},
		"a bare duration, environment":  {env: map[string]string{"R_LOG_EVERY": "20"}, want: []string{"R_LOG_EVERY", "log.every", "unit"}},
		"a bare size":                   {set: []string{"log.size=1024"}, want: []string{"log.size", `"1024"`, "unit"}},
		"a size in words":               {file: "log: {size: big}", want: []string{"log.size", "unit"}},
		"a negative size":               {set: []string{"log.size=-1MiB"}, want: []string{"log.size", "out of range"}},
		"a size beyond all":             {set: []string{"log.size=99999999TiB"}, want: []string{"log.size", "out of range"}},
		"a word for a number":           {env: map[string]string{"R_ID": "one"}, want: []string{"R_ID", "id"}},
		"a number too large":            {set: []string{"id=3000000000"}, want: []string{"--set id", "whole number from -2147483648 to 2147483647"}},
		"a word for a number, set":      {set: []string{"id=zero"}, want: []string{`--set id: "zero": want a whole number`}},
		"a word for a switch":           {file: "log: {sync: maybe}", want: []string{`log.sync: "maybe": want true or false`}},
		"text for a map":                {set: []string{"topics=a"}, want: []string{`--set topics: "a": want key=value`}},
		"no YAML for a map":             {set: []string{"topics={a"}, want: []string{`--set topics: "{a": want key=value`}},
		"text for a map in the file":    {file: "topics: a", want: []string{`option topics: "a": want`, "{key: value"}},
		"a mapping for a list":          {file: "peers: {a: b}", want: []string{"option peers: want a list"}},
		"a variable nobody knows":       {env: map[string]string{"R_LOG_SIZES": "1MiB"}, want: []string{"R_LOG_SIZES"}},
		"set without a value":           {set: []string{"id"}, want: []string{"--set id", "key=value"}},
		"a list where a mapping stands": {file: "- id", want: []string{"c.yaml:1", "mapping"}},
		"no YAML":                       {file: "id: [", want: []string{"c.yaml"}},
		"all at once":                   {file: "a: 1\nb: 2", set: []string{"c=3"}, want: []string{"option a", "option b", "option c"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := defaults()
			src := Source{Prefix: "R_", Env: c.env, Set: c.set}
			if c.env == nil {
				src.Env = map[string]string{}
			}
			if c.file != "" {
				src.File = file(t, c.file)
			}
			err := Load(&s, src)
			if err == nil {
				t.Fatalf("took it: %+v", s)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not say %q", err, w)
				}
			}
		})
	}
	s := defaults()
	if err := Load(&s, Source{File: "no-such-file.yaml", Env: map[string]string{}}); err == nil || !strings.Contains(err.Error(), "no-such-file.yaml") {
		t.Errorf("a missing file: %v", err)
	}
}

func TestPrintReadsBack(t *testing.T) {
	s := defaults()
	s.Log.Every, s.Log.Size, s.Peers = Duration(90*time.Minute), 3*KiB, []string{"[::1]:1"}
	s.Topics = map[string]string{"retention.ms": "1000"}
	s.Key = "hunter2"
	var out bytes.Buffer
	if err := Print(&out, s); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "hunter2") {
		t.Errorf("prints the secret:\n%s", out.String())
	}
	var back sample
	if err := Load(&back, Source{File: file(t, out.String()), Env: map[string]string{}}); err != nil {
		t.Fatal(err)
	}
	back.Key = s.Key
	if diff := cmp.Diff(s, back); diff != "" {
		t.Error(diff)
	}
}

func TestUnits(t *testing.T) {
	for text, want := range map[string]int64{"0B": 0, "1b": 1, "2KiB": 2048, "3 MiB": 3 << 20, "1GB": 1e9, "8TiB": 8 << 40, "1kb": 1000, "1TB": 1e12, "5MB": 5e6, "1GiB": 1 << 30} {
		var b ByteSize
		if err := b.UnmarshalText([]byte(text)); err != nil || int64(b) != want {
			t.Errorf("%q = %d, %v; want %d", text, b, err, want)
		}
		var back ByteSize
		if err := back.UnmarshalText([]byte(b.String())); err != nil || back != b {
			t.Errorf("%q reads back as %d, %v", b, back, err)
		}
	}
	for _, text := range []string{"", "1", "MiB", "1.5MiB", "1 MB 2", "1XB", "-1B", "9223372036854775807KiB", "99999999999999999999B"} {
		b := ByteSize(math.MinInt64)
		if err := b.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("ByteSize took %q as %d", text, b)
		}
	}
	for text, want := range map[string]time.Duration{"20s": 20 * time.Second, "10ms": 10 * time.Millisecond, "7d": 7 * 24 * time.Hour, "0s": 0, "-1s": -time.Second, "1h30m": 90 * time.Minute} {
		var d Duration
		if err := d.UnmarshalText([]byte(text)); err != nil || d.Std() != want {
			t.Errorf("%q = %v, %v; want %v", text, d, err, want)
		}
	}
	for _, text := range []string{"", "20", "0", "-1", "1.5", "d", "1.5d", "999999999d", "1y", "1 s"} {
		d := Duration(1)
		if err := d.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("Duration took %q as %v", text, d)
		}
	}
}

func TestStructsNeedTags(t *testing.T) {
	type noYAML struct{ A int }
	type noEnv struct {
		A int `yaml:"a"`
	}
	if _, err := Options(&noYAML{}); err == nil {
		t.Error("took a field without a yaml tag")
	}
	if _, err := Options(&noEnv{}); err == nil {
		t.Error("took a field without an env tag")
	}
}
