package store

import (
	"slices"
	"sync/atomic"

	"github.com/rs/zerolog"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// zapLogger returns the logger that etcd wants and that writes to ours. What etcd calls information is of no use to operators
// of this system and becomes debug; so does everything once closing is true, because etcd reports its own end as failures.
// closing may be nil.
func zapLogger(log zerolog.Logger, closing *atomic.Bool) *zap.Logger {
	return zap.New(&zapCore{log: log.With().Str("part", "etcd").Logger(), closing: closing})
}

// harmless are warnings about choices that are right here: one member's ports are on loopback, nobody logs in to it, and a new
// member has no history.
func harmless() []string {
	return []string{
		"Running http and grpc server on single port. This is not recommended for production.",
		"simple token is not cryptographically signed",
		"Failed to detect schema version",
		"failed to update storage version",
	}
}

// A zapCore passes zap's entries on.
type zapCore struct {
	log     zerolog.Logger
	closing *atomic.Bool
}

// Enabled implements zapcore.Core.
func (c *zapCore) Enabled(l zapcore.Level) bool {
	return c.log.GetLevel() <= c.level(l)
}

// level returns how severe an entry of a level is now.
func (c *zapCore) level(l zapcore.Level) zerolog.Level {
	if c.closing != nil && c.closing.Load() && l < zapcore.DPanicLevel {
		return zerolog.DebugLevel
	}
	return level(l)
}

// With implements zapcore.Core.
func (c *zapCore) With(fields []zapcore.Field) zapcore.Core {
	return &zapCore{log: c.log.With().Fields(facts(fields)).Logger(), closing: c.closing}
}

// Check implements zapcore.Core.
func (c *zapCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

// Write implements zapcore.Core.
func (c *zapCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	l := c.level(e.Level)
	if slices.Contains(harmless(), e.Message) {
		l = zerolog.DebugLevel
	}
	if l < c.log.GetLevel() {
		return nil // WithLevel would write it all the same
	}
	c.log.WithLevel(l).Fields(facts(fields)).Msg(e.Message)
	return nil
}

// Sync implements zapcore.Core.
func (*zapCore) Sync() error { return nil }

func facts(fields []zapcore.Field) map[string]any {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(enc)
	}
	return enc.Fields
}

func level(l zapcore.Level) zerolog.Level {
	switch {
	case l <= zapcore.InfoLevel:
		return zerolog.DebugLevel
	case l == zapcore.WarnLevel:
		return zerolog.WarnLevel
	case l == zapcore.ErrorLevel:
		return zerolog.ErrorLevel
	default: // etcd ends the process after it
		return zerolog.FatalLevel
	}
}
