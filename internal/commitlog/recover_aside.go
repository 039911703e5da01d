package commitlog

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/runnelmq/runnel/internal/vfs"
)

// strangeSuffix ends the name of a directory that lay where one of our files
// belongs, and was moved out of the way. Nothing reads or deletes it.
const strangeSuffix = ".strange"

// clearWay moves directories aside that have the name of one of a log's files:
// the log holds files only, so nothing of it is in there. Then the file counts as
// missing. Whatever else is a directory stays where it is.
func (r *recovery) clearWay() error {
	l := r.l
	entries, err := l.fs.ReadDir(l.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir {
			continue
		}
		at := l.path(e.Name)
		if isOurs(e.Name) {
			if at, err = moveAside(l.fs, l.dir, e.Name); errors.Is(err, fs.ErrPermission) {
				return err
			} else if err != nil {
				return l.check(err)
			}
			r.event(EventSetAside, e.Name, -1, "a directory is in the place of this file: moved to "+filepath.Base(at))
		}
		r.report.Strange = append(r.report.Strange, at)
	}
	return nil
}

// isOurs reports whether a log may want to have a file of this name.
func isOurs(name string) bool {
	if slices.Contains([]string{checkpointName, epochsName, damageName, cleanerName}, name) {
		return true
	}
	return slices.ContainsFunc([]string{logSuffix, indexSuffix, producersSuffix, swapSuffix, vfs.TempSuffix}, func(suffix string) bool {
		return strings.HasSuffix(name, suffix)
	})
}

// moveAside renames an entry of dir to the first name that is free, and returns
// its path.
func moveAside(fsys vfs.FS, dir, name string) (string, error) {
	to, err := freeName(fsys, dir, name+strangeSuffix)
	if err != nil {
		return "", err
	}
	to = filepath.Join(dir, to)
	if err := fsys.Rename(filepath.Join(dir, name), to); err != nil {
		return "", err
	}
	return to, nil
}

// clearWay moves a directory aside that has the name of one of the root's files,
// if nothing is lost when that counts as missing. A directory in the place of
// another one keeps the root from being opened.
func (r *Root) clearWay(name string) error {
	if name != ballastName && !strings.HasSuffix(name, vfs.TempSuffix) {
		return nil
	}
	to, err := moveAside(r.fs, r.dir, name)
	if err != nil {
		return err
	}
	r.start.Problems = append(r.start.Problems, fmt.Errorf("a directory was in the place of the file %s: moved to %s", filepath.Join(r.dir, name), to))
	r.strays = append(r.strays, Stray{to, true})
	return nil
}

// noteStrange has directories listed that were found in a partition's.
func (r *Root) noteStrange(paths []string) {
	r.mu.Lock()
	defer r.mu.Unlock()

	for _, path := range paths {
		if s := (Stray{path, true}); !slices.Contains(r.strays, s) {
			r.strays = append(r.strays, s)
		}
	}
}
