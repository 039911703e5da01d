package archtest

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func pages(t *testing.T) []string {
	t.Helper()
	return files(t, func(p string) bool { return path.Ext(p) == ".md" })
}

// section returns the text of page between the heading and the next one of
// the same or a higher level.
func section(t *testing.T, page, heading string) string {
	t.Helper()
	level := heading[:strings.Index(heading, " ")+1]
	var out []string
	inside := false
	for line := range strings.Lines(read(t, page)) {
		line = strings.TrimRight(line, "\n")
		switch {
		case line == heading:
			inside = true
		case inside && strings.HasPrefix(line, "#") && strings.Index(line, " ")+1 <= len(level):
			return strings.Join(out, "\n")
		case inside:
			out = append(out, line)
		}
	}
	if !inside {
		t.Fatalf("%s: no heading %q", page, heading)
	}
	return strings.Join(out, "\n")
}

// The map has a row for each folder that holds something, and no other: a
// stale map is worse than none.
func TestFileMapIsTrue(t *testing.T) {
	want := map[string]bool{"proto": true, "api": true, "docs": true, "deployments": true, "internal/tools": true}
	for _, s := range sources(t) {
		want[path.Dir(s.path)] = true
	}
	row := regexp.MustCompile("(?m)^\\| `([^`]+)` \\|")
	for _, m := range row.FindAllStringSubmatch(section(t, "ARCHITECTURE.md", "## File map"), -1) {
		dir := strings.TrimSuffix(m[1], "/")
		if _, err := os.Stat(filepath.Join(root, dir)); err != nil {
			t.Errorf("ARCHITECTURE.md maps %s, which does not exist", dir)
		} else if !want[dir] {
			t.Errorf("ARCHITECTURE.md maps %s, where no code is, or twice", dir)
		}
		delete(want, dir)
	}
	for dir := range want {
		t.Errorf("ARCHITECTURE.md does not map %s", dir)
	}
}

// slug is the anchor that a heading gets.
func slug(heading string) string {
	heading = strings.ToLower(strings.TrimSpace(strings.TrimLeft(heading, "#")))
	heading = regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(heading, "")
	return strings.ReplaceAll(heading, " ", "-")
}

func TestLinksLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	for _, p := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(read(t, p), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			to := p
			if target != "" {
				to = path.Join(path.Dir(p), target)
			}
			if _, err := os.Stat(filepath.Join(root, to)); err != nil {
				t.Errorf("%s: the link to %s is broken", p, m[1])
				continue
			}
			if anchor == "" {
				continue
			}
			found := false
			for line := range strings.Lines(read(t, to)) {
				found = found || strings.HasPrefix(line, "#") && slug(line) == anchor
			}
			if !found {
				t.Errorf("%s: the link to %s: %s has no such heading", p, m[1], to)
			}
		}
	}
}

// Comments cite invariants as "invariant 7"; the page numbers them 1 to n.
func TestInvariantsAreNumbered(t *testing.T) {
	numbered := regexp.MustCompile(`(?m)^(\d+)\. `)
	var have []string
	for i, m := range numbered.FindAllStringSubmatch(section(t, "ARCHITECTURE.md", "## Invariants"), -1) {
		if m[1] != itoa(i+1) {
			t.Errorf("ARCHITECTURE.md: invariant %s stands where %d should", m[1], i+1)
		}
		have = append(have, m[1])
	}
	if len(have) == 0 {
		t.Fatal("ARCHITECTURE.md: no invariants")
	}
	cited := regexp.MustCompile(`(?i)\binvariants? (\d+)`)
	for _, s := range sources(t) {
		for _, group := range s.Comments {
			for _, m := range cited.FindAllStringSubmatch(group.Text(), -1) {
				if !slices.Contains(have, m[1]) && !strings.HasPrefix(s.path, "internal/archtest/") {
					t.Errorf("%s: cites invariant %s, which ARCHITECTURE.md does not have", s.at(group), m[1])
				}
			}
		}
	}
}

func TestMakeTargetsInDocsExist(t *testing.T) {
	makefile := read(t, "Makefile")
	target := regexp.MustCompile("(?m)(?:^|[`$ ])make ([a-z][a-z0-9-]+)(?:`|$| [A-Z#])")
	for _, p := range pages(t) {
		for _, m := range target.FindAllStringSubmatch(read(t, p), -1) {
			if !strings.Contains(makefile, "\n"+m[1]+":") {
				t.Errorf("%s: make %s: the Makefile has no such target", p, m[1])
			}
		}
	}
}

// Who watches a broker finds each of its metrics on a page, with what it is for.
func TestMetricsAreDocumented(t *testing.T) {
	var docs strings.Builder
	for _, p := range pages(t) {
		docs.WriteString(read(t, p))
	}
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile("`(?:runnel_)?([a-z_]+)[`{]").FindAllStringSubmatch(docs.String(), -1) {
		documented[m[1]] = true
	}
	for name := range strings.FieldsSeq(read(t, "broker/testdata/metrics.txt")) {
		if !documented[strings.TrimPrefix(name, "runnel_")] {
			t.Errorf("no page says what %s is for: give it a row in docs/operations.md", name)
		}
	}
}
