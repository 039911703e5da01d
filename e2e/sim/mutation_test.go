package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// A mutation takes one rule out of the sources: out of all places that keep it,
// where a second one would stand in for the first.
type mutation struct {
	name string
	// story is the test that must notice; "": any story or random run, within
	// mutationSeeds.
	story string
	edits []edit
}

// An edit changes a source file.
type edit struct {
	file string // from the root of the module
	old  string // occurs once
	with string
}

const (
	// mutationSeeds is how many random runs a mutation may live, unless
	// RUNNEL_SOAK_SEEDS says otherwise.
	mutationSeeds = "40"
	// mutationTries is how often a story is played: the order in which
	// goroutines run is not the story's.
	mutationTries = "3"
	// mutantTime bounds the runs of a mutant. One may stand still.
	mutantTime = 5 * time.Minute
)

// The simulation bites: each rule that is taken out makes it fail. Every run
// checks that the mutations still fit the sources. RUNNEL_SIM_MUTATIONS=all
// tries them, which takes minutes, or those with a part of a name.
func TestMutations(t *testing.T) {
	which := os.Getenv("RUNNEL_SIM_MUTATIONS")
	for _, m := range mutations() {
		t.Run(m.name, func(t *testing.T) {
			sources := m.apply(t)
			switch {
			case t.Failed():
			case which == "", which != "all" && !strings.Contains(m.name, which):
				t.Skip("it fits, and was not asked for")
			default:
				m.test(t, sources)
			}
		})
	}
}

// apply returns the files as they are with the mutation, by path.
func (m mutation) apply(t *testing.T) map[string]string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, e := range m.edits {
		path := filepath.Join(root, filepath.FromSlash(e.file))
		source, ok := files[path]
		if !ok {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			source = string(b)
		}
		if n := strings.Count(source, e.old); n != 1 {
			t.Errorf("%s holds %d of what is to be replaced: the mutation is out of date:\n%s", e.file, n, e.old)
		}
		files[path] = strings.Replace(source, e.old, e.with, 1)
	}
	return files
}

// build compiles this package over the mutated files.
func build(t *testing.T, files map[string]string) (binary string) {
	t.Helper()
	dir := t.TempDir()
	replace := map[string]string{}
	for path, source := range files {
		mutant := filepath.Join(dir, strings.ReplaceAll(strings.TrimLeft(path, "/"), "/", "_"))
		if err := os.WriteFile(mutant, []byte(source), 0o600); err != nil {
			t.Fatal(err)
		}
		replace[path] = mutant
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	binary = filepath.Join(dir, "sim.test")
	if out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-overlay", list, "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("the mutant does not build: %v\n%s", err, out)
	}
	return binary
}

var violation = regexp.MustCompile(`VIOLATED .*`)

func (m mutation) test(t *testing.T, files map[string]string) {
	t.Helper()
	binary := build(t, files)
	seeds := os.Getenv("RUNNEL_SOAK_SEEDS")
	if seeds == "" {
		seeds = mutationSeeds
	}
	run, tries := "^Test(Clusters|Story.*)$", "1"
	if m.story != "" {
		run, tries = "^"+m.story+"$", mutationTries
	}
	ctx, cancel := context.WithTimeout(t.Context(), mutantTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-test.run", run, "-test.count", tries, "-test.failfast", "-test.v")
	cmd.Env = append(os.Environ(), "RUNNEL_SOAK_SEEDS="+seeds, "RUNNEL_SIM_SEED=", "RUNNEL_SIM_LOG_FILE=")
	out, err := cmd.CombinedOutput()
	if !bytes.Contains(out, []byte("=== RUN")) {
		t.Fatalf("%s did not run: %v\n%s", run, err, out)
	}
	if _, failed := errors.AsType[*exec.ExitError](err); !failed {
		t.Fatalf("%s did not notice: %v", run, err)
	}
	found := violation.FindAllString(string(out), -1)
	t.Logf("after %d runs: %s", bytes.Count(out, []byte("=== RUN")), strings.Join(found[:min(len(found), 3)], "\n"))
	if len(found) == 0 {
		t.Errorf("it failed otherwise:\n%s", out[max(0, len(out)-4000):])
	}
}
