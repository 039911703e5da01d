package commitlog_test

import (
	"path"
	"strings"
	"testing"

	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/vfs"
)

// A process that is killed leaves the beginning of its last append. A tail that
// is damaged otherwise was acknowledged, and is cut all the same: the replica is
// not what it said it was, unless a power cut explains it.
func TestRoot_tailThatIsNotAsItWasWritten(t *testing.T) {
	for name, tt := range map[string]struct {
		spoil func(data []byte) []byte
		boot  string
		flush commitlog.FlushMode
		want  commitlog.Suspicion
	}{
		"as it was":               {func(b []byte) []byte { return b }, "boot-1", commitlog.FlushAsync, commitlog.NotSuspect},
		"the last append cut":     {func(b []byte) []byte { return b[:len(b)-3] }, "boot-1", commitlog.FlushAsync, commitlog.NotSuspect},
		"damaged":                 {flipped, "boot-1", commitlog.FlushAsync, commitlog.SuspectTail},
		"damaged, synced":         {flipped, "boot-1", commitlog.FlushSync, commitlog.SuspectTail},
		"damaged by a power cut":  {flipped, "boot-2", commitlog.FlushAsync, commitlog.SuspectOther},
		"synced, and a power cut": {flipped, "boot-2", commitlog.FlushSync, commitlog.NotSuspect},
		"zeros after the end":     {func(b []byte) []byte { return append(b, 0, 0, 0, 0) }, "boot-1", commitlog.FlushAsync, commitlog.SuspectTail},
	} {
		t.Run(name, func(t *testing.T) {
			m := vfs.NewMem()
			r := openRoot(t, m, rootOptions())
			cfg := commitlog.Config{Flush: tt.flush}
			log, _, err := r.OpenPartition(topicA, "a", 0, cfg, true)
			if err != nil {
				t.Fatal(err)
			}
			mustAppend(t, log, "one", "two", "three")
			m.Kill()
			dead := m
			file := segmentOf(t, dead, log.Dir())
			data, err := vfs.ReadFile(dead, file)
			rootMust(t, err, vfs.WriteFileAtomic(dead, file, tt.spoil(data)))
			r = openRoot(t, dead, rootOptions(inBoot(tt.boot)))
			_, rec, err := r.OpenPartition(topicA, "a", 0, cfg, true)
			if err != nil || rec.Suspicion != tt.want {
				t.Errorf("%v, %v: %+v; want %v", rec.Suspicion, err, rec, tt.want)
			}
			closeRoot(t, r, 1)
		})
	}
}

// flipped damages the second of three batches of a size.
func flipped(b []byte) []byte {
	b[len(b)/2] ^= 0x10
	return b
}

func segmentOf(t *testing.T, fsys vfs.FS, dir string) string {
	t.Helper()
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name, ".log") {
			return path.Join(dir, e.Name)
		}
	}
	t.Fatal("no segment")
	return ""
}
