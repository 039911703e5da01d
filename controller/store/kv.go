// Package store keeps the cluster's metadata in etcd: fenced transactions, the election of the active controller, and one
// watch that never misses a change.
//
// The election is liveness only. What protects the data is that every transaction compares the election key's create revision
// and the revision of each object it changes: a controller that was replaced and does not know it yet can change nothing.
package store

import (
	"context"
	"errors"
	"time"
)

// A KV is exactly what the store needs of etcd, with etcd's semantics. There are two: etcd itself, and storetest's.
//
// A Txn that returns an error may or may not have been, or be going to be, applied.
type KV interface {
	// Range returns at most limit pairs of from <= key < to, in the order of keys, as of a revision; 0: the newest.
	Range(ctx context.Context, from, to string, limit int, rev int64) (Page, error)
	// Read returns the pairs of keys that exist, all as of one revision.
	Read(ctx context.Context, keys []string) (Page, error)
	// Txn makes all writes at one revision if all comparisons hold, else none.
	Txn(ctx context.Context, cmps []Compare, writes []Write) (TxnResult, error)
	// Watch calls fn with all changes of keys with a prefix from a revision on, whole revisions in their order, until fn fails,
	// ctx is done or the watch breaks; the caller then watches from the revision after the last. ErrCompacted: changes from
	// there on are not all known any more.
	Watch(ctx context.Context, prefix string, from int64, fn func([]Event) error) error
	// Leases tie keys to the life of a process.
	Leases
}

// Leases are promises to live. A key written with a lease goes when the lease ends.
type Leases interface {
	// Grant returns a lease of at least a time to live.
	Grant(ctx context.Context, ttl time.Duration) (LeaseID, error)
	// KeepAlive begins the lease's time to live anew; ErrNoLease when it has ended.
	KeepAlive(ctx context.Context, id LeaseID) error
	// Revoke ends a lease; one that has ended is no error.
	Revoke(ctx context.Context, id LeaseID) error
}

// A LeaseID names a lease; 0: none.
type LeaseID int64

// A Pair is a key with its value.
type Pair struct {
	Key    string
	Value  []byte
	Create int64 // revision that made the key
	Mod    int64 // revision that wrote it last
	Lease  LeaseID
}

// A Page is an answer to Range or Read.
type Page struct {
	Pairs    []Pair
	Revision int64 // the newest at the time of the answer
}

// A Compare holds when the key was made, or last written, at a revision; at 0: when it does not exist.
type Compare struct {
	Key      string
	Create   bool // compare the revision that made it, else the one that wrote it last
	Revision int64
}

// A Write puts a value, or deletes a key.
type Write struct {
	Key    string
	Value  []byte
	Delete bool
	Lease  LeaseID
}

// A TxnResult says what became of a transaction.
type TxnResult struct {
	Succeeded bool
	Revision  int64
}

// An Event is a change seen by a watch.
type Event struct {
	Key     string
	Value   []byte
	Deleted bool
	Mod     int64
}

// Errors of a KV.
var (
	ErrCompacted = errors.New("the revision was compacted away")
	ErrNoLease   = errors.New("the lease has ended")
	// ErrFull is returned when etcd refuses writes for want of space. The write may have been made all the same.
	ErrFull = errors.New("the metadata store is full: raise etcd.quota_bytes of all controllers and start them anew, one after the other (an external etcd: compact and defragment it, or raise its quota, then disarm its alarm)")
)

// Errors of a Store.
var (
	// ErrFenced is returned when this controller is not the active one any more. Nothing was written.
	ErrFenced = errors.New("another controller is active")
	// ErrConflict is returned when an object is not as it was when the change was decided. Nothing was written.
	ErrConflict = errors.New("the object changed meanwhile")
	// ErrUnknown is returned when it could not be found out in time whether a transaction was made.
	ErrUnknown = errors.New("the metadata store does not answer: it is unknown whether the change was made")
	// ErrNoCluster is returned when the store holds no cluster of the name asked for, and none is to be made.
	ErrNoCluster = errors.New("the metadata store holds no cluster")
)
