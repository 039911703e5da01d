// Package telemetry shows a process to its operator: its log, its metrics and
// its admin HTTP port.
package telemetry

import (
	"fmt"
	"io"
	"time"

	"github.com/rs/zerolog"
)

// NewLogger returns a logger that writes lines of at least the given level
// (debug, info, warn or error) to w, as JSON or, with format "text", for
// people to read.
func NewLogger(w io.Writer, level, format string) (zerolog.Logger, error) {
	lvl, err := zerolog.ParseLevel(level)
	if err != nil || lvl < zerolog.DebugLevel || lvl > zerolog.ErrorLevel {
		return zerolog.Nop(), fmt.Errorf("log level %q: want debug, info, warn or error", level)
	}
	switch format {
	case "json":
	case "text":
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: time.RFC3339, NoColor: true}
	default:
		return zerolog.Nop(), fmt.Errorf("log format %q: want json or text", format)
	}
	return zerolog.New(w).Level(lvl).With().Timestamp().Logger(), nil
}
