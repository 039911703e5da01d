// Package config fills a configuration struct from its layers: the struct's
// own defaults, then a YAML file, then the environment, then --set flags.
package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A Source says where the layers above the defaults come from.
type Source struct {
	File   string            // YAML; "" for none
	Prefix string            // of environment variables, such as "RUNNEL_BROKER_"
	Env    map[string]string // nil for the process's own
	Set    []string          // "log.segment_bytes=1MiB", last wins
}

// An Option is one leaf of a configuration struct.
type Option struct {
	Key   string        // as in the file and in --set: log.flush_interval
	Env   string        // name of its environment variable, without the prefix
	value reflect.Value // where it is kept
}

// Load lays src over *c, which holds the defaults. *c is a struct whose leaves
// carry yaml and env tags and whose inner structs carry yaml and envPrefix
// tags. All mistakes are reported at once, each with the option's name: a key
// that *c does not have, in any layer, a value that does not parse.
func Load[C any](c *C, src Source) error {
	opts, err := Options(c)
	if err != nil {
		return err
	}
	l := layers{options: opts}
	if src.File != "" {
		l.file(src.File)
	}
	l.env(src.Prefix, src.Env)
	for _, kv := range src.Set {
		l.set(kv)
	}
	return errors.Join(l.errs...)
}

// Options lists the leaves of *c in the order of the struct.
func Options[C any](c *C) ([]Option, error) {
	var out []Option
	err := walk(reflect.ValueOf(c).Elem(), "", "", &out)
	return out, err
}

func walk(v reflect.Value, key, env string, out *[]Option) error {
	t := v.Type()
	for i := range t.NumField() {
		f := t.Field(i)
		name := f.Tag.Get("yaml")
		if name == "" || name == "-" {
			return fmt.Errorf("config: field %s.%s has no yaml tag", t, f.Name)
		}
		if prefix, nested := f.Tag.Lookup("envPrefix"); nested {
			if err := walk(v.Field(i), key+name+".", env+prefix, out); err != nil {
				return err
			}
			continue
		}
		if f.Tag.Get("env") == "" {
			return fmt.Errorf("config: field %s.%s has no env tag", t, f.Name)
		}
		*out = append(*out, Option{Key: key + name, Env: env + f.Tag.Get("env"), value: v.Field(i)})
	}
	return nil
}

// layers lays one layer after the other and gathers what is wrong.
type layers struct {
	options []Option
	errs    []error
}

func (l *layers) fail(format string, args ...any) {
	l.errs = append(l.errs, fmt.Errorf(format, args...))
}

func (l *layers) file(name string) {
	f, err := os.Open(name)
	if err != nil {
		l.fail("config file: %w", err)
		return
	}
	defer f.Close()
	var doc yaml.Node
	if err := yaml.NewDecoder(f).Decode(&doc); err != nil {
		if !errors.Is(err, io.EOF) { // an empty file sets nothing
			l.fail("%s: %w", name, err)
		}
		return
	}
	l.mapping(name, "", doc.Content[0])
}

// mapping lays a YAML mapping, whose keys stand below prefix.
func (l *layers) mapping(where, prefix string, n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return
	}
	if n.Kind != yaml.MappingNode {
		l.fail("%s:%d: want a mapping of options, found %q", where, n.Line, n.Value)
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		key := prefix + k.Value
		at := fmt.Sprintf("%s:%d", where, k.Line)
		switch {
		case seen[key]:
			l.fail("%s: option %s is set twice", at, key)
		case l.group(key):
			l.mapping(where, key+".", v)
		default:
			l.assign(at, key, v)
		}
		seen[key] = true
	}
}

// group says whether key is the name of an inner struct.
func (l *layers) group(key string) bool {
	for _, o := range l.options {
		if strings.HasPrefix(o.Key, key+".") {
			return true
		}
	}
	return false
}

func (l *layers) assign(where, key string, v *yaml.Node) {
	for _, o := range l.options {
		if o.Key == key {
			if err := v.Decode(o.value.Addr().Interface()); err != nil {
				l.fail("%s: option %s: %w", where, key, o.plain(v.Value, err))
			}
			return
		}
	}
	l.fail("%s: unknown option %s%s", where, key, l.suggest(key))
}

func (l *layers) env(prefix string, env map[string]string) {
	if env == nil {
		env = environ()
	}
	known := map[string]bool{}
	for _, o := range l.options {
		name := prefix + o.Env
		known[name] = true
		text, ok := env[name]
		if !ok {
			continue
		}
		if err := o.decode(text); err != nil {
			l.fail("environment variable %s (option %s): %w", name, o.Key, o.plain(text, err))
		}
	}
	for name := range env {
		if prefix != "" && strings.HasPrefix(name, prefix) && !known[name] {
			l.fail("environment variable %s: no option has this name", name)
		}
	}
}

func (l *layers) set(kv string) {
	key, text, ok := strings.Cut(kv, "=")
	if !ok {
		l.fail("--set %s: want key=value", kv)
		return
	}
	for _, o := range l.options {
		if o.Key == key {
			if err := o.decode(text); err != nil {
				l.fail("--set %s: %w", key, o.plain(text, err))
			}
			return
		}
	}
	l.fail("--set: unknown option %s%s", key, l.suggest(key))
}

// suggest names an option that ends as key does, for a forgotten group, or
// that differs only in its separators.
func (l *layers) suggest(key string) string {
	norm := func(s string) string {
		return strings.NewReplacer(".", "", "_", "", "-", "").Replace(strings.ToLower(s))
	}
	want := norm(key)
	for _, o := range l.options {
		if n := norm(o.Key); n == want || (len(want) > 3 && strings.HasSuffix(n, want)) {
			return fmt.Sprintf("; did you mean %s?", o.Key)
		}
	}
	return ""
}

// decode parses text as the scalar, or the flow sequence, it is in YAML.
func (o Option) decode(text string) error {
	target := o.value.Addr().Interface()
	if s, ok := target.(*string); ok {
		*s = text // as it is: a colon or a brace in it is no YAML
		return nil
	}
	switch target := target.(type) {
	case *[]string:
		return decodeList(text, target)
	case *map[string]string:
		return decodeMap(text, target)
	}
	return yaml.Unmarshal([]byte(text), target)
}

// decodeList takes a, b and [a, b]. An IPv6 address begins with a bracket, too.
func decodeList(text string, list *[]string) error {
	text = strings.TrimSpace(text)
	if strings.HasPrefix(text, "[") && strings.HasSuffix(text, "]") {
		var items []string
		if yaml.Unmarshal([]byte(text), &items) == nil {
			*list = items
			return nil
		}
	}
	*list = nil
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			*list = append(*list, item)
		}
	}
	return nil
}

// decodeMap takes a=1, b=2 and {a: 1, b: 2}.
func decodeMap(text string, m *map[string]string) error {
	text = strings.TrimSpace(text)
	if strings.HasPrefix(text, "{") {
		var entries map[string]string
		if yaml.Unmarshal([]byte(text), &entries) != nil {
			return fmt.Errorf("%q: want %s", text, wantMap)
		}
		*m = entries
		return nil
	}
	entries := map[string]string{}
	for item := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(strings.TrimSpace(item), "=")
		if !ok || key == "" {
			return fmt.Errorf("%q: want %s", text, wantMap)
		}
		entries[key] = value
	}
	*m = entries
	return nil
}

const wantMap = "key=value, with commas between several, or {key: value, key: value}"

// plain says what the option takes, where the YAML library says only that it
// can't convert. Errors of our own types pass.
func (o Option) plain(text string, err error) error {
	if _, ok := errors.AsType[*yaml.TypeError](err); !ok && !strings.HasPrefix(err.Error(), "yaml: ") {
		return err
	}
	want := "another value"
	switch o.value.Kind() { //nolint:exhaustive // there are no options of other kinds
	case reflect.Int, reflect.Int64:
		want = "a whole number"
	case reflect.Int32:
		want = "a whole number from -2147483648 to 2147483647"
	case reflect.Bool:
		want = "true or false"
	case reflect.String:
		want = "a text"
	case reflect.Slice:
		want = "a list, [a, b]"
	case reflect.Map:
		want = wantMap
	}
	if text == "" { // a mapping, or a list
		return fmt.Errorf("want %s", want)
	}
	return fmt.Errorf("%q: want %s", text, want)
}

func environ() map[string]string {
	out := map[string]string{}
	for _, kv := range os.Environ() {
		if name, value, ok := strings.Cut(kv, "="); ok {
			out[name] = value
		}
	}
	return out
}

// Print writes the values in force as YAML that Load reads back.
func Print[C any](w io.Writer, c C) error {
	e := yaml.NewEncoder(w)
	e.SetIndent(2)
	if err := e.Encode(c); err != nil {
		return err
	}
	return e.Close()
}
