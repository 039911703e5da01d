package commitlog

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/runnelmq/runnel/internal/record"
)

// The log does what a slice of batches would do, whatever comes.
func TestLog_behavesLikeASlice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tb := rapid.TB(t)
		cfg := testConfig()
		cfg.SegmentBytes = rapid.SampledFrom([]int64{300, 1000, 5000}).Draw(t, "segment bytes")
		cfg.RetentionBytes = rapid.SampledFrom([]int64{-1, 0, 1, 3000}).Draw(t, "retention bytes")
		h := newHarness(cfg)
		h.producers = rapid.Bool().Draw(t, "producers")
		h.mustOpen(tb, false)
		h.startEpoch(tb)
		offset := func(t *rapid.T) record.Offset {
			return record.Offset(rapid.Int64Range(int64(h.m.start), int64(h.m.end)).Draw(t, "offset"))
		}
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) {
				tt := rapid.SampledFrom([]record.TimestampType{record.CreateTime, record.LogAppendTime}).Draw(t, "type")
				times := rapid.SliceOfN(rapid.Int64Range(h.nowMs-50, h.nowMs+50), 1, 5).Draw(t, "times")
				h.append(tb, rapid.IntRange(8, 300).Draw(t, "size"), tt, times...)
			},
			"append frames": func(t *rapid.T) {
				h.appendFrames(tb, 30, rapid.IntRange(1, 12).Draw(t, "batches"), record.Offset(rapid.IntRange(0, 3).Draw(t, "gap")))
			},
			"clock": func(t *rapid.T) {
				h.nowMs += rapid.Int64Range(0, (40*time.Minute).Milliseconds()).Draw(t, "ms")
			},
			"sync":       func(*rapid.T) { h.sync(tb) },
			"checkpoint": func(*rapid.T) { must(tb, h.log.Checkpoint()) },
			"roll":       func(*rapid.T) { must(tb, h.log.Roll()) },
			"roll if due": func(*rapid.T) {
				must(tb, h.log.RollIfDue(h.nowMs))
			},
			"truncate":      func(t *rapid.T) { h.truncate(tb, offset(t)) },
			"delete before": func(t *rapid.T) { h.deleteBefore(tb, offset(t)) },
			"retain":        func(t *rapid.T) { h.retain(tb, offset(t)) },
			"epoch":         func(*rapid.T) { h.startEpoch(tb) },
			"reset": func(t *rapid.T) {
				if rapid.IntRange(0, 4).Draw(t, "really") == 0 {
					h.reset(tb, record.Offset(rapid.IntRange(0, 1000).Draw(t, "start")))
				}
			},
			"close and open": func(*rapid.T) { h.reopen(tb, true) },
			"kill and open":  func(*rapid.T) { h.reopen(tb, false) },
			"read": func(t *rapid.T) {
				from, end := offset(t), offset(t)
				buf := make([]byte, rapid.IntRange(0, 3000).Draw(t, "buffer"))
				n, err := h.log.Read(buf, from, end)
				want := h.m.from(from, min(end, h.m.end))
				if from >= end {
					want = nil
				}
				if short, ok := errors.AsType[*ShortBufferError](err); ok {
					if len(want) == 0 || short.Need <= len(buf) && len(buf) >= record.PrefixMax {
						t.Fatalf("%v with %d bytes, %d wanted", err, len(buf), len(want))
					}
					return
				}
				if err != nil || !bytes.HasPrefix(want, buf[:n]) || (n == 0) != (len(want) == 0) {
					t.Fatalf("read [%d,%d) gave %d bytes, %v; want a prefix of %d", from, end, n, err, len(want))
				}
			},
			"read out of range": func(t *rapid.T) {
				for _, o := range []record.Offset{h.m.start - 1, h.m.end + 1} {
					if _, err := h.log.Read(nil, o, o+1); !errors.Is(err, ErrOutOfRange) {
						t.Fatalf("read at %d: %v", o, err)
					}
				}
			},
			"offset for time": func(t *rapid.T) {
				ms, end := h.nowMs+rapid.Int64Range(-200, 200).Draw(t, "ms"), offset(t)
				off, ts, found, err := h.log.OffsetForTime(ms, end)
				wantOff, wantTs, wantFound := h.m.forTime(ms, end)
				if err != nil || off != wantOff || ts != wantTs || found != wantFound {
					t.Fatalf("offset for %d below %d: %d at %d, %v, %v; want %d at %d, %v",
						ms, end, off, ts, found, err, wantOff, wantTs, wantFound)
				}
			},
			"": func(*rapid.T) { h.check(tb) },
		})
		must(tb, checkIndexes(h.log, cfg.IndexIntervalBytes))
		must(tb, h.log.Close())
	})
}

func must(t rapid.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The history of epochs answers as the rule says, and never un-learns.
func TestEpochList_model(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var list epochList
		end := record.Offset(0)
		for range rapid.IntRange(0, 20).Draw(t, "steps") {
			switch rapid.IntRange(0, 2).Draw(t, "step") {
			case 0:
				list = list.begin(list.last()+record.Epoch(rapid.IntRange(1, 3).Draw(t, "epoch")), end)
			case 1:
				end += record.Offset(rapid.IntRange(0, 10).Draw(t, "records"))
			default:
				end = record.Offset(rapid.Int64Range(0, int64(end)).Draw(t, "cut"))
				list = list.cut(end)
			}
			if !slices.IsSortedFunc(list, func(a, b epochStart) int {
				if a.epoch < b.epoch && a.start < b.start {
					return -1
				}
				return 1
			}) {
				t.Fatalf("not increasing: %v", list)
			}
			for e := record.Epoch(0); e <= list.last()+1; e++ {
				got, off := list.end(e, 0, end)
				if want, wantOff := slowEnd(list, e, end); got != want || off != wantOff {
					t.Fatalf("end of %d in %v, log end %d: (%d, %d), want (%d, %d)", e, list, end, got, off, want, wantOff)
				}
			}
		}
	})
}

// slowEnd is the rule, word by word.
func slowEnd(list epochList, e record.Epoch, end record.Offset) (record.Epoch, record.Offset) {
	if len(list) == 0 {
		return NoEpoch, end
	}
	if e >= list.last() {
		return list.last(), end
	}
	for i := len(list) - 2; i >= 0; i-- {
		if list[i].epoch <= e {
			return list[i].epoch, list[i+1].start
		}
	}
	return e, list[0].start
}
