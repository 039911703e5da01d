package main

import (
	"bufio"
	"fmt"
	"strings"
)

// confirm returns nil when what follows is to be done: --yes was given, or
// somebody at a terminal says so.
func (a *app) confirm(yes bool, question string) error {
	if yes {
		return nil
	}
	if !interactive(a.in) || a.format == "json" {
		return usagef("nothing was changed: add --yes to go on, as there is nobody to ask")
	}
	return a.ask(question)
}

// ask returns nil when the answer is yes. It reads in the foreground, and no
// signal is caught meanwhile: Ctrl-C at the question ends the process.
func (a *app) ask(question string) error {
	fmt.Fprintf(a.err, "%s [y/N] ", question)
	line, _ := bufio.NewReader(a.in).ReadString('\n') // no line is a no
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	}
	fmt.Fprintln(a.err, "Nothing was changed.")
	return errQuiet
}
