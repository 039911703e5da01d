package commitlog

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"

	"github.com/runnelmq/runnel/internal/vfs"
)

// A partitionList is the file that names every partition whose log was ever
// handed out on a root, or was missing when it was asked for: one that is not
// named, and has no directory, never held anything here. It is made with the
// root, and again when it may lack something; it only grows, and is durable before
// a log is handed out:
//
//	runnel.partitions 1 "7cc5809f-efd2-4ebb-ad31-49ef5142e76e" 9f076527
//	aaaaaaaa-0000-4000-8000-000000000001/0 new async 4f19a7da
//	opened 0ad4781a
//	aaaaaaaa-0000-4000-8000-000000000001/0 cfff346f
//
// Each line ends in the CRC-32C of all texts up to it. "new" is a partition that
// was made, and of whose log no checkpoint need be durable yet; see
// [OpenOptions.Young]. The last line of a partition counts. "opened" says that by
// then every replica that the cluster expected here was named: before, the
// broker may have had them on a disk that is gone.
//
// A nil list is one that does not count: it names nothing and vouches for
// nothing.
type partitionList struct {
	fs   vfs.FS
	path string
	fail *Failure
	// turn is held by who writes the file, and guards these three.
	turn  turn
	size  int64
	lines int
	sum   uint32

	// mu guards the fields below.
	mu     sync.Mutex
	named  map[string]listState
	wanted map[string]bool // texts to be written by whoever has the turn next
	counts bool            // neverHeld may speak: all that ever was here is named
}

const (
	listName   = "runnel.partitions"
	listOpened = "opened"
)

// A listState is what the list says of a partition.
type listState uint8

const (
	// unnamed: nothing.
	unnamed listState = iota
	// grown: there is a checkpoint of its log.
	grown
	// newTight and newLoose: there need not be one yet, and if there is none, what
	// was not durable did not count, or may have.
	newTight
	newLoose
)

func (s listState) isNew() bool { return s == newTight || s == newLoose }

// suffix is what tells the state in a line.
func (s listState) suffix() string {
	switch s {
	case newTight:
		return " new sync"
	case newLoose:
		return " new async"
	case unnamed, grown:
	}
	return ""
}

// parseListText splits the text of a line.
func parseListText(text string) (name string, state listState) {
	for _, s := range []listState{newTight, newLoose} {
		if name, ok := strings.CutSuffix(text, s.suffix()); ok {
			return name, s
		}
	}
	return text, grown
}

func listHeader(directory uuid.UUID) string {
	return fmt.Sprintf("%s %d %q", listName, noteFormat, directory)
}

func newPartitionList(fsys vfs.FS, dir string, fail *Failure) *partitionList {
	return &partitionList{
		fs: fsys, path: filepath.Join(dir, listName), fail: fail, turn: newTurn(),
		named: map[string]listState{}, wanted: map[string]bool{},
	}
}

// makeList makes the list of a root that has none that counts: what is there is
// named. What is not may have been lost, until [listOpened] is.
func (r *Root) makeList() error {
	l := newPartitionList(r.fs, r.dir, r.failure)
	for id := range r.found {
		l.named[id.String()] = max(grown, r.young[id.String()])
	}
	data, sum := encodeList(r.id.DirectoryID, l.named)
	if err := r.writeNote(listName, data); err != nil {
		return err
	}
	l.size, l.lines, l.sum = int64(len(data)), 1+len(l.named), sum
	r.list = l
	return nil
}

// encodeList returns a whole list, and the checksum of its texts.
func encodeList(directory uuid.UUID, named map[string]listState) (data []byte, sum uint32) {
	var texts []string
	for name, state := range named {
		texts = append(texts, name+state.suffix())
	}
	sortListTexts(texts)
	data, sum = appendListLine(nil, 0, listHeader(directory))
	for _, t := range texts {
		data, sum = appendListLine(data, sum, t)
	}
	return data, sum
}

func appendListLine(dst []byte, sum uint32, text string) ([]byte, uint32) {
	sum = crc32.Update(sum, crc32.MakeTable(crc32.Castagnoli), []byte(text))
	return fmt.Appendf(dst, "%s %08x\n", text, sum), sum
}

// loadList reads the list, and decides whether it counts. One that does not is
// to be removed before anything else tells this start from a better one, and
// another one begins; see settleInTurn and makeList.
func (r *Root) loadList() error {
	l := newPartitionList(r.fs, r.dir, r.failure)
	data, err := vfs.ReadFile(r.fs, l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if vfs.IsTransient(err) {
		return err
	}
	if r.start.Copied || r.hadFailed {
		// It may lack what came after the copy, or was never written.
		r.listDoubted = true
		if !r.start.Copied {
			r.young = r.youngIn(data)
		}
		return nil
	}
	texts, sound := parseList(data)
	why := ""
	switch {
	case err != nil:
		why = err.Error()
	case len(texts) == 0 || texts[0] != listHeader(r.id.DirectoryID):
		why = "it does not begin as this data directory's"
	case sound < len(data) && r.start.Trusted():
		// Only a power cut leaves part of a line behind.
		why = fmt.Sprintf("bad checksum at byte %d", sound)
	}
	if why == "" {
		l.adopt(data[:sound], texts)
		why = r.unnamed(l)
	}
	if why != "" {
		r.start.Problems = append(r.start.Problems, &DamagedError{Path: l.path, Why: why})
		r.listDoubted = true
		return nil
	}
	if !r.start.Clean {
		// Of what is read, some may have been written by a process that was killed
		// before it synced it.
		if err := l.sync(); err != nil {
			return r.failure.Check(err)
		}
	}
	l.counts = r.start.Trusted() && l.named[listOpened] != unnamed
	r.list = l
	return nil
}

// youngIn returns the partitions that a list calls new.
func (r *Root) youngIn(list []byte) map[string]listState {
	young := map[string]listState{}
	texts, _ := parseList(list)
	if len(texts) == 0 || texts[0] != listHeader(r.id.DirectoryID) {
		return young
	}
	for _, t := range texts[1:] {
		if name, state := parseListText(t); state.isNew() {
			young[name] = state
		} else {
			delete(young, name)
		}
	}
	return young
}

func (l *partitionList) sync() (err error) {
	f, err := l.fs.Open(l.path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return f.Sync()
}

// parseList returns the texts of the lines up to the first bad one, and how many
// bytes they take.
func parseList(data []byte) (texts []string, sound int) {
	sum := uint32(0)
	for rest := string(data); ; {
		line, after, whole := strings.Cut(rest, "\n")
		at := strings.LastIndexByte(line, ' ')
		if !whole || at < 0 {
			return texts, sound
		}
		var want []byte
		if want, sum = appendListLine(nil, sum, line[:at]); string(want) != line+"\n" {
			return texts, sound
		}
		texts = append(texts, line[:at])
		sound += len(line) + 1
		rest = after
	}
}

func (l *partitionList) adopt(data []byte, texts []string) {
	l.size, l.lines = int64(len(data)), len(texts)
	for _, t := range texts {
		_, l.sum = appendListLine(nil, l.sum, t)
	}
	for _, t := range texts[1:] {
		l.enter(t)
	}
}

func (l *partitionList) enter(text string) {
	name, state := parseListText(text)
	l.named[name] = state
}

// unnamed finds a partition that holds something and is not in the list: then
// the list lacks lines that it had.
func (r *Root) unnamed(l *partitionList) (why string) {
	for id, d := range r.found {
		if l.state(id) != unnamed {
			continue
		}
		entries, err := r.fs.ReadDir(d.Path)
		if err != nil {
			continue // it is lost, and said to be, when it is asked for
		}
		if slices.ContainsFunc(entries, func(e vfs.DirEntry) bool {
			return strings.HasSuffix(e.Name, logSuffix) && e.Size > 0
		}) {
			return fmt.Sprintf("it does not name %s, which holds records", id)
		}
	}
	return ""
}

// neverHeld reports whether the list vouches that a partition without a
// directory never held anything on this root.
func (l *partitionList) neverHeld(id PartitionID) bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.counts && l.named[id.String()] == unnamed
}

// name enters partitions, with what is to be told of them, or [listOpened], durably. Those that come together
// share a sync.
func (l *partitionList) name(texts ...string) error {
	if l == nil || !l.want(texts) {
		return nil
	}
	l.turn.take()
	defer l.turn.give()

	if !l.want(texts) {
		return nil // with somebody else's
	}
	all := slices.Contains(texts, listOpened)
	texts = nil
	l.mu.Lock()
	for t := range l.wanted {
		if t != listOpened || all {
			texts = append(texts, t)
		}
	}
	l.mu.Unlock()
	sortListTexts(texts)
	if err := l.writeInTurn(texts); err != nil {
		return fmt.Errorf("write %s: %w", l.path, l.fail.Check(err))
	}
	l.mu.Lock()
	defer l.mu.Unlock()

	for _, t := range texts {
		l.enter(t)
		delete(l.wanted, t)
	}
	return nil
}

// want notes which of texts are not in force, and reports whether any is not.
func (l *partitionList) want(texts []string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	some := false
	for _, t := range texts {
		if name, state := parseListText(t); l.named[name] != state {
			l.wanted[t], some = true, true
		}
	}
	return some
}

// state returns what the list says of a partition.
func (l *partitionList) state(id PartitionID) listState {
	if l == nil {
		return unnamed
	}
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.named[id.String()]
}

func (l *partitionList) writeInTurn(texts []string) (err error) {
	f, err := l.fs.Open(l.path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()

	var lines []byte
	sum := l.sum
	for _, t := range texts {
		lines, sum = appendListLine(lines, sum, t)
	}
	// Of an append that failed, part may be left.
	if err := f.Truncate(l.size); err != nil {
		return err
	}
	if _, err := f.WriteAt(lines, l.size); err != nil {
		return errors.Join(err, f.Truncate(l.size))
	}
	if err := f.Sync(); err != nil {
		return err
	}
	l.size, l.lines, l.sum = l.size+int64(len(lines)), l.lines+len(texts), sum
	return nil
}

// opened says that every replica the cluster expects here is named by now: from
// here on the list counts. A partition of which the broker hears only when its
// first leader is gone already, or that there was no room for until then, was
// never here.
func (l *partitionList) opened() error {
	if l == nil {
		return nil
	}
	if err := l.name(listOpened); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()

	l.counts = true
	return nil
}

// sortListTexts puts what says that all are named after them.
func sortListTexts(texts []string) {
	slices.SortFunc(texts, func(a, b string) int {
		switch {
		case a == listOpened:
			return 1
		case b == listOpened:
			return -1
		}
		return strings.Compare(a, b)
	})
}

// listSlack is how many lines of deleted topics a list may have beyond those
// that mean something, before it is written anew.
const listSlack = 1000

// forget takes out the partitions of a topic that is gone for good: no other
// will ever have its id.
func (l *partitionList) forget(directory, topic uuid.UUID) error {
	if l == nil {
		return nil
	}
	l.turn.take()
	defer l.turn.give()

	l.mu.Lock()
	maps.DeleteFunc(l.named, func(text string, _ listState) bool { return strings.HasPrefix(text, topic.String()+"/") })
	named := maps.Clone(l.named)
	l.mu.Unlock()
	if l.lines <= 2*len(named)+listSlack {
		return nil
	}
	data, sum := encodeList(directory, named)
	if err := vfs.WriteFileAtomic(l.fs, l.path, data); err != nil {
		return fmt.Errorf("write %s: %w", l.path, l.fail.Check(err))
	}
	l.size, l.lines, l.sum = int64(len(data)), 1+len(named), sum
	return nil
}
