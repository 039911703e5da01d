package commitlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// chains stands for an owner's state: for each producer a hash over all its
// batches in their order. One that is missed, or seen twice, or out of its turn,
// shows for good.
type chains struct {
	of   map[record.ProducerID]uint64
	last record.Offset // of the batch applied last
	// backwards says that a batch came that does not follow.
	backwards bool
}

func newChains() *chains { return &chains{of: map[record.ProducerID]uint64{}, last: -1} }

func (c *chains) Apply(h *record.Header) {
	c.backwards = c.backwards || h.BaseOffset <= c.last
	c.last = h.LastOffset()
	c.add(h.ProducerID, h.BaseOffset, h.LastOffset())
}

func (c *chains) add(id record.ProducerID, base, last record.Offset) {
	sum := fnv.New64a()
	_ = binary.Write(sum, binary.LittleEndian, []uint64{c.of[id], uint64(base), uint64(last)})
	c.of[id] = sum.Sum64()
}

func (c *chains) Reset() { *c = *newChains() }

func (c *chains) AppendState(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, uint64(c.last))
	for id := record.ProducerID(1); id < 10; id++ {
		if h, ok := c.of[id]; ok {
			dst = binary.LittleEndian.AppendUint64(append(dst, byte(id)), h)
		}
	}
	return dst
}

var errBadChains = errors.New("no chains")

func (c *chains) SetState(b []byte) error {
	c.Reset()
	if len(b) < 8 || len(b)%9 != 8 {
		return errBadChains
	}
	c.last = record.Offset(binary.LittleEndian.Uint64(b))
	for b = b[8:]; len(b) > 0; b = b[9:] {
		c.of[record.ProducerID(b[0])] = binary.LittleEndian.Uint64(b[1:])
	}
	return nil
}

func (c *chains) Live(id record.ProducerID) bool { _, ok := c.of[id]; return ok }

// A head is what a model remembers of a batch of a producer, also after
// retention removed it.
type head struct {
	id         record.ProducerID
	base, last record.Offset
}

// checkChains says how the producers' state of l, if it has any, differs from
// that of the whole history.
func checkChains(l *Log, heads []head) error {
	got, ok := l.producers.owner.(*chains)
	if !ok {
		return nil
	}
	want := newChains()
	for _, h := range heads {
		want.add(h.id, h.base, h.last)
		want.last = h.last
	}
	if got.backwards || !bytes.Equal(got.AppendState(nil), want.AppendState(nil)) {
		return fmt.Errorf("the producers' state is %+v, want %+v", got, want)
	}
	return nil
}

// withProducers makes the harness's logs have an owner.
func (h *harness) withProducers() *harness {
	h.producers = true
	return h
}

// config returns the configuration to open a log with.
func (h *harness) config() Config {
	cfg := h.cfg
	if h.producers {
		cfg.Producers = newChains()
	}
	return cfg
}

func snapshotNames(t rapid.TB, fsys vfs.FS) []string {
	t.Helper()
	entries, err := fsys.ReadDir(testDir)
	must(t, err)
	var names []string
	for _, e := range entries {
		if digits, ok := strings.CutSuffix(e.Name, producersSuffix); ok {
			names = append(names, strings.TrimLeft(digits, "0"))
		}
	}
	return names
}

// A snapshot at each roll and one at the end; with them a start reads no batch
// below, and without them all.
func TestProducers_snapshotsSpareReading(t *testing.T) {
	cfg := testConfig()
	cfg.SegmentBytes = 1 << 20
	h := newHarness(cfg).withProducers()
	h.mustOpen(t, false)
	h.startEpoch(t)
	for range 3 {
		for range 10 {
			h.append(t, 2000, record.CreateTime, h.nowMs)
		}
		must(t, h.log.Roll())
	}
	h.append(t, 100, record.CreateTime, h.nowMs)
	h.reopen(t, true)
	if got, want := snapshotNames(t, h.mem), []string{"10", "20", "30", "31"}; !slices.Equal(got, want) {
		t.Errorf("snapshots at %v, want %v", got, want)
	}
	if n := h.log.BytesRead(); n > 6000 {
		t.Errorf("a clean start read %d bytes", n)
	}
	h.check(t)
	for _, name := range h.names(t, producersSuffix) {
		must(t, h.mem.Remove(h.path(name)))
	}
	h.reopen(t, false)
	h.check(t)
}

// Within a segment there is a snapshot every so many bytes, and the newest two
// of these are kept.
func TestProducers_snapshotsWithinASegment(t *testing.T) {
	cfg := testConfig()
	cfg.SegmentBytes = 1 << 20
	h := newHarness(cfg).withProducers()
	h.mustOpen(t, false)
	h.startEpoch(t)
	h.log.producers.every = 5000
	for range 20 {
		h.append(t, 1000, record.CreateTime, h.nowMs)
	}
	if got, want := snapshotNames(t, h.mem), []string{"15", "20"}; !slices.Equal(got, want) {
		t.Errorf("snapshots at %v, want %v", got, want)
	}
	h.append(t, 1000, record.CreateTime, h.nowMs)
	h.reopen(t, false)
	h.check(t)
}

// What is damaged is not believed: an older one and the batches say the same.
func TestProducers_damagedSnapshots(t *testing.T) {
	for _, name := range []string{"00000000000000000006.producers", "00000000000000000003.producers"} {
		b := func(h *harness) []byte { return h.readFile(t, name) }
		for what, change := range map[string]func([]byte) []byte{
			"empty":       func([]byte) []byte { return nil },
			"cut":         func(b []byte) []byte { return b[:len(b)-1] },
			"another bit": func(b []byte) []byte { b[len(b)/2] ^= 4; return b },
			"another's":   func([]byte) []byte { return encodeProducers(99, newChains().AppendState) },
			"a newer one": func(b []byte) []byte { b[4] = 2; return b },
			"not a state": func([]byte) []byte {
				return encodeProducers(6, func(dst []byte) []byte { return append(dst, 1, 2, 3) })
			},
			"wrong length": func(b []byte) []byte { return append(b, 0) },
		} {
			t.Run(what+" "+name, func(t *testing.T) {
				h := newHarness(testConfig()).withProducers()
				h.mustOpen(t, false)
				h.startEpoch(t)
				for range 3 {
					for range 3 {
						h.append(t, 30, record.CreateTime, h.nowMs)
					}
					must(t, h.log.Roll())
				}
				h.append(t, 30, record.CreateTime, h.nowMs)
				damaged := change(b(h))
				must(t, h.mem.Remove(h.path(name)))
				must(t, h.mem.Remove(h.path("00000000000000000009.producers")))
				must(t, vfs.WriteFileAtomic(h.mem, h.path(name), damaged))
				h.mem.Kill()
				rec := h.mustOpen(t, false)
				h.check(t)
				rebuilt := 0
				for _, e := range rec.Events {
					if e.Kind == EventProducersRebuilt {
						rebuilt++
					}
				}
				if want := map[bool]int{true: 1}[strings.Contains(name, "6")]; rebuilt != want {
					t.Errorf("%d events, want %d: %+v", rebuilt, want, rec.Events)
				}
			})
		}
	}
}

// What retention removes still counts, over a power cut that takes all that was
// not synced; so does it for who deletes records.
func TestProducers_outliveTheirBatches(t *testing.T) {
	h := newHarness(testConfig()).withProducers()
	h.mustOpen(t, false)
	h.startEpoch(t)
	for range 40 {
		h.append(t, 200, record.CreateTime, h.nowMs)
	}
	h.deleteBefore(t, 35)
	if n := len(h.m.batches); n > 5 {
		t.Fatalf("%d batches are left", n)
	}
	h.check(t)
	disk := h.mem.CrashClone(rand.New(rand.NewPCG(1, 1)), vfs.CrashOptions{})
	l, _, err := OpenLog(disk, testDir, h.config(), OpenOptions{Now: h.now})
	must(t, err)
	must(t, compare(l, &h.m))
	must(t, l.Close())
}

// Batches that cannot be read are left out, and those after them are not.
func TestProducers_aroundDamage(t *testing.T) {
	cfg := testConfig()
	cfg.SegmentBytes = 1 << 20
	h := newHarness(cfg).withProducers()
	h.mustOpen(t, false)
	h.startEpoch(t)
	for range 30 {
		h.append(t, 100, record.CreateTime, h.nowMs)
	}
	h.sync(t)
	must(t, h.log.Checkpoint())
	h.mem.Kill()
	b := h.m.batches[7]
	pos := int64(bytes.Index(h.readFile(t, segmentName(0, logSuffix)), b.frame))
	f, err := h.mem.Open(h.path(segmentName(0, logSuffix)))
	must(t, err)
	_, err = f.WriteAt([]byte{0xff, 0xff, 0xff}, pos+20)
	must(t, err)
	must(t, f.Close())
	h.mustOpen(t, false)
	_, _ = readAll(h.log, 0, h.log.End()) // which finds it
	heads := slices.DeleteFunc(slices.Clone(h.m.heads), func(o head) bool { return o.base >= b.base && o.last < 12 })
	got, _ := h.log.producers.owner.(*chains)
	if got.last < heads[len(heads)-1].last || got.backwards {
		t.Errorf("the last batch applied ends at %d, of %d", got.last, heads[len(heads)-1].last)
	}
	for _, id := range []record.ProducerID{1, 2, 3} {
		if !h.log.ProducerLive(id) {
			t.Errorf("producer %d is forgotten", id)
		}
	}
}

// A cut that fails before its first change leaves a state that is made anew
// before anything is appended, or an epoch begun.
func TestProducers_failedCut(t *testing.T) {
	for what, then := range map[string]func(*harness) error{
		"append": func(h *harness) error {
			b := h.batch(t, 30, h.nowMs)
			_, err := h.log.Append(&b, h.m.epoch, record.CreateTime)
			return err
		},
		"append frames": func(h *harness) error {
			_, err := h.log.AppendFrames(nil)
			return err
		},
		"epoch": func(h *harness) error { return h.log.StartEpoch(h.m.epoch + 1) },
	} {
		t.Run(what, func(t *testing.T) {
			h := newHarness(testConfig()).withProducers()
			h.mustOpen(t, false)
			h.startEpoch(t)
			h.append(t, 30, record.CreateTime, h.nowMs)
			must(t, h.log.Roll())
			for range 6 {
				h.append(t, 30, record.CreateTime, h.nowMs)
			}
			h.fault.Inject(vfs.Rule{Ops: vfs.OpOpen, Path: "*" + producersSuffix, Times: 2, Err: syscall.EMFILE})
			if err := h.log.TruncateTo(3); !errors.Is(err, ErrTooManyFiles) || h.log.End() != h.m.end {
				t.Fatalf("a truncation without descriptors: %v; the log ends at %d", err, h.log.End())
			}
			if err := then(h); !errors.Is(err, ErrTooManyFiles) || h.log.End() != h.m.end {
				t.Fatalf("%s without descriptors: %v; the log ends at %d", what, err, h.log.End())
			}
			h.startEpoch(t)
			h.check(t)
			h.append(t, 30, record.CreateTime, h.nowMs)
			h.check(t)
			h.truncate(t, 3)
			h.check(t)
		})
	}
}

func FuzzParseProducers(f *testing.F) {
	good := encodeProducers(7, func(dst []byte) []byte { return append(dst, "state"...) })
	f.Add(good, int64(7))
	f.Add(good[:len(good)-1], int64(7))
	f.Add([]byte("RNLP"), int64(0))
	f.Fuzz(func(t *testing.T, b []byte, at int64) {
		state, err := parseProducers(b, record.Offset(at))
		if err != nil {
			if !errors.Is(err, errBadSnapshot) {
				t.Fatal(err)
			}
			return
		}
		if again := encodeProducers(record.Offset(at), func(dst []byte) []byte { return append(dst, state...) }); !bytes.Equal(again, b) {
			t.Fatalf("%x was read as %x", b, again)
		}
	})
}

// A full disk costs snapshots, and nothing else: they are caches where batches
// say the same, and retention must go on to make room.
func TestProducers_fullDisk(t *testing.T) {
	h := newHarness(testConfig()).withProducers()
	h.mustOpen(t, false)
	h.startEpoch(t)
	h.fault.Inject(vfs.Rule{Ops: vfs.OpWrite, Path: "*" + producersSuffix + vfs.TempSuffix, Times: -1, Err: syscall.ENOSPC})
	for range 30 {
		h.append(t, 200, record.CreateTime, h.nowMs)
	}
	h.truncate(t, 28)
	h.check(t)
	h.deleteBefore(t, 20)
	h.check(t)
	must(t, h.log.Close())
	if got := append(snapshotNames(t, h.mem), h.names(t, vfs.TempSuffix)...); len(got) > 0 {
		t.Errorf("left behind: %v", got)
	}
}

// Any other failure of a snapshot's file is one of the disk.
func TestProducers_failingDisk(t *testing.T) {
	h := newHarness(testConfig()).withProducers()
	h.mustOpen(t, false)
	h.startEpoch(t)
	h.append(t, 200, record.CreateTime, h.nowMs)
	h.fault.Inject(vfs.Rule{Ops: vfs.OpWrite, Path: "*" + producersSuffix + vfs.TempSuffix, Err: syscall.EIO})
	if err := h.log.Roll(); !errors.Is(err, ErrFailed) {
		t.Errorf("a roll: %v", err)
	}
	if err := h.log.Sync(); !errors.Is(err, ErrFailed) {
		t.Errorf("after it: %v", err)
	}
}
