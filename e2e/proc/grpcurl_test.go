package proc

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// grpcurl calls a method with nothing but reflection.
func grpcurl(t *testing.T, n *Node, method, request string) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // it may have to be built first
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "tool", "-modfile=internal/tools/go.mod", "grpcurl", "-plaintext", "-d", request, n.Client, method)
	cmd.Dir = filepath.Join("..", "..")
	r, err := Do(cmd)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// answers decodes what grpcurl printed: one JSON document after the other.
func answers(t *testing.T, r Result) []map[string]any {
	t.Helper()
	if r.Code != 0 {
		t.Fatalf("grpcurl: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	var out []map[string]any
	for dec := json.NewDecoder(strings.NewReader(r.Stdout)); dec.More(); {
		var one map[string]any
		if err := dec.Decode(&one); err != nil {
			t.Fatalf("%v in\n%s", err, r.Stdout)
		}
		out = append(out, one)
	}
	return out
}

// dig follows names and indexes into decoded JSON.
func dig(t *testing.T, v any, path ...any) any {
	t.Helper()
	for _, step := range path {
		switch s := step.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[s]
		case int:
			l, _ := v.([]any)
			if s >= len(l) {
				return nil
			}
			v = l[s]
		}
	}
	return v
}

// What a person types works with nothing but reflection.
func TestGrpcurl(t *testing.T) {
	t.Parallel()
	n := dev(t, Dev{})

	created := answers(t, grpcurl(t, n, "runnel.v1.AdminService/CreateTopics", `{"topics":[{"name":"txns","partitions":8}]}`))
	if got := dig(t, created[0], "results", 0, "partitions"); got != float64(8) {
		t.Errorf("CreateTopics answered %v", created)
	}

	produced := answers(t, grpcurl(t, n, "runnel.v1.LogService/Produce", `{"topic":"txns","text_records":[{"key":"acct-1","value":"hello"}]}`))
	if len(produced) != 1 || dig(t, produced[0], "results", 0, "offset") != "0" || dig(t, produced[0], "results", 0, "partition") == nil {
		t.Errorf("Produce answered %v", produced)
	}

	var text []any
	for _, a := range answers(t, grpcurl(t, n, "runnel.v1.LogService/Fetch", `{"partitions":[{"topic":"txns"}],"options":{"format":"FETCH_FORMAT_TEXT"}}`)) {
		if rs, ok := dig(t, a, "textRecords").([]any); ok {
			text = append(text, rs...)
		}
	}
	if len(text) != 1 || dig(t, text, 0, "key") != "acct-1" || dig(t, text, 0, "value") != "hello" || dig(t, text, 0, "offset") != "0" {
		t.Errorf("Fetch gave the records %v", text)
	}
}

// What docs/idempotence.md has people type: the second answer is that of the
// first, and says so.
func TestGrpcurl_idempotent(t *testing.T) {
	t.Parallel()
	n := dev(t, Dev{})
	answers(t, grpcurl(t, n, "runnel.v1.AdminService/CreateTopics", `{"topics":[{"name":"orders","partitions":1}]}`))
	id := dig(t, answers(t, grpcurl(t, n, "runnel.v1.ProducerService/InitProducer", `{}`))[0], "producerId")
	request := fmt.Sprintf(`{"request": {"topic": "orders", "partition": 0,
    "producer": {"producer_id": %v, "base_sequence": 0}, "text_records": [{"value": "one"}]}}`, id)
	first := answers(t, grpcurl(t, n, "runnel.v1.LogService/Append", request))[0]
	again := answers(t, grpcurl(t, n, "runnel.v1.LogService/Append", request))[0]
	if dig(t, first, "response", "baseOffset") != "0" || dig(t, first, "response", "duplicate") != nil {
		t.Errorf("the first answer is %v", first)
	}
	if dig(t, again, "response", "baseOffset") != "0" || dig(t, again, "response", "duplicate") != true {
		t.Errorf("the second answer is %v", again)
	}
}

// ST-19: absence and emptiness stay distinct, for keys and values.
func TestGrpcurl_absentIsNotEmpty(t *testing.T) {
	t.Parallel()
	n := dev(t, Dev{})
	n.cli(t, "topic", "create", "nulls", "--partitions", "1")
	answers(t, grpcurl(t, n, "runnel.v1.LogService/Produce",
		`{"topic":"nulls","text_records":[{"key":"k1"},{"key":"k2","value":""},{"value":"v"},{"key":"","value":"v"}]}`))
	fetched := answers(t, grpcurl(t, n, "runnel.v1.LogService/Fetch", `{"partitions":[{"topic":"nulls"}],"options":{"format":"FETCH_FORMAT_TEXT"}}`))
	var got []string
	for _, a := range fetched {
		rs, _ := dig(t, a, "textRecords").([]any)
		for _, r := range rs {
			m, _ := r.(map[string]any)
			flags := ""
			for _, name := range []string{"key", "value"} {
				v, ok := m[name]
				switch {
				case !ok:
					flags += name + " absent "
				case v == "":
					flags += name + " empty "
				}
			}
			got = append(got, strings.TrimSpace(flags))
		}
	}
	want := "value absent;value empty;key absent;key empty"
	if strings.Join(got, ";") != want {
		t.Errorf("read %q, want %q", got, want)
	}
}

// A mistake gets its code and its reason, and says what to do.
func TestGrpcurl_mistakes(t *testing.T) {
	t.Parallel()
	n := dev(t, Dev{})
	n.cli(t, "topic", "create", "here", "--partitions", "2")
	for _, c := range []struct{ name, method, request, want string }{
		{"unknown topic", "LogService/Append", `{"request":{"topic":"gone","text_records":[{"value":"x"}]}}`, "TOPIC_NOT_FOUND"},
		{"unknown partition", "LogService/Append", `{"request":{"topic":"here","partition":2,"text_records":[{"value":"x"}]}}`, "PARTITION_NOT_FOUND"},
		{"nothing to write", "LogService/Append", `{"request":{"topic":"here","partition":1}}`, "INVALID_REQUEST"},
		{"bad name", "AdminService/CreateTopics", `{"topics":[{"name":"a/b"}]}`, "INVALID_TOPIC_NAME"},
		{"unknown key", "AdminService/CreateTopics", `{"topics":[{"name":"new","configs":{"retention":"1"}}]}`, "INVALID_CONFIG"},
		{"contradicting configs", "AdminService/CreateTopics", `{"topics":[{"name":"new","configs":{"segment.bytes":"65536","max.message.bytes":"1000000"}}]}`, "INVALID_CONFIG"},
		{"beyond the end", "LogService/Read", `{"request":{"partitions":[{"topic":"here","partition":0,"offset":7}]}}`, "OFFSET_OUT_OF_RANGE"},
		{"negative offset", "LogService/Read", `{"request":{"partitions":[{"topic":"here","partition":0,"offset":-7}]}}`, "INVALID_REQUEST"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := grpcurl(t, n, "runnel.v1."+c.method, c.request)
			if out := r.Stdout + r.Stderr; !strings.Contains(out, c.want) {
				t.Errorf("want %s in\n%s", c.want, out)
			}
		})
	}
	if out := n.cli(t, "consume", "here", "--exit-at-end"); out != "" {
		t.Errorf("something was stored: %q", out)
	}
}
