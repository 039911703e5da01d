package proc

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience is the --timeout of the commands below, and late by how much they
// may miss it: less than who waits for two things in turn would.
const (
	patience = 4 * time.Second
	late     = patience * 3 / 4
)

// What an operator types at a cluster.
func TestCLI_cluster(t *testing.T) {
	g := cluster(t, Cluster{Controllers: 1, Brokers: 3, ControllerSet: []string{"cluster.fast_fencing=false"}})
	t.Run("agreement", agreement(g))
	here := g.Brokers[0]
	here.cli(t, "topic", "create", "watched", "--partitions", "3", "--replication-factor", "3")
	write(t, here, "watched", "x\n")
	here.cli(t, "consume", "watched", "--group", "watchers", "--exit-at-end")
	t.Run("missing broker", missingBroker(g))
	t.Run("metrics", metricsInDocs(g)) // of elections and groups, too
}

// agreed bounds the time until every broker gives the same answer, of which each
// takes a process.
const agreed = 10 * time.Second

// All brokers describe a topic alike soon after each change, with the epochs
// that tell which picture is newer, and a change that hurts nobody shows
// nothing under-replicated (AD-12).
func agreement(g *Group) func(t *testing.T) {
	return func(t *testing.T) {
		here := g.Brokers[0]
		same := func(what string, ok func(Result) bool) {
			t.Helper()
			changed := time.Now()
			for {
				answers := map[string]bool{}
				right := true
				var last Result
				for _, b := range g.Brokers {
					last = b.try(t, b.command(t, "topic", "describe", "moved", "--format", "json"))
					answers[last.Stdout] = true
					right = right && ok(last)
				}
				switch {
				case len(answers) == 1 && right:
					return
				case time.Since(changed) > agreed:
					t.Fatalf("%s: %d different answers after %v, the last\n%s%s", what, len(answers), time.Since(changed), last.Stdout, last.Stderr)
				}
			}
		}
		has := func(partitions int) func(Result) bool {
			return func(r Result) bool {
				var d struct {
					ID         string
					Partitions []struct {
						Leader         int
						LeaderEpoch    int64 `json:"leader_epoch"`
						PartitionEpoch int64 `json:"partition_epoch"`
						Replicas, ISR  []int
					}
				}
				if json.Unmarshal([]byte(r.Stdout), &d) != nil || d.ID == "" || len(d.Partitions) != partitions {
					return false
				}
				for _, p := range d.Partitions {
					if p.Leader == 0 || p.LeaderEpoch == 0 || p.PartitionEpoch == 0 || len(p.ISR) != 3 || len(p.Replicas) != 3 {
						return false
					}
				}
				return true
			}
		}
		here.cli(t, "topic", "create", "moved", "--partitions", "3", "--replication-factor", "3")
		same("created", has(3))
		here.cli(t, "topic", "add-partitions", "moved", "--to", "5")
		same("widened", has(5))
		here.cli(t, "topic", "alter", "moved", "--config", "retention.ms=12345")
		same("configured", func(r Result) bool { return strings.Contains(r.Stdout, "12345") && has(5)(r) })
		if got := here.cli(t, "partition", "list", "--under-replicated", "--format", "json"); strings.TrimSpace(got) != "[]" {
			t.Errorf("under-replicated: %s", got)
		}
		here.cli(t, "topic", "delete", "moved")
		same("deleted", func(r Result) bool {
			return r.Code == 1 && r.Stdout == "" && strings.Contains(r.Stderr, "TOPIC_NOT_FOUND")
		})
	}
}

// The metrics that operators are told to look at exist under those names, once
// records were written, read and copied.
func metricsInDocs(g *Group) func(t *testing.T) {
	return func(t *testing.T) {
		page := string(must[[]byte](t)(os.ReadFile(filepath.Join("..", "..", "docs", "operations.md"))))
		_, page, _ = strings.Cut(page, "\n## Metrics\n")
		page, _, _ = strings.Cut(page, "\n## ")
		rows := regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(page, -1)
		if len(rows) < 10 {
			t.Fatalf("the table has %d rows", len(rows))
		}
		eventually(t, "each metric that docs/operations.md names is there", func() bool {
			have := metricsOf(t, g)
			return !slices.ContainsFunc(rows, func(row []string) bool {
				if row[1] == "consumer_group_uncommitted_partitions" || row[1] == "consumer_group_beyond_end_partitions" {
					return false // of groups that have such partitions only
				}
				missing := !strings.Contains(have, "\n# TYPE runnel_"+row[1]+" ")
				if missing {
					t.Logf("no /metrics has %s", row[1])
				}
				return missing
			})
		})
	}
}

// metricsOf returns what all of a cluster's /metrics say.
func metricsOf(t *testing.T, g *Group) string {
	t.Helper()
	have := ""
	for _, n := range g.All() {
		req := must[*http.Request](t)(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+n.Admin+"/metrics", http.NoBody))
		resp := must[*http.Response](t)(http.DefaultClient.Do(req))
		have += "\n" + string(must[[]byte](t)(io.ReadAll(resp.Body)))
		_ = resp.Body.Close()
	}
	return have
}

// A command that can't be done while a broker is missing ends by --timeout,
// fails, and names the broker (AD-10). With a replica count that can't be had,
// both numbers are said (AD-06).
func missingBroker(g *Group) func(t *testing.T) {
	return func(t *testing.T) {
		here, missing := g.Brokers[0], g.Brokers[2]
		here.cli(t, "topic", "create", "spread", "--partitions", "3", "--replication-factor", "1")
		here.cli(t, "topic", "create", "three", "--replication-factor", "3")
		lost := ledBy(t, here, "spread", 3)
		if err := missing.Pause(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = missing.Resume() }()

		// Nobody has noticed yet.
		rs := inTime(t, here,
			typed{[]string{"topic", "describe", "spread"}, 1, "broker 3"},
			typed{[]string{"topic", "list", "--brokers", missing.Client}, 3, missing.Client})
		if !strings.Contains(rs[0].Stdout, "broker 3") {
			t.Errorf("describe tells of the others only\n%s", rs[0].Stdout)
		}
		eventually(t, "the broker is fenced", func() bool {
			return strings.Contains(here.cli(t, "broker", "list"), "fenced")
		})
		inTime(t, here,
			typed{[]string{"produce", "spread", "--partition", lost}, 3, "waits for broker 3"},
			typed{[]string{"consume", "spread", "--partition", lost, "--exit-at-end"}, 3, "waits for broker 3"},
			typed{[]string{"topic", "describe", "spread"}, 1, "waits for broker 3"},
			typed{[]string{"topic", "create", "another", "--replication-factor", "3"}, 1, "2 at present; not in service: broker 3"},
			typed{[]string{"topic", "add-partitions", "three", "--to", "2"}, 1, "not in service: broker 3"},
			typed{[]string{"cluster", "health"}, 1, "broker 3"})
		inTime(t, here, typed{[]string{"topic", "delete", "three"}, 0, "deleted"})
	}
}

// typed is a command, and what it must end with.
type typed struct {
	args []string
	code int
	want string
}

// inTime runs commands side by side, which must end by --timeout.
func inTime(t *testing.T, n *Node, commands ...typed) []Result {
	t.Helper()
	var all sync.WaitGroup
	results, errs, took := make([]Result, len(commands)), make([]error, len(commands)), make([]time.Duration, len(commands))
	for i, c := range commands {
		cmd := n.command(t, append(c.args, "--timeout", patience.String())...)
		cmd.Stdin = strings.NewReader("x\n")
		all.Go(func() {
			begun := time.Now()
			results[i], errs[i] = Do(cmd)
			took[i] = time.Since(begun)
		})
	}
	all.Wait()
	for i, c := range commands {
		if r := results[i]; errs[i] != nil || r.Code != c.code || !strings.Contains(r.Stdout+r.Stderr, c.want) {
			t.Errorf("%v: exit code %d, want %d and %q in\n%s%s\n%v", c.args, r.Code, c.code, c.want, r.Stdout, r.Stderr, errs[i])
		}
		if took[i] > patience+late {
			t.Errorf("%v took %v", c.args, took[i])
		}
	}
	return results
}

// ledBy returns the number of a partition that a broker leads.
func ledBy(t *testing.T, n *Node, topic string, broker int) string {
	t.Helper()
	for line := range strings.Lines(n.cli(t, "partition", "list", "--leader", strconv.Itoa(broker))) {
		if name, _, _ := strings.Cut(line, " "); strings.HasPrefix(name, topic+"/") {
			return strings.TrimPrefix(name, topic+"/")
		}
	}
	t.Fatalf("broker %d leads nothing of %s", broker, topic)
	return ""
}
