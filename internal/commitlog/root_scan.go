package commitlog

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/runnelmq/runnel/internal/vfs"
)

// Names in a data root, below its own files.
const (
	topicFileName  = "topic"
	removedSuffix  = ".removed"
	setAsideSuffix = ".lost-"
)

// PartitionDir is a partition's directory as it was found on the disk.
type PartitionDir struct {
	// ID names the partition.
	ID PartitionID
	// Topic is the topic's name; "" when its file is missing or damaged.
	Topic string
	// Path is the directory.
	Path string
	// Err says why the directory cannot be used as it is; nil when it looks
	// all right from outside.
	Err error
}

// Stray is an entry of a data root that is neither the root's nor a topic's.
// It is left alone.
type Stray struct {
	// Path names it.
	Path string
	// IsDir tells a directory from a file.
	IsDir bool
}

// scan finds what is on the disk.
func (r *Root) scan() error {
	entries, err := r.fs.ReadDir(r.dir)
	if err != nil {
		return err
	}
	own := []string{lockName, identityName, markerName, failedName, unverifiedName, listName, ballastName, "lost+found"}
	r.found = map[PartitionID]PartitionDir{}
	for _, e := range entries {
		name := strings.TrimSuffix(e.Name, vfs.TempSuffix)
		if slices.Contains(own, name) {
			if e.IsDir {
				if err := r.clearWay(e.Name); err != nil {
					return err
				}
			}
			continue
		}
		path := filepath.Join(r.dir, e.Name)
		if name, ok := strings.CutSuffix(e.Name, removedSuffix); ok && e.IsDir {
			if _, err := parseTopicDir(name); err == nil {
				r.leftovers = append(r.leftovers, path)
				continue
			}
		}
		topic, err := parseTopicDir(e.Name)
		if err != nil || !e.IsDir {
			r.strays = append(r.strays, Stray{path, e.IsDir})
			continue
		}
		if err := r.scanTopic(topic, path); err != nil {
			return err
		}
	}
	return nil
}

func (r *Root) scanTopic(topic uuid.UUID, dir string) error {
	entries, err := r.fs.ReadDir(dir)
	if err != nil {
		// One unreadable topic does not keep the others from starting; its
		// partitions are lost when they are asked for.
		r.start.Problems = append(r.start.Problems, err)
		r.strays = append(r.strays, Stray{dir, true})
		return nil
	}
	name, nameErr := readTopicFile(r.fs, dir, topic)
	if errors.Is(nameErr, fs.ErrNotExist) || errors.Is(nameErr, ErrDamaged) {
		nameErr = nil // it is written anew when the topic is known
	}
	for _, e := range entries {
		if strings.TrimSuffix(e.Name, vfs.TempSuffix) == topicFileName && !e.IsDir {
			continue
		}
		if e.Name == topicFileName {
			nameErr = nil // as if there were no file: the directory makes way for it
			continue
		}
		path := filepath.Join(dir, e.Name)
		n, err := parsePartitionDir(e.Name)
		if err != nil || !e.IsDir {
			r.strays = append(r.strays, Stray{path, e.IsDir})
			continue
		}
		id := PartitionID{topic, n}
		r.found[id] = PartitionDir{ID: id, Topic: name, Path: path, Err: nameErr}
	}
	return nil
}

// readTopicFile returns the name in a topic's directory.
func readTopicFile(fsys vfs.FS, dir string, topic uuid.UUID) (string, error) {
	path := filepath.Join(dir, topicFileName)
	n, err := readNote(fsys, path, topicFileName, "topic_id", "name")
	if err != nil {
		return "", err
	}
	r := noteReader{path: path, note: n}
	if id := r.string(0); id != topic.String() {
		return "", fmt.Errorf("%w: %s is of topic id %s, in the directory of %s", ErrForeign, path, id, topic)
	}
	return r.string(1), r.err
}

func encodeTopicFile(topic uuid.UUID, name string) []byte {
	n := note{kind: topicFileName}
	n.addString("topic_id", topic.String())
	n.addString("name", name)
	return n.encode()
}

// readFailed returns what an earlier process wrote down when its disk failed,
// "" when there is no such file.
func readFailed(fsys vfs.FS, dir string) (reason string, err error) {
	path := filepath.Join(dir, failedName)
	n, err := readNote(fsys, path, failedName, "reason")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case errors.Is(err, ErrDamaged):
		return err.Error(), nil // that there is such a file says enough
	case err != nil:
		return "", err
	}
	r := noteReader{path: path, note: n}
	if reason = r.string(0); r.err != nil || reason == "" {
		reason = "for an unknown reason"
	}
	return reason, nil
}

// noteFailure leaves word for the next start that the disk failed, as far as
// a failed disk allows: until the controller has judged that start, nothing on
// this root is trusted.
func (r *Root) noteFailure() {
	n := note{kind: failedName}
	n.addString("reason", r.failure.Err().Error())
	if err := vfs.WriteFileAtomic(r.fs, filepath.Join(r.dir, failedName), n.encode()); err != nil {
		r.opts.OnWarning(fmt.Errorf("leave word that the disk failed: %w", err))
	}
}
