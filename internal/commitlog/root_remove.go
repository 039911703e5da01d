package commitlog

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"

	"github.com/google/uuid"
)

// RemoveTopic deletes all partitions of a topic that the controller says is
// deleted, by its id. It closes their logs first. When it returns nil the
// topic is durably gone, and stays gone after a crash; a topic that is not
// there is gone already.
//
// It is the only thing that deletes a topic's directory: see [Root.Quarantine]
// for those that merely nobody knows.
func (r *Root) RemoveTopic(topic uuid.UUID) error {
	if err := r.removeTopic(topic); err != nil {
		return fmt.Errorf("remove topic %s: %w", topic, err)
	}
	return nil
}

func (r *Root) removeTopic(topic uuid.UUID) error {
	if err := r.usable(); err != nil {
		return err
	}
	if err := r.closeTopic(topic); err != nil {
		return err
	}
	r.notes.take()
	defer r.notes.give()

	dir := r.topicDir(topic)
	removed := dir + removedSuffix
	// A removal that was cut off before may have left files under that name.
	if err := r.failure.Check(r.fs.RemoveAll(removed)); err != nil {
		return err
	}
	err := r.fs.Rename(dir, removed)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return r.failure.Check(err)
	}
	// From here on the topic is gone; the rest only frees the room. The sync
	// is also for a rename that an earlier call did and could not make
	// durable.
	if err := r.failure.Check(r.fs.SyncDir(r.dir)); err != nil {
		return err
	}
	r.forgetTopic(topic)
	if err := r.list.forget(r.ID().DirectoryID, topic); err != nil {
		r.opts.OnWarning(err)
	}
	if err := r.sweep(removed); err != nil {
		r.opts.OnWarning(fmt.Errorf("free the room of removed topic %s: %w", topic, err))
	}
	return r.failure.Err()
}

// closeTopic closes the logs of a topic. What cannot be synced or
// checkpointed for lack of room is going to be deleted anyway.
func (r *Root) closeTopic(topic uuid.UUID) error {
	for id := range r.snapshot() {
		if id.Topic != topic {
			continue
		}
		if err := r.ClosePartition(id); errors.Is(err, ErrFailed) {
			return err
		}
	}
	return nil
}

func (r *Root) forgetTopic(topic uuid.UUID) {
	r.mu.Lock()
	defer r.mu.Unlock()

	maps.DeleteFunc(r.found, func(id PartitionID, _ PartitionDir) bool { return id.Topic == topic })
	maps.DeleteFunc(r.making, func(id PartitionID, _ bool) bool { return id.Topic == topic })
	maps.DeleteFunc(r.unverified, func(id PartitionID, _ string) bool { return id.Topic == topic })
	dir := r.topicDir(topic)
	r.strays = slices.DeleteFunc(r.strays, func(s Stray) bool { return s.Path == dir || filepath.Dir(s.Path) == dir })
	r.quarantine = slices.DeleteFunc(r.quarantine, func(q Quarantined) bool { return q.Topic == topic })
}

// sweep removes what is left of a removed topic. The next start tries again
// when it cannot.
func (r *Root) sweep(path string) error {
	err := r.fs.RemoveAll(path)
	if err == nil {
		err = r.fs.SyncDir(r.dir)
	}
	return r.failure.Check(err)
}
