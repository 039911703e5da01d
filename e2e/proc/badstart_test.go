package proc

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/runnelmq/runnel/internal/freeport"
)

// refused starts a node that must not come up, and returns what it says.
func refused(t *testing.T, d Dev) string {
	t.Helper()
	n, err := LaunchDev(t.Context(), binary(t), d)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Kill()
	give := time.NewTimer(30 * time.Second)
	defer give.Stop()
	select {
	case <-n.Exited():
	case <-give.C:
		t.Fatalf("it goes on running; its log ends\n%s", n.Log())
	}
	if n.Code() <= 0 {
		t.Errorf("exit code %d, want one above 0", n.Code())
	}
	return n.Log()
}

// says wants a message that a person can act on: words that tell what is
// wrong, and no stack of a panic.
func says(t *testing.T, log string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(log, w) {
			t.Errorf("want %q in the log, which is\n%s", w, log)
		}
	}
	for _, bad := range []string{"panic:", "goroutine "} {
		if strings.Contains(log, bad) {
			t.Errorf("it panicked:\n%s", log)
		}
	}
}

func TestBadStart_occupiedPort(t *testing.T) {
	t.Parallel()
	n := dev(t, Dev{})
	for name, args := range map[string][]string{
		"client": {"--listen", n.Client},
		"admin":  {"--admin", n.Admin},
	} {
		t.Run(name, func(t *testing.T) {
			says(t, refused(t, Dev{Data: t.TempDir(), Args: args}), args[1], "in use", args[0])
		})
	}
}

func TestBadStart_dataInUse(t *testing.T) {
	t.Parallel()
	n := dev(t, Dev{})
	says(t, refused(t, Dev{Data: n.Data}), n.Data, "in use")
	n.cli(t, "cluster", "health")
}

// The logs of one cluster below the metadata of another would be taken for
// nobody's, or for somebody else's.
func TestBadStart_dataOfAnotherCluster(t *testing.T) {
	t.Parallel()
	var dirs [2]string
	for i := range dirs {
		n := dev(t, Dev{})
		n.cli(t, "topic", "create", "mine", "--partitions", "1")
		write(t, n, "mine", "a\nb\n")
		n.stop(t)
		dirs[i] = n.Data
	}
	mixed := t.TempDir()
	for dir, part := range map[string]string{dirs[0]: "controller", dirs[1]: "broker"} {
		if err := os.Rename(filepath.Join(dir, part), filepath.Join(mixed, part)); err != nil {
			t.Fatal(err)
		}
	}
	before := listing(t, mixed+"/broker")
	says(t, refused(t, Dev{Data: mixed}), "cluster")
	if after := listing(t, mixed+"/broker"); after != before {
		t.Errorf("the refused start changed the other cluster's files from\n%s\nto\n%s", before, after)
	}
}

// A folder that can't be written, as one that belongs to somebody else, is told
// with what to do (OP-10).
func TestBadStart_dataNotWritable(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	says(t, refused(t, Dev{Data: filepath.Join(file, "data")}), file, "--data", "uid "+strconv.Itoa(os.Getuid()))
	if os.Getuid() == 0 {
		return // who may write everywhere
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o500); err != nil { //nolint:gosec // a folder
		t.Fatal(err)
	}
	says(t, refused(t, Dev{Data: dir}), dir, "permission", "--data")
}

// listing returns the names and sizes of the log files below dir.
func listing(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".log" {
			return err
		}
		info, err := d.Info()
		if err == nil {
			out.WriteString(path + " " + info.ModTime().String() + "\n")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if out.Len() == 0 {
		t.Fatalf("no log files in %s", dir)
	}
	return out.String()
}

func TestBadStart_configuration(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "typo.yaml")
	if err := os.WriteFile(file, []byte("id: 1\nlisten:\n  cleint: 127.0.0.1:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"unknown option":        {[]string{"broker", "--set", "id=1", "--set", "storage.reserve=1GiB"}, []string{"storage.reserve"}},
		"unknown key in a file": {[]string{"broker", "--config", file}, []string{"cleint", "typo.yaml:3"}},
		"no such file":          {[]string{"broker", "--config", file + ".gone"}, []string{"typo.yaml.gone"}},
		"no id":                 {[]string{"broker"}, []string{"id"}},
		"a value without unit":  {[]string{"broker", "--set", "id=1", "--set", "storage.reserve_bytes=5"}, []string{"storage.reserve_bytes", "unit"}},
		"contradiction": {
			[]string{"broker", "--set", "id=1", "--set", "shutdown.timeout=1s", "--set", "shutdown.hand_over_timeout=10s"},
			[]string{"shutdown.hand_over_timeout"},
		},
		"open internal port": {
			[]string{"broker", "--set", "id=1", "--set", "listen.internal=10.1.2.3:7421"},
			[]string{"listen.internal", "security.cluster_secret"},
		},
		"bind-all address advertised": { // OP-10
			[]string{"broker", "--set", "id=1", "--set", "listen.client=0.0.0.0:7420"},
			[]string{"listen.advertised_client"},
		},
		"bind-all address, IPv6": {
			[]string{"dev", "--listen", "[::]:7420"},
			[]string{"listen.advertised_client"},
		},
		"bind-all address told": {
			[]string{"dev", "--listen", "0.0.0.0:7420", "--set", "broker.listen.advertised_client=0.0.0.0:7420"},
			[]string{"listen.advertised_client", "can't be reached"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := Do(binary(t).Command(t.Context(), c.args...))
			if err != nil {
				t.Fatal(err)
			}
			if r.Code != 2 {
				t.Errorf("exit code %d, want 2", r.Code)
			}
			says(t, r.Stderr, c.want...)
		})
	}
}

// A node that listens everywhere tells clients the name it was given, as in a
// container (OP-10).
func TestBindAllAdvertises(t *testing.T) {
	t.Parallel()
	n := dev(t, Dev{Env: []string{"RUNNEL_DEV_BROKER_LISTEN_ADVERTISED_CLIENT=node.example:7420"}, Everywhere: true})
	got := n.cli(t, "broker", "list")
	if !strings.Contains(got, "node.example:7420") || strings.Contains(got, "0.0.0.0") {
		t.Errorf("told to clients:\n%s", got)
	}
	n.cli(t, "topic", "create", "mapped")
	write(t, n, "mapped", "x\n")
	if got := n.cli(t, "consume", "mapped", "--exit-at-end"); got != "x\n" {
		t.Errorf("read %q", got)
	}
}

// All of a node works over IPv6 (OP-09).
func TestIPv6(t *testing.T) {
	t.Parallel()
	at := net.JoinHostPort("::1", must[[]string](t)(freeport.Take(t.Context(), 1))[0])
	var lc net.ListenConfig
	lis, err := lc.Listen(t.Context(), "tcp", at)
	if err != nil {
		t.Skipf("no IPv6 here: %v", err)
	}
	if err := lis.Close(); err != nil {
		t.Fatal(err)
	}
	n := dev(t, Dev{Args: []string{
		"--listen", at, "--set", "broker.listen.internal=[::1]:0", "--set", "controller.listen.controller=[::1]:0",
		"--set", "controller.etcd.client=[::1]:0", "--set", "controller.etcd.peer=[::1]:0",
	}})
	n.Client = at
	n.cli(t, "topic", "create", "six")
	write(t, n, "six", "x\n")
	if got := n.cli(t, "consume", "six", "--exit-at-end"); got != "x\n" {
		t.Errorf("read %q", got)
	}
	if got := n.cli(t, "broker", "list"); !strings.Contains(got, at) {
		t.Errorf("want %s told to clients in\n%s", at, got)
	}
}

// The image of a container holds a configuration that is right, but for the
// name that its user must give (OP-10).
func TestDockerfile(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "deployments", "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	var args, env []string
	for line := range strings.Lines(string(b)) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case "ENV":
			env = append(env, rest)
		case "CMD":
			if err := json.Unmarshal([]byte(rest), &args); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
		}
	}
	cmd := binary(t).Command(t.Context(), append(args, "--check-config")...)
	cmd.Env = append(os.Environ(), env...)
	if r, err := Do(cmd); err != nil || r.Code != 0 || len(env) == 0 || len(args) == 0 {
		t.Errorf("%v %v: exit code %d, %v\n%s", env, args, r.Code, err, r.Stderr)
	}
}

// The example configurations load.
func TestDeploymentsLoad(t *testing.T) {
	for _, process := range []string{"broker", "controller"} {
		r, err := Do(binary(t).Command(t.Context(), process, "--config", filepath.Join("..", "..", "deployments", process+".yaml"), "--check-config"))
		if err != nil {
			t.Fatal(err)
		}
		if r.Code != 0 {
			t.Errorf("deployments/%s.yaml: exit code %d\n%s%s", process, r.Code, r.Stdout, r.Stderr)
		}
	}
}

// stopsWithin is what an idle node has for its end, less than it would give calls
// that do not end.
const stopsWithin = 20 * time.Second

func TestCleanStop(t *testing.T) {
	t.Parallel()
	n := dev(t, Dev{})
	n.cli(t, "topic", "create", "kept", "--partitions", "3")
	write(t, n, "kept", "a\nb\nc\n")
	for range 3 {
		begin := time.Now()
		n.stop(t)
		if took := time.Since(begin); took > stopsWithin {
			t.Errorf("an idle node took %v to stop", took)
		}
		n.restart(t)
		if got := strings.Count(n.cli(t, "consume", "kept", "--exit-at-end"), "\n"); got != 3 {
			t.Errorf("%d records after a restart, want 3", got)
		}
	}
}

// write produces lines by the command line.
func write(t *testing.T, n *Node, topic, lines string) {
	t.Helper()
	cmd := n.command(t, "produce", topic)
	cmd.Stdin = strings.NewReader(lines)
	if r := n.try(t, cmd); r.Code != 0 {
		t.Fatalf("produce: exit code %d\n%s", r.Code, r.Stderr)
	}
}
