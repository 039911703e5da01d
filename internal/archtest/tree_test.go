package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// root is the top of the repository, seen from this package.
const root = "../.."

// skipped are folders that hold nothing of ours: tools, results, data.
var skipped = map[string]bool{".git": true, "bin": true, "runnel-data": true, "testdata": true, "__pycache__": true, ".venv": true}

// files returns the path, relative to root and with slashes, of every file
// that keep wants.
func files(t *testing.T, keep func(path string) bool) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if skipped[d.Name()] {
				return filepath.SkipDir
			}
			return nil
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if rel = filepath.ToSlash(rel); d.Type().IsRegular() && keep(rel) {
			found = append(found, rel)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) == 0 {
		t.Fatal("found no files: the walk is broken")
	}
	return found
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(path)))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A source is one parsed Go file.
type source struct {
	path string
	test bool
	fset *token.FileSet
	*ast.File
}

func (s source) at(n ast.Node) string {
	p := s.fset.Position(n.Pos())
	return s.path + ":" + itoa(p.Line)
}

// imports tells the name under which the file imports path, "" for none.
func (s source) imports(path string) string {
	for _, imp := range s.Imports {
		if strings.Trim(imp.Path.Value, `"`) != path {
			continue
		}
		if imp.Name != nil {
			return imp.Name.Name
		}
		return path[strings.LastIndex(path, "/")+1:]
	}
	return ""
}

// calls reports whether n calls pkg.name, where pkg is the local name of an
// imported package.
func calls(n ast.Node, pkg, name string) bool {
	sel, ok := n.(*ast.SelectorExpr)
	if !ok || sel.Sel.Name != name {
		return false
	}
	id, ok := sel.X.(*ast.Ident)
	return ok && id.Name == pkg
}

// parsed is what sources has found: tests of a package run one by one.
var parsed []source

// sources parses every Go file that people wrote.
func sources(t *testing.T) []source {
	t.Helper()
	if parsed != nil {
		return parsed
	}
	var all []source
	for _, path := range files(t, func(p string) bool { return strings.HasSuffix(p, ".go") && !strings.HasPrefix(p, "api/") }) {
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, path, read(t, path), parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if !ast.IsGenerated(f) {
			all = append(all, source{path: path, test: strings.HasSuffix(path, "_test.go"), fset: fset, File: f})
		}
	}
	parsed = all
	return all
}
