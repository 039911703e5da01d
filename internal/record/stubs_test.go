package record

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/pythontest"
)

// moduleRoot is the folder with go.mod.
func moduleRoot(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "go.mod")); err != nil {
		t.Fatal(err)
	}
	return root
}

func command(t *testing.T, dir, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, stderr.Bytes())
	}
	return out
}

// buf knows the schema from the proto file and shares no code with the generated messages: it must find the same records in
// a segment file, and write the file again to the bit.
func TestSegment_bufReadsTheSameRecords(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs buf, which takes minutes the first time: not with -short")
	}
	root := moduleRoot(t)
	segment := goldenSegment(t)
	path := filepath.Join(t.TempDir(), "00000000000000000000.log")
	if err := os.WriteFile(path, segment, 0o600); err != nil {
		t.Fatal(err)
	}
	convert := func(format string) []byte {
		return command(t, root, "go", "tool", "-modfile="+filepath.Join(root, "internal", "tools", "go.mod"), "buf", "convert",
			filepath.Join(root, "proto"), "--type", "runnel.v1.Segment", "--from", path+"#format=binpb", "--to", "-#format="+format)
	}
	var m runnelv1.Segment
	if err := protojson.Unmarshal(convert("json"), &m); err != nil {
		t.Fatal(err)
	}
	if got, want := describeSegment(t, &m), walk(t, segment); got != want {
		t.Errorf("buf reads\n%s\nwant\n%s", got, want)
	}
	if again := convert("binpb"); !bytes.Equal(again, segment) {
		t.Errorf("buf writes %x\nwant %x", again, segment)
	}
}

// Python with nothing but generated code verifies both checksums, and finds it when one is wrong.
func TestSegment_pythonStubVerifiesBothChecksums(t *testing.T) {
	python := pythontest.Interpreter(t)
	root := moduleRoot(t)
	stubs := t.TempDir()
	command(t, root, python, "-m", "grpc_tools.protoc", "-I", "proto", "--python_out="+stubs, "proto/runnel/v1/record.proto")

	segment := goldenSegment(t)
	verify := func(b []byte) (string, error) {
		path := filepath.Join(t.TempDir(), "segment.log")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), python, filepath.Join("testdata", "verify_crcs.py"), stubs, path).CombinedOutput()
		return string(out), err
	}
	out, err := verify(segment)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var want strings.Builder
	for pos := 0; pos < len(segment); {
		f, _ := ParseFrame(segment[pos:], int64(len(segment)-pos), MaxFrameSize)
		fmt.Fprintf(&want, "%d %08x %08x ok\n", f.Header.BaseOffset, f.Header.HeaderCRC, f.Header.PayloadCRC)
		pos += f.Size
	}
	if out != want.String() {
		t.Errorf("got\n%s\nwant\n%s", out, want.String())
	}
	for name, pos := range map[string]int{"base offset": posBaseOffset + 3, "value": HeaderSize + payloadTagSize + 1 + 8} {
		damaged := bytes.Clone(segment)
		damaged[3+pos] ^= 1
		if out, err := verify(damaged); err == nil || !strings.Contains(out, "WRONG") {
			t.Errorf("%s damaged: %v\n%s", name, err, out)
		}
	}
}
