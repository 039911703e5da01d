package archtest

import (
	"path"
	"strconv"
	"strings"
	"testing"
)

func itoa(n int) string { return strconv.Itoa(n) }

func TestEveryPackageHasADoc(t *testing.T) {
	docs := map[string][]string{} // by folder
	names := map[string]string{}
	for _, s := range sources(t) {
		dir := path.Dir(s.path)
		if strings.HasSuffix(s.Name.Name, "_test") {
			continue
		}
		names[dir] = s.Name.Name
		if s.Doc != nil {
			docs[dir] = append(docs[dir], s.Doc.Text())
		}
	}
	for dir, name := range names {
		if len(docs[dir]) != 1 {
			t.Errorf("%s: want one package comment, have %d", dir, len(docs[dir]))
			continue
		}
		want := "Package " + name + " "
		if name == "main" {
			want = "Command " + path.Base(dir) + " "
		}
		if doc := docs[dir][0]; !strings.HasPrefix(doc, want) {
			t.Errorf("%s: the package comment begins %.40q; want %q", dir, doc, want)
		}
	}
}

// A name that fits everything says nothing, and collects everything.
func TestPackageNamesSaySomething(t *testing.T) {
	vague := map[string]bool{
		"base": true, "common": true, "helpers": true, "impl": true, "manager": true,
		"misc": true, "service": true, "types": true, "util": true, "utils": true,
	}
	for _, s := range sources(t) {
		if vague[s.Name.Name] || vague[path.Base(path.Dir(s.path))] {
			t.Errorf("%s: package %s: name it after its idea", s.path, s.Name.Name)
		}
	}
}
