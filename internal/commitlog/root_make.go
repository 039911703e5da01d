package commitlog

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/google/uuid"

	"github.com/runnelmq/runnel/internal/vfs"
)

// MakePartitions makes the directories of partitions that are about to be
// opened, where [Root.OpenPartition] would, and with as few syncs for all of them
// as it needs for one. It is no more than a head start: what goes wrong, goes
// wrong again for those whom it concerns when they are opened, and is to be
// judged then, but for [ErrFailed]. None of the topics may be removed meanwhile.
func (r *Root) MakePartitions(specs []PartitionSpec) error {
	if err := r.usable(); err != nil {
		return err
	}
	if err := r.makeMissing(specs); err != nil {
		return fmt.Errorf("make partitions: %w", err)
	}
	return nil
}

// makeMissing makes the directories that are missing and may be made, and names
// all partitions. A directory is durable before it is named: else a power cut
// would leave a loss that is none. What is made in it later need not be: the list
// says that the partition is new.
func (r *Root) makeMissing(specs []PartitionSpec) error {
	var errs []error
	var names []string
	missing, toName := map[uuid.UUID][]PartitionSpec{}, map[uuid.UUID][]string{}
	for _, s := range specs {
		makeIt, err := r.look(s)
		switch {
		case makeIt:
			missing[s.ID.Topic] = append(missing[s.ID.Topic], s)
		case errors.Is(err, ErrStorageFull):
		case r.list.state(s.ID) != unnamed:
		case err == nil:
			// Who made it may have been killed before its entry was durable.
			toName[s.ID.Topic] = append(toName[s.ID.Topic], s.ID.String())
		default:
			// Whatever comes of it, that it is missing means something from now on.
			names = append(names, s.ID.String())
		}
		errs = append(errs, err)
	}
	for topic, specs := range missing {
		made, err := r.makeDirs(specs)
		toName[topic] = append(toName[topic], made...)
		errs = append(errs, err)
	}
	for topic, texts := range toName {
		if len(texts) == 0 {
			continue
		}
		if err := r.syncTopic(topic); err != nil {
			errs = append(errs, err)
			continue
		}
		names = append(names, texts...)
	}
	if err := r.list.name(names...); err != nil {
		return err
	}
	return errors.Join(errs...)
}

// look reports whether the directory of a partition is missing and may be made.
// The error says why it can be neither made nor used.
func (r *Root) look(s PartitionSpec) (makeIt bool, err error) {
	dir := r.partitionDir(s.ID)
	lost := func(err error) error { return &LostError{ID: s.ID, Path: dir, Err: err} }
	info, err := r.fs.Stat(dir)
	switch missing := errors.Is(err, fs.ErrNotExist); {
	case missing && !s.Create && !r.list.neverHeld(s.ID):
		return false, lost(fs.ErrNotExist)
	case missing && r.Disk().Hard:
		return false, ErrStorageFull
	case missing:
		return true, nil
	case errors.Is(err, fs.ErrPermission):
		return false, err
	case err != nil:
		return false, lost(err)
	case !info.IsDir:
		return false, lost(errors.New("it is a file"))
	}
	return false, nil
}

// makeDirs makes directories of partitions of one topic, and returns what the list
// is to say of them. It does not sync.
func (r *Root) makeDirs(specs []PartitionSpec) (texts []string, err error) {
	if err := r.prepareTopic(specs[0].ID, specs[0].Topic); err != nil {
		if errors.Is(err, ErrForeign) {
			err = &LostError{ID: specs[0].ID, Path: r.partitionDir(specs[0].ID), Err: err}
		}
		return nil, err
	}
	for _, s := range specs {
		if err := r.failure.Check(r.fs.MkdirAll(r.partitionDir(s.ID))); err != nil {
			return texts, err
		}
		state := newTight
		if s.Config.Flush != FlushSync {
			state = newLoose
		}
		texts = append(texts, s.ID.String()+state.suffix())
		r.mu.Lock()
		r.making[s.ID] = true
		r.mu.Unlock()
	}
	return texts, nil
}

// syncTopic makes the entries of a topic's directory durable.
func (r *Root) syncTopic(topic uuid.UUID) error {
	err := r.fs.SyncDir(r.topicDir(topic))
	if errors.Is(err, fs.ErrPermission) {
		return err // it could not even be opened
	}
	return r.failure.Check(err)
}

// prepareTopic sees to it that the directory of a partition's topic is there
// and says the topic's name. The name is only a label: a file that is missing,
// damaged or of another name is written anew, and one that cannot be written
// for want of room keeps no records from being read. Only one of another topic's
// id is a reason to keep away: what lies beside it may be that topic's.
func (r *Root) prepareTopic(id PartitionID, name string) error {
	r.notes.take()
	defer r.notes.give()

	dir := r.topicDir(id.Topic)
	path := filepath.Join(dir, topicFileName)
	found, err := readTopicFile(r.fs, dir, id.Topic)
	why := ""
	switch {
	case err == nil && found == name:
		return nil
	case err == nil:
		why = fmt.Sprintf("it said that the topic's name is %q", found)
	case errors.Is(err, ErrDamaged):
		why = err.Error()
	case !errors.Is(err, fs.ErrNotExist):
		info, serr := r.fs.Stat(path)
		if serr != nil || !info.IsDir {
			return err
		}
		to, merr := moveAside(r.fs, dir, topicFileName)
		if merr != nil {
			return merr
		}
		r.noteStrange([]string{to})
		why = "a directory was in its place, and was moved to " + to
	}
	if err := r.failure.Check(vfs.MkdirAllSynced(r.fs, dir)); err != nil {
		return err
	}
	err = r.failure.Check(vfs.WriteFileAtomic(r.fs, path, encodeTopicFile(id.Topic, name)))
	if vfs.IsTransient(err) {
		return nil // it is tried again at the next opening
	}
	if err == nil && why != "" && r.opts.OnEvent != nil {
		r.opts.OnEvent(id, Event{Kind: EventLabelRewritten, Path: path, Detail: why})
	}
	return err
}
