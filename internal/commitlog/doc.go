// Package commitlog keeps partitions as append-only logs in the files of one
// data root.
//
// A [Root] is one data directory: it is locked, says whose it is, judges at
// each start how far its files can be trusted, and watches the disk. A [Log]
// is one partition in it: segments of record batches, their indexes, the
// leader epochs and a checkpoint. FORMAT.md describes the bytes.
//
// The package knows bytes and files. What is committed, who leads, and who
// may read is for its callers to say.
//
// # When the disk fails
//
// The first failed write, sync, truncation or rename fails the whole root for
// good ([Failure]): a failed sync leaves it unknown what is on the disk, and a
// second one that "succeeds" proves nothing. A full disk and a shortage of
// file descriptors are not failures: the call is refused, what it left behind
// is undone, and the root goes on when there is room again.
package commitlog
