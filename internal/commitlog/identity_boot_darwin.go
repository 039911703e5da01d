package commitlog

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// machineBootID names this run of the kernel: another one after each boot.
func machineBootID() (string, error) {
	id, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return "", fmt.Errorf("boot id: %w", err)
	}
	return id, nil
}
