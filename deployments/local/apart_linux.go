package main

import (
	"os/exec"
	"syscall"
)

// apart keeps a terminal's Ctrl-C, which goes to all processes of its group,
// for this program alone, and lets none outlive it.
func apart(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
