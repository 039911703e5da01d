package record

import (
	"bytes"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// Frozen bytes: what is written today must be read for ever, and uncompressed frames must come out the same to the bit.
// Compressed bytes may change with the libraries; what the frozen ones mean may not.
func TestGolden_framesStayAsTheyAre(t *testing.T) {
	for _, s := range samples(t) {
		t.Run(s.name, func(t *testing.T) {
			frame := s.seal()
			if s.batch.Compression == CompressionNone || *update {
				golden(t, "frames/"+s.name+".bin", frame)
				golden(t, "frames/"+s.name+".hex", []byte(hex.Dump(frame)))
			}
			frozen, err := os.ReadFile(filepath.Join("testdata", "frames", s.name+".bin"))
			if err != nil {
				t.Fatal(err)
			}
			golden(t, "frames/"+s.name+".txt", []byte(describe(t, frozen)))
		})
	}
}

func TestGolden_messagesStayAsTheyAre(t *testing.T) {
	for _, s := range samples(t) {
		if s.batch.Compression == CompressionNone && !s.batch.Control && s.batch.RecordCount > 0 {
			golden(t, "messages/"+s.name+".bin", s.batch.AppendMessage(nil))
		}
	}
}

// goldenSegment is the frozen frames one after the other: a segment file.
func goldenSegment(tb testing.TB) []byte {
	tb.Helper()
	var segment []byte
	for _, s := range samples(tb) {
		b, err := os.ReadFile(filepath.Join("testdata", "frames", s.name+".bin"))
		if err != nil {
			tb.Fatal(err)
		}
		segment = append(segment, b...)
	}
	return segment
}

// walk judges a segment frame by frame and describes it.
func walk(tb testing.TB, segment []byte) string {
	tb.Helper()
	var out strings.Builder
	for pos := 0; ; {
		f, v := ParseFrame(segment[pos:min(len(segment), pos+PrefixMax)], int64(len(segment)-pos), MaxFrameSize)
		if v == End {
			return out.String()
		}
		if v != OK {
			tb.Fatalf("at %d: %v", pos, v)
		}
		out.WriteString(describe(tb, segment[pos:pos+f.Size]))
		pos += f.Size
	}
}

func TestSegment_generatedCodeReadsTheSameRecordsAndWritesTheSameBytes(t *testing.T) {
	segment := goldenSegment(t)
	var m runnelv1.Segment
	if err := proto.Unmarshal(segment, &m); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(walk(t, segment), describeSegment(t, &m)); diff != "" {
		t.Errorf("own reading (-) and generated code's (+) differ:\n%s", diff)
	}
	again := marshal(t, &m)
	if !bytes.Equal(again, segment) {
		t.Errorf("serialized again:\n got %x\nwant %x", again, segment)
	}
}

// describeSegment is walk for a decoded segment, through generated code alone.
func describeSegment(tb testing.TB, m *runnelv1.Segment) string {
	tb.Helper()
	var out strings.Builder
	for _, b := range m.GetBatches() {
		out.WriteString(describeBatch(tb, b))
	}
	return out.String()
}
