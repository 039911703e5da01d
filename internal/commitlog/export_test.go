package commitlog

import "testing"

// SoakSeeds is soakSeeds for the tests outside of the package.
func SoakSeeds(t *testing.T, normal int) int {
	t.Helper()
	return soakSeeds(t, normal)
}
