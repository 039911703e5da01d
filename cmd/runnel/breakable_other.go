//go:build !unix

package main

import (
	"os"
	"time"
)

// readable is always true: here Ctrl-C ends the read of a console by itself.
func readable(*os.File, time.Duration) bool { return true }
