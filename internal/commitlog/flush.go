package commitlog

import (
	"sync"

	"github.com/runnelmq/runnel/internal/record"
)

// A syncGroup lets callers that want the same thing share one execution of
// it: who comes while one is under way waits for the next, together with all
// others that come meanwhile.
type syncGroup struct {
	// mu guards the fields below.
	mu sync.Mutex
	// running is the round under way, next the one that may still be joined.
	running, next *syncRound
}

type syncRound struct {
	done chan struct{}
	err  error // written before done is closed
}

// do returns the result of an execution of fn that began after do was called.
func (g *syncGroup) do(fn func() error) error {
	g.mu.Lock()
	if r := g.next; r != nil {
		g.mu.Unlock()
		<-r.done
		return r.err
	}
	r := &syncRound{done: make(chan struct{})}
	before := g.running
	g.next = r
	g.mu.Unlock()

	if before != nil {
		<-before.done
	}
	g.mu.Lock()
	g.running, g.next = r, nil // from here on nobody joins
	g.mu.Unlock()

	r.err = fn()
	g.mu.Lock()
	if g.running == r {
		g.running = nil
	}
	g.mu.Unlock()
	close(r.done)
	return r.err
}

// Sync makes all that was appended before the call durable. Concurrent
// callers share one fdatasync, and appends go on meanwhile. After an error the
// root has failed: what was appended since the last success may be lost, and
// asking again proves nothing.
func (l *Log) Sync() error {
	if err := l.usable(); err != nil {
		return err
	}
	if l.settled() {
		return nil
	}
	return l.group.do(l.syncOnce)
}

// writeBack has the system begin to write what the next sync waits for. When
// many logs are about to be synced one after the other, the first to wait finds
// the others' files written too, and a journal commits all in one go.
func (l *Log) writeBack() {
	l.mu.Lock()
	segments := append([]*segment(nil), l.unsynced...)
	l.mu.Unlock()
	for _, s := range segments {
		if f, err := s.file.acquire(); err == nil { // the sync will tell
			f.WriteBack()
			s.file.release()
		}
	}
}

// settled reports whether a sync would change nothing: all batches are
// durable, and so are the files and the indexes of sealed segments.
func (l *Log) settled() bool {
	if l.durable.Load() < l.end.Load() {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()

	return len(l.unsynced) <= 1 && l.entriesMade == l.entriesSynced
}

func (l *Log) syncOnce() error {
	l.syncing.take()
	defer l.syncing.give()

	if err := l.usable(); err != nil {
		return err
	}
	return l.syncLocked()
}

// syncLocked syncs what is not. It REQUIRES the syncing turn.
func (l *Log) syncLocked() error {
	// The end first: all segments below it are in the list already.
	end := l.end.Load()
	l.mu.Lock()
	segments := append([]*segment(nil), l.unsynced...)
	l.mu.Unlock()

	for i, s := range segments {
		if err := l.syncSegment(s, i < len(segments)-1); err != nil {
			return l.failed.Set(err)
		}
	}
	if err := l.syncEntries(); err != nil {
		return err
	}
	// Another log of the root may have failed meanwhile: then nothing
	// positive is said here either.
	if err := l.failed.Err(); err != nil {
		return err
	}
	if end > l.durable.Load() {
		l.durable.Store(end)
	}
	l.synced(segments)
	return nil
}

// syncEntries makes the names of the files durable that were made, unless they
// are.
func (l *Log) syncEntries() error {
	l.mu.Lock()
	made := l.entriesMade
	done := made == l.entriesSynced
	l.mu.Unlock()
	if done {
		return nil
	}
	if err := l.failed.Set(l.fs.SyncDir(l.dir)); err != nil {
		return err
	}
	l.entriesDurable(made)
	return nil
}

// entriesDurable notes that the directory was synced when made files were made.
func (l *Log) entriesDurable(made int) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.entriesSynced = max(l.entriesSynced, made)
}

// syncSegment syncs a segment's batches, by the file they were written
// through, and the index of a sealed one.
func (l *Log) syncSegment(s *segment, sealed bool) error {
	f, err := s.file.acquire()
	if err != nil {
		return err
	}
	defer s.file.release()

	if err := f.Sync(); err != nil {
		return err
	}
	if sealed {
		return s.index.sync()
	}
	return nil
}

// synced takes the sealed ones of the segments off the list.
func (l *Log) synced(segments []*segment) {
	l.mu.Lock()
	n := len(segments) - 1
	done := append([]*segment(nil), l.unsynced[:n]...)
	l.unsynced = append([]*segment(nil), l.unsynced[n:]...)
	l.mu.Unlock()

	for _, s := range done {
		s.file.release()
	}
}

// hold adds a segment to those that need a sync; its file must be acquired.
func (l *Log) hold(s *segment) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.unsynced = append(l.unsynced, s)
	l.entriesMade++
}

// setEnd publishes what was appended. It REQUIRES the writing turn.
func (l *Log) setEnd(end record.Offset) { l.end.Store(int64(end)) }
