package archtest

import (
	"path"
	"regexp"
	"strings"
	"testing"
)

// text reports whether path is a file that people read.
func text(p string) bool {
	if strings.HasPrefix(p, "internal/tools/") || strings.HasPrefix(p, "api/") || path.Base(p) == "go.sum" {
		return false
	}
	switch path.Ext(p) {
	case ".go", ".md", ".proto", ".yaml", ".yml", ".mod", ".py", ".sh", ".txt", ".json":
		return true
	}
	base := path.Base(p)
	return base == "Makefile" || base == "run" || base == "Dockerfile"
}

// What is unfinished is not merged, and what is true on one machine only, or
// of one mirror only, is not written down. The patterns are in pieces, so that
// this file does not match itself.
func TestForbiddenWords(t *testing.T) {
	forbidden := []struct {
		what    string
		pattern *regexp.Regexp
	}{
		{"unfinished", regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|X` + `XX)\b`)},
		{"unfinished", regexp.MustCompile(`(?i)\bnot ` + `implemented\b|\bplace` + `holder\b|\bfor ` + `now\b`)},
		{"a package registry's host", regexp.MustCompile(`(proxy|sum)\.golang` + `\.org|registry\.npm` + `js|py` + `pi\.org|deb\.deb` + `ian\.org|crates` + `\.io`)},
		{"a path of one machine", regexp.MustCompile(`/ro` + `ot/|/ho` + `me/[a-z]|/Us` + `ers/|/wo` + `rk/|/tmp/pl` + `an`)},
	}
	for _, p := range files(t, text) {
		for i, line := range strings.Split(read(t, p), "\n") {
			for _, f := range forbidden {
				if m := f.pattern.FindString(line); m != "" {
					t.Errorf("%s:%d: %q: %s", p, i+1, m, f.what)
				}
			}
		}
	}
}
