package record

import "fmt"

// Compression says how a payload is compressed. The numbers are those of runnel.v1.Compression.
type Compression uint8

// The compressions. 0 is not a stored value.
const (
	CompressionNone   Compression = 1
	CompressionGzip   Compression = 2
	CompressionSnappy Compression = 3
	CompressionLZ4    Compression = 4
	CompressionZstd   Compression = 5
)

// compressions is the number of values, 0 included.
const compressions = 6

// String returns none, gzip, snappy, lz4 or zstd.
func (c Compression) String() string {
	switch c {
	case CompressionNone:
		return "none"
	case CompressionGzip:
		return "gzip"
	case CompressionSnappy:
		return "snappy"
	case CompressionLZ4:
		return "lz4"
	case CompressionZstd:
		return "zstd"
	default:
		return fmt.Sprintf("compression %d", uint8(c))
	}
}

// Valid reports whether c is a value that may be stored.
func (c Compression) Valid() bool { return c >= CompressionNone && c < compressions }

// TimestampType says whose clock the record times are from. The numbers are those of runnel.v1.TimestampType.
type TimestampType uint8

// The timestamp types. 0 is not a stored value.
const (
	// CreateTime is the producer's clock.
	CreateTime TimestampType = 1
	// LogAppendTime is the leader's clock at append.
	LogAppendTime TimestampType = 2
)

// String returns "create" or "append".
func (t TimestampType) String() string {
	switch t {
	case CreateTime:
		return "create"
	case LogAppendTime:
		return "append"
	default:
		return fmt.Sprintf("timestamp type %d", uint8(t))
	}
}

// Valid reports whether t is a value that may be stored.
func (t TimestampType) Valid() bool { return t == CreateTime || t == LogAppendTime }
