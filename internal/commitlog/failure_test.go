package commitlog_test

import (
	"errors"
	"fmt"
	"hash/crc32"
	"syscall"
	"testing"

	"github.com/runnelmq/runnel/internal/commitlog"
)

var errDisk = errors.New("the disk is on fire")

// crc32c is the checksum of the root's small files, computed by other means.
func crc32c(data string) string {
	return fmt.Sprintf("%08x", crc32.Checksum([]byte(data), crc32.MakeTable(crc32.Castagnoli)))
}

func TestFailure_staysWithTheFirstError(t *testing.T) {
	f := commitlog.NewFailure()
	if f.Set(nil) != nil || f.Check(nil) != nil || f.Err() != nil {
		t.Error("no error fails the root")
	}
	for _, err := range []error{syscall.ENOSPC, syscall.EMFILE, fmt.Errorf("write: %w", syscall.ENOSPC)} {
		if got := f.Check(err); !errors.Is(got, err) || errors.Is(got, commitlog.ErrFailed) || f.Err() != nil {
			t.Errorf("Check(%v) = %v, failed of %v", err, got, f.Err())
		}
	}
	select {
	case <-f.Done():
		t.Fatal("done without a failure")
	default:
	}
	if got := f.Check(errDisk); !errors.Is(got, errDisk) || !errors.Is(got, commitlog.ErrFailed) {
		t.Errorf("Check = %v, want the error, marked", got)
	}
	if got := f.Set(syscall.EIO); !errors.Is(got, syscall.EIO) || !errors.Is(got, commitlog.ErrFailed) {
		t.Errorf("Set after a failure = %v, want its own error, marked", got)
	}
	<-f.Done()
	if !errors.Is(f.Err(), errDisk) || errors.Is(f.Err(), syscall.EIO) {
		t.Errorf("failed of %v, want the first error", f.Err())
	}
}

func TestFailure_aFailedSyncIsAFailureWhateverItSays(t *testing.T) {
	f := commitlog.NewFailure()
	if err := f.Set(syscall.ENOSPC); !errors.Is(err, commitlog.ErrFailed) || f.Err() == nil {
		t.Errorf("Set(ENOSPC) = %v, failed of %v", err, f.Err())
	}
}
