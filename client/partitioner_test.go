package client

import (
	"strings"
	"testing"
)

// The published values of Kafka's clients, and of the published algorithm for
// bytes that are negative in Java.
func TestMurmur2(t *testing.T) {
	for key, want := range map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536,
		"a-little-bit-longer-string": -1486304829, "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971, "abc": 479470107,
		"": 275646681, "kafka": -798503068, "giberish123456789": -1890243828, "1234": -1614185708, "234": -406844982, "34": -2026295078, "4": 1514888353,
		"\xa4": 367232046, "\x00\xff\x80\x7f\xfe": 1617215701, strings.Repeat("\x81", 1000): -525506620,
	} {
		if got := int32(murmur2([]byte(key))); got != want {
			t.Errorf("murmur2(%q) = %d, want %d", key, got, want)
		}
		if p := keyPartition([]byte(key), 7); p != (want&0x7fffffff)%7 {
			t.Errorf("key %q goes to %d", key, p)
		}
	}
	if p := keyPartition([]byte{}, 7); p < 0 || p >= 7 {
		t.Errorf("the empty key goes to %d", p)
	}
}

// Lists of addresses, as users write them (OP-09).
func TestParseBrokers(t *testing.T) {
	for in, want := range map[string]int{
		"[::1]:9092": 1, "[fe80::1%eth0]:9092": 1, "localhost:7420": 1, "a:1,b:2": 2, "10.0.0.1:65535": 1,
		"::1": 0, "localhost": 0, "host:0": 0, "host:70000": 0, ":9092": 0, "a,b": 0, "": 0, "http://a:80": 0, "a:b": 0, "a:-1": 0, "a:1,b": 0,
	} {
		in = strings.ReplaceAll(in, ",", " , ") + " "
		got, err := parseBrokers([]string{in})
		if (err == nil) != (want > 0) || err == nil && len(got) != want {
			t.Errorf("%q: %q, %v; want %d addresses", in, got, err, want)
		}
	}
}
