package proc

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// A document is one file of the real input: its lines are the records, its
// path is their key.
type document struct {
	path  string
	lines []string
}

// corpus returns every nth .go file of the Go installation.
func corpus(t *testing.T, every int) []document {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(strings.TrimSpace(string(out)), "src")
	var docs []document
	n := 0
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		if n++; n%every != 0 {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil || len(b) == 0 {
			return err
		}
		rel, err := filepath.Rel(root, path)
		docs = append(docs, document{path: filepath.ToSlash(rel), lines: strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return docs
}

// records counts the lines of all.
func records(docs []document) int {
	n := 0
	for _, d := range docs {
		n += len(d.lines)
	}
	return n
}

// interleaved calls emit for every line of every document. Lines of a document
// keep their order; those of several documents are mixed, as in life.
func interleaved(docs []document, emit func(d *document, i int) error) error {
	const together = 16
	for len(docs) > 0 {
		group := docs[:min(together, len(docs))]
		docs = docs[len(group):]
		for i, more := 0, true; more; i++ {
			more = false
			for j := range group {
				if i < len(group[j].lines) {
					more = true
					if err := emit(&group[j], i); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// writeInput writes the documents as the lines that `produce` reads.
func writeInput(t *testing.T, docs []document) string {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "input"))
	if err != nil {
		t.Fatal(err)
	}
	w := bufio.NewWriterSize(f, 1<<20)
	if err := interleaved(docs, func(d *document, i int) error {
		_, err := fmt.Fprintf(w, "%s\t%s\n", d.path, d.lines[i])
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// sums returns the SHA-256 of each document's lines.
func sums(docs []document) map[string][sha256.Size]byte {
	out := map[string][sha256.Size]byte{}
	for _, d := range docs {
		h := sha256.New()
		for _, line := range d.lines {
			writeLine(h, []byte(line))
		}
		out[d.path] = [sha256.Size]byte(h.Sum(nil))
	}
	return out
}

func writeLine(h hash.Hash, line []byte) {
	h.Write(line)
	h.Write([]byte{'\n'})
}

// consumedFormat is what `consume --print` is told, for a reader to read:
// partition, offset, key, value.
const consumedFormat = "%p\t%o\t%k\t%v"

// A reader checks what `consume` prints, line by line, as it comes.
type reader struct {
	rest    []byte
	sums    map[string]hash.Hash
	place   map[string]int // key → partition
	next    map[int]int64  // partition → offset
	records int
	each    func(key string, offset int64, value []byte) error // may be nil
}

func newReader() *reader {
	return &reader{sums: map[string]hash.Hash{}, place: map[string]int{}, next: map[int]int64{}}
}

// Write implements io.Writer.
func (r *reader) Write(b []byte) (int, error) {
	n := len(b)
	if len(r.rest) > 0 {
		b = append(r.rest, b...)
	}
	for {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			r.rest = bytes.Clone(b)
			return n, nil
		}
		if err := r.line(b[:i]); err != nil {
			return 0, err
		}
		b = b[i+1:]
	}
}

func (r *reader) line(line []byte) error {
	f := bytes.SplitN(line, []byte{'\t'}, 4)
	if len(f) != 4 {
		return fmt.Errorf("consume printed %q, want %q", line, consumedFormat)
	}
	p, err := strconv.Atoi(string(f[0]))
	if err != nil {
		return err
	}
	offset, err := strconv.ParseInt(string(f[1]), 10, 64)
	if err != nil {
		return err
	}
	if offset != r.next[p] {
		return fmt.Errorf("partition %d: offset %d comes after %d", p, offset, r.next[p]-1)
	}
	r.next[p]++
	key := string(f[2])
	if at, ok := r.place[key]; ok && at != p {
		return fmt.Errorf("key %q is in partitions %d and %d", key, at, p)
	}
	r.place[key] = p
	h := r.sums[key]
	if h == nil {
		h = sha256.New()
		r.sums[key] = h
	}
	writeLine(h, f[3])
	r.records++
	if r.each != nil {
		return r.each(key, offset, f[3])
	}
	return nil
}

// compare reports every document that was not read as it was written.
func (r *reader) compare(t *testing.T, docs []document) {
	t.Helper()
	if len(r.rest) > 0 {
		t.Errorf("consume ended within a line: %q", r.rest)
	}
	if want := records(docs); r.records != want {
		t.Errorf("read %d records, want %d", r.records, want)
	}
	wrong := 0
	for path, want := range sums(docs) {
		got := r.sums[path]
		if got != nil && [sha256.Size]byte(got.Sum(nil)) == want {
			continue
		}
		if wrong++; wrong <= 5 {
			t.Errorf("%s: its lines did not come back as they were", path)
		}
	}
	if wrong > 5 {
		t.Errorf("and %d more files", wrong-5)
	}
	if len(r.sums) != len(docs) {
		t.Errorf("read %d keys, want %d", len(r.sums), len(docs))
	}
}

var _ io.Writer = (*reader)(nil)
