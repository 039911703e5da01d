package proc

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// socketOwner returns which of the processes has the TCP socket of a local
// port of 127.0.0.1.
func socketOwner(port int, pids []int) (int, error) {
	inode, err := socketInode(port)
	if err != nil {
		return 0, err
	}
	want := "socket:[" + inode + "]"
	for _, pid := range pids {
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		fds, err := os.ReadDir(dir)
		if err != nil {
			continue // it has ended
		}
		for _, fd := range fds {
			if is, err := os.Readlink(filepath.Join(dir, fd.Name())); err == nil && is == want {
				return pid, nil
			}
		}
	}
	return 0, errNoOwner
}

func socketInode(port int) (string, error) {
	f, err := os.Open("/proc/net/tcp")
	if err != nil {
		return "", err
	}
	defer f.Close()
	local := fmt.Sprintf("0100007F:%04X", port)
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		// sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode
		fields := strings.Fields(lines.Text())
		if len(fields) > 9 && fields[1] == local && fields[9] != "0" {
			return fields[9], nil
		}
	}
	if err := lines.Err(); err != nil {
		return "", err
	}
	return "", errNoOwner
}
