package proc

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/runnelmq/runnel/internal/pythontest"
)

// fenced returns the blocks of a page that are marked with a language: sh is what a newcomer types at a node.
func fenced(t *testing.T, page, language string) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", page))
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for _, part := range strings.Split(string(b), "```"+language+"\n")[1:] {
		block, _, _ := strings.Cut(part, "\n```")
		blocks = append(blocks, block)
	}
	return blocks
}

// prelude lets a shell that nobody types into behave as one that somebody does.
const prelude = `
shopt -s expand_aliases
runnel() { bin/runnel "$@"; }
grpcurl() { go tool -modfile=internal/tools/go.mod grpcurl "$@"; }
`

// The commands of the pages that a newcomer reads work as typed. Only the
// node's address differs, because tests share a machine.
func TestPagesWorkAsTyped(t *testing.T) {
	t.Parallel()
	const usual = "127.0.0.1:7420"
	for page, want := range map[string][]string{
		"README.md":               {"one", "two", "three", `"value": "hello"`},
		"docs/getting-started.md": {"alice: one apple", "bob: two pears", "alice: three plums", `"value": "hello"`, "runnel_"},
		"docs/groups.md":          {"one", "two", "three", "behind       0 records", `"offset": "1"`},
	} {
		t.Run(page, func(t *testing.T) {
			n := dev(t, Dev{})
			var out strings.Builder
			for _, block := range fenced(t, page, "sh") {
				if strings.HasPrefix(block, "make ") {
					continue // make dev is what runs already; make test is this
				}
				script := strings.NewReplacer(
					usual, n.Client,
					"127.0.0.1:7424", n.Admin,
					"bin/runnel ", string(binary(t))+" ",
					"runnel-data", n.Data,
				).Replace(prelude + block)
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
				cmd.Dir = filepath.Join("..", "..")
				cmd.Env = append(os.Environ(), "RUNNEL_BROKERS="+n.Client)
				r, err := Do(cmd)
				if err != nil || r.Code != 0 {
					t.Fatalf("%s\nexit code %d, %v\n%s%s", block, r.Code, err, r.Stdout, r.Stderr)
				}
				out.WriteString(r.Stdout)
			}
			for _, w := range want {
				if !strings.Contains(out.String(), w) {
					t.Errorf("want %q in the output\n%s", w, out.String())
				}
			}
		})
	}
}

// The Python of the page works as it stands there, with stubs made as it says.
func TestPagePythonWorks(t *testing.T) {
	t.Parallel()
	python := pythontest.Interpreter(t)
	const page = "docs/getting-started.md"
	n := dev(t, Dev{})
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "proto"), os.DirFS(filepath.Join("..", "..", "proto"))); err != nil {
		t.Fatal(err)
	}
	var last Result
	run := func(name string, args ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(python)+string(os.PathListSeparator)+os.Getenv("PATH"))
		var err error
		if last, err = Do(cmd); err != nil || last.Code != 0 {
			t.Fatalf("%s %q\nexit code %d, %v\n%s%s", name, args, last.Code, err, last.Stdout, last.Stderr)
		}
	}
	for _, block := range fenced(t, page, "bash") {
		run("bash", "-euo", "pipefail", "-c", block)
	}
	for _, block := range fenced(t, page, "python") {
		run(python, "-c", strings.ReplaceAll(block, "127.0.0.1:7420", n.Client))
	}
	if want := "b'acct-1' b'hello'"; !strings.Contains(last.Stdout, want) {
		t.Errorf("want %s in the output\n%s%s", want, last.Stdout, last.Stderr)
	}
}

// `make dev` is the one command that a newcomer starts with.
func TestMakeDev(t *testing.T) {
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip("no make here")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "make", "--dry-run", "dev")
	cmd.Dir = filepath.Join("..", "..")
	r, err := Do(cmd)
	if err != nil {
		t.Fatal(err)
	}
	if r.Code != 0 || !strings.Contains(r.Stdout, "bin/runnel dev --data runnel-data") {
		t.Errorf("make dev would run\n%s%s", r.Stdout, r.Stderr)
	}
}
