package commitlog

import (
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/uuid"
)

// Quarantined is a directory of a data root that no metadata speaks of, a topic's
// or a partition's, or an entry that is none of ours. It lies where it was found and
// is left alone; nothing but the confirmed deletion of its topic ([Root.RemoveTopic]) deletes
// it. When the metadata knows the topic again its partitions are opened as if
// nothing had been.
type Quarantined struct {
	// Path names it.
	Path string
	// Topic is the topic's id, the zero UUID for what is not a topic.
	Topic uuid.UUID
	// Name is the topic's name as the directory has it, "" when unknown.
	Name string
	// Partitions are the numbers of its partitions here, sorted.
	Partitions []int32
	// Bytes is the size of all files in it, as far as it could be read.
	Bytes int64
}

// Quarantine lists what is on the disk and is of no partition that known knows: of
// a topic with partition 0 known, each such directory by itself, else the topic as
// a whole. It is to be called with whole metadata only, and again when they
// changed; it changes nothing on the disk, so that a wrong answer of known costs
// nothing. A topic with a partition that is open is known, and so is that partition.
func (r *Root) Quarantine(known func(PartitionID) bool) []Quarantined {
	r.mu.Lock()
	open, found, strays := r.openInLock(), maps.Clone(r.found), slices.Clone(r.strays)
	r.mu.Unlock()

	knows := func(topic uuid.UUID) bool { return open[topic] != nil || known(PartitionID{Topic: topic}) }
	unknown := map[string]*Quarantined{}
	for id, p := range found {
		path := p.Path
		switch {
		case !knows(id.Topic):
			path = r.topicDir(id.Topic)
		case open[id.Topic][id.Number] || known(id):
			continue
		}
		if unknown[path] == nil {
			unknown[path] = &Quarantined{Path: path, Topic: id.Topic, Name: p.Topic}
		}
		unknown[path].Partitions = append(unknown[path].Partitions, id.Number)
	}
	var list []Quarantined
	for _, q := range unknown {
		slices.Sort(q.Partitions)
		q.Bytes = r.bytesBelow(q.Path)
		list = append(list, *q)
	}
	for _, s := range strays {
		q := Quarantined{Path: s.Path}
		if topic, err := parseTopicDir(filepath.Base(s.Path)); err == nil && s.IsDir {
			if known(PartitionID{Topic: topic}) {
				continue // unreadable, and reported as lost when it is opened
			}
			q.Topic = topic
		}
		q.Bytes = r.bytesBelow(s.Path)
		list = append(list, q)
	}
	slices.SortFunc(list, func(a, b Quarantined) int { return strings.Compare(a.Path, b.Path) })

	r.mu.Lock()
	defer r.mu.Unlock()

	r.quarantine = list
	return slices.Clone(list)
}

// Quarantined returns what [Root.Quarantine] last listed, less what was opened
// or removed since, also by others.
func (r *Root) Quarantined() []Quarantined {
	r.mu.Lock()
	open := r.openInLock()
	list := slices.Clone(r.quarantine)
	r.mu.Unlock()
	return slices.DeleteFunc(list, func(q Quarantined) bool {
		whole := q.Path == r.topicDir(q.Topic)
		if whole && open[q.Topic] != nil || !whole && len(q.Partitions) == 1 && open[q.Topic][q.Partitions[0]] {
			return true
		}
		_, err := r.fs.Stat(q.Path)
		return errors.Is(err, fs.ErrNotExist)
	})
}

// openInLock returns the partitions that are open, by topic. It needs mu.
func (r *Root) openInLock() map[uuid.UUID]map[int32]bool {
	open := map[uuid.UUID]map[int32]bool{}
	for id := range r.logs {
		if open[id.Topic] == nil {
			open[id.Topic] = map[int32]bool{}
		}
		open[id.Topic][id.Number] = true
	}
	return open
}

// bytesBelow adds up the sizes of a file, or of the files in a directory.
func (r *Root) bytesBelow(path string) int64 {
	info, err := r.fs.Stat(path)
	if err != nil || !info.IsDir {
		return info.Size
	}
	entries, err := r.fs.ReadDir(path)
	if err != nil {
		return 0
	}
	var sum int64
	for _, e := range entries {
		if e.IsDir {
			sum += r.bytesBelow(filepath.Join(path, e.Name))
		} else {
			sum += e.Size
		}
	}
	return sum
}
