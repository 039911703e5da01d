package proc

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// smallDisk mounts a file system of its own; only root can.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size)
	if errors.Is(err, syscall.EPERM) {
		t.Skip("only root can mount a small disk")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

// ST-05: on a full disk writes are refused with a reason, readers see no
// damage, and writing goes on in the same process once there is space.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	// The metadata store takes 130 MB of it for its own log.
	disk := smallDisk(t, "230m")
	n := dev(t, Dev{Data: disk, Args: []string{"--set", "broker.storage.reserve_bytes=40MiB"}})
	n.cli(t, "topic", "create", "big", "--partitions", "2")

	acked, full := 0, false
	for !full { // a slow disk may refuse for other reasons before that
		if acked > 230_000 {
			t.Fatalf("%d kB went onto a disk of 230 MB", acked)
		}
		count, r := produceLines(t, n, "big", strings.Repeat(strings.Repeat("x", 1000)+"\n", 5000))
		acked += count.Acknowledged
		full = r.Code != 0 && strings.Contains(r.Stderr, "STORAGE_FULL")
	}
	one := n.command(t, "produce", "big", "--timeout", "3s")
	one.Stdin = strings.NewReader("one more\n")
	if r := n.try(t, one); r.Code == 0 {
		t.Error("a record was taken although the free space is below the reserve")
	} else {
		says(t, r.Stderr, "STORAGE_FULL")
	}
	if got := strings.Count(n.cli(t, "consume", "big", "--exit-at-end"), "\n"); got < acked {
		t.Errorf("read %d records of the %d acknowledged", got, acked)
	}
	if !strings.Contains(n.cli(t, "topic", "list"), "big") {
		t.Error("the topic is not listed on a full disk")
	}

	n.cli(t, "topic", "delete", "big")
	n.cli(t, "topic", "create", "small", "--partitions", "1")
	write(t, n, "small", "after\n")
	n.stop(t)
	n.restart(t)
	if got := n.cli(t, "consume", "small", "--exit-at-end"); got != "after\n" {
		t.Errorf("read %q after a restart", got)
	}
	n.stop(t)

	// Another program fills the disk to the brim: ENOSPC is not a broken disk.
	n.restart(t)
	filler := filepath.Join(disk, "filler")
	fill(t, filler)
	if count, r := produceLines(t, n, "small", strings.Repeat("x", 100_000)+"\n"); r.Code == 0 || count.Acknowledged != 0 {
		t.Errorf("on a disk without a free block: %+v, exit code %d", count, r.Code)
	}
	if got := n.cli(t, "consume", "small", "--exit-at-end"); !strings.HasPrefix(got, "after\n") {
		t.Errorf("read %q from a full disk", got)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	write(t, n, "small", "room again\n")
	if got := n.cli(t, "consume", "small", "--exit-at-end"); !strings.HasSuffix(got, "room again\n") {
		t.Errorf("read %q after space came back", got)
	}
	n.stop(t)
}

// produceLines writes lines and returns what became of them.
func produceLines(t *testing.T, n *Node, topic, lines string) (produced, Result) {
	t.Helper()
	cmd := n.command(t, "produce", topic, "--format", "json", "--timeout", "3s")
	cmd.Stdin = strings.NewReader(lines)
	r := n.try(t, cmd)
	var count produced
	if err := json.Unmarshal([]byte(r.Stdout), &count); err != nil {
		t.Fatalf("produce: %v in %q\n%s", err, r.Stdout, r.Stderr)
	}
	return count, r
}

// fill writes until nothing more fits.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for block := make([]byte, 1<<20); len(block) > 0; {
		if _, err := f.Write(block); errors.Is(err, syscall.ENOSPC) {
			block = block[:len(block)/2]
		} else if err != nil {
			t.Fatal(err)
		}
	}
}
