package archtest

import (
	"go/ast"
	"strings"
	"testing"
)

// Every goroutine has one visible owner that joins it: errgroup.Group.Go or
// sync.WaitGroup.Go in a function that waits. A go statement has neither.
func TestNoNakedGoroutines(t *testing.T) {
	for _, s := range sources(t) {
		ast.Inspect(s.File, func(n ast.Node) bool {
			if g, ok := n.(*ast.GoStmt); ok {
				t.Errorf("%s: a go statement: start it with errgroup or WaitGroup.Go, and wait for it", s.at(g))
			}
			return true
		})
	}
}

// A test that sleeps is slow on a fast machine and flaky on a slow one. In a
// synctest bubble sleeping costs nothing.
func TestNoSleepingInTests(t *testing.T) {
	for _, s := range sources(t) {
		name := s.imports("time")
		simulated := strings.HasPrefix(s.path, "e2e/sim/") || strings.HasPrefix(s.path, "e2e/cases/") // all of it runs in bubbles
		if name == "" || !s.test || simulated || s.imports("testing/synctest") != "" {
			continue
		}
		ast.Inspect(s.File, func(n ast.Node) bool {
			if calls(n, name, "Sleep") {
				t.Errorf("%s: time.Sleep: wait for what you wait for, or use a synctest bubble", s.at(n))
			}
			return true
		})
	}
}

func TestNoInit(t *testing.T) {
	for _, s := range sources(t) {
		for _, d := range s.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
				t.Errorf("%s: an init function: importing a package must do nothing", s.at(f))
			}
		}
	}
}
