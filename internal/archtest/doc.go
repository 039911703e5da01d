// Package archtest keeps the promises that no compiler checks: documented
// packages, owned goroutines, true maps and links, permissive dependencies.
package archtest
