package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// A ByteSize is a number of bytes that is written with its unit: 1MiB, 512KiB,
// 10GB, 0B. A bare number is refused, because nobody can tell what it meant.
type ByteSize int64

// The binary units.
const (
	KiB ByteSize = 1 << 10
	MiB ByteSize = 1 << 20
	GiB ByteSize = 1 << 30
	TiB ByteSize = 1 << 40
)

var errByteSize = errors.New(`want a number with a unit (B, KiB, MiB, GiB, TiB, KB, MB, GB or TB), such as "64MiB"`)

// byteUnit returns how many bytes a unit has, 0 for an unknown one.
func byteUnit(name string) int64 {
	switch strings.ToLower(name) {
	case "b":
		return 1
	case "kib":
		return int64(KiB)
	case "mib":
		return int64(MiB)
	case "gib":
		return int64(GiB)
	case "tib":
		return int64(TiB)
	case "kb":
		return 1e3
	case "mb":
		return 1e6
	case "gb":
		return 1e9
	case "tb":
		return 1e12
	}
	return 0
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (b *ByteSize) UnmarshalText(text []byte) error {
	s := strings.TrimSpace(string(text))
	cut := strings.IndexFunc(s, func(r rune) bool { return (r < '0' || r > '9') && r != '-' })
	if cut <= 0 {
		return fmt.Errorf("%q: %w", s, errByteSize)
	}
	n, err := strconv.ParseInt(s[:cut], 10, 64)
	unit := byteUnit(strings.TrimSpace(s[cut:]))
	if err != nil || unit == 0 {
		return fmt.Errorf("%q: %w", s, errByteSize)
	}
	if n < 0 || n > math.MaxInt64/unit {
		return fmt.Errorf("%q: out of range: %w", s, errByteSize)
	}
	*b = ByteSize(n * unit)
	return nil
}

// MarshalText implements encoding.TextMarshaler.
func (b ByteSize) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// String writes b in the largest unit that divides it.
func (b ByteSize) String() string {
	for _, u := range []struct {
		size ByteSize
		name string
	}{{TiB, "TiB"}, {GiB, "GiB"}, {MiB, "MiB"}, {KiB, "KiB"}} {
		if b != 0 && b%u.size == 0 {
			return strconv.FormatInt(int64(b/u.size), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10) + "B"
}

// A Duration is a time.Duration that is written with its unit: 500ms, 30s,
// 7d, 0s. A bare number is refused: 20 would be nanoseconds to some, seconds
// or milliseconds to others.
type Duration time.Duration

var errDuration = errors.New(`want a duration with a unit (ms, s, m, h or d), such as "500ms" or "30s"`)

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	s := strings.TrimSpace(string(text))
	if s == "" || strings.Trim(s, "+-0123456789.") == "" {
		return fmt.Errorf("%q: %w", s, errDuration)
	}
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.ParseInt(days, 10, 32)
		if err != nil || n > math.MaxInt64/int64(24*time.Hour) {
			return fmt.Errorf("%q: %w", s, errDuration)
		}
		*d = Duration(time.Duration(n) * 24 * time.Hour)
		return nil
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("%q: %w", s, errDuration)
	}
	*d = Duration(v)
	return nil
}

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// String writes d as UnmarshalText reads it.
func (d Duration) String() string { return time.Duration(d).String() }

// Std returns d as the standard library's type.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// A Secret is a string that never shows in a log or in a printed
// configuration.
type Secret string

// MarshalText implements encoding.TextMarshaler.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// String says only whether s is set.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "(set, not shown)"
}
