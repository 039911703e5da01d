package commitlog

import (
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"

	"github.com/runnelmq/runnel/internal/vfs"
)

// ErrDamaged is the mark of a small file of the data root whose content is not
// what was written: the error names the file. See [DamagedError].
var ErrDamaged = errors.New("damaged file")

// DamagedError says which file is damaged, and how. It matches [ErrDamaged].
type DamagedError struct {
	// Path names the file.
	Path string
	// Why says what is wrong with it.
	Why string
}

// Error implements error.
func (e *DamagedError) Error() string { return fmt.Sprintf("%s: damaged: %s", e.Path, e.Why) }

// Is makes the error match [ErrDamaged].
func (e *DamagedError) Is(target error) bool { return target == ErrDamaged }

// noteFormat is the format of all notes, and the only one this version reads.
const noteFormat = 1

// A note is one of the small files of a data root: text for people to read,
// with a checksum. The first line is its kind and format; then come keys and
// values, one pair a line; the last line is the CRC-32C of all before it:
//
//	runnel.id 1
//	cluster_id "x9"
//	crc32c 0a1b2c3d
//
// A value is an integer, or a string quoted as in Go. A key may come again.
type note struct {
	kind  string
	pairs []pair
}

type pair struct{ key, value string }

const noteCRC = "crc32c "

func (n *note) addString(key, value string) {
	n.pairs = append(n.pairs, pair{key, strconv.Quote(value)})
}

func (n *note) addInt(key string, value int64) {
	n.pairs = append(n.pairs, pair{key, strconv.FormatInt(value, 10)})
}

func (n *note) encode() []byte {
	b := fmt.Appendf(nil, "%s %d\n", n.kind, noteFormat)
	for _, p := range n.pairs {
		b = fmt.Appendf(b, "%s %s\n", p.key, p.value)
	}
	return fmt.Appendf(b, "%s%08x\n", noteCRC, noteSum(b))
}

func noteSum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// readNote reads the note at path, which must be of this kind and have exactly
// the keys, in their order. The last key may come any number of times, or
// never, when it ends in "...".
func readNote(fsys vfs.FS, path, kind string, keys ...string) (*note, error) {
	data, err := vfs.ReadFile(fsys, path)
	if err != nil {
		return nil, err
	}
	n, format, err := parseNote(data, kind)
	if err == nil && format != noteFormat {
		return nil, fmt.Errorf("%s: written in format %d, and this version of runnel reads format %d only: start it with the version that wrote it, or a newer one",
			path, format, noteFormat)
	}
	if err == nil {
		err = n.check(keys)
	}
	if err != nil {
		return nil, &DamagedError{Path: path, Why: err.Error()}
	}
	return n, nil
}

// parseNote splits a note whose checksum is right. Of a note in another format
// it says only that.
func parseNote(data []byte, kind string) (n *note, format int, err error) {
	body, found := strings.CutSuffix(string(data), "\n")
	last := strings.LastIndexByte(body, '\n') + 1
	sum, isSum := strings.CutPrefix(body[last:], noteCRC)
	if !found || !isSum {
		return nil, 0, errors.New("the checksum is missing: the file is cut short or is something else")
	}
	if want := fmt.Sprintf("%08x", noteSum(data[:last])); sum != want {
		return nil, 0, fmt.Errorf("bad checksum: it says %.8q, the content has %s", sum, want)
	}
	lines := strings.Split(strings.TrimSuffix(body[:last], "\n"), "\n")
	number, found := strings.CutPrefix(lines[0], kind+" ")
	if format, err = strconv.Atoi(number); !found || err != nil || format < 1 {
		return nil, 0, fmt.Errorf("it begins with %.40q, not with %q and a format number", lines[0], kind)
	}
	if format != noteFormat {
		return nil, format, nil
	}
	n = &note{kind: kind}
	for _, line := range lines[1:] {
		key, value, found := strings.Cut(line, " ")
		if !found {
			return nil, 0, fmt.Errorf("line %.80q is not a key and a value", line)
		}
		n.pairs = append(n.pairs, pair{key, value})
	}
	return n, format, nil
}

func (n *note) check(keys []string) error {
	repeated := ""
	if l := len(keys); l > 0 {
		if key, ok := strings.CutSuffix(keys[l-1], "..."); ok {
			repeated, keys = key, keys[:l-1]
		}
	}
	if len(n.pairs) < len(keys) {
		return fmt.Errorf("%q is missing", keys[len(n.pairs)])
	}
	for i, p := range n.pairs {
		want := repeated
		if i < len(keys) {
			want = keys[i]
		}
		if want == "" {
			return fmt.Errorf("unexpected line %.40q", p.key)
		}
		if p.key != want {
			return fmt.Errorf("there is %.40q where %q should be", p.key, want)
		}
	}
	return nil
}

// noteReader takes values out of a note; its first complaint is the error.
type noteReader struct {
	path string
	note *note
	err  error
}

func (r *noteReader) fail(p pair, want string) {
	if r.err == nil {
		r.err = &DamagedError{Path: r.path, Why: fmt.Sprintf("%s is %.80q, not %s", p.key, p.value, want)}
	}
}

func (r *noteReader) string(i int) string {
	p := r.note.pairs[i]
	s, err := strconv.Unquote(p.value)
	if err != nil {
		r.fail(p, "a quoted string")
	}
	return s
}

func (r *noteReader) int(i, bits int) int64 {
	p := r.note.pairs[i]
	v, err := strconv.ParseInt(p.value, 10, bits)
	if err != nil || v < 0 {
		r.fail(p, fmt.Sprintf("a number of %d bits that is not negative", bits))
	}
	return v
}
