package partitioner_test

import (
	"testing"

	"github.com/runnelmq/runnel/internal/partitioner"
)

// The expected values are what Kafka's own clients compute.
func TestMurmur2_isKafkas(t *testing.T) {
	for key, want := range map[string]int32{
		"21":                         -973932308,
		"foobar":                     -790332482,
		"a-little-bit-long-string":   -985981536,
		"a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
	} {
		if got := int32(partitioner.Murmur2([]byte(key))); got != want {
			t.Errorf("Murmur2(%q) = %d, want %d", key, got, want)
		}
	}
}

func TestForKey_isInRangeAndHashesTheEmptyKey(t *testing.T) {
	for count := 1; count < 40; count++ {
		for _, key := range []string{"", "21", "foobar", "abc", "a-little-bit-long-string"} {
			if got := partitioner.ForKey([]byte(key), count); got < 0 || int(got) >= count {
				t.Errorf("ForKey(%q, %d) = %d", key, count, got)
			}
		}
	}
	if a, b := partitioner.ForKey(nil, 1<<20), partitioner.ForKey([]byte{}, 1<<20); a != b {
		t.Errorf("nil and empty keys differ: %d, %d", a, b)
	}
	const foobar = -790332482 // its hash; the sign bit is masked, not negated
	if got, want := partitioner.ForKey([]byte("foobar"), 7), int32((foobar+1<<31)%7); got != want {
		t.Errorf("ForKey(foobar, 7) = %d, want %d", got, want)
	}
}
