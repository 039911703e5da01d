package store

import (
	"github.com/rs/zerolog"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// zapLogger returns the logger that etcd wants and that writes to ours. What etcd calls information is of no use to operators
// of this system and becomes debug.
func zapLogger(log zerolog.Logger) *zap.Logger {
	return zap.New(&zapCore{log: log.With().Str("component", "etcd").Logger()})
}

// A zapCore passes zap's entries on.
type zapCore struct {
	log zerolog.Logger
}

// Enabled implements zapcore.Core.
func (c *zapCore) Enabled(l zapcore.Level) bool {
	return c.log.GetLevel() <= level(l)
}

// With implements zapcore.Core.
func (c *zapCore) With(fields []zapcore.Field) zapcore.Core {
	return &zapCore{log: c.log.With().Fields(facts(fields)).Logger()}
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
	c.log.WithLevel(level(e.Level)).Fields(facts(fields)).Msg(e.Message)
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
