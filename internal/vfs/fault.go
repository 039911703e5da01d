package vfs

import (
	"io"
	"path"
	"path/filepath"
	"strings"
	"sync"
)

// Op is a set of operations of a file system and its files.
type Op uint32

// The operations, one bit each.
const (
	OpOpen Op = 1 << iota // Open, and OpenOrCreate of what exists
	OpCreate
	OpRead
	OpWrite
	OpTruncate
	OpSync
	OpClose
	OpRemove // RemoveAll too
	OpRename
	OpMkdir
	OpReadDir
	OpStat // File.Size too
	OpSyncDir
	OpLock
	OpFree

	// OpAny is every operation.
	OpAny = 1<<iota - 1
	// OpSyncPoints are those that make something durable.
	OpSyncPoints = OpSync | OpSyncDir
	// OpWriteBack is File.WriteBack. It can't fail, and is not part of OpAny.
	OpWriteBack Op = 1 << 31
	// OpChanges are those that change what a disk holds, or make it durable.
	OpChanges = OpCreate | OpWrite | OpTruncate | OpRemove | OpRename | OpMkdir | OpSyncPoints
)

// String names the operations, for messages of tests.
func (o Op) String() string {
	all := []string{
		"open", "create", "read", "write", "truncate", "sync", "close", "remove",
		"rename", "mkdir", "readdir", "stat", "syncdir", "lock", "free",
	}
	var in []string
	for i, name := range all {
		if o&(1<<i) != 0 {
			in = append(in, name)
		}
	}
	if o&OpWriteBack != 0 {
		in = append(in, "writeback")
	}
	return strings.Join(in, "|")
}

// A Rule makes some operations fail.
type Rule struct {
	// Ops are the operations it is for.
	Ops Op
	// Path is a pattern as in path.Match for the end of the path, of as many
	// elements as the pattern has: "*.log" is any log, "*/0/checkpoint" one
	// in a directory 0. "" is every path. A rename matches by either path.
	Path string
	// Nth is the first matching call that fails, counted from 1 when the
	// rule was added. 0 is 1.
	Nth int
	// Times is how many calls fail from there on; 0 is one, -1 is for ever.
	Times int
	// Err is what they fail with.
	Err error
	// Partial makes a failing write write the first half all the same, and a
	// failing sync or change of entries do its work before it fails.
	Partial bool
}

// Fault is a file system that passes calls on to another one, lets a test look
// before each, and fails those it is told to. It is safe for concurrent use.
type Fault struct {
	fs FS

	// mu guards the fields below.
	mu    sync.Mutex
	rules []*armedRule
	hooks []hook
}

type armedRule struct {
	Rule

	seen int
}

type hook struct {
	ops Op
	fn  func(op Op, name string)
}

// NewFault returns a Fault over fs, without rules and hooks.
func NewFault(fs FS) *Fault { return &Fault{fs: fs} }

// Inject adds a rule. Of several that match one call the first decides.
func (f *Fault) Inject(r Rule) {
	f.mu.Lock()
	defer f.mu.Unlock()

	f.rules = append(f.rules, &armedRule{Rule: r})
}

// Clear removes all rules.
func (f *Fault) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()

	f.rules = nil
}

// Before has fn called before each of the operations, failing ones too, in
// the goroutine of the call. With [OpSyncPoints] and a [Mem] below it can make
// a clone at each moment at which a power cut tells. fn may use the Mem, not
// the Fault.
func (f *Fault) Before(ops Op, fn func(op Op, name string)) {
	f.mu.Lock()
	defer f.mu.Unlock()

	f.hooks = append(f.hooks, hook{ops, fn})
}

// call runs the hooks and returns the rule that fails the call, or nil.
func (f *Fault) call(op Op, paths ...string) *armedRule {
	f.mu.Lock()
	hooks := f.hooks
	var hit *armedRule
	for _, r := range f.rules {
		if r.Ops&op != 0 && r.matches(paths) && r.fires() && hit == nil {
			hit = r
		}
	}
	f.mu.Unlock()

	for _, h := range hooks {
		if h.ops&op != 0 {
			h.fn(op, paths[0])
		}
	}
	return hit
}

func (r *armedRule) matches(paths []string) bool {
	if r.Path == "" {
		return true
	}
	depth := strings.Count(r.Path, "/") + 1
	for _, p := range paths {
		elems := strings.Split(filepath.ToSlash(p), "/")
		end := strings.Join(elems[max(0, len(elems)-depth):], "/")
		if ok, err := path.Match(r.Path, end); ok && err == nil {
			return true
		}
	}
	return false
}

// fires counts a matching call.
func (r *armedRule) fires() bool {
	r.seen++
	nth, times := max(r.Nth, 1), r.Times
	if times == 0 {
		times = 1
	}
	return r.seen >= nth && (times < 0 || r.seen < nth+times)
}

// do makes a call that has no result.
func (f *Fault) do(op Op, fn func() error, paths ...string) error {
	hit := f.call(op, paths...)
	if hit == nil {
		return fn()
	}
	if hit.Partial {
		_ = fn() // whatever comes of it, the call fails
	}
	return pathError(op.String(), paths[0], hit.Err)
}

func (f *Fault) openFile(op Op, name string, open func(string) (File, error)) (File, error) {
	if hit := f.call(op, name); hit != nil {
		return nil, pathError(op.String(), name, hit.Err)
	}
	file, err := open(name)
	if err != nil {
		return nil, err
	}
	return &faultFile{File: file, fault: f}, nil
}

// Open implements [FS].
func (f *Fault) Open(name string) (File, error) { return f.openFile(OpOpen, name, f.fs.Open) }

// Create implements [FS].
func (f *Fault) Create(name string) (File, error) { return f.openFile(OpCreate, name, f.fs.Create) }

// OpenOrCreate implements [FS].
func (f *Fault) OpenOrCreate(name string) (File, error) {
	op := OpOpen
	if _, err := f.fs.Stat(name); err != nil {
		op = OpCreate
	}
	return f.openFile(op, name, f.fs.OpenOrCreate)
}

// Remove implements [FS].
func (f *Fault) Remove(name string) error {
	return f.do(OpRemove, func() error { return f.fs.Remove(name) }, name)
}

// RemoveAll implements [FS].
func (f *Fault) RemoveAll(name string) error {
	return f.do(OpRemove, func() error { return f.fs.RemoveAll(name) }, name)
}

// Rename implements [FS].
func (f *Fault) Rename(oldName, newName string) error {
	return f.do(OpRename, func() error { return f.fs.Rename(oldName, newName) }, oldName, newName)
}

// MkdirAll implements [FS].
func (f *Fault) MkdirAll(name string) error {
	return f.do(OpMkdir, func() error { return f.fs.MkdirAll(name) }, name)
}

// ReadDir implements [FS].
func (f *Fault) ReadDir(name string) (entries []DirEntry, err error) {
	err = f.do(OpReadDir, func() error { entries, err = f.fs.ReadDir(name); return err }, name)
	return entries, err
}

// Stat implements [FS].
func (f *Fault) Stat(name string) (info Info, err error) {
	err = f.do(OpStat, func() error { info, err = f.fs.Stat(name); return err }, name)
	return info, err
}

// SyncDir implements [FS].
func (f *Fault) SyncDir(name string) error {
	return f.do(OpSyncDir, func() error { return f.fs.SyncDir(name) }, name)
}

// Lock implements [FS].
func (f *Fault) Lock(name string) (lock io.Closer, err error) {
	if hit := f.call(OpLock, name); hit != nil {
		return nil, pathError(OpLock.String(), name, hit.Err)
	}
	return f.fs.Lock(name)
}

// Free implements [FS].
func (f *Fault) Free(name string) (free, total int64, err error) {
	err = f.do(OpFree, func() error { free, total, err = f.fs.Free(name); return err }, name)
	return free, total, err
}

type faultFile struct {
	File

	fault *Fault
}

func (f *faultFile) ReadAt(p []byte, off int64) (int, error) {
	if hit := f.fault.call(OpRead, f.Name()); hit != nil {
		return 0, pathError("read", f.Name(), hit.Err)
	}
	return f.File.ReadAt(p, off)
}

func (f *faultFile) WriteAt(p []byte, off int64) (int, error) {
	hit := f.fault.call(OpWrite, f.Name())
	if hit == nil {
		return f.File.WriteAt(p, off)
	}
	n := 0
	if hit.Partial {
		n, _ = f.File.WriteAt(p[:len(p)/2], off) // whatever comes of it, the call fails
	}
	return n, pathError("write", f.Name(), hit.Err)
}

func (f *faultFile) Truncate(size int64) error {
	return f.fault.do(OpTruncate, func() error { return f.File.Truncate(size) }, f.Name())
}

func (f *faultFile) Sync() error { return f.fault.do(OpSync, f.File.Sync, f.Name()) }

// WriteBack can't fail; a hook hears of it.
func (f *faultFile) WriteBack() {
	f.fault.call(OpWriteBack, f.Name())
	f.File.WriteBack()
}

func (f *faultFile) Size() (size int64, err error) {
	err = f.fault.do(OpStat, func() error { size, err = f.File.Size(); return err }, f.Name())
	return size, err
}

// Close closes the file even when it fails.
func (f *faultFile) Close() error {
	hit := f.fault.call(OpClose, f.Name())
	if err := f.File.Close(); err != nil || hit == nil {
		return err
	}
	return pathError("close", f.Name(), hit.Err)
}
