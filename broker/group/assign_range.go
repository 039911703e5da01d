package group

// assignRange gives each reader a run of each topic: the first ones get one more
// where it does not come out even. Equal numbers of topics with equal counts and
// readers meet.
func assignRange(readers []Reader) [][]Part {
	out := make([][]Part, len(readers))
	for _, d := range demands(readers) {
		count, n := int(d.topic.Partitions), len(d.readers)
		next := 0
		for at, i := range d.readers {
			run := count / n
			if at < count%n {
				run++
			}
			for range run {
				out[i] = append(out[i], Part{d.topic.ID, int32(next)}) //nolint:gosec // below the topic's count
				next++
			}
		}
	}
	return out
}
