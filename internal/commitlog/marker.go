package commitlog

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/runnelmq/runnel/internal/vfs"
)

// A marker says that the root was closed whole: everything synced, every
// checkpoint written. It is taken away, durably, before anything is opened.
type marker struct {
	directory   uuid.UUID
	brokerEpoch int64
}

func readMarker(fsys vfs.FS, dir string) (marker, error) {
	path := filepath.Join(dir, markerName)
	n, err := readNote(fsys, path, markerName, "directory_id", "broker_epoch")
	if err != nil {
		return marker{}, err
	}
	r := noteReader{path: path, note: n}
	m := marker{brokerEpoch: r.int(1, 64)}
	if m.directory, err = uuid.Parse(r.string(0)); err != nil {
		r.fail(n.pairs[0], "a UUID")
	}
	return m, r.err
}

func (m marker) encode() []byte {
	n := note{kind: markerName}
	n.addString("directory_id", m.directory.String())
	n.addInt("broker_epoch", m.brokerEpoch)
	return n.encode()
}

// PartitionID names a partition on a data root.
type PartitionID struct {
	// Topic is the topic's id.
	Topic uuid.UUID
	// Number is the partition's, from 0.
	Number int32
}

// String is the partition's directory, relative to the data root.
func (p PartitionID) String() string {
	return p.Topic.String() + "/" + strconv.FormatInt(int64(p.Number), 10)
}

func parsePartitionID(s string) (PartitionID, error) {
	dir, number, _ := strings.Cut(s, "/")
	topic, err := parseTopicDir(dir)
	if err != nil {
		return PartitionID{}, err
	}
	n, err := parsePartitionDir(number)
	return PartitionID{topic, n}, err
}

// parseTopicDir accepts only the one spelling that is written.
func parseTopicDir(name string) (uuid.UUID, error) {
	id, err := uuid.Parse(name)
	if err == nil && id.String() != name {
		err = errors.New("not a UUID in lower case")
	}
	return id, err
}

// parsePartitionDir accepts only the one spelling that is written.
func parsePartitionDir(name string) (int32, error) {
	n, err := strconv.ParseInt(name, 10, 32)
	if err != nil || n < 0 || strconv.FormatInt(n, 10) != name {
		return 0, fmt.Errorf("%.40q is not a partition number", name)
	}
	return int32(n), nil
}

func comparePartitions(a, b PartitionID) int {
	return cmp.Or(slices.Compare(a.Topic[:], b.Topic[:]), cmp.Compare(a.Number, b.Number))
}

// readUnverified returns the partitions for which no clean marker speaks,
// because they were last written by a process that did not end in order and
// were not opened since. What speaks for them is at best the boot that is
// named; "" is nothing. Without the list, a start that opens only some of them
// and ends in order would vouch for all.
func readUnverified(fsys vfs.FS, dir string) (map[PartitionID]string, error) {
	path := filepath.Join(dir, unverifiedName)
	n, err := readNote(fsys, path, unverifiedName, "partition...")
	if errors.Is(err, fs.ErrNotExist) {
		return map[PartitionID]string{}, nil
	}
	if err != nil {
		return nil, err
	}
	r := noteReader{path: path, note: n}
	list := map[PartitionID]string{}
	for i, p := range n.pairs {
		name, boot, _ := strings.Cut(r.string(i), " ")
		id, err := parsePartitionID(name)
		if err != nil {
			r.fail(p, "a topic's UUID and a partition's number")
		}
		list[id] = boot
	}
	return list, r.err
}

func encodeUnverified(list map[PartitionID]string) []byte {
	n := note{kind: unverifiedName}
	for _, id := range slices.SortedFunc(maps.Keys(list), comparePartitions) {
		n.addString("partition", id.String()+" "+list[id])
	}
	return n.encode()
}
