package commitlog

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/runnelmq/runnel/internal/record"
)

// Any file of a log is cut short at any length. What is a cache is made anew.
// Of the batches none is lost without a word, and nothing else is read in their
// place.
func TestRecovery_filesCutShort(t *testing.T) {
	rng := rand.New(rand.NewPCG(30, 30))
	cut := map[string]int{}
	for round := range 300 {
		h := newHarness(testConfig()).withProducers()
		h.mustOpen(t, false)
		for range 3 {
			h.startEpoch(t)
			for range 9 {
				h.append(t, 100, record.CreateTime, h.nowMs)
			}
		}
		h.sync(t)
		must(t, h.log.Checkpoint())
		epochs := *h.log.epochs.Load()
		clean := round%2 == 0
		stop(t, h, clean)
		names := h.names(t, "")
		name := names[rng.IntN(len(names))]
		file := h.readFile(t, name)
		if len(file) == 0 {
			continue
		}
		to := rng.IntN(len(file))
		h.write(t, name, file[:to])
		kind := name[strings.LastIndexByte(name, '.')+1:]
		cut[kind]++

		rec, err := h.open(clean)
		if err != nil {
			t.Fatalf("%s cut to %d of %d bytes, clean %t: %v", name, to, len(file), clean, err)
		}
		frames, lost := readWhole(t, h.log)
		// What a start need not look at is found by who reads it.
		if h.log.End() != h.m.end && rec.Suspicion == NotSuspect {
			t.Fatalf("%s cut to %d of %d bytes, clean %t: the log ends at %d, not %d, and it is not suspect: %+v", name, to, len(file), clean, h.log.End(), h.m.end, rec)
		}
		rest := frames
		for _, b := range h.m.batches {
			if bytes.HasPrefix(rest, b.frame) {
				rest = rest[len(b.frame):]
				continue
			}
			gone := b.base >= h.log.End() || slices.ContainsFunc(lost, func(r Range) bool { return b.base >= r.From && b.base < r.To })
			if !gone {
				t.Fatalf("%s cut to %d of %d bytes, clean %t: batch %d is missing, and is not said to be: %v", name, to, len(file), clean, b.base, lost)
			}
		}
		if len(rest) > 0 {
			t.Fatalf("%s cut to %d of %d bytes, clean %t: %d bytes are read that were not appended", name, to, len(file), clean, len(rest))
		}
		if strings.HasSuffix(name, logSuffix) {
			continue
		}
		if diff := cmp.Diff(epochs, *h.log.epochs.Load(), cmp.AllowUnexported(epochStart{})); diff != "" {
			t.Errorf("%s cut to %d of %d bytes, clean %t: %s", name, to, len(file), clean, diff)
		}
		h.check(t)
	}
	for _, kind := range []string{"log", "index", "producers", "checkpoint", "leader-epochs"} {
		if cut[kind] == 0 {
			t.Errorf("no %s was cut: %v", kind, cut)
		}
	}
}
