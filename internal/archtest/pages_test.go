package archtest

import (
	"flag"
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/topicconfig"
)

var update = flag.Bool("update", false, "write the generated parts of pages")

// A reason is what error_reason.proto says about one value of ErrorReason.
type reason struct{ name, code, text, metadata string }

func reasons(t *testing.T) []reason {
	t.Helper()
	var all []reason
	var comment []string
	value := regexp.MustCompile(`^ERROR_REASON_([A-Z_]+) = [1-9][0-9]*;$`)
	for line := range strings.Lines(read(t, "proto/runnel/v1/error_reason.proto")) {
		line = strings.TrimSpace(line)
		if c, ok := strings.CutPrefix(line, "// "); ok {
			comment = append(comment, c)
			continue
		}
		if m := value.FindStringSubmatch(line); m != nil {
			text := strings.Join(comment, " ")
			code, rest, ok := strings.Cut(text, ". ")
			if !ok || !regexp.MustCompile(`^[A-Z_]+$`).MatchString(code) {
				t.Errorf("%s: its comment does not begin with its gRPC code: %q", m[1], text)
			}
			r := reason{name: m[1], code: code, text: rest}
			// Text may follow the metadata: "Metadata: a, b. Do this."
			if before, after, ok := strings.Cut(rest, " Metadata: "); ok {
				names, more, _ := strings.Cut(after, ". ")
				r.metadata = strings.TrimSuffix(names, ".")
				r.text = strings.TrimSpace(before + " " + more)
			}
			all = append(all, r)
		}
		comment = nil
	}
	if want := len(runnelv1.ErrorReason_name) - 1; len(all) != want {
		t.Fatalf("read %d reasons of error_reason.proto, which has %d", len(all), want)
	}
	return all
}

// retry tells whether sending the same request again can store it twice.
func (r reason) retry() string {
	switch {
	case regexp.MustCompile(`(?i)unknown:|is unknown`).MatchString(r.text):
		return "outcome unknown"
	case strings.Contains(r.text, "Retry") || strings.Contains(r.text, "Wait"):
		return "safe"
	default:
		return "not as it is"
	}
}

// The page that users read is made of the comments that the API ships with.
func TestErrorsPage(t *testing.T) {
	var table strings.Builder
	table.WriteString("| reason | gRPC code | the same request again | what it means, what to do | metadata |\n|---|---|---|---|---|\n")
	for _, r := range reasons(t) {
		// A key may be followed by when it is there: "baseOffset where known".
		meta := regexp.MustCompile(`(^|, )(\w+)`).ReplaceAllString(r.metadata, "$1`$2`")
		table.WriteString("| `" + r.name + "` | " + r.code + " | " + r.retry() + " | " + r.text + " | " + meta + " |\n")
	}
	generated(t, "docs/errors.md", "reasons", table.String())
}

// A topic's configuration is described in one place, which the server uses.
func TestConfigurationPage(t *testing.T) {
	var table strings.Builder
	table.WriteString("| key | default | values | what it does |\n|---|---|---|---|\n")
	for _, k := range topicconfig.Keys() {
		table.WriteString("| `" + k.Name + "` | `" + k.Default + "` | " + k.Want + " | " + k.Description + " |\n")
	}
	generated(t, "docs/configuration.md", "topic", table.String())
}

// The options of a process are described on the fields that hold them.
func TestProcessConfigurationPage(t *testing.T) {
	for _, process := range []string{"broker", "controller"} {
		var table strings.Builder
		table.WriteString("| option | environment | what it does |\n|---|---|---|\n")
		for _, o := range options(t, process, "Config", "", "RUNNEL_"+strings.ToUpper(process)+"_") {
			if o.doc == "" || !strings.Contains(o.doc, "Default: ") && !strings.Contains(o.doc, "see ") {
				t.Errorf("%s: option %s: its comment does not tell its default", process, o.key)
			}
			table.WriteString("| `" + o.key + "` | `" + o.env + "` | " + o.text() + " |\n")
		}
		generated(t, "docs/configuration.md", process, table.String())
	}
}

// generated compares the part of a page between two marks with want, and
// writes it there when asked to.
func generated(t *testing.T, page, name, want string) {
	t.Helper()
	begin, end := "<!-- "+name+", generated: go test ./internal/archtest -run Page -update -->\n", "<!-- end "+name+" -->\n"
	text := read(t, page)
	head, rest, ok1 := strings.Cut(text, begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatalf("%s: the marks around the generated table are gone", page)
	}
	want = head + begin + want + end + tail
	if text == want {
		return
	}
	if !*update {
		t.Fatalf("%s is stale: go test ./internal/archtest -run Page -update", page)
	}
	if err := os.WriteFile(filepath.Join(root, page), []byte(want), 0o600); err != nil {
		t.Fatal(err)
	}
}

// An option is one leaf of a Config struct, as its source has it.
type option struct {
	key, env, doc string
	// fields are the Go names in its struct, and how users write them.
	fields map[string]string
}

// text is the comment as users read it, who know no Go names: what a field is,
// without "Field is", and other fields by their keys.
func (o option) text() string {
	text := regexp.MustCompile(`^\w+( is| are|:) `).ReplaceAllString(o.doc, "")
	if text != o.doc {
		text = strings.ToUpper(text[:1]) + text[1:]
	}
	return regexp.MustCompile(`\b[A-Z]\w*`).ReplaceAllStringFunc(text, func(word string) string {
		if key, ok := o.fields[word]; ok {
			return "`" + key + "`"
		}
		return word
	})
}

// options reads the struct name of a package folder, and the structs it
// holds, in their order.
func options(t *testing.T, dir, name, key, env string) []option {
	t.Helper()
	var all []option
	for _, s := range sources(t) {
		if path.Dir(s.path) != dir || s.test {
			continue
		}
		ast.Inspect(s.File, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || spec.Name.Name != name {
				return true
			}
			st, ok := spec.Type.(*ast.StructType)
			if !ok {
				t.Errorf("%s: %s is no struct", s.at(spec), name)
				return false
			}
			fields := map[string]string{}
			for _, f := range st.Fields.List {
				if f.Tag == nil || len(f.Names) != 1 {
					t.Errorf("%s: a field of %s without a tag", s.at(f), name)
					continue
				}
				tag := reflect.StructTag(strings.Trim(f.Tag.Value, "`"))
				if prefix, ok := tag.Lookup("envPrefix"); ok {
					inner, ok := f.Type.(*ast.Ident)
					if !ok {
						t.Errorf("%s: want the name of a struct", s.at(f))
						continue
					}
					all = append(all, options(t, dir, inner.Name, key+tag.Get("yaml")+".", env+prefix)...)
					continue
				}
				fields[f.Names[0].Name] = tag.Get("yaml")
				all = append(all, option{
					key: key + tag.Get("yaml"), env: env + tag.Get("env"), doc: strings.Join(strings.Fields(f.Doc.Text()), " "), fields: fields,
				})
			}
			return false
		})
	}
	if len(all) == 0 {
		t.Fatalf("%s: no struct %s", dir, name)
	}
	return all
}
