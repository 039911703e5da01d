// Package client lets Go programs write to and read from Runnel, and manage
// its topics.
//
// A [Client] knows a few brokers by address and connects to one of them when
// it is first needed; from there it learns who leads what, and goes to the
// leaders itself. From it come a [Producer], which writes records, a
// [Reader], which reads partitions, and an [Admin], which manages topics. All of
// them are safe for concurrent use, except where a method says otherwise. Close
// them before the Client.
//
// # What became of a write
//
// Every record given to a Producer ends in exactly one of three ways, and they
// are never blurred: it was acknowledged (Err is nil), it has failed for
// certain and is not in the log, or its outcome is unknown, because the answer
// was lost or never came; then errors.Is(err, [ErrOutcomeUnknown]) is true and
// the record may or may not be in the log. A Producer numbers what it sends,
// and so can send again what is in doubt without storing it twice; unknown is
// only what could not be found out in time. After [WithoutIdempotence]
// nothing in doubt is sent again, and all of it is unknown.
//
// # Errors
//
// Errors are told apart with [errors.Is] and the Err… values of this package,
// or by [Reason]; never by their text. Whether the same call may be tried again
// is told by [Retriable].
package client
