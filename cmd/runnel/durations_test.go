package main

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/runnelmq/runnel/broker"
	"github.com/runnelmq/runnel/controller"
	"github.com/runnelmq/runnel/internal/config"
)

// durations returns the keys of all options of a configuration that are
// durations.
func durations(t reflect.Type, prefix string) (keys []string) {
	for f := range t.Fields() {
		key := prefix + f.Tag.Get("yaml")
		switch {
		case f.Type == reflect.TypeFor[config.Duration]():
			keys = append(keys, key)
		case f.Type.Kind() == reflect.Struct:
			keys = append(keys, durations(f.Type, key+".")...)
		}
	}
	return keys
}

// nested is a YAML file with one option.
func nested(key, value string) string {
	var b strings.Builder
	parts := strings.Split(key, ".")
	for depth, p := range parts {
		b.WriteString(strings.Repeat("  ", depth) + p + ":")
		if depth == len(parts)-1 {
			b.WriteString(" " + value)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// withEnv is cli with environment variables.
func withEnv(t *testing.T, env map[string]string, args ...string) result {
	t.Helper()
	for k, v := range env {
		t.Setenv(k, v)
	}
	var out, errs bytes.Buffer
	code := run(t.Context(), args, terminal{in: strings.NewReader(""), out: &out, err: &errs, getenv: func(string) string { return "" }})
	for k := range env {
		if err := os.Unsetenv(k); err != nil {
			t.Fatal(err)
		}
	}
	return result{code, out.String(), errs.String()}
}

// A duration says its unit, in every option and every layer. A bare number and
// what makes no sense are refused at the start, with the option's name; what was
// understood is printed (GR-07).
func TestGR07_durationsHaveUnits(t *testing.T) {
	for command, c := range map[string]struct {
		args   []string
		env    string
		config reflect.Type
	}{
		"broker":     {[]string{"broker", "--set", "id=1"}, "RUNNEL_BROKER_", reflect.TypeFor[broker.Config]()},
		"controller": {[]string{"controller"}, "RUNNEL_CONTROLLER_", reflect.TypeFor[controller.Config]()},
	} {
		keys := durations(c.config, "")
		if len(keys) < 6 {
			t.Fatalf("%s: only %v", command, keys)
		}
		for _, key := range keys {
			layers := func(flag, value string) map[string]result {
				file := filepath.Join(t.TempDir(), "config.yaml")
				if err := os.WriteFile(file, []byte(nested(key, value)), 0o600); err != nil {
					t.Fatal(err)
				}
				text := strings.Trim(value, "'")
				variable := c.env + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
				args := append(slices.Clip(c.args), flag)
				return map[string]result{
					"file":        cli(t, "", append(slices.Clip(args), "--config", file)...),
					"environment": withEnv(t, map[string]string{variable: text}, args...),
					"flag":        cli(t, "", append(slices.Clip(args), "--set", key+"="+text)...),
				}
			}
			for _, bad := range []string{"20", "'20'", "0", "-20", "1.5", "20 parsecs", "soon", "-1s", "1000000h"} {
				for layer, got := range layers("--check-config", bad) {
					if got.code != exitUsage || !strings.Contains(got.err, key) {
						t.Errorf("%s, %s: %s in the %s: exit code %d, %s", command, key, bad, layer, got.code, got.err)
					}
				}
			}
			printed := layers("--print-config", "20s")
			for layer, got := range layers("--check-config", "20s") {
				if got.code != 0 { // out of the option's bounds, which it says
					if got.code != exitUsage || !strings.Contains(got.err, key) || !strings.Contains(got.err, "20s") {
						t.Errorf("%s, %s: 20s in the %s: exit code %d, %s", command, key, layer, got.code, got.err)
					}
					continue
				}
				var all map[string]any
				if err := yaml.Unmarshal([]byte(printed[layer].out), &all); err != nil {
					t.Fatal(err)
				}
				value := any(all)
				for p := range strings.SplitSeq(key, ".") {
					m, _ := value.(map[string]any)
					value = m[p]
				}
				if value != "20s" {
					t.Errorf("%s, %s: 20s in the %s is printed as %v", command, key, layer, value)
				}
			}
		}
	}
}
