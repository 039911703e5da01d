package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runnelmq/runnel/client"
)

// A result is what a command has left.
type result struct {
	code     int
	out, err string
}

func cli(t *testing.T, in string, args ...string) result {
	t.Helper()
	var out, errs bytes.Buffer
	code := run(t.Context(), args, terminal{in: strings.NewReader(in), out: &out, err: &errs, getenv: func(string) string { return "" }})
	return result{code, out.String(), errs.String()}
}

// Mistakes are told apart from failures, and each error says what to do.
func TestMistakes(t *testing.T) {
	nobody := "127.0.0.1:1" // a port nobody listens on
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no such command":      {[]string{"tpoic"}, exitUsage, `no command "runnel tpoic"`},
		"a command's typo":     {[]string{"topic", "crate"}, exitUsage, `no command "runnel topic crate": did you mean create?`},
		"version":              {[]string{"version"}, exitUsage, "did you mean --version?"},
		"an option as a flag":  {[]string{"broker", "--id", "1"}, exitUsage, "as --set id=VALUE"},
		"no etcd":              {[]string{"controller", "members", "--etcd-endpoints", nobody}, exitTimeout, "no member of etcd can be reached: dial tcp 127.0.0.1:1: connect"},
		"no etcd, what to do":  {[]string{"controller", "remove", "x", "--etcd-endpoints", nobody}, exitTimeout, "Check that a controller runs there"},
		"no such subcommand":   {[]string{"topic", "make"}, exitUsage, `no command "runnel topic make"`},
		"no such flag":         {[]string{"topic", "list", "--wrong"}, exitUsage, "--help"},
		"missing name":         {[]string{"topic", "create"}, exitUsage, "NAME is missing"},
		"too many":             {[]string{"topic", "delete", "a", "b"}, exitUsage, `"b" is one argument too many: want NAME`},
		"none wanted":          {[]string{"broker", "list", "b"}, exitUsage, `"b" is one argument too many: want none`},
		"bytes for a name":     {[]string{"topic", "create", "a\xff"}, exitUsage, `NAME "a\xff": it is not valid UTF-8`},
		"bytes for a topic":    {[]string{"produce", "a\xff"}, exitUsage, `TOPIC "a\xff": it is not valid UTF-8`},
		"format":               {[]string{"topic", "list", "--format", "xml"}, exitUsage, "want text or json"},
		"timeout":              {[]string{"topic", "list", "--timeout", "0s"}, exitUsage, "want more than 0"},
		"brokers":              {[]string{"topic", "list", "--brokers", "::1"}, exitUsage, `"::1"`},
		"config":               {[]string{"topic", "create", "a", "--config", "x"}, exitUsage, "want key=value"},
		"config twice":         {[]string{"topic", "create", "a", "--config", "x=1", "--config", "x=2"}, exitUsage, "given twice"},
		"nothing to alter":     {[]string{"topic", "alter", "a"}, exitUsage, "nothing to change"},
		"a word for a number":  {[]string{"topic", "create", "a", "--partitions", "zero"}, exitUsage, `--partitions "zero": want a whole number`},
		"a number for a time":  {[]string{"topic", "list", "--timeout", "5"}, exitUsage, `--timeout "5": want a time with its unit`},
		"compression level":    {[]string{"produce", "a", "--compression", "gzip", "--compression-level", "99"}, exitUsage, "gzip: it has no level 99: want 1 to 9"},
		"no levels":            {[]string{"produce", "a", "--compression", "snappy", "--compression-level", "3"}, exitUsage, "snappy: it has no levels"},
		"a folder of its own":  {[]string{"dev", "--set", "controller.data_dir=/x", "--check-config"}, exitUsage, `controller.data_dir "/x": a node keeps all its data in one folder, here ./runnel-data: name another with --data`},
		"both kinds of folder": {[]string{"dev", "--set", "broker.data_dir=/x", "--data", "/y", "--print-config"}, exitUsage, "--data"},
		"another's controller": {[]string{"dev", "--set", "broker.controllers=10.0.0.1:7422", "--check-config"}, exitUsage, "broker.controllers"},
		"acks":                 {[]string{"produce", "a", "--acks", "some"}, exitUsage, "want all, leader or none"},
		"compression":          {[]string{"produce", "a", "--compression", "rar"}, exitUsage, "want zstd"},
		"separator":            {[]string{"produce", "a", "--key-separator", `\q`}, exitUsage, "no escape"},
		"partition":            {[]string{"produce", "a", "--partition", "-3"}, exitUsage, "the first is 0"},
		"file":                 {[]string{"produce", "a", "--file", "/no/such/file"}, exitFailed, "no such file"},
		"from":                 {[]string{"consume", "a", "--from", "soon"}, exitUsage, "want earliest, latest"},
		"from a time":          {[]string{"consume", "a", "--from", "@noon"}, exitUsage, "@2026-01-31T12:00:00Z"},
		"print":                {[]string{"consume", "a", "--print", "%q"}, exitUsage, "%q"},
		"count":                {[]string{"consume", "a", "--count", "0"}, exitUsage, "want 1 or more"},
		"bench":                {[]string{"bench", "produce", "--producers", "0"}, exitUsage, "want 1 to 1000"},
		"no such broker":       {[]string{"partition", "list", "--leader", "-2"}, exitUsage, "runnel broker list"},
		"recover what":         {[]string{"partition", "recover", "orders"}, exitUsage, "want TOPIC/PARTITION"},
		"recover which":        {[]string{"partition", "recover", "orders/-1"}, exitUsage, "the first partition is 0"},
		"recover from whom":    {[]string{"partition", "recover", "orders/1", "--from", "-2"}, exitUsage, "runnel broker list"},
		"fence whom":           {[]string{"broker", "fence", "two"}, exitUsage, "runnel broker list"},
		"an argument for all":  {[]string{"broker", "lst", "--set", "id=1"}, exitUsage, "lst"},
		"nobody there":         {[]string{"topic", "list", "--brokers", nobody}, exitTimeout, "runnel dev"},
		"nobody to read from":  {[]string{"consume", "a", "--brokers", nobody, "--timeout", "300ms"}, exitTimeout, nobody},
		"log":                  {[]string{"log", "verify", "/no/such/path"}, exitFailed, "no such file"},
		"broker configuration": {[]string{"broker", "--check-config"}, exitUsage, "id"},
		"broker log level":     {[]string{"broker", "--set", "id=1", "--set", "logging.level=loud", "--check-config"}, exitUsage, "logging.level"},
		"broker log format":    {[]string{"broker", "--set", "id=1", "--set", "logging.format=xml", "--check-config"}, exitUsage, "logging.format"},
		"controller log level": {[]string{"controller", "--set", "logging.level=loud", "--check-config"}, exitUsage, "logging.level"},
		"dev's log format":     {[]string{"dev", "--set", "broker.logging.format=xml", "--check-config"}, exitUsage, "logging.format"},
		"unknown option":       {[]string{"dev", "--set", "broker.wrong=1", "--check-config"}, exitUsage, "broker.wrong"},
	} {
		t.Run(name, func(t *testing.T) {
			r := cli(t, "", c.args...)
			if r.code != c.code || !strings.Contains(r.err, c.want) || r.out != "" {
				t.Errorf("exit code %d, want %d; want %q in\n%s%s", r.code, c.code, c.want, r.err, r.out)
			}
		})
	}
}

// When nobody listens, everything says so at once (AD-10), however long --timeout
// is; when somebody listens and never answers, when --timeout has passed.
func TestNobodyAnswers(t *testing.T) {
	var lc net.ListenConfig
	mute, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	for _, args := range [][]string{
		{"produce", "t"},
		{"consume", "t"},
		{"topic", "list"},
		{"topic", "create", "t"},
		{"topic", "describe", "t"},
		{"topic", "delete", "t"},
		{"topic", "delete-records", "t", "--before", "latest", "--yes"},
		{"cluster", "describe"},
		{"cluster", "health"},
		{"partition", "recover", "t/0", "--yes"},
		{"broker", "fence", "1", "--yes"},
		{"bench", "produce"},
		{"bench", "consume"},
	} {
		for addr, timeout := range map[string]string{"127.0.0.1:1": "2m", mute.Addr().String(): "400ms"} {
			begun := time.Now()
			r := cli(t, "one\ntwo\n", append(args, "--brokers", addr, "--timeout", timeout)...)
			if took := time.Since(begun); took > time.Minute {
				t.Errorf("%v at %s took %v", args, addr, took)
			}
			if r.code != exitTimeout || !strings.Contains(r.err, addr) && !strings.Contains(r.err, timeout) {
				t.Errorf("%v at %s: exit code %d\n%s", args, addr, r.code, r.err)
			}
		}
	}
}

// Hints can be typed as they are, however the program was called.
func TestHintsNameTheProgram(t *testing.T) {
	for _, name := range []string{"bin/runnel", "/opt/runnel"} {
		var errs bytes.Buffer
		run(t.Context(), []string{"topic", "list", "--brokers", "127.0.0.1:1"}, terminal{
			in: strings.NewReader(""), out: io.Discard, err: &errs, getenv: func(string) string { return "" }, name: name,
		})
		if !strings.Contains(errs.String(), ": "+name+" dev\n") {
			t.Errorf("want %s dev in\n%s", name, errs.String())
		}
	}
}

// An interrupt ends the wait for a line that never comes, and nothing that was
// read before is lost.
func TestBreakable(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if _, err := w.WriteString("one\n"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	l := newLines(breakable{ctx, r}, 100)
	if b, err := l.next(); err != nil || string(b) != "one" {
		t.Fatalf("%q, %v", b, err)
	}
	defer time.AfterFunc(10*time.Millisecond, cancel).Stop()
	if b, err := l.next(); !errors.Is(err, errInterrupted) {
		t.Errorf("%q, %v; want an interrupt", b, err)
	}
}

func TestServerFlags(t *testing.T) {
	for _, server := range []string{"dev", "broker", "controller"} {
		r := cli(t, "", server, "--print-config", "--set", map[string]string{"dev": "broker.id=7", "broker": "id=7", "controller": "cluster.name=seven"}[server])
		if r.code != 0 || !strings.Contains(r.out, "seven") && !strings.Contains(r.out, "id: 7") {
			t.Errorf("%s --print-config: exit code %d\n%s%s", server, r.code, r.out, r.err)
		}
		if r := cli(t, "", server, "--version"); r.code != 0 || !strings.HasPrefix(r.out, "runnel ") {
			t.Errorf("%s --version: %d %q", server, r.code, r.out)
		}
		// What was printed is a configuration.
		file := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(file, []byte(r.out), 0o600); err != nil {
			t.Fatal(err)
		}
		if r := cli(t, "", server, "--config", file, "--check-config"); r.code != 0 {
			t.Errorf("%s --check-config: exit code %d\n%s", server, r.code, r.err)
		}
	}
	r := cli(t, "", "dev", "--print-config", "--data", "/d", "--listen", "127.0.0.1:1", "--admin", "")
	for _, want := range []string{"/d/controller", "/d/broker", "client: 127.0.0.1:1", `admin: ""`} {
		if !strings.Contains(r.out, want) {
			t.Errorf("dev --print-config has no %q\n%s", want, r.out)
		}
	}
}

func TestLines(t *testing.T) {
	long := strings.Repeat("x", 300<<10)
	in := "a\n\n" + long + "\n" + long + long + "\nb\r\nlast"
	l := newLines(strings.NewReader(in), 400<<10)
	type line struct {
		N    int64
		Text string
	}
	var got []line
	for {
		b, err := l.next()
		if errors.Is(err, errLineTooLong) {
			got = append(got, line{l.n, "too long"})
			continue
		}
		if err != nil {
			break
		}
		got = append(got, line{l.n, string(b)})
	}
	want := []line{{1, "a"}, {2, ""}, {3, long}, {4, "too long"}, {5, "b\r"}, {6, "last"}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if l.read != int64(len(in)) {
		t.Errorf("read %d bytes, want %d", l.read, len(in))
	}
}

func TestTemplate(t *testing.T) {
	r := client.Record{
		Topic: "t", Partition: 3, Offset: 42, Timestamp: time.UnixMilli(1_700_000_000_123), Key: nil, Value: []byte("v\xff"),
		Headers: []client.Header{{Key: "a", Value: []byte("1")}, {Key: "b"}},
	}
	for format, want := range map[string]string{
		"%v": "v\xff\n", `%t/%p\t%o%%`: "t/3\t42%\n", "%T": "2023-11-14T22:13:20.123Z\n", "[%k]": "[-]\n", "%h": "a=1,b=-\n", `\x41\\`: "A\\\n",
	} {
		p, err := parseTemplate(format, "-")
		if err != nil {
			t.Fatal(err)
		}
		if got := string(p.append(nil, &r)); got != want {
			t.Errorf("%q prints %q, want %q", format, got, want)
		}
	}
	for _, bad := range []string{"%", "%z", `\`, `\x4`, `\xzz`} {
		if _, err := parseTemplate(bad, ""); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
	line, err := appendJSON(nil, &r)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(line, &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"topic": "t", "partition": 3.0, "offset": 42.0, "timestamp": "2023-11-14T22:13:20.123Z", "key": nil, "value": nil, "value_base64": "dv8=",
		"headers": []any{map[string]any{"key": "a", "value": "1"}, map[string]any{"key": "b", "value": nil}},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestProgressLine(t *testing.T) {
	got := progressLine(512<<10, 1<<20, 1000, 2*time.Second)
	if want := "[###############...............]  50%  1000 records, 512.0 KiB, 500/s"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := progressLine(10, 0, 1, time.Second); got != "1 record, 10 B, 1/s" {
		t.Errorf("%q", got)
	}
}

func TestInterruptedContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errs bytes.Buffer
	code := run(ctx, []string{"topic", "list", "--brokers", "127.0.0.1:1"}, terminal{in: strings.NewReader(""), out: &out, err: &errs, getenv: func(string) string { return "" }})
	if code == exitOK {
		t.Error("a command whose context has ended succeeded")
	}
}
