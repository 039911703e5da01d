package store

import (
	"context"
	"fmt"
	"strings"
)

// maxNames bounds how many clusters an error names.
const maxNames = 10

// name is what the store's cluster is called.
func (s *Store) name() string { return strings.TrimSuffix(strings.TrimPrefix(s.prefix, root), "/") }

// others returns the names of clusters of which the store holds metadata, at most maxNames. It reads one key of each.
func (s *Store) others(ctx context.Context) ([]string, error) {
	const end = "/runnel0" // the first key after all that begin with root
	var names []string
	for from := root; len(names) < maxNames; {
		page, err := s.kv.Range(ctx, from, end, 1, 0)
		if err != nil {
			return nil, err
		}
		if len(page.Pairs) == 0 {
			break
		}
		key := page.Pairs[0].Key
		name, _, isObject := strings.Cut(strings.TrimPrefix(key, root), "/")
		if !isObject { // what is beside a cluster's objects
			from = key + "\x00"
			continue
		}
		if name != s.name() {
			names = append(names, fmt.Sprintf("%q", name))
		}
		from = root + name + "0" // the first key after all of that cluster's
	}
	return names, nil
}

// noCluster says that there is no cluster of the store's name, and what to do. Most often the name is wrong where the store holds
// others; one that is sole holds no second one.
func (s *Store) noCluster(others []string, sole bool) error {
	const begin = "start the first controller of a new cluster once with --bootstrap"
	switch {
	case len(others) == 0:
		return fmt.Errorf("%w: %s", ErrNoCluster, begin)
	case sole:
		return fmt.Errorf("%w named %q, but %s: set cluster.name to that, or use another data_dir for a new cluster", ErrNoCluster, s.name(), strings.Join(others, ", "))
	default:
		return fmt.Errorf("%w named %q, but %s: set cluster.name to the right one, or %s", ErrNoCluster, s.name(), strings.Join(others, ", "), begin)
	}
}
