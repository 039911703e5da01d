package commitlog

// A turn is a lock that may be held across file operations: a goroutine that
// waits for it is durably blocked in the eyes of testing/synctest, which one
// that waits for a sync.Mutex is not.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

func (t turn) take() { t <- struct{}{} }

func (t turn) give() { <-t }
