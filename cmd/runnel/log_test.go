package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// partitionDir writes a log of 200 records in 20 batches, in several segments.
func partitionDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "6f1f6f0e-0000-4000-8000-000000000000", "3")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	l, _, err := commitlog.OpenLog(vfs.OS(), dir, commitlog.Config{SegmentBytes: 64 << 10}, commitlog.OpenOptions{Failed: commitlog.NewFailure()})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.StartEpoch(1); err != nil {
		t.Fatal(err)
	}
	b := record.NewBuilder(record.NewCodec(), record.Limits{})
	for i := range 20 {
		b.Reset()
		for j := range 10 {
			if err := b.Add([]byte("k"), fmt.Appendf(nil, "%d %s", i*10+j, strings.Repeat("x", 1000)), nil, 1000); err != nil {
				t.Fatal(err)
			}
		}
		c := record.CompressionNone
		if i == 7 {
			c = record.CompressionZstd
		}
		batch, err := b.Finish(c, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Append(&batch, 1, record.CreateTime); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func segments(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil || len(files) < 3 {
		t.Fatalf("%d segments, %v: want 3 or more", len(files), err)
	}
	return files
}

func TestLogVerify(t *testing.T) {
	dir := partitionDir(t)
	files := segments(t, dir)
	for _, path := range []string{dir, filepath.Dir(filepath.Dir(dir)), files[1]} {
		r := cli(t, "", "log", "verify", path)
		if r.code != 0 || !strings.Contains(r.out, "no damage") {
			t.Errorf("verify %s: exit code %d\n%s%s", path, r.code, r.out, r.err)
		}
	}
	r := cli(t, "", "log", "verify", dir, "--format", "json")
	if !strings.Contains(r.out, `"records": 200`) || !strings.Contains(r.out, `"batches": 20`) {
		t.Errorf("verify --format json\n%s", r.out)
	}
	if r := cli(t, "", "log", "verify", t.TempDir()); r.code == 0 || !strings.Contains(r.err, "no segment file") {
		t.Errorf("an empty folder: exit code %d\n%s", r.code, r.err)
	}
	intact := map[string][]byte{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		intact[f] = b
	}
	last := files[len(files)-1]
	for name, c := range map[string]struct {
		file string
		do   func(b []byte) []byte
		want string
	}{
		"payload": {files[1], func(b []byte) []byte { b[5000] ^= 1; return b }, "checksum"},
		"header":  {files[1], func(b []byte) []byte { b[30] ^= 1; return b }, "corrupt header"},
		"zeros":   {last, func(b []byte) []byte { return append(b, make([]byte, 100)...) }, "zeros"},
		"cut":     {last, func(b []byte) []byte { return b[:len(b)-1] }, "ends within a batch"},
		"garbage": {last, func(b []byte) []byte { return append(b, "garbage garbage garbage"...) }, filepath.Base(last)},
		"twice":   {last, func(b []byte) []byte { return append(b, b...) }, "comes before"},
	} {
		t.Run(name, func(t *testing.T) {
			write(t, c.file, c.do(append([]byte(nil), intact[c.file]...)))
			defer write(t, c.file, intact[c.file])
			for _, verb := range []string{"verify", "dump"} {
				r := cli(t, "", "log", verb, dir)
				if r.code == 0 || !strings.Contains(r.out+r.err, c.want) || !strings.Contains(r.out+r.err, filepath.Base(c.file)+": byte ") {
					t.Errorf("%s: exit code %d, want %q and the place in\n%s%s", verb, r.code, c.want, r.out, r.err)
				}
			}
		})
	}
}

// A copy that begins anew at an offset within a batch, as after DeleteRecords,
// has the whole batch in a segment that is named for the offset. No other batch
// may begin below its segment's name.
func TestLogVerify_beginsWithinABatch(t *testing.T) {
	for name, c := range map[string]struct {
		file  int
		up    int64
		whole bool
	}{
		"in the first batch":              {0, 3, true},
		"behind it":                       {0, 10, false},
		"in the first of a later segment": {1, 3, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := partitionDir(t)
			file := segments(t, dir)[c.file]
			base, err := strconv.ParseInt(strings.TrimSuffix(filepath.Base(file), ".log"), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(file, filepath.Join(dir, fmt.Sprintf("%020d.log", base+c.up))); err != nil {
				t.Fatal(err)
			}
			for _, verb := range []string{"verify", "dump"} {
				r := cli(t, "", "log", verb, dir)
				if (r.code == 0) != c.whole {
					t.Errorf("%s: exit code %d\n%.300s%s", verb, r.code, r.out, r.err)
				}
			}
		})
	}
}

func write(t *testing.T, file string, b []byte) {
	t.Helper()
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestLogDump(t *testing.T) {
	dir := partitionDir(t)
	r := cli(t, "", "log", "dump", dir)
	if lines := strings.Count(r.out, "\n"); r.code != 0 || lines != 20 || !strings.Contains(r.out, "offsets 70 to 79, 10 records") || !strings.Contains(r.out, "zstd") {
		t.Errorf("dump: exit code %d, %d lines\n%s", r.code, lines, r.out)
	}
	r = cli(t, "", "log", "dump", dir, "--records", "--print", "%p/%o %k %v")
	lines := strings.Split(strings.TrimSpace(r.out), "\n")
	if r.code != 0 || len(lines) != 200 {
		t.Fatalf("dump --records: exit code %d, %d lines", r.code, len(lines))
	}
	for i, line := range lines {
		if !strings.HasPrefix(line, fmt.Sprintf("3/%d k %d x", i, i)) {
			t.Fatalf("line %d is %.40q", i, line)
		}
	}
	if r := cli(t, "", "log", "dump", dir, "--format", "json"); !strings.HasPrefix(r.out, `{"file":`) || strings.Count(r.out, "\n") != 20 {
		t.Errorf("dump --format json\n%.200s", r.out)
	}
}
