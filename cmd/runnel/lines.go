package main

import (
	"bufio"
	"errors"
	"io"
)

// lines reads lines of at most max bytes. It reuses its buffers.
type lines struct {
	r    *bufio.Reader
	max  int
	long []byte // a line that is larger than r's buffer
	n    int64  // number of the line that next returned, from 1
	read int64  // bytes
}

func newLines(r io.Reader, most int) *lines {
	return &lines{r: bufio.NewReaderSize(r, 256<<10), max: most}
}

var errLineTooLong = errors.New("line too long")

// next returns a line without its end, valid until the next call. A line that
// is too long is skipped, with errLineTooLong.
func (l *lines) next() ([]byte, error) {
	l.long = l.long[:0]
	skip := false
	for {
		part, err := l.r.ReadSlice('\n')
		l.read += int64(len(part))
		switch {
		case err == nil:
			l.n++
			return l.finish(part[:len(part)-1], skip)
		case errors.Is(err, bufio.ErrBufferFull):
			if skip = skip || len(l.long)+len(part) > l.max; !skip {
				l.long = append(l.long, part...)
			}
		case errors.Is(err, io.EOF) && (len(part) > 0 || len(l.long) > 0 || skip):
			l.n++
			return l.finish(part, skip) // the last one, without an end
		default:
			return nil, err
		}
	}
}

func (l *lines) finish(part []byte, skip bool) ([]byte, error) {
	if skip || len(l.long)+len(part) > l.max {
		return nil, errLineTooLong
	}
	if len(l.long) == 0 {
		return part, nil
	}
	l.long = append(l.long, part...)
	return l.long, nil
}
