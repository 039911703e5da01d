// Package producer decides which batches of idempotent producers are new, without goroutine, clock or I/O.
package producer
