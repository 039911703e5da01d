package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/mattn/go-isatty"
)

// confirm returns nil when what follows is to be done: --yes was given, or
// somebody at a terminal says so.
func (a *app) confirm(ctx context.Context, yes bool, question string) error {
	if yes {
		return nil
	}
	in, ok := a.in.(*os.File)
	if !ok || !isatty.IsTerminal(in.Fd()) || a.format == "json" {
		return usagef("nothing was changed: add --yes to go on, as there is nobody to ask")
	}
	return a.ask(ctx, question)
}

// ask returns nil when the answer is yes.
func (a *app) ask(ctx context.Context, question string) error {
	fmt.Fprintf(a.err, "%s [y/N] ", question)
	said := make(chan string, 1)
	var asking sync.WaitGroup // not waited for: a terminal may never answer, and the process ends
	asking.Go(func() {
		line, _ := bufio.NewReader(a.in).ReadString('\n') // no line is a no
		said <- line
	})
	select {
	case <-ctx.Done():
		return errInterrupted
	case line := <-said:
		switch strings.ToLower(strings.TrimSpace(line)) {
		case "y", "yes":
			return nil
		}
	}
	fmt.Fprintln(a.err, "Nothing was changed.")
	return errQuiet
}
