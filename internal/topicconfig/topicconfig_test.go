package topicconfig

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestDefault_is_what_the_documents_promise(t *testing.T) {
	want := Config{
		RetentionTime: 7 * 24 * time.Hour, RetentionBytes: -1,
		SegmentBytes: 1 << 30, SegmentAge: 7 * 24 * time.Hour, IndexIntervalBytes: 4096,
		MaxMessageBytes: 1 << 20,
		Flush:           FlushAuto, FlushInterval: time.Second,
		TimestampType: CreateTime, TimestampBefore: -time.Millisecond, TimestampAfter: time.Hour,
		Delete: true, DeleteRetention: 24 * time.Hour, MinCleanableRatio: 0.5, MaxCompactionLag: never,
	}
	if diff := cmp.Diff(want, Default()); diff != "" {
		t.Errorf("Default() (-want +got):\n%s", diff)
	}
}

func TestKeys_are_sorted_described_and_parse_to_their_defaults(t *testing.T) {
	defs := table()
	for i, k := range Keys() {
		if i > 0 && Keys()[i-1].Name >= k.Name {
			t.Errorf("key %s is not after %s", k.Name, Keys()[i-1].Name)
		}
		if k.Want == "" || k.Description == "" {
			t.Errorf("key %s is not described", k.Name)
		}
		var c Config
		if err := set(&c, defs, k.Name, k.Default); err != nil {
			t.Errorf("default of %s: %v", k.Name, err)
		}
		if got, err := Parse(map[string]string{k.Name: k.Default}); err != nil || got != Default() {
			t.Errorf("Parse of the default of %s = %+v, %v", k.Name, got, err)
		}
	}
}

func TestParse_refuses(t *testing.T) {
	bad := map[string][]string{
		RetentionTimeKey:   {"", "-2", "7d", "1.5", "1e3", "0x10", "+5", " 5", "5 ", "007", "1_000", "9223372036854775808", "never"},
		RetentionBytesKey:  {"-2", "1GiB", ""},
		SegmentBytesKey:    {"-1", "0", "65535", "1073741825", "1 GiB"},
		SegmentAgeKey:      {"0", "-1", "10s"},
		IndexIntervalKey:   {"0", "-1", "1073741825"},
		MaxMessageBytesKey: {"0", "-1", "3670017"},
		FlushKey:           {"", "SYNC", "fsync", "true"},
		FlushIntervalKey:   {"0", "3600001", "1s"},
		CleanupPolicyKey:   {"", "Delete", "compact,", "compact, delete", "compact,compact", "none"},
		MinCleanableKey:    {"", "-0.1", "1.1", "2", ".5", "1.", "00.5", "5e-1", "NaN", "+0.5", "0x1p-1", "0,5", "1.0000000001", "0.1234567891"},
		MinCompactionKey:   {"", "-1", "1h"},
		MaxCompactionKey:   {"", "0", "-1"},
		CompressionTypeKey: {"", "zstd", "none"},
		MinInsyncKey:       {"", "0", "-1", "32768", "two"},
		TimestampTypeKey:   {"", "createtime", "0"},
		TimestampBeforeKey: {"-2", ""},
		TimestampAfterKey:  {"-1", ""},
		DeleteRetentionKey: {"-1", ""},
		UncleanElectionKey: {"", "yes", "1", "TRUE"},
		"no.such.key":      {"1"},
		"":                 {"1"},
	}
	for _, k := range Keys() {
		if len(bad[k.Name]) == 0 {
			t.Errorf("no bad values for %s in this test", k.Name)
		}
	}
	for key, values := range bad {
		for _, v := range values {
			_, err := Parse(map[string]string{key: v})
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("Parse(%s=%q) = %v, want ErrInvalid", key, v, err)
				continue
			}
			all, _ := errors.AsType[Errors](err)
			if m := all.Metadata(); m["key"] != key || m["value"] != v || m["want"] == "" {
				t.Errorf("Parse(%s=%q): metadata %v", key, v, m)
			}
		}
	}
}

// never is the longest time that a whole number of milliseconds can be.
const never = time.Duration(math.MaxInt64 / int64(time.Millisecond) * int64(time.Millisecond))

func TestParse_takes(t *testing.T) {
	tests := []struct {
		name   string
		values map[string]string
		change func(*Config)
	}{
		{"nothing", nil, func(*Config) {}},
		{"for ever", map[string]string{RetentionTimeKey: "-1"}, func(c *Config) { c.RetentionTime = -time.Millisecond }},
		{"the largest number", map[string]string{RetentionTimeKey: "9223372036854775807"}, func(c *Config) { c.RetentionTime = never }},
		{"zero", map[string]string{RetentionTimeKey: "0", RetentionBytesKey: "0"}, func(c *Config) { c.RetentionTime, c.RetentionBytes = 0, 0 }},
		{"small segments with small records", map[string]string{SegmentBytesKey: "65536", MaxMessageBytesKey: "65536"}, func(c *Config) {
			c.SegmentBytes, c.MaxMessageBytes = 65536, 65536
		}},
		{"every enum", map[string]string{FlushKey: "sync", TimestampTypeKey: "LogAppendTime", UncleanElectionKey: "true"}, func(c *Config) {
			c.Flush, c.TimestampType, c.UncleanElection = FlushSync, LogAppendTime, true
		}},
		{"async", map[string]string{FlushKey: "async", FlushIntervalKey: "1"}, func(c *Config) {
			c.Flush, c.FlushInterval = FlushAsync, time.Millisecond
		}},
		{"compaction", map[string]string{CleanupPolicyKey: "compact", MinCleanableKey: "0", MinCompactionKey: "1000", MaxCompactionKey: "1000"}, func(c *Config) {
			c.Compact, c.Delete, c.MinCleanableRatio, c.MinCompactionLag, c.MaxCompactionLag = true, false, 0, time.Second, time.Second
		}},
		{"both", map[string]string{CleanupPolicyKey: "compact,delete", MinCleanableKey: "0.123456789"}, func(c *Config) { c.Compact, c.MinCleanableRatio = true, 0.123456789 }},
		{"both, the other way", map[string]string{CleanupPolicyKey: "delete,compact", MinCleanableKey: "1.0"}, func(c *Config) { c.Compact, c.MinCleanableRatio = true, 1 }},
		{"a minimum", map[string]string{MinInsyncKey: "3"}, func(c *Config) { c.MinInsyncReplicas = 3 }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want := Default()
			tt.change(&want)
			got, err := Parse(tt.values)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("Parse(%v) (-want +got):\n%s", tt.values, diff)
			}
		})
	}
}

func TestParse_names_all_that_is_wrong(t *testing.T) {
	_, err := Parse(map[string]string{"retention.msec": "5", SegmentBytesKey: "1", "zz": strings.Repeat("x", 1<<20)})
	for _, part := range []string{`unknown configuration key "retention.msec": want "retention.ms"?`, `segment.bytes="1"`, `"zz"`} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v does not say %s", err, part)
		}
	}
	if err != nil && len(err.Error()) > 2000 {
		t.Errorf("the error repeats %d bytes of input", len(err.Error()))
	}
}

func TestParse_finds_contradictions(t *testing.T) {
	segment, message := map[string]string{SegmentBytesKey: "65536"}, map[string]string{MaxMessageBytesKey: "65537"}
	both := map[string]string{SegmentBytesKey: "65536", MaxMessageBytesKey: "65537"}
	for name, c := range map[string]struct {
		cluster, topic map[string]string
		want           string
	}{
		"a small segment":                          {nil, segment, `segment.bytes="65536": want at least max.message.bytes, 1048576, or a smaller max.message.bytes with it`},
		"a small segment of the cluster":           {segment, nil, `segment.bytes="65536": want at least`},
		"a segment too small for the cluster":      {message, segment, `segment.bytes="65536": want at least max.message.bytes, 65537`},
		"a record too large for the cluster":       {segment, message, `max.message.bytes="65537": want at most segment.bytes, 65536, or a larger segment.bytes with it`},
		"both on the topic":                        {nil, both, `max.message.bytes="65537": want at most`},
		"another small segment than the cluster's": {both, segment, `segment.bytes="65536": want at least`},
	} {
		if _, err := Resolve(c.cluster, c.topic); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := Parse(map[string]string{MinCompactionKey: "2000", MaxCompactionKey: "1999"})
	if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "at least min.compaction.lag.ms, 2000") {
		t.Errorf("a largest lag below the smallest: %v", err)
	}
}

func TestResolve_prefers_the_topic(t *testing.T) {
	c, err := Resolve(map[string]string{RetentionTimeKey: "1000", FlushKey: "sync"}, map[string]string{RetentionTimeKey: "2000"})
	if err != nil || c.RetentionTime != 2*time.Second || c.Flush != FlushSync {
		t.Errorf("Resolve = %+v, %v", c, err)
	}
}

func TestConfig_follows_the_replication_factor(t *testing.T) {
	auto, two := Default(), Default()
	two.MinInsyncReplicas = 2
	for _, tt := range []struct {
		c      Config
		rf     int
		minISR int
		sync   bool
		fits   bool
	}{
		{auto, 1, 1, true, true},
		{auto, 2, 1, true, true},
		{auto, 3, 2, false, true},
		{auto, 5, 2, false, true},
		{two, 1, 2, false, false},
		{two, 2, 2, false, true},
	} {
		minISR := tt.c.MinISR(tt.rf)
		err := tt.c.CheckReplication(tt.rf)
		if minISR != tt.minISR || tt.c.Sync(minISR) != tt.sync || (err == nil) != tt.fits || (err != nil && !errors.Is(err, ErrInvalid)) {
			t.Errorf("min.insync.replicas=%d with factor %d: min ISR %d, sync %v, %v", tt.c.MinInsyncReplicas, tt.rf, minISR, tt.c.Sync(minISR), err)
		}
	}
	if c := (Config{Flush: FlushSync}); !c.Sync(2) {
		t.Error("flush=sync does not mean sync")
	}
	if c := (Config{Flush: FlushAsync}); c.Sync(1) {
		t.Error("flush=async does not mean async")
	}
}

func TestEntries_say_where_values_come_from(t *testing.T) {
	got := map[string]Entry{}
	for _, e := range Entries(map[string]string{FlushKey: "async", RetentionTimeKey: "5"}, map[string]string{RetentionTimeKey: "6"}, 3) {
		got[e.Key] = e
	}
	if len(got) != len(Keys()) {
		t.Errorf("%d entries for %d keys", len(got), len(Keys()))
	}
	for _, want := range []Entry{
		{FlushKey, "async", SourceCluster},
		{RetentionTimeKey, "6", SourceTopic},
		{MinInsyncKey, "2", SourceDefault},
		{SegmentBytesKey, "1073741824", SourceDefault},
	} {
		if got[want.Key] != want {
			t.Errorf("entry %+v, want %+v", got[want.Key], want)
		}
	}
}

func TestIsUnlimited(t *testing.T) {
	for _, tt := range []struct {
		key, value string
		want       bool
	}{
		{RetentionTimeKey, "-1", true},
		{RetentionBytesKey, "-1", true},
		{TimestampBeforeKey, "-1", true},
		{MaxCompactionKey, "9223372036854775807", true},
		{SegmentAgeKey, "9223372036854", true}, // as long as is told apart
		{RetentionBytesKey, "9223372036854775807", true},
		{SegmentAgeKey, "9223372036853", false},
		{RetentionBytesKey, "9223372036854", false}, // 8 TiB
		{RetentionBytesKey, "0", false},
		{MinCleanableKey, "0.5", false},
		{MinInsyncKey, "auto", false},
		{SegmentBytesKey, "-1", false}, // not taken
		{"none.such.ms", "-1", false},
	} {
		if got := IsUnlimited(tt.key, tt.value); got != tt.want {
			t.Errorf("%s=%s: %v, want %v", tt.key, tt.value, got, tt.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(RetentionTimeKey, "-1")
	f.Add("retention.mss", "\xff\x00")
	f.Fuzz(func(t *testing.T, key, value string) {
		_, err := Parse(map[string]string{key: value})
		if err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("Parse(%q=%q): %v", key, value, err)
		}
	})
}
