//go:build !linux && !darwin

package commitlog

// machineBootID knows none here: after a crash nothing vouches for what was
// not synced.
func machineBootID() (string, error) { return "", nil }
