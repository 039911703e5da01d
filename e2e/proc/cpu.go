package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// errNoStat says that the kernel told something else than expected.
var errNoStat = errors.New("unreadable /proc stat")

// CPU returns the processor time, user's and system's, that a process has
// used. Linux only.
func CPU(pid int) (time.Duration, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	// The name stands in parentheses and may hold anything; fields follow it.
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	const utime, stime = 11, 12 // counted from the state, which is field 0
	if len(fields) <= stime {
		return 0, fmt.Errorf("%w: %q", errNoStat, b)
	}
	u, err1 := strconv.ParseInt(fields[utime], 10, 64)
	s, err2 := strconv.ParseInt(fields[stime], 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return 0, fmt.Errorf("%w: %w", errNoStat, err)
	}
	const tick = 10 * time.Millisecond // USER_HZ is 100 on every Linux that Go runs on
	return time.Duration(u+s) * tick, nil
}
