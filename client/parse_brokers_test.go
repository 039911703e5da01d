package client

import (
	"strings"
	"testing"
)

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
