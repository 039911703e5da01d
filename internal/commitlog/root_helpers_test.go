package commitlog_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/uuid"

	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

const rootDir = "/data"

// Topics of these tests.
var (
	topicA = uuid.MustParse("aaaaaaaa-0000-4000-8000-000000000001")
	topicB = uuid.MustParse("bbbbbbbb-0000-4000-8000-000000000002")
)

// rootOptions are those of broker 1 of cluster c1, in the machine's first
// boot, without marks for the disk.
func rootOptions(change ...func(*commitlog.RootOptions)) commitlog.RootOptions {
	opts := commitlog.RootOptions{
		ClusterID: "c1", BrokerID: 1, BootID: rootBoot("boot-1"), ReserveBytes: -1, BallastBytes: -1, Parallel: 4,
	}
	for _, c := range change {
		c(&opts)
	}
	return opts
}

func rootBoot(id string) func() (string, error) { return func() (string, error) { return id, nil } }

func inBoot(id string) func(*commitlog.RootOptions) {
	return func(o *commitlog.RootOptions) { o.BootID = rootBoot(id) }
}

func openRoot(t *testing.T, fsys vfs.FS, opts commitlog.RootOptions) *commitlog.Root {
	t.Helper()
	r, err := commitlog.OpenRoot(fsys, rootDir, opts)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func closeRoot(t *testing.T, r *commitlog.Root, epoch int64) {
	t.Helper()
	if err := r.Close(epoch); err != nil {
		t.Fatal(err)
	}
}

func openPartition(t *testing.T, r *commitlog.Root, topic uuid.UUID, n int32, create bool) (*commitlog.Log, commitlog.Recovery) {
	t.Helper()
	log, rec, err := r.OpenPartition(topic, "topic-"+topic.String()[:1], n, commitlog.Config{}, create)
	if err != nil {
		t.Fatal(err)
	}
	return log, rec
}

// rootBatch makes a batch of one record.
func rootBatch(value string) (*record.Batch, error) {
	b := record.NewBuilder(record.NewCodec(), record.Limits{})
	if err := b.Add(nil, []byte(value), nil, 1000); err != nil {
		return nil, err
	}
	batch, err := b.Finish(record.CompressionNone, 0)
	return &batch, err
}

func appendValue(log *commitlog.Log, value string) error {
	batch, err := rootBatch(value)
	if err != nil {
		return err
	}
	_, err = log.Append(batch, 1, record.CreateTime)
	return err
}

func mustAppend(t *testing.T, log *commitlog.Log, values ...string) {
	t.Helper()
	for _, v := range values {
		if err := appendValue(log, v); err != nil {
			t.Fatal(err)
		}
	}
}

// readValues returns the values of all records of a log.
func readValues(log *commitlog.Log) ([]string, error) {
	var values []string
	buf := make([]byte, 1<<20)
	it := record.NewIterator(record.NewCodec())
	for from := log.Start(); from < log.End(); {
		n, err := log.Read(buf, from, log.End())
		if err != nil {
			return values, err
		}
		for rest := buf[:n]; len(rest) > 0; {
			f, verdict := record.ParseFrame(rest, int64(len(rest)), record.MaxFrameSize)
			if verdict != record.OK {
				return values, fmt.Errorf("a frame that was read is %v", verdict)
			}
			payload := rest[f.PayloadStart:f.PayloadEnd]
			if err := record.VerifyPayload(f.Header, payload); err != nil {
				return values, err
			}
			it.Reset(f.Header, payload)
			for it.Next() {
				r := it.Record()
				values = append(values, string(r.Value))
			}
			if it.Err() != nil {
				return values, it.Err()
			}
			from = f.Header.NextOffset()
			rest = rest[f.Size:]
		}
		if n == 0 {
			return values, errors.New("nothing read below the end")
		}
	}
	return values, nil
}

func mustRead(t *testing.T, log *commitlog.Log) []string {
	t.Helper()
	values, err := readValues(log)
	if err != nil {
		t.Fatal(err)
	}
	return values
}

// powerCut is a disk after a power cut that kept keep percent of what was not
// synced.
func powerCut(m *vfs.Mem, seed uint64, keep int) *vfs.Mem {
	return m.CrashClone(rand.New(rand.NewPCG(seed, 1)), vfs.CrashOptions{KeepUnsyncedPercent: keep, TornSectors: true})
}

// rewrite changes the content of a file.
func rewrite(t *testing.T, fsys vfs.FS, name string, change func([]byte) []byte) {
	t.Helper()
	data, err := vfs.ReadFile(fsys, name)
	if err != nil {
		t.Fatal(err)
	}
	if err := vfs.WriteFileAtomic(fsys, name, change(data)); err != nil {
		t.Fatal(err)
	}
}

func rootMust(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func exists(t *testing.T, fsys vfs.FS, name string) bool {
	t.Helper()
	_, err := fsys.Stat(name)
	return err == nil
}
