package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/runnelmq/runnel/client"
	"github.com/runnelmq/runnel/internal/record"
)

// findSegments returns the segment files at or below path, in offset order, a
// list for each directory.
func findSegments(path string) ([][]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return [][]string{{path}}, nil
	}
	byDir := map[string][]string{}
	err = filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if _, ok := segmentBase(p); ok && d.Type().IsRegular() {
			dir := filepath.Dir(p)
			byDir[dir] = append(byDir[dir], p)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(byDir) == 0 {
		return nil, fmt.Errorf("%s: no segment file (such as 00000000000000000000.log) is there or below", path)
	}
	var all [][]string
	for _, files := range byDir {
		slices.Sort(files) // names have 20 digits
		all = append(all, files)
	}
	slices.SortFunc(all, func(a, b []string) int { return strings.Compare(a[0], b[0]) })
	return all, nil
}

// segmentBase returns the base offset in the name of a segment file.
func segmentBase(path string) (record.Offset, bool) {
	digits, ok := strings.CutSuffix(filepath.Base(path), ".log")
	if !ok || len(digits) != 20 {
		return 0, false
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	return record.Offset(n), err == nil
}

// A spot is where something is wrong.
type spot struct {
	File     string `json:"file"`
	Position int64  `json:"position"`
	What     string `json:"what"`
}

// A place is where a batch is.
type place struct {
	file      string
	position  int64
	partition int32
}

// A scanner reads the segments of one partition and takes note of damage. Like
// the log itself it never looks for a batch by its pattern: behind a header
// that cannot be trusted it goes on with the next file.
type scanner struct {
	each   func(f *record.Frame, at place, payload []byte) error
	bytes  int64
	damage []spot

	first bool          // in the first file
	next  record.Offset // what the next batch must not be below
	epoch record.Epoch
	buf   []byte
}

func newScanner(each func(*record.Frame, place, []byte) error) *scanner {
	return &scanner{each: each, buf: make([]byte, 2*record.MaxFrameSize)}
}

func (s *scanner) scan(files []string) error {
	for i, name := range files {
		s.first = i == 0
		if err := s.file(name, i == len(files)-1); err != nil {
			return err
		}
	}
	return nil
}

func (s *scanner) wrong(file string, position int64, format string, args ...any) {
	s.damage = append(s.damage, spot{File: file, Position: position, What: fmt.Sprintf(format, args...)})
}

func (s *scanner) file(name string, last bool) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	size := info.Size()
	s.bytes += size
	if base, ok := segmentBase(name); ok {
		if base < s.next {
			s.wrong(name, 0, "the segment begins at offset %d, and offset %d comes before", base, s.next-1)
		}
		s.next = max(s.next, base)
	}
	partition, _ := strconv.ParseInt(filepath.Base(filepath.Dir(name)), 10, 32)
	at := place{file: name, partition: int32(partition)}
	var window []byte // bytes from at.position on
	for {
		left := size - at.position
		if want := min(left, record.MaxFrameSize); int64(len(window)) < want {
			window = s.buf[:min(left, int64(len(s.buf)))]
			if _, err := f.ReadAt(window, at.position); err != nil && !errors.Is(err, io.EOF) {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		frame, verdict := record.ParseFrame(window, left, record.MaxFrameSize)
		if verdict == record.OK && record.PayloadCRC(frame.Payload(window)) != frame.Header.PayloadCRC {
			verdict = record.CorruptPayload
		}
		if !s.judge(&frame, verdict, at, window, last) {
			return nil
		}
		at.position += int64(frame.Size)
		window = window[frame.Size:]
	}
}

// judge takes a frame in. It is false when nothing of the file can be read
// after it.
func (s *scanner) judge(f *record.Frame, v record.Verdict, at place, window []byte, last bool) bool {
	switch v {
	case record.OK:
		h := &f.Header
		// A copy that began anew in the middle of a batch begins with all of it.
		cut := s.first && at.position == 0 && h.NextOffset() > s.next
		if h.BaseOffset < s.next && !cut {
			s.wrong(at.file, at.position, "a batch begins at offset %d, and offset %d comes before", h.BaseOffset, s.next-1)
		}
		if h.LeaderEpoch < s.epoch {
			s.wrong(at.file, at.position, "the leader epoch goes back from %d to %d", s.epoch, h.LeaderEpoch)
		}
		if err := s.each(f, at, f.Payload(window)); err != nil {
			s.wrong(at.file, at.position, "offsets %d to %d: %v", h.BaseOffset, h.LastOffset(), err)
		}
	case record.End:
		return false
	case record.CorruptPayload:
		s.wrong(at.file, at.position, "offsets %d to %d: the payload does not match its checksum", f.Header.BaseOffset, f.Header.LastOffset())
	case record.CorruptEnvelope:
		s.wrong(at.file, at.position, "offsets %d to %d: the length before the batch is damaged; the batch is whole", f.Header.BaseOffset, f.Header.LastOffset())
	case record.Torn:
		where := "the file"
		if last {
			where = "the log"
		}
		s.wrong(at.file, at.position, "%s ends within a batch, after offset %d", where, s.next-1)
		return false
	case record.ZeroFill:
		s.wrong(at.file, at.position, "nothing but zeros where a batch should begin, after offset %d", s.next-1)
		return false
	case record.UnknownFormat:
		s.wrong(at.file, at.position, "a batch of a later format, after offset %d: read it with a newer version", s.next-1)
		return false
	default:
		s.wrong(at.file, at.position, "%v, after offset %d: what follows in this file cannot be found", v, s.next-1)
		return false
	}
	s.next = max(s.next, f.Header.NextOffset())
	s.epoch = max(s.epoch, f.Header.LeaderEpoch)
	return true
}

// localRecord is a record of a file in the form the printing works on.
func localRecord(r *record.Record, topic string, partition int32, epoch int64) client.Record {
	out := client.Record{
		Topic: topic, Partition: partition, Offset: int64(r.Offset), Timestamp: time.UnixMilli(r.TimestampMs),
		Key: r.Key, Value: r.Value, LeaderEpoch: epoch,
	}
	for h := r.Headers(); h.Next(); {
		out.Headers = append(out.Headers, client.Header{Key: string(h.Key()), Value: h.Value()})
	}
	return out
}

func stampMs(ms int64) string { return stamp(time.UnixMilli(ms)) }

func jsonLine(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}
