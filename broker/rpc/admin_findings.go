package rpc

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// findings gathers what is wrong. Of each kind only the first few are told one
// by one, so that the answer stays small however bad things are. What is about
// users' topics comes first; of what is the same with many partitions of an
// internal topic, which is often so and says little more, one line is told.
type findings struct {
	list  []*runnelv1.HealthFinding
	count map[findingKind]int
	worst map[findingKind]runnelv1.HealthSeverity
	// alike has the findings about partitions of internal topics that are made
	// here; each of them is one line in the answer.
	alike map[alikeKey]*alike
}

// A findingKind is what is counted together: of users' topics and all else, or
// of internal topics.
type findingKind struct {
	kind     string
	internal bool
}

// An alikeKey is what is told in one line.
type alikeKey struct{ kind, topic string }

// alike is one finding with all the partitions it is made for.
type alike struct {
	first      *runnelv1.HealthFinding
	partitions []int32
}

const findingsPerKind = 50

func newFindings() *findings {
	return &findings{count: map[findingKind]int{}, worst: map[findingKind]runnelv1.HealthSeverity{}, alike: map[alikeKey]*alike{}}
}

const (
	info     = runnelv1.HealthSeverity_HEALTH_SEVERITY_INFO
	warning  = runnelv1.HealthSeverity_HEALTH_SEVERITY_WARNING
	critical = runnelv1.HealthSeverity_HEALTH_SEVERITY_CRITICAL
)

// add adds a finding. The subject names a partition as topic/number.
func (f *findings) add(severity runnelv1.HealthSeverity, kind, subject, format string, args ...any) {
	h := &runnelv1.HealthFinding{Severity: severity, Kind: kind, Subject: subject, Message: fmt.Sprintf(format, args...)}
	topic, number, ok := internalPartition(subject)
	if !ok {
		f.put(h)
		return
	}
	key := alikeKey{kind, topic}
	if f.alike[key] == nil {
		f.alike[key] = &alike{first: h}
	}
	f.alike[key].partitions = append(f.alike[key].partitions, number)
}

// put adds a finding as it is.
func (f *findings) put(h *runnelv1.HealthFinding) {
	kind := findingKind{h.GetKind(), internal(h.GetSubject())}
	f.count[kind]++
	f.worst[kind] = max(f.worst[kind], h.GetSeverity())
	if f.count[kind] <= findingsPerKind {
		f.list = append(f.list, h)
	}
}

// internal tells subjects that are, or belong to, an internal topic.
func internal(subject string) bool { return strings.HasPrefix(subject, "__") }

// internalPartition reads a subject that is a partition of an internal topic.
func internalPartition(subject string) (topic string, number int32, ok bool) {
	topic, text, _ := strings.Cut(subject, "/")
	n, err := strconv.ParseInt(text, 10, 32)
	return topic, int32(n), internal(subject) && err == nil
}

// answer sorts the worst first.
func (f *findings) answer() *runnelv1.CheckHealthResponse {
	byTopic := func(a, b alikeKey) int { return cmp.Or(cmp.Compare(a.topic, b.topic), cmp.Compare(a.kind, b.kind)) }
	for _, key := range slices.SortedFunc(maps.Keys(f.alike), byTopic) {
		f.put(f.alike[key].finding(key))
	}
	clear(f.alike)
	byKind := func(a, b findingKind) int { return cmp.Compare(a.kind, b.kind) }
	for _, kind := range slices.SortedFunc(maps.Keys(f.count), byKind) {
		if more := f.count[kind] - findingsPerKind; more > 0 {
			what := ""
			if kind.internal {
				what = " of internal topics"
			}
			f.list = append(f.list, &runnelv1.HealthFinding{
				Severity: f.worst[kind], Kind: kind.kind, Subject: "", Message: fmt.Sprintf("and %d more of this kind%s", more, what),
			})
		}
	}
	slices.SortStableFunc(f.list, func(a, b *runnelv1.HealthFinding) int {
		return cmp.Or(cmp.Compare(b.GetSeverity(), a.GetSeverity()), insideLast(internal(a.GetSubject()), internal(b.GetSubject())))
	})
	bad := slices.ContainsFunc(f.list, func(h *runnelv1.HealthFinding) bool { return h.GetSeverity() > info })
	return &runnelv1.CheckHealthResponse{Healthy: new(!bad), Findings: f.list}
}

// insideLast puts what is about internal topics after all else.
func insideLast(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	default:
		return -1
	}
}

// finding is one line for all the partitions.
func (a *alike) finding(key alikeKey) *runnelv1.HealthFinding {
	if len(a.partitions) == 1 {
		return a.first
	}
	see := ""
	if flag := listedBy(key.kind); flag != "" {
		see = fmt.Sprintf("; see them with: runnel partition list --topic %s %s", key.topic, flag)
	}
	first := a.partitions[0]
	slices.Sort(a.partitions)
	return &runnelv1.HealthFinding{
		Severity: a.first.GetSeverity(), Kind: key.kind, Subject: key.topic,
		Message: fmt.Sprintf("%d partitions (%s), such as %d: %s%s", len(a.partitions), spans(a.partitions), first, a.first.GetMessage(), see),
	}
}

// listedBy is the flag of runnel partition list that lists those of a kind.
func listedBy(kind string) string {
	switch kind {
	case "offline_partition", "recovery_pending":
		return "--offline"
	case "under_min_isr":
		return "--under-min-isr"
	case "under_replicated":
		return "--under-replicated"
	}
	return ""
}

// maxSpans bounds a list of partitions for people.
const maxSpans = 20

// spans writes sorted numbers in short, such as 0-4,7.
func spans(numbers []int32) string {
	var texts []string
	for at := 0; at < len(numbers); {
		if len(texts) == maxSpans {
			return strings.Join(texts, ",") + ",…"
		}
		end := at + 1
		for end < len(numbers) && numbers[end] == numbers[end-1]+1 {
			end++
		}
		text := fmt.Sprint(numbers[at])
		if end > at+1 {
			text += fmt.Sprintf("-%d", numbers[end-1])
		}
		texts = append(texts, text)
		at = end
	}
	return strings.Join(texts, ",")
}
