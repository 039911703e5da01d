package metadata

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/runnelmq/runnel/internal/refusal"
)

// catchUpWait is how long a request waits for the controller's newest metadata
// when it names a topic this broker does not know.
const catchUpWait = 500 * time.Millisecond

// ErrInvalidName is returned for what can't be the name of a topic.
var ErrInvalidName = errors.New("invalid topic name")

// A Finder finds topics for requests, and asks the controller before it says
// that there is none.
type Finder struct {
	Store *Store
	// CatchUp is Session.CatchUp.
	CatchUp func(ctx context.Context) error
	// Refusal is Session.Refusal; nil: nobody refuses.
	Refusal func() string
}

// because is what is to be added to an error of a broker that has no controller.
func (f Finder) because() string {
	if f.Refusal == nil {
		return ""
	}
	return Refused(f.Refusal())
}

// Find returns the active topic of that name, with that id unless it is empty.
// Its errors: ErrInvalidName, ErrInvalidID, ErrTopicNotFound, ErrTopicIDMismatch, and
// ErrStale while no controller can tell whether the topic exists.
func (f Finder) Find(ctx context.Context, name, id string) (*Topic, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	t, err := f.Store.Load().Resolve(name, id)
	if err == nil || errors.Is(err, ErrInvalidID) {
		return t, err
	}
	wait, cancel := context.WithTimeout(ctx, catchUpWait)
	defer cancel()
	if cerr := f.CatchUp(wait); cerr != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, refusal.New(ErrStale, map[string]string{"topic": name},
			"this broker knows no such topic %q and can't ask a controller at present: try again%s", name, f.because())
	}
	return f.Store.Load().Resolve(name, id)
}

// Image returns the picture of the cluster as it is known. While this broker has had
// none since it was started, it waits a moment for it, and then returns ErrStale: the
// empty picture would say that there is nothing.
func (f Finder) Image(ctx context.Context) (*Image, error) {
	wait, cancel := context.WithTimeout(ctx, catchUpWait)
	defer cancel()
	for {
		changed := f.Store.Changed()
		if img := f.Store.Load(); img.ClusterID != "" {
			return img, nil
		}
		select {
		case <-changed:
		case <-wait.Done():
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return nil, refusal.New(ErrStale, nil,
				"this broker knows nothing of the cluster yet, for no controller has let it in since it was started: ask another broker, or try again%s", f.because())
		}
	}
}

// maxNameLength bounds a topic's name.
const maxNameLength = 249

// CheckName says why no topic can have this name.
func CheckName(name string) error {
	bad := func(why string) error {
		return refusal.New(ErrInvalidName, map[string]string{"topic": name[:min(len(name), maxNameLength)]},
			"topic name %.260q %s: want 1 to %d of a-z A-Z 0-9 . _ -, and neither . nor ..", name, why, maxNameLength)
	}
	switch {
	case name == "":
		return bad("is empty")
	case len(name) > maxNameLength:
		return bad(fmt.Sprintf("has %d bytes", len(name)))
	case name == "." || name == "..":
		return bad("is not allowed")
	}
	for _, c := range []byte(name) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return bad("has a character that is not allowed")
		}
	}
	return nil
}
