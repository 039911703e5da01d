package commitlog

import (
	"fmt"
	"os"
	"strings"
)

// machineBootID names this run of the kernel: another one after each boot,
// and the same in every container.
func machineBootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("boot id: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}
