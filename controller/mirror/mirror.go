// Package mirror holds a controller's picture of the cluster, warm on standbys as on the active one, and tells sessions what
// changes in it, in the order of revisions.
package mirror

import (
	"context"
	"errors"
	"sync"

	"github.com/runnelmq/runnel/controller/state"
)

// ErrLagging is returned by a feed whose reader fell so far behind that a new snapshot is cheaper.
var ErrLagging = errors.New("too far behind the metadata: register again for a new snapshot")

// Limits of what a feed holds back for its reader, and of one delta.
const (
	maxBacklog = 10_000
	maxDelta   = 20_000
)

// A Mirror is the picture. It is safe for concurrent use.
type Mirror struct {
	// mu guards the fields below
	mu sync.Mutex

	image   *state.Image
	changed chan struct{} // closed and replaced with every revision
	feeds   map[*Feed]struct{}
}

// New returns the empty picture.
func New() *Mirror {
	return &Mirror{image: state.NewImage(), changed: make(chan struct{}), feeds: map[*Feed]struct{}{}}
}

// Apply takes over what one revision committed.
func (m *Mirror) Apply(rev state.Revision, updates []state.Update) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delta := m.image.Apply(rev, updates)
	if len(delta.Objects)+len(delta.Deleted) > 0 {
		for f := range m.feeds {
			f.addLocked(delta)
		}
	}
	close(m.changed)
	m.changed = make(chan struct{})
}

// View calls fn with the picture. fn must neither block nor keep the image; it may keep the objects.
func (m *Mirror) View(fn func(*state.Image)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fn(m.image)
}

// Changed returns a channel that is closed at the next revision.
func (m *Mirror) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

// Until waits until the picture fulfils a condition, which must neither block nor keep the image.
func (m *Mirror) Until(ctx context.Context, cond func(*state.Image) bool) error {
	for {
		changed := m.Changed() // before the condition, so that no revision passes unseen
		met := false
		m.View(func(i *state.Image) { met = cond(i) })
		if met {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// Reach waits until the picture shows a revision.
func (m *Mirror) Reach(ctx context.Context, rev state.Revision) error {
	return m.Until(ctx, func(i *state.Image) bool { return i.Revision() >= rev })
}

// Subscribe returns what brokers may know, and the feed of all that follows it. The caller closes the feed.
func (m *Mirror) Subscribe() (state.Delta, *Feed) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := &Feed{mirror: m, ready: make(chan struct{}, 1)}
	m.feeds[f] = struct{}{}
	return m.image.Visible(), f
}

// A Feed is the sequence of deltas after a snapshot. It has one reader.
type Feed struct {
	mirror *Mirror
	ready  chan struct{} // holds a token when there may be something to take

	// The fields below are guarded by mirror.mu.

	backlog []state.Delta
	broken  bool
}

func (f *Feed) addLocked(d state.Delta) {
	if len(f.backlog) >= maxBacklog || len(d.Objects) > maxDelta {
		f.broken, f.backlog = true, nil
	}
	if !f.broken {
		f.backlog = append(f.backlog, d)
	}
	select {
	case f.ready <- struct{}{}:
	default:
	}
}

// Ready receives when Take may have something.
func (f *Feed) Ready() <-chan struct{} { return f.ready }

// Take returns all deltas that have come, in order.
func (f *Feed) Take() ([]state.Delta, error) {
	f.mirror.mu.Lock()
	defer f.mirror.mu.Unlock()
	if f.broken {
		return nil, ErrLagging
	}
	deltas := f.backlog
	f.backlog = nil
	return deltas, nil
}

// Close ends the feed.
func (f *Feed) Close() {
	f.mirror.mu.Lock()
	defer f.mirror.mu.Unlock()
	delete(f.mirror.feeds, f)
}
