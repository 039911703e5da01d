package replication

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/internal/vfs"
)

// lines counts the lines of a log, which is JSON, that have all of texts.
func lines(log string, texts ...string) (n int) {
	for line := range strings.Lines(log) {
		has := true
		for _, text := range texts {
			has = has && strings.Contains(line, text)
		}
		if has {
			n++
		}
	}
	return n
}

// A follower that can't pass damage of its leader tries again every second. The
// leader's log tells of it when it begins, once a minute, and when it is over.
func TestStuck_isToldOnceInAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t)
		defer w.end()
		var log bytes.Buffer
		w.log = zerolog.New(zerolog.SyncWriter(&log))
		w.start(1, vfs.NewMem())
		id := w.topic(async, 1, 1, 1, 2)
		w.change(id, 0, func(p *controllerv1.PartitionRecord) { p.Isr = []int32{1} })
		synctest.Wait()
		_, committed := w.nodes[1].append(id, 0, 1, 1000)
		w.within(time.Second, "it is committed", w.done(committed))
		w.nodes[1].fault.Inject(vfs.Rule{Ops: reading, Path: "*.log", Times: -1, Err: errors.New("bad sector")})
		w.start(2, vfs.NewMem())
		time.Sleep(150 * time.Second)
		synctest.Wait()
		warned := lines(log.String(), `"warn"`, "can't be sent what comes next", "bad sector")
		if tries := lines(log.String(), "can't be sent what comes next"); warned != 3 || tries < 100 {
			t.Errorf("%d warnings of %d attempts in 150 s, want 3\n%s", warned, tries, log.String())
		}
		if lines(log.String(), "could not be sent before") != 0 {
			t.Error("it was told to be over")
		}
		w.nodes[1].fault.Clear()
		w.within(5*time.Second, "it is in sync", func() bool { return len(w.isr(id, 0)) == 2 })
		if n := lines(log.String(), `"info"`, "was sent what it could not be sent before"); n != 1 {
			t.Errorf("told %d times that it is over\n%s", n, log.String())
		}
		w.same(id, 0)
	})
}

// Trouble that nobody saw the end of, since somebody else leads, is forgotten.
func TestStuck_isForgotten(t *testing.T) {
	var s stuck
	gone, there := stuckPlace{follower: 1}, stuckPlace{follower: 2}
	now := time.Now()
	s.again(gone, 7, now)
	for end := now.Add(stuckFor + 2*tellEvery); now.Before(end); now = now.Add(time.Second) {
		s.again(there, 7, now)
	}
	if s.has(gone) || !s.has(there) {
		t.Errorf("gone: %v, there: %v", s.has(gone), s.has(there))
	}
	if _, over := s.passed(there, 7); over {
		t.Error("it is over before it was passed")
	}
	if _, over := s.passed(there, 8); !over || s.has(there) {
		t.Error("it was passed and is not over")
	}
}
