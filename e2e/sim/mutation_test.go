package sim

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A mutation takes one protection out of a source file.
type mutation struct {
	name string
	file string // from the root of the module
	old  string // occurs once
	with string
}

// mutationSeeds is how many runs a mutation may live, unless RUNNEL_SOAK_SEEDS
// says otherwise.
const mutationSeeds = "40"

const (
	coreFile     = "broker/partition/core.go"
	isrFile      = "broker/partition/core_isr.go"
	leaderFile   = "broker/partition/core_leader.go"
	followerFile = "broker/partition/core_follower.go"
)

// mutations are those of the replication protocol that random faults show soon.
// The numbers are the protocol's. Others live through many runs, because a
// second protection stands behind the one taken out, or the moment they need is
// rare: the model of one partition, in broker/partition, is held to those.
func mutations() []mutation {
	return []mutation{
		{
			name: "hw-without-followers", file: coreFile,
			old: "		hw = min(hw, c.held(id))\n", with: "		_ = id\n",
		},
		{
			name: "5-6-joins-without-what-is-committed", file: isrFile,
			old: "has >= c.hw && has >= c.leso", with: "has >= 0",
		},
		{
			name: "12-an-ack-is-the-log-end", file: leaderFile,
			old: "	written := min(a.Written, c.own.written)\n", with: "	written := c.own.written\n",
		},
		{
			name: "proposals-do-not-hold-the-hw", file: coreFile,
			old: "	for _, p := range c.proposals {\n		sets = append(sets, p.isr)\n	}\n", with: "",
		},
		{
			name: "18-not-leader-for-what-was-appended", file: "broker/partition/wait.go",
			old: `return fmt.Errorf("%s: %w: %w", p, ErrCommitUncertain, opaque{why})`, with: `return fmt.Errorf("%s: %w: %w", p, ErrNotLeader, opaque{why})`,
		},
		{
			name: "a-power-cut-is-no-suspicion", file: "internal/commitlog/root_start.go",
			old: "	case r.boot != r.id.BootID:\n", with: "	case false:\n",
		},
		{
			name: "a-follower-is-not-cut", file: followerFile,
			old:  "		do = change{kind: truncate, to: min(end, a.End)}\n",
			with: "		do = change{kind: truncate, to: max(c.own.written, min(end, a.End))}\n",
		},
		{
			name: "suspect-copies-stay-electable", file: "controller/state/brokers.go",
			old: "		next.ISR, next.ELR = without(p.ISR, id), without(p.ELR, id)\n", with: "",
		},
		{
			name: "unsettled-leaders-answer", file: coreFile,
			old: "return c.role == leading && c.hw >= c.leso }", with: "return c.role == leading }",
		},
		{
			name: "elections-from-all-replicas", file: "controller/state/settle.go",
			old: "return i.electable(id) && slices.Contains(p.ELR, id) }", with: "return i.electable(id) }",
		},
	}
}

// The simulation bites: each protection that is taken out makes it fail. It
// takes minutes; RUNNEL_SIM_MUTATIONS=all runs it, or a part of a name.
func TestMutations(t *testing.T) {
	which := os.Getenv("RUNNEL_SIM_MUTATIONS")
	if which == "" {
		t.Skip("RUNNEL_SIM_MUTATIONS is not set")
	}
	for _, m := range mutations() {
		t.Run(m.name, func(t *testing.T) {
			if which != "all" && !strings.Contains(m.name, which) {
				t.Skip("not asked for")
			}
			m.test(t)
		})
	}
}

var violation = regexp.MustCompile(`VIOLATED .*`)

func (m mutation) test(t *testing.T) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root, filepath.FromSlash(m.file))
	source, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(source), m.old); n != 1 {
		t.Fatalf("%s holds %d of what is to be replaced: the mutation is out of date", m.file, n)
	}
	dir := t.TempDir()
	mutant, overlay, binary := filepath.Join(dir, "mutant.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "sim.test")
	replaced, err := json.Marshal(map[string]map[string]string{"Replace": {path: mutant}})
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{mutant: []byte(strings.Replace(string(source), m.old, m.with, 1)), overlay: replaced} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-overlay", overlay, "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("the mutant does not build: %v\n%s", err, out)
	}
	n := os.Getenv("RUNNEL_SOAK_SEEDS")
	if n == "" {
		n = mutationSeeds
	}
	cmd := exec.CommandContext(t.Context(), binary, "-test.run", "^Test(Clusters|Case.*)$", "-test.failfast", "-test.v")
	cmd.Env = append(os.Environ(), "RUNNEL_SOAK_SEEDS="+n, "RUNNEL_SIM_MUTATIONS=")
	out, err := cmd.CombinedOutput()
	if _, failed := errors.AsType[*exec.ExitError](err); !failed {
		t.Fatalf("%s runs did not notice: %v", n, err)
	}
	found := violation.FindAllString(string(out), -1)
	t.Logf("after %d runs: %s", strings.Count(string(out), "=== RUN"), strings.Join(found[:min(len(found), 3)], "\n"))
	if len(found) == 0 {
		t.Errorf("it failed otherwise:\n%s", out[max(0, len(out)-4000):])
	}
}
