package archtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// licence names the licence that text is, by its unmistakable sentences; ""
// when it is none that lets a user do as they like.
func licence(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	for _, strict := range []string{"GNU GENERAL PUBLIC", "GNU LESSER", "GNU AFFERO", "Mozilla Public License", "Business Source", "Server Side Public", "Elastic License"} {
		if strings.Contains(text, strict) {
			return ""
		}
	}
	for _, l := range []struct{ sentence, name string }{
		{"Apache License Version 2.0", "Apache-2.0"},
		{"Permission is hereby granted, free of charge", "MIT"},
		{"Redistribution and use in source and binary forms", "BSD"},
		{"Permission to use, copy, modify, and", "ISC"},
	} {
		if strings.Contains(text, l.sentence) {
			return l.name
		}
	}
	return ""
}

// modules returns the folder of every module that the packages need.
func modules(t *testing.T, args ...string) map[string]string {
	t.Helper()
	args = append([]string{"list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}\t{{.Dir}}{{end}}{{end}}"}, args...)
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir, cmd.Stderr = root, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	dirs := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if name, dir, ok := strings.Cut(strings.TrimSpace(line), "\t"); ok {
			dirs[name] = dir
		}
	}
	return dirs
}

// Whoever builds the binary or imports the client owes nothing but a notice.
// Dependencies of tests are not linked into either.
func TestDependenciesAreFree(t *testing.T) {
	dirs := modules(t, "./...")
	if len(dirs) < 2 {
		t.Fatalf("go list found the modules %v: too few to be true", dirs)
	}
	for name, dir := range dirs {
		var found []string
		for _, glob := range []string{"LICEN[CS]E*", "licen[cs]e*", "COPYING*"} {
			m, err := filepath.Glob(filepath.Join(dir, glob))
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, m...)
		}
		free := false
		for _, f := range found {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			free = free || licence(string(b)) != ""
		}
		if !free {
			t.Errorf("%s: no permissive licence in %v", name, found)
		}
	}
}

func TestLicence(t *testing.T) {
	for text, want := range map[string]string{
		"  Apache License\n   Version 2.0, January 2004":     "Apache-2.0",
		"Permission is hereby granted, free of charge, to":   "MIT",
		"Redistribution and use in source and binary\nforms": "BSD",
		"Mozilla Public License Version 2.0":                 "",
		"GNU GENERAL PUBLIC LICENSE":                         "",
		"All rights reserved.":                               "",
	} {
		if got := licence(text); got != want {
			t.Errorf("licence(%q) = %q, want %q", text, got, want)
		}
	}
	if licence(read(t, "LICENSE")) != "Apache-2.0" {
		t.Error("our own LICENSE is not Apache-2.0")
	}
}
