package partitioner

import (
	"strings"
	"testing"
)

// The published values of Kafka's clients, and of the published algorithm for
// bytes that are negative in Java.
func TestMurmur2_isKafkas(t *testing.T) {
	for key, want := range map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536,
		"a-little-bit-longer-string": -1486304829, "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971, "abc": 479470107,
		"": 275646681, "kafka": -798503068, "giberish123456789": -1890243828, "1234": -1614185708, "234": -406844982, "34": -2026295078, "4": 1514888353,
		"\xa4": 367232046, "\x00\xff\x80\x7f\xfe": 1617215701, strings.Repeat("\x81", 1000): -525506620,
	} {
		if got := int32(murmur2([]byte(key))); got != want {
			t.Errorf("murmur2(%q) = %d, want %d", key, got, want)
		}
		if p := ForKey([]byte(key), 7); p != (want&0x7fffffff)%7 {
			t.Errorf("key %q goes to %d", key, p)
		}
	}
}

func TestForKey_isInRangeAndHashesTheEmptyKey(t *testing.T) {
	for count := 1; count < 40; count++ {
		for _, key := range []string{"", "21", "foobar", "abc", "a-little-bit-long-string"} {
			if got := ForKey([]byte(key), count); got < 0 || int(got) >= count {
				t.Errorf("ForKey(%q, %d) = %d", key, count, got)
			}
		}
	}
	if a, b := ForKey(nil, 1<<20), ForKey([]byte{}, 1<<20); a != b {
		t.Errorf("nil and empty keys differ: %d, %d", a, b)
	}
	const foobar = -790332482 // its hash; the sign bit is masked, not negated
	if got, want := ForKey([]byte("foobar"), 7), int32((foobar+1<<31)%7); got != want {
		t.Errorf("ForKey(foobar, 7) = %d, want %d", got, want)
	}
}
