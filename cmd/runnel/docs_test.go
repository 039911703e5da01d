package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

var update = flag.Bool("update", false, "write docs/cli.md anew")

const docsPath = "../../docs/cli.md"

// docs/cli.md says what the commands' own help says.
func TestDocs(t *testing.T) {
	want := docs()
	if *update {
		if err := os.WriteFile(docsPath, want, 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(docsPath)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("docs/cli.md is not what the help says: run go test ./cmd/runnel -run TestDocs -update")
	}
}

func docs() []byte {
	a := &app{terminal: terminal{getenv: func(string) string { return "" }}}
	root := a.root()
	var b bytes.Buffer
	b.WriteString(`# Command line

Made from ` + "`runnel help`" + ` by ` + "`go test ./cmd/runnel -run TestDocs -update`" + `.

Of all commands:

` + "```" + `
` + root.PersistentFlags().FlagUsages() + "```" + `

Errors go to standard error, and say what to do. The exit code says how it went:

| exit code | when |
|---|---|
| 0 | all of it worked: for ` + "`produce`" + `, every record was acknowledged; a server stopped in order |
| 1 | something was refused or failed, or was found to be wrong (` + "`cluster health`, `log verify`" + `) |
| 2 | there is a mistake in the command line or in the configuration; nothing was done |
| 3 | it took longer than --timeout, or no broker could be reached. The message says so when what was sent may have been done all the same: an unknown outcome |
| 130 | it was interrupted (Ctrl-C, SIGTERM) before its end |

For completion in a shell, see ` + "`runnel completion --help`" + `.
`)
	walk(&b, root)
	return b.Bytes()
}

func walk(b *bytes.Buffer, c *cobra.Command) {
	for _, sub := range c.Commands() {
		if sub.Name() == "help" || sub.Name() == "completion" {
			continue
		}
		if !sub.HasSubCommands() || sub.Example != "" { // broker does something itself, too
			section(b, sub)
		}
		walk(b, sub)
	}
}

func section(b *bytes.Buffer, c *cobra.Command) {
	text := c.Long
	if text == "" {
		text = c.Short + "."
	}
	fmt.Fprintf(b, "\n## %s\n\n%s\n\n```\n%s\n\n%s```\n", c.CommandPath(), text, c.UseLine(), c.LocalNonPersistentFlags().FlagUsages())
	if c.Example != "" {
		fmt.Fprintf(b, "\nSuch as\n\n```sh\n%s\n```\n", strings.ReplaceAll(strings.TrimPrefix(c.Example, "  "), "\n  ", "\n"))
	}
}

// Every command says what it does, and shows how.
func TestHelp(t *testing.T) {
	a := &app{terminal: terminal{getenv: func(string) string { return "" }}}
	var check func(c *cobra.Command)
	check = func(c *cobra.Command) {
		if c.Short == "" {
			t.Errorf("%s has no short description", c.CommandPath())
		}
		if !c.HasSubCommands() && c.Example == "" {
			t.Errorf("%s has no example", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			check(sub)
		}
	}
	root := a.root()
	check(root)
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if r := cli(t, "", "completion", shell); r.code != 0 || len(r.out) < 1000 {
			t.Errorf("completion %s: exit code %d, %d bytes", shell, r.code, len(r.out))
		}
	}
	if r := cli(t, "", "__complete", "produce", "t", "--acks", ""); !strings.Contains(r.out, "leader") {
		t.Errorf("completion of --acks: %q", r.out)
	}
}
