package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/runnelmq/runnel/client"
	"github.com/runnelmq/runnel/controller"
)

// Exit codes.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitTimeout     = 3   // it took too long, or nobody could be reached
	exitInterrupted = 130 // as shells do it: 128 + SIGINT
)

const defaultBrokers = "127.0.0.1:7420"

// A terminal is what a command reads from and writes to.
type terminal struct {
	in     io.Reader
	out    io.Writer
	err    io.Writer
	getenv func(string) string
	// name is what the program was called by: hints are typed as it was.
	name string
}

// program is what to type to call this program.
func (t terminal) program() string { return cmp.Or(t.name, "runnel") }

// typed is a command as whoever reads it types it.
func (t terminal) typed(command string) string { return t.program() + " " + command }

// interactive reports whether a reader or writer is a terminal that somebody
// sits at.
func interactive(w any) bool {
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}

// app is what all commands share.
type app struct {
	terminal

	brokers []string
	tls     tlsFlags
	timeout time.Duration
	format  string
}

// run runs one command line and returns its exit code.
func run(ctx context.Context, args []string, t terminal) int {
	a := &app{terminal: t}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(t.in)
	root.SetOut(t.out)
	root.SetErr(t.err)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	if text := a.explain(err); text != "" {
		fmt.Fprintln(t.err, "runnel: "+text)
	}
	return exitCode(err)
}

// errQuiet ends a command that has said on its own what went wrong.
var errQuiet = errors.New("failed")

var errInterrupted = errors.New("interrupted")

// A usageError is a mistake in the command line.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

func exitCode(err error) int {
	_, usage := errors.AsType[usageError](err)
	switch {
	case usage:
		return exitUsage
	case errors.Is(err, errInterrupted):
		return exitInterrupted
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, client.ErrUnreachable), errors.Is(err, client.ErrDeliveryTimeout),
		errors.Is(err, controller.ErrNoEtcd):
		return exitTimeout
	}
	return exitFailed
}

// explain says what went wrong, and what to do about it.
func (a *app) explain(err error) string {
	text := err.Error()
	hint := ""
	_, usage := errors.AsType[usageError](err)
	switch {
	case errors.Is(err, errQuiet):
		return ""
	case usage:
		hint = "Add --help to see what there is."
	case errors.Is(err, controller.ErrNoEtcd):
		hint = "Check that a controller runs there: its port is etcd.client of its configuration; or name another with --etcd-endpoints."
	case errors.Is(err, errNoAnswerOfEtcd):
		hint = fmt.Sprintf("It did not end within %v: etcd answers while a majority of the controllers runs, and, with etcd.ca_file, over TLS alone. "+
			"Name another controller with --etcd-endpoints, or wait longer with --timeout.", a.timeout)
	case errors.Is(err, client.ErrUnreachable) && strings.Contains(text, "x509: ") && !errors.Is(err, client.ErrOutcomeUnknown):
		hint = "Name the authority that signed the brokers' certificates with --tls-ca FILE (or the environment variable RUNNEL_TLS_CA), and the brokers as their certificates do."
	case errors.Is(err, client.ErrUnreachable) && strings.Contains(text, "is it a port with TLS"):
		hint = fmt.Sprintf("Tried %s. If they have TLS, add --tls-ca FILE (or set RUNNEL_TLS_CA), else name a port for clients with --brokers host:port.", strings.Join(a.brokers, ", "))
	case errors.Is(err, client.ErrUnreachable) && !errors.Is(err, client.ErrOutcomeUnknown):
		hint = fmt.Sprintf("Tried %s. Start a node here with: %s\nor name a broker that runs with --brokers host:port (or the environment variable RUNNEL_BROKERS).", strings.Join(a.brokers, ", "), a.typed("dev"))
	case errors.Is(err, client.ErrGroupNotFound):
		hint = "See the groups there are with: " + a.typed("group list")
	case errors.Is(err, client.ErrGroupNotEmpty):
		hint = "See them with: " + a.typed("group describe "+about(err, "group", "GROUP"))
	case errors.Is(err, client.ErrInvalidConfig):
		hint = "See the keys of a topic with: " + a.typed("topic describe "+about(err, "topic", "NAME"))
	case errors.Is(err, client.ErrTopicNotFound):
		hint = "See the topics there are with: " + a.typed("topic list") + "\nor create it with: " + a.typed("topic create "+about(err, "topic", "NAME"))
	case errors.Is(err, context.DeadlineExceeded):
		hint = fmt.Sprintf("It did not end within %v, asked at %s: see %s, ask another broker with --brokers, or wait longer with --timeout.",
			a.timeout, strings.Join(a.brokers, ", "), a.typed("cluster health"))
	}
	if errors.Is(err, client.ErrOutcomeUnknown) {
		hint = strings.TrimSpace("Whether it was done is unknown: look before you do it again.\n" + hint)
	}
	if hint == "" {
		return text
	}
	return text + "\n" + hint
}

// about returns what an error is about, ready to be typed; other when it does not say.
func about(err error, fact, other string) string {
	e, ok := errors.AsType[*client.Error](err)
	if !ok || e.Metadata[fact] == "" {
		return other
	}
	return word(e.Metadata[fact])
}

// word is a text as a shell takes it for one word.
func word(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-:/,@+", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "runnel",
		Short: "A streaming platform that speaks gRPC",
		Long: `Runnel keeps topics of records, cut into partitions, for any number of readers.

Start a node on this machine with "runnel dev", then, in another shell, create
a topic, write a line and read it back.`,
		Example: `  runnel dev
  runnel topic create hello --partitions 4
  echo world | runnel produce hello
  runnel consume hello --exit-at-end`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version(),
		Args:          cobra.ArbitraryArgs,
		RunE:          helpOnly,
	}
	root.SetVersionTemplate("runnel {{.Version}}\n")
	brokers := a.getenv("RUNNEL_BROKERS")
	if brokers == "" {
		brokers = defaultBrokers
	}
	f := root.PersistentFlags()
	f.StringSliceVar(&a.brokers, "brokers", strings.Split(brokers, ","), "`host:port` of one broker or several, with commas; also RUNNEL_BROKERS")
	f.DurationVar(&a.timeout, "timeout", 30*time.Second, "longest `time` to wait for an answer, or for progress")
	f.StringVar(&a.format, "format", "text", "output `text|json`")
	f.Lookup("brokers").DefValue = defaultBrokers
	a.tls.add(root, a.getenv)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return usageError{flagError(c, err)} })
	root.PersistentPreRunE = func(*cobra.Command, []string) error { return a.check() }
	root.AddGroup(
		&cobra.Group{ID: "server", Title: "Servers:"},
		&cobra.Group{ID: "data", Title: "Records:"},
		&cobra.Group{ID: "manage", Title: "Management:"},
	)
	a.addServers(root)
	add(root, "data", a.produceCommand(), a.consumeCommand(), a.benchCommand())
	add(root, "manage", a.topicCommand(), a.groupCommand(), a.partitionCommand(), a.clusterCommand(), a.logCommand())
	noFileCompletion(root)
	return root
}

// flagError says what a flag wants, instead of how its value was parsed.
func flagError(c *cobra.Command, err error) error {
	if no, ok := errors.AsType[*pflag.NotExistError](err); ok && c.Flags().Lookup("set") != nil {
		return fmt.Errorf("%w: what belongs to the configuration is given with --config FILE, or as --set %s=VALUE", err, no.GetSpecifiedName())
	}
	bad, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	var want string
	switch bad.GetFlag().Value.Type() {
	case "int", "int64":
		want = "a whole number"
	case "int32":
		want = "a whole number, up to 2147483647"
	case "duration":
		want = "a time with its unit, such as 500ms, 30s or 2m"
	case "bool":
		want = "true or false, or the flag alone"
	default:
		return err
	}
	return fmt.Errorf("--%s %q: want %s", bad.GetFlag().Name, bad.GetValue(), want)
}

// noFileCompletion keeps shells from offering files where none is wanted.
func noFileCompletion(c *cobra.Command) {
	for _, sub := range c.Commands() {
		noFileCompletion(sub)
	}
	if c.ValidArgsFunction == nil && !c.HasSubCommands() {
		c.ValidArgsFunction = cobra.NoFileCompletions
	}
}

func add(parent *cobra.Command, group string, cs ...*cobra.Command) {
	for _, c := range cs {
		c.GroupID = group
		parent.AddCommand(c)
	}
}

// check validates the flags of all commands.
func (a *app) check() error {
	if a.format != "text" && a.format != "json" {
		return usagef("--format %q: want text or json", a.format)
	}
	if a.timeout <= 0 {
		return usagef("--timeout %v: want more than 0", a.timeout)
	}
	return nil
}

// args checks the number of arguments and names them in the error.
func args(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, got []string) error {
		switch {
		case len(got) < len(names):
			return usagef("%s is missing", names[len(got)])
		case len(got) > len(names):
			return usagef("%q is one argument too many: want %s", got[len(names)], cmp.Or(strings.Join(names, " "), "none"))
		}
		for i, arg := range got {
			// Those in capitals alone are names; a path may be any bytes.
			if (names[i] == "NAME" || names[i] == "TOPIC") && !utf8.ValidString(arg) {
				return usagef("%s %q: it is not valid UTF-8", names[i], arg)
			}
		}
		return nil
	}
}

// noun is a command that has only subcommands.
func noun(use, short string, subs ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, RunE: helpOnly}
	c.AddCommand(subs...)
	return c
}

// helpOnly runs a command that does nothing without a subcommand.
func helpOnly(c *cobra.Command, got []string) error {
	if len(got) > 0 {
		c.SuggestionsMinimumDistance = 2
		meant := ""
		if near := c.SuggestionsFor(got[0]); len(near) > 0 {
			meant = ": did you mean " + strings.Join(near, " or ") + "?"
		} else if got[0] == "version" && !c.HasParent() {
			meant = ": did you mean --version?"
		}
		return usagef("there is no command %q%s", c.CommandPath()+" "+got[0], meant)
	}
	return c.Help()
}

// connect returns a client; nothing is dialed yet.
func (a *app) connect() (*client.Client, error) {
	opts := []client.Option{client.UserAgent("runnel-cli/" + version()), client.ConnectTimeout(min(a.timeout, 5*time.Second))}
	secure, err := a.tls.config()
	if err != nil {
		return nil, usageError{err}
	}
	if secure != nil {
		opts = append(opts, client.TLS(secure))
	}
	c, err := client.New(a.brokers, opts...)
	if err != nil {
		return nil, usageError{err}
	}
	return c, nil
}

// look finds out at once, before anything is read or waited for, whether there
// is nobody to talk to or no such topic. Any other trouble may pass.
func (a *app) look(ctx context.Context, c *client.Client, topic string) error {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	ds, err := c.NewAdmin().DescribeTopics(ctx, []string{topic})
	if err == nil && len(ds) == 1 {
		err = ds[0].Err
	}
	if errors.Is(err, client.ErrUnreachable) || errors.Is(err, client.ErrTopicNotFound) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// withAdmin calls f with an Admin, within --timeout.
func (a *app) withAdmin(ctx context.Context, f func(context.Context, *client.Admin) error) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	return f(ctx, c.NewAdmin())
}
