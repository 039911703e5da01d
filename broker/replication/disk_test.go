package replication

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"

	"github.com/google/uuid"

	"github.com/runnelmq/runnel/internal/vfs"
)

func newDisk() *vfs.Mem { return vfs.NewMem() }

func (n *node) sentBytes() float64 { return n.metric("replication_sent_bytes_total") }
func (n *node) stalls() float64    { return n.metric("replication_credit_stalls_total") }

const (
	writing    = vfs.OpWrite
	syncing    = vfs.OpSync
	truncating = vfs.OpTruncate
	reading    = vfs.OpRead
)

// A held disk is one whose writes or syncs to a partition's segments hang.
type held struct {
	hangs chan struct{} // closed at the first
	free  chan struct{} // closed by release
	first sync.Once

	// mu guards the fields below
	mu sync.Mutex

	calls int
}

// hold makes one kind of call for a partition's segments hang until release.
func (n *node) hold(op vfs.Op, id uuid.UUID, number int32) *held {
	h := &held{hangs: make(chan struct{}), free: make(chan struct{})}
	dir := filepath.Join(id.String(), fmt.Sprint(number)) + string(filepath.Separator)
	n.fault.Before(op, func(_ vfs.Op, name string) {
		if !strings.Contains(name, dir) || !strings.HasSuffix(name, ".log") {
			return
		}
		h.mu.Lock()
		h.calls++
		h.mu.Unlock()
		h.first.Do(func() { close(h.hangs) })
		<-h.free
	})
	return h
}

func (h *held) wait()    { <-h.hangs }
func (h *held) release() { close(h.free) }

func (h *held) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.calls
}
