package group

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of what a member may say. They keep every stored record far below the
// size that a log takes.
const (
	maxIDLength      = 249
	maxPatternLength = 4096
	maxTopicsBytes   = 512 << 10
	internalPrefix   = "__"
)

// CheckID says why no group can have this id: ErrInvalidID.
func CheckID(id string) error {
	bad := func(why string) error {
		short := strings.ToValidUTF8(id[:min(len(id), maxIDLength)], "\uFFFD")
		return fail(ErrInvalidID, map[string]string{"group": short}, "group id %.260q %s: want 1 to %d bytes of UTF-8 without control characters", short, why, maxIDLength)
	}
	switch {
	case id == "":
		return bad("is empty")
	case len(id) > maxIDLength:
		return bad(fmt.Sprintf("has %d bytes", len(id)))
	case !utf8.ValidString(id):
		return bad("is not valid UTF-8")
	case strings.ContainsFunc(id, unicode.IsControl):
		return bad("has a control character")
	}
	return nil
}

// Check says why a member can't join on these terms: ErrInvalidSubscription.
// The names of topics are checked by the given function.
func (t *Terms) Check(name func(string) error) error {
	if len(t.Topics) == 0 && t.Pattern == "" {
		return fail(ErrInvalidSubscription, nil, "the subscription is empty: name a topic or give a topic_pattern")
	}
	size := 0
	for _, topic := range t.Topics {
		size += len(topic)
		if err := name(topic); err != nil {
			return fail(ErrInvalidSubscription, map[string]string{"topic": strings.ToValidUTF8(topic[:min(len(topic), maxIDLength)], "\uFFFD")}, "the subscription names a topic that can't exist: %s", err)
		}
		if strings.HasPrefix(topic, internalPrefix) {
			return fail(ErrInvalidSubscription, map[string]string{"topic": topic}, "topic %q is internal: groups can't read it", topic)
		}
	}
	if size > maxTopicsBytes {
		return fail(ErrInvalidSubscription, nil, "the names of the topics take %d bytes, at most %d are allowed: use a topic_pattern", size, maxTopicsBytes)
	}
	if t.Pattern == "" {
		return nil
	}
	if _, err := compile(t.Pattern); err != nil {
		return fail(ErrInvalidSubscription, map[string]string{"pattern": strings.ToValidUTF8(t.Pattern[:min(len(t.Pattern), maxIDLength)], "\uFFFD")},
			"topic_pattern is no RE2 expression: %s", err)
	}
	return nil
}

// compile makes an expression that matches whole names.
func compile(pattern string) (*regexp.Regexp, error) {
	if len(pattern) > maxPatternLength {
		return nil, fmt.Errorf("it has %d bytes, at most %d are allowed", len(pattern), maxPatternLength) //nolint:err113 // a text inside another error
	}
	if _, err := regexp.Compile(pattern); err != nil {
		return nil, err // first alone: "a)|(b" must not get sense from what is put around it
	}
	return regexp.Compile(`^(?:` + pattern + `)$`)
}

// A Resolver finds the topics of subscriptions, each subscription once, at one
// moment of the cluster's topics.
type Resolver struct {
	topics Topics
	done   map[string][]*Topic
}

// maxResolved is how many subscriptions a Resolver remembers.
const maxResolved = 10000

// NewResolver returns one for topics.
func NewResolver(topics Topics) *Resolver {
	return &Resolver{topics: topics, done: map[string][]*Topic{}}
}

// of returns the topics of a subscription that there are, by name.
func (r *Resolver) of(t *Terms) []*Topic {
	key := t.key()
	if got, ok := r.done[key]; ok {
		return got
	}
	var out []*Topic
	for _, name := range t.Topics {
		if topic, ok := r.topics.Named(name); ok {
			out = append(out, topic)
		}
	}
	if t.Pattern != "" {
		if re, err := compile(t.Pattern); err == nil {
			for _, topic := range r.topics.All() {
				if re.MatchString(topic.Name) {
					out = append(out, topic)
				}
			}
		}
	}
	slices.SortFunc(out, func(a, b *Topic) int { return cmp.Compare(a.Name, b.Name) })
	out = slices.CompactFunc(out, func(a, b *Topic) bool { return a.Name == b.Name })
	if len(r.done) >= maxResolved {
		clear(r.done)
	}
	r.done[key] = out
	return out
}

// key is equal for equal subscriptions.
func (t *Terms) key() string {
	names := slices.Sorted(slices.Values(t.Topics))
	return strings.Join(slices.Compact(names), "\x00") + "\x01" + t.Pattern
}

// sameShape says whether two lists hold the same topics with as many partitions.
func sameShape(a, b []*Topic) bool {
	return slices.EqualFunc(a, b, func(x, y *Topic) bool { return x.ID == y.ID && x.Partitions == y.Partitions })
}
