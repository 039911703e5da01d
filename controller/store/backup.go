package store

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"strings"
	"time"

	"github.com/runnelmq/runnel/controller/encoding"
	"github.com/runnelmq/runnel/controller/state"
)

// A backup is the line below, then each object as its path and its value, both with their lengths before them as varints, then
// an empty path, then the CRC-32C of all that comes after the line, in four bytes, big-endian.
const backupHeader = "runnel metadata backup 1\n"

// maxPart bounds what is read of one path or value.
const maxPart = 4 << 20

// Errors about backups.
var (
	ErrBadBackup = errors.New("this is no whole backup")
	ErrNotEmpty  = errors.New("the metadata store holds a cluster already: a backup is restored into an empty one")
)

// A BackupInfo says what is in a backup.
type BackupInfo struct {
	Objects  int
	Revision state.Revision // at which the metadata was read; 0 when a backup was read
}

// Backup writes all metadata as of one revision.
func (s *Store) Backup(ctx context.Context, w io.Writer) (BackupInfo, error) {
	pairs, rev, err := s.list(ctx)
	if err != nil {
		return BackupInfo{}, err
	}
	if len(pairs) == 0 {
		others, _ := s.others(ctx) // good to know, and no more
		return BackupInfo{}, s.noCluster(others, false)
	}
	out := bufio.NewWriter(w)
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	body := io.MultiWriter(out, sum)
	_, err = io.WriteString(out, backupHeader)
	for _, p := range pairs {
		err = errors.Join(err, writePart(body, []byte(strings.TrimPrefix(p.Key, s.prefix))), writePart(body, p.Value))
	}
	err = errors.Join(err, writePart(body, nil))
	_, sumErr := out.Write(binary.BigEndian.AppendUint32(nil, sum.Sum32()))
	if err = errors.Join(err, sumErr, out.Flush()); err != nil {
		return BackupInfo{}, fmt.Errorf("write the backup: %w", err)
	}
	return BackupInfo{Objects: len(pairs), Revision: state.Revision(rev)}, nil
}

func writePart(w io.Writer, b []byte) error {
	if _, err := w.Write(binary.AppendUvarint(nil, uint64(len(b)))); err != nil {
		return err
	}
	_, err := w.Write(b)
	return err
}

// ReadBackup returns the objects of a backup, after it was read and checked as a whole.
func ReadBackup(r io.Reader) ([]state.Object, error) {
	in := &summed{in: bufio.NewReader(r), sum: crc32.New(crc32.MakeTable(crc32.Castagnoli))}
	head := make([]byte, len(backupHeader))
	if _, err := io.ReadFull(in.in, head); err != nil || string(head) != backupHeader {
		return nil, fmt.Errorf("%w: it does not begin as one", ErrBadBackup)
	}
	var objects []state.Object
	for {
		path, err := in.part()
		if err != nil {
			return nil, err
		}
		if len(path) == 0 {
			break
		}
		value, err := in.part()
		if err != nil {
			return nil, err
		}
		key, err := encoding.ParsePath(string(path))
		if err != nil {
			return nil, err
		}
		o, err := encoding.Unmarshal(key, value, 0)
		if err != nil {
			return nil, err
		}
		objects = append(objects, o)
	}
	want := in.sum.Sum32()
	var sum [4]byte
	if _, err := io.ReadFull(in.in, sum[:]); err != nil {
		return nil, fmt.Errorf("%w: it ends early", ErrBadBackup)
	}
	if binary.BigEndian.Uint32(sum[:]) != want {
		return nil, fmt.Errorf("%w: the checksum is wrong", ErrBadBackup)
	}
	return objects, nil
}

// A summed reader computes the checksum of what is read.
type summed struct {
	in  *bufio.Reader
	sum hash.Hash32
}

func (s *summed) part() ([]byte, error) {
	n, err := binary.ReadUvarint(s)
	if err != nil || n > maxPart {
		return nil, fmt.Errorf("%w: it ends early or is damaged", ErrBadBackup)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(s.in, b); err != nil {
		return nil, fmt.Errorf("%w: it ends early", ErrBadBackup)
	}
	_, err = s.sum.Write(b)
	return b, err
}

// ReadByte implements io.ByteReader.
func (s *summed) ReadByte() (byte, error) {
	c, err := s.in.ReadByte()
	if err == nil {
		_, err = s.sum.Write([]byte{c})
	}
	return c, err
}

// Restore writes the objects of a backup into a store without a cluster. The cluster's identity comes last: a store whose
// restoration was cut short is no cluster, and can be restored into again.
func (s *Store) Restore(ctx context.Context, objects []state.Object) (BackupInfo, error) {
	now := time.Now()
	var changes []state.Change
	var cluster *state.Change
	for _, o := range objects {
		if o = state.Restored(o, now); o == nil {
			continue
		}
		c := state.Change{Key: o.Key(), Object: o}
		if c.Key.Kind == state.KindCluster {
			cluster = &c
			continue
		}
		changes = append(changes, c)
	}
	if cluster == nil {
		return BackupInfo{}, fmt.Errorf("%w: it names no cluster", ErrBadBackup)
	}
	info := BackupInfo{Objects: len(changes) + 1}
	absent := Compare{Key: s.prefix + encoding.Path(cluster.Key)}
	for len(changes) > 0 {
		n := min(len(changes), state.MaxChanges)
		if err := s.restore(ctx, absent, changes[:n]); err != nil {
			return BackupInfo{}, err
		}
		changes = changes[n:]
	}
	return info, s.restore(ctx, absent, []state.Change{*cluster})
}

// restore writes what can be written again without harm, while there is no cluster.
func (s *Store) restore(ctx context.Context, absent Compare, changes []state.Change) error {
	writes, err := s.writes(changes)
	if err != nil {
		return err
	}
	res, err := again(ctx, func(ctx context.Context) (TxnResult, error) { return s.kv.Txn(ctx, []Compare{absent}, writes) })
	switch {
	case err != nil:
		return fmt.Errorf("restore: %w", err)
	case !res.Succeeded:
		return s.restored(ctx, absent, changes)
	}
	return nil
}

// restored tells whether a cluster that is there is the one being restored, written by a transaction whose answer was lost.
func (s *Store) restored(ctx context.Context, absent Compare, changes []state.Change) error {
	page, err := s.read(ctx, []string{absent.Key})
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if c, ok := changes[0].Object.(*state.Cluster); ok && len(page.Pairs) == 1 {
		if id, err := readCluster(page.Pairs[0], absent.Key); err == nil && id == c.ID {
			return nil
		}
	}
	return ErrNotEmpty
}
