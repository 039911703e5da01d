// Command runnel is Runnel: its servers, and the tools to work with them.
package main

import (
	"context"
	"os"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], terminal{in: os.Stdin, out: os.Stdout, err: os.Stderr, getenv: os.Getenv, name: os.Args[0]}))
}
