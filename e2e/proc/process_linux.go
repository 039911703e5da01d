package proc

import (
	"os/exec"
	"syscall"
)

// dieWithParent lets no process survive a test that panics or is killed.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
