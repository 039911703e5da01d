// Package pythontest finds a Python that can use generated stubs, for tests.
package pythontest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Interpreter returns the interpreter of a virtual environment with protobuf, grpcio and grpcio-tools, which it makes where there is
// none. It skips the test unless RUNNEL_PYTHON is 1, for that takes a package registry.
func Interpreter(tb testing.TB) string {
	tb.Helper()
	if os.Getenv("RUNNEL_PYTHON") != "1" {
		tb.Skip("installs protobuf and grpcio-tools from PyPI into a virtual environment in the user's cache: set RUNNEL_PYTHON=1 to run it")
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = tb.TempDir()
	}
	venv := filepath.Join(cache, "runnel-python-stubs")
	python := filepath.Join(venv, "bin", "python")
	if exec.CommandContext(tb.Context(), python, "-c", "import google.protobuf, grpc, grpc_tools").Run() == nil {
		return python
	}
	for _, args := range [][]string{
		{"python3", "-m", "venv", "--clear", venv},
		{python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "protobuf", "grpcio", "grpcio-tools"},
	} {
		if out, err := exec.CommandContext(tb.Context(), args[0], args[1:]...).CombinedOutput(); err != nil { //nolint:gosec // the arguments are above
			tb.Fatalf("%q: %v\n%s", args, err, out)
		}
	}
	return python
}
